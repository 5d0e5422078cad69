//! What was saved: `checkpoint` of the summary.

use serde::{Deserialize, Serialize};

/// Checkpoints written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointFigures {
    /// How many.
    pub count: u64,
    /// Bytes of all of them, over all ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Time workers stood still for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_exposed: Option<f64>,
    /// Time images on the nodes took, on the first rank: training waited for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_local: Option<f64>,
    /// Time it ran beside the workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_background: Option<f64>,
    /// Time between two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_s: Option<f64>,
    /// Saves of the rows that come first, between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_saves: Option<RowSaveFigures>,
}

/// Saves of the rows that come first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowSaveFigures {
    /// How many.
    pub count: u64,
    /// Bytes of all of them, over all ranks.
    pub bytes: u64,
    /// Time they were chosen, copied and written, beside the workers.
    pub seconds_background: f64,
    /// Memory for the choice, over all ranks.
    pub usage_bytes: u64,
}
