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
    /// The same as a simulated run has found it: its time over that without failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead_simulated: Option<f64>,
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
    /// Ranks that were lost, in their order, of a job that went on without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<RankLoss>,
}

/// Ranks that were lost at a time, and how the job went on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankLoss {
    /// As they were numbered then.
    pub ranks: Vec<usize>,
    /// The step at which it went on.
    pub step: u64,
    /// The step of the checkpoint with their rows; absent where there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_step: Option<u64>,
    /// Row saves since that were read over it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub row_saves: usize,
    /// Their partitions.
    pub partitions: Vec<u32>,
    /// Portion of lost samples.
    pub pls: f64,
    /// Bytes of rows that were read again, over all ranks.
    pub bytes_read: u64,
    /// From the moment that a rank heard of it, until all could train on.
    pub seconds: f64,
    /// When the first rank's trainer had made its next step, seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_step_unix: Option<f64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_none(count: &usize) -> bool {
    *count == 0
}

impl RankLoss {
    /// In a sentence; `left` ranks are left.
    #[must_use]
    pub fn says(&self, left: usize) -> String {
        let ranks: Vec<String> = self.ranks.iter().map(ToString::to_string).collect();
        let which = if ranks.len() == 1 { "rank" } else { "ranks" };
        let came = match (self.partitions.len(), self.from_step) {
            (0, _) => "no rows went with it".to_owned(),
            (count, Some(step)) if self.row_saves == 0 => {
                format!("its {count} partitions are those of step {step}")
            }
            (count, Some(step)) => format!(
                "its {count} partitions are those of step {step}, with {} row saves since",
                self.row_saves
            ),
            (count, None) => format!("its {count} partitions are as they began"),
        };
        format!(
            "{which} {} lost: {left} ranks go on at step {} after {:.3} s; {came}",
            ranks.join(", "),
            self.step,
            self.seconds
        )
    }
}
