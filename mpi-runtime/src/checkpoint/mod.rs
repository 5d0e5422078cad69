//! Checkpoints: the state of a run on disk, independent of how many ranks wrote it.
//!
//! - `contents.rs`: the state as named tensors
//! - `file.rs`: a file of tensors · `part.rs`: reading one · `manifest.rs`: what is inside ·
//!   `error.rs`: what can be wrong
//! - `folders.rs`: the folders of a run's checkpoints
//! - `export/`: the model alone, for other programs
//! - `write.rs`: collective writing; a checkpoint appears whole or not at all
//! - `image.rs`: a copy of the state · `background.rs`: writing it while training goes on
//! - `rows.rs`: rows, of which some may stand in another checkpoint
//! - `read.rs`: opening · `restore.rs`: the model, by any number of ranks · `resume.rs`: the rest
//!
//! A checkpoint is a folder: `manifest.json` and a safetensors file per rank that wrote it. One
//! that has only the rows that changed names the one with the others: its base.

mod background;
mod contents;
mod error;
mod export;
mod file;
mod folders;
mod image;
mod manifest;
mod part;
mod read;
mod restore;
mod resume;
mod rows;
mod write;

pub use background::{Rotation, Saved, Saver};
pub use contents::Contents;
pub use error::CheckpointError;
pub use export::ExportFormat;
pub use file::{FileEntry, TensorEntry};
pub use folders::{Folders, Link};
pub use image::{Extent, Image};
pub use manifest::{Base, Manifest};
pub use part::Part;
pub use read::{Checkpoint, say_passed_over};
pub use restore::{Dense, Target};
pub use write::{After, say_unwritten, write};
