//! The mathematics and the protocols of umbra.
//!
//! No I/O, no clock, no threads, no allocator: time, randomness and memory come in as arguments, so
//! the same code trains under MPI, on one core, in a simulator and on a machine without an
//! operating system. Every buffer is lent by the caller and never grown.
//!
//! Map, arrows pointing left: `units, rng, float, batch ← kernel ← dense, sparse ← model`,
//! `model ← flat`, `float ← optim, metrics`, `rng, kernel ← recovery ← sparse`,
//! `kernel ← compress ← model`, `units ← sync ← rows`. `sync` never imports `dense`: it sees
//! `&mut [f32]`. With feature `sim`: `dense, sync ← sim`.
#![no_std]
#![deny(unsafe_code)]

#[cfg(feature = "sim")]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod batch;
pub mod compress;
pub mod dense;
pub mod flat;
pub mod float;
pub mod kernel;
pub mod metrics;
pub mod model;
pub mod optim;
pub mod recovery;
pub mod rng;
pub mod rows;
#[cfg(feature = "sim")]
pub mod sim;
pub mod sparse;
pub mod sync;
pub mod units;
