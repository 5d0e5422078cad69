//! Helpers of the tests that cross crates. Test code: what goes wrong here panics with its cause.
//!
//! - `launch.rs`: programs as a user starts them, alone and under mpirun, each with a time limit
//! - `folder.rs`: a scratch folder with datasets, jobs and runs
//! - `saved.rs`: a saved model, read without the runtime's help
//! - `arrays.rs`: a folder of arrays for PyTorch
//! - `draws.rs`: random numbers of a text that a test writes
//! - `oracle.rs`: metrics and tree sums in the most naive way
//! - `fuzz/`: bytes that are almost right, and what reads them
//! - `sources.rs`: the sources of a package, and which of its modules uses which
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

mod arrays;
mod draws;
mod folder;
pub mod fuzz;
mod launch;
mod oracle;
mod saved;
pub mod sources;

pub use arrays::Arrays;
pub use draws::draws;
pub use folder::{Folder, Job, TIME_FOR_ROUNDS};
pub use launch::{
    Ended, LIMIT, Running, as_a_user, below, is_mpich, mpirun, process_of, program, signal, start,
};
pub use oracle::{Example, OracleFigures, figures, tree_sum};
pub use saved::{SavedModel, manifest, numbers, tensors};
