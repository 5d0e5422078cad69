//! Checkpoints: the state of a run on disk, independent of how many ranks wrote it.
//!
//! - `contents.rs`: the state as named tensors
//! - `file.rs`: a file of tensors · `manifest.rs`: what is inside · `error.rs`: what can be wrong
//! - `folders.rs`: the folders of a run's checkpoints
//! - `export/`: the model alone, for other programs
//! - `write.rs`: collective writing; a checkpoint appears whole or not at all
//! - `image.rs`: a copy of the state · `background.rs`: writing it while training goes on
//! - `read.rs`: opening · `restore.rs`: the model, by any number of ranks · `resume.rs`: the rest
//!
//! A checkpoint is a folder: `manifest.json` and a safetensors file per rank that wrote it.

mod background;
mod contents;
mod error;
mod export;
mod file;
mod folders;
mod image;
mod manifest;
mod read;
mod restore;
mod resume;
mod write;

pub use background::{Saved, Saver};
pub use contents::Contents;
pub use error::CheckpointError;
pub use export::ExportFormat;
pub use file::{FileEntry, Part, TensorEntry};
pub use folders::{Folders, Link};
pub use image::Image;
pub use manifest::Manifest;
pub use read::Checkpoint;
pub use restore::{Dense, Target};
pub use write::{After, say_unwritten, write};
