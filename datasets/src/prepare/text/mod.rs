//! The text of all input files, in blocks of whole lines.
//!
//! - `source`: the files and pipes that the arguments stand for.
//! - `input`: plain, gzip (`gzip`) and zstd text behind one reader.
//! - `blocks`: cuts the text at line ends, so that blocks can be parsed in parallel.

pub(super) mod blocks;
mod gzip;
pub(super) mod input;
pub(super) mod source;
