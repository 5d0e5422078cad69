//! The text of all input files, in blocks of whole lines.
//!
//! - `input`: plain, gzip and zstd files behind one reader.
//! - `blocks`: cuts the text at line ends, so that blocks can be parsed in parallel.

pub(super) mod blocks;
pub(super) mod input;
