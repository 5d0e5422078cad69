//! What a job does about lost shards of rows: arXiv 2011.02999 (`umbra_core::recovery`).
//!
//! Map: `planner.rs` how saves should be spaced, and its reason · `timeline.rs` which steps of a
//! run have saves and failures · `image.rs` a partition's rows as they were last saved ·
//! `played.rs` failures that a run plays · `spacing.rs` how far apart checkpoints of a real run
//! are · `local.rs` images of ranks on their own nodes.

mod image;
pub mod local;
pub mod planner;
pub mod played;
pub mod spacing;
mod timeline;
