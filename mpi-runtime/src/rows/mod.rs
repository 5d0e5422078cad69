//! Embedding rows: who holds them, and how workers reach them.
//!
//! - [`tables`]: layout and records of the tables
//! - [`wire`]: what trainers and embedding PSs say to each other
//! - [`partition`]: the thread that owns a partition of rows
//! - [`link`]: the thread that carries messages between ranks
//! - [`servers`]: starts and ends both
//! - [`client`]: a worker's side

pub mod client;
pub mod link;
pub mod partition;
pub mod servers;
pub mod tables;
pub mod wire;
