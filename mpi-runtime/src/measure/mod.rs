//! What threads count and draw while a run trains.
//!
//! - [`counters`]: the figures of the summary are sums of these
//! - [`points`]: what is kept of them at steps of the run, for its curves
//! - [`trace`]: what every thread did when

pub mod counters;
pub mod points;
pub mod trace;
