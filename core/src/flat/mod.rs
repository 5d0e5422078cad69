//! A trained model as one file of bytes that is scored where it stands.
//!
//! - `header.rs`: the words before the numbers: written, and what follows from them
//! - `parse.rs`: from bytes to a model, its replica and its rows, and what may be wrong with them
//! - `score.rs`: logits of a batch, in memory that is lent
//!
//! Format: docs/formats.md, "Flat". Invariants: bytes are read as bytes, so that they may stand
//! anywhere, and nothing of them is believed before it has been compared: whatever they hold,
//! parsing ends with a model or with an error.

mod header;
mod parse;
mod score;

pub use header::Header;
pub use parse::{Flat, FlatError};
pub use score::{Memory, ScoreError, Scorer};
