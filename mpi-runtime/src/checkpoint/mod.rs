//! Checkpoints: a model on disk, independent of how many ranks wrote it.
//!
//! - `manifest.rs`: what is inside, and what must be true of it
//! - `dense.rs`: matrices from the kernels' order to row-major and back
//! - `write.rs`: collective writing; the folder appears whole or not at all
//! - `read.rs`: opening, and reading of files · `restore.rs`: reading by any number of ranks
//!
//! A checkpoint is a folder: `manifest.json`, `dense.f32` (the replica, then its optimizer state)
//! and one `rows-P.f32` per partition of the run that wrote it, holding records `[values |
//! optimizer state]` of the rows P, P + partitions, P + 2 · partitions, … All numbers are
//! little-endian f32.

mod dense;
mod manifest;
mod read;
mod restore;
mod write;

pub use dense::Dense;
pub use manifest::{CheckpointError, Manifest};
pub use read::Checkpoint;
pub use restore::Target;
pub(crate) use write::beside;
pub use write::{Contents, write};
