//! What keeps embedding rows in step: how a partition takes pushes, how far a worker runs ahead.
//!
//! Both are values without threads or messages: a driver moves the messages and asks them what to
//! do with each. Memory is lent, or the value is generic over it.
//!
//! - [`intake`]: a push is applied at once, or kept until the pushes of all are here
//! - [`tokens`]: the pushes of a global batch are applied together (GBA)
//! - [`row_sums`]: sums per row, for both
//! - [`permits`]: flow control between the lookup of a step and the acknowledgement of its push

pub mod intake;
pub mod permits;
pub mod row_sums;
pub mod tokens;
