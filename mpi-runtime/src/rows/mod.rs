//! Embedding rows: who holds them, and how workers reach them.
//!
//! - [`tables`]: layout and records of the tables · [`strips`]: a batch's bags where tables are cut
//! - [`wire`]: what trainers and embedding PSs say to each other
//! - [`partition`]: the thread that owns a partition of rows
//! - [`router`]: the way of a message on this rank and out of it · [`link`]: the threads that carry
//!   messages between ranks
//! - [`servers`]: starts and ends these threads
//! - [`usage`]: which rows are saved first
//! - [`client`]: a worker's side · [`routes`]: its messages · [`lookup`]: a batch on its way ·
//!   [`outbox`]: what the workers of a rank send together · [`near`]: rows of ranks on this node,
//!   used where they are
//! - [`pooling`]: bags that are pooled where their rows are · [`bags`]: a worker's side of that ·
//!   [`bag_wire`]: what the two say to each other · [`direct`]: bags that a worker pools from a
//!   table it shares
//! - [`traffic`]: how much of all this a rank sends, receives and holds, predicted ·
//!   [`pooled_traffic`]: the same where bags are pooled where their rows are

pub mod bag_wire;
pub mod bags;
pub mod client;
pub mod direct;
pub mod link;
pub mod lookup;
pub mod near;
pub mod outbox;
pub mod partition;
pub mod pooled_traffic;
pub mod pooling;
pub mod router;
pub mod routes;
pub mod servers;
pub mod strips;
pub mod tables;
pub mod traffic;
pub mod usage;
pub mod wire;
