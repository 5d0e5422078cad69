//! A cluster in virtual time: the protocols of `sync` on any number of trainers, without a cluster.
//!
//! A discrete-event simulation. Workers and synchronizing threads are processes, links and row
//! stores are queues, and every [`Protocol`](crate::sync::Protocol) runs as it is: what a driver of
//! threads and messages does with it, this one does with events. One process, one thread, no clock;
//! the same cluster gives the same bytes.
//!
//! - `cluster.rs`: what is simulated, as plain data
//! - `method.rs`: a synchronization method on a cluster; the way in
//! - `served.rs`: a parameter server on a cluster
//! - `instance.rs`: a protocol and where it runs, for conversations that no method has
//! - `run.rs`: the events and their loop
//! - `workers.rs`: steps, rows and the gate
//! - `driver.rs`: what protocols ask for
//! - `reductions.rs`: who has come to a reduction, and what they get
//! - `network.rs`, `collective.rs`: links, and what reductions take on them
//! - `outcome.rs`, `trace.rs`: what a run came to, and what happened in it
//!
//! What is modelled, and how:
//!
//! | thing | model |
//! | --- | --- |
//! | link | full duplex; each direction carries one message at a time, first come first served. A message occupies the sender's link for overhead + bytes / bandwidth and, a latency later, the receiver's for as long (cut-through) |
//! | reduction | starts when the last rank has come; two halves of a [`Collective`]; `Direct`: a reduce-scatter and an all-gather, as the MPI driver does |
//! | center | one thread per slice; an answer with values takes service time per byte |
//! | rows | see [`Embedding`] |
//! | cores | work that begins while more threads of its node are busy than there are cores takes longer by that ratio; a ratio that changes meanwhile does not count, so the mean is right and a single piece of work is not |
//! | pause | work of the trainer's threads stands still; messages on their way arrive |
//!
//! An action takes effect when it ends: a replica is loaded, stored and trained at one moment of
//! virtual time, in the order in which these moments come. Equal moments go in the order in which
//! they were foreseen.
//!
//! With replicas of no elements (staging of a tail alone) bytes are declared and only time is
//! simulated.

mod cluster;
mod collective;
mod driver;
mod instance;
mod method;
mod network;
mod outcome;
mod reductions;
mod run;
mod served;
mod trace;
mod workers;

pub use cluster::{Cluster, Coded, Collective, Embedding, Jitter, Leaves, Link, Pause, Trainer};
pub use instance::{Instance, Rows, Seat, Step, Training};
pub use method::{Job, Simulated, simulate};
pub use outcome::{Outcome, SimError, TrainerFigures};
pub use run::run;
pub use trace::{Deed, Span, Who, lines};
