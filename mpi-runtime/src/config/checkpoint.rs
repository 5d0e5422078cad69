//! `[checkpoint]`: what is kept of a run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::every::Every;

/// `[checkpoint]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Folder; always present once read (default: `run.dir`/checkpoints).
    #[serde(skip_serializing_if = "is_empty")]
    pub dir: PathBuf,
    /// Which model a run that has ended keeps.
    pub save: Save,
    /// What lies between two checkpoints of a run under way; without it, it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Every>,
    /// A folder of the node, in memory or on its own disk: every rank writes an image of what it
    /// has there, for a job that is started again on the same nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_dir: Option<PathBuf>,
    /// What lies between two images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_every: Option<Every>,
    /// Newest checkpoints that are kept, beside the best.
    pub keep: usize,
    /// They are copied and written while training goes on.
    pub background: bool,
    /// Of so many that are written in the background, one has all rows; the others have those that
    /// have changed since. 1: all have all.
    pub full_every: u64,
    /// What rows are written as.
    pub row_precision: RowPrecision,
    /// What a run goes on from: "auto", the newest in `dir`; "none"; or a checkpoint's path.
    pub resume: String,
    /// A saved model that a new run begins with, when it does not go on from a checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_start: Option<PathBuf>,
    /// With its optimizer state.
    pub warm_state: bool,
}

fn is_empty(path: &std::path::Path) -> bool {
    path.as_os_str().is_empty()
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        let resume = "auto".to_owned();
        Self {
            dir: PathBuf::new(),
            save: Save::Last,
            every: None,
            local_dir: None,
            local_every: None,
            keep: 2,
            background: true,
            full_every: 1,
            row_precision: RowPrecision::F32,
            resume,
            warm_start: None,
            warm_state: true,
        }
    }
}

/// What rows, their optimizer state too, are written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowPrecision {
    /// As they are.
    #[default]
    F32,
    /// The upper half of an f32, rounded: half the bytes, and other bits.
    Bf16,
}

/// Which model is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Save {
    /// The one training ends with.
    #[default]
    Last,
    /// The one of the best validation.
    Best,
    /// None.
    None,
}
