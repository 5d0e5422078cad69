//! What failures came to: `recovery` of the summary.

use serde::{Deserialize, Serialize};

/// Failures and what they cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecoveryFigures {
    /// Ranks lost.
    pub failures: u64,
    /// `recovery.mode`.
    pub mode: String,
    /// Portion of lost samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pls: Option<f64>,
    /// What was to be expected of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pls_expected: Option<f64>,
    /// Work done again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_lost: Option<f64>,
    /// Saving, loading and lost work over training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead_fraction: Option<f64>,
    /// Seconds from save to save of all rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_s: Option<f64>,
    /// Saves, of all rows or a part of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saves: Option<u64>,
    /// How many saves of all rows they were together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_saves: Option<f64>,
    /// What choosing and copying rows took, on the slowest rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_saving: Option<f64>,
    /// Memory for the choice of rows that are saved first, over all ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
}
