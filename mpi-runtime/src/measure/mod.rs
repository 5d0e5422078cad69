//! What threads count and draw while a run trains.
//!
//! - [`counters`]: the figures of the summary are sums of these
//! - [`trace`]: what every thread did when

pub mod counters;
pub mod trace;
