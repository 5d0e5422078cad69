//! Optimizers: what turns a gradient into an update.
//!
//! One rule serves dense parameters and embedding rows alike: an element has its parameter, its
//! gradient and up to two state values ([`Optimizer::state_planes`]); rows may carry one word more
//! (row-wise Adagrad's accumulator, Adam's own step count). A rule works on registers
//! (`kernel/update.rs`); [`crate::dense::replica`] applies it to the shared replica,
//! [`crate::sparse::Table`] to rows.
//!
//! - `rule.rs`: the element rules and their settings
//! - `row.rs`: [`SparseOptimizer`], of embedding rows, and loops that update many by one of a kind
//! - `schedule.rs`: learning rate over steps

mod row;
mod rule;
mod schedule;

pub use row::SparseOptimizer;
pub(crate) use row::{RowLoop, RowRule};
pub(crate) use rule::StepRule;
pub use rule::{Adam, Optimizer, OptimizerKind, StepSize};
pub use schedule::{Rate, Schedule};
