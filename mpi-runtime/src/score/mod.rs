//! Metrics that ranks do not change.
//!
//! - [`pass`]: a trainer scores its share of a dataset
//! - [`figures`]: the figures over all ranks
//! - [`exact`]: sums whose order does not matter

pub mod exact;
pub mod figures;
pub mod pass;
