//! How the job was started, and what this process is in it.
//!
//! - [`environment`]: was the job started the way its user meant?
//! - [`shared_segments`]: has the node room for what ranks talk through?
//! - [`world`]: MPI's start, its communicators in their fixed order, agreement, the end
//! - [`roles`]: which rank does what
//! - [`memory_limits`]: memory that a process may still have
//! - [`processor`]: cores, and the time a thread had one
//! - [`signals`]: requests to stop
//! - [`data_guard`]: files that HDF5 does not survive

pub mod data_guard;
pub mod environment;
pub mod memory_limits;
pub mod processor;
pub mod roles;
pub mod shared_segments;
pub mod signals;
pub mod world;
