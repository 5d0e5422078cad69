//! Metrics that ranks do not change.
//!
//! - [`figures`]: the figures over all ranks
//! - [`progressive`]: figures of examples before they are learnt from
//! - [`exact`]: sums whose order does not matter · `deal.rs`: examples to the ranks that count them
//! - [`memory`]: what an evaluation holds

mod deal;
pub mod exact;
pub mod figures;
pub mod memory;
pub mod progressive;
