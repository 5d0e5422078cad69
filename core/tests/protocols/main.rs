//! Protocols under a driver that can take any turn: its caller says whose action is done next, so a
//! test can be one schedule (properties) or all of them (search).
//!
//! - `world.rs`: ranks, their replicas, messages and reductions
//! - `properties.rs`, `divide_shuffle.rs`: the invariants of the protocols' files, on random
//!   numbers
//! - `search.rs`: every order of events of a few ranks
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::std_instead_of_core,
    clippy::alloc_instead_of_core
)]

mod divide_shuffle;
mod properties;
mod search;
mod world;
