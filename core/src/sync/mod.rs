//! Synchronization methods as state machines.
//!
//! A protocol knows nothing of threads, clocks or MPI: it says what to do next and is told how it
//! went. Drivers run it: the MPI driver on a communicator thread, a simulator in virtual time.
//!
//! - `protocol.rs`: the seam, [`Protocol`]
//! - `local_sgd.rs`: average the replicas every k steps

mod local_sgd;
mod protocol;

pub use local_sgd::LocalSgd;
pub use protocol::{Action, Completion, Group, OutOfTurn, Protocol};
