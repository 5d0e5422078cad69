//! Embedding rows: who holds them, and how workers reach them.
//!
//! - [`tables`]: layout and records of the tables
//! - [`wire`]: what trainers and embedding PSs say to each other
//! - [`partition`]: the thread that owns a partition of rows
//! - [`router`]: the way of a message on this rank and out of it · [`link`]: the threads that carry
//!   messages between ranks
//! - [`servers`]: starts and ends these threads
//! - [`usage`]: which rows are saved first
//! - [`client`]: a worker's side · [`outbox`]: what the workers of a rank send together
//! - [`traffic`]: how much of all this a rank sends, receives and holds, predicted

pub mod client;
pub mod link;
pub mod outbox;
pub mod partition;
pub mod router;
pub mod servers;
pub mod tables;
pub mod traffic;
pub mod usage;
pub mod wire;
