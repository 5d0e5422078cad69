//! `[recovery]`: what a job does about lost ranks, and the faults that it causes itself for tests.

use serde::{Deserialize, Serialize};

/// `[recovery]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecoveryConfig {
    /// Who goes back to the last save after a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<RecoveryMode>,
    /// Which rows are saved first.
    pub priority: Priority,
    /// Share of the rows of a large table that are saved at a time, and of the interval that lies
    /// between.
    pub priority_share: f64,
    /// How many of the tables are large: the largest ones.
    pub priority_tables: usize,
    /// Portion of lost samples that may be expected.
    pub pls_target: f64,
    /// Mean seconds between failures of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtbf_s: Option<f64>,
    /// Seconds of a save of everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_s: Option<f64>,
    /// Seconds until a save has been read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_s: Option<f64>,
    /// Seconds until there is a process in the place of a lost one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reschedule_s: Option<f64>,
    /// Faults to cause, for tests.
    pub inject: Inject,
}

/// Who goes back to the last save.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecoveryMode {
    /// Everybody.
    Full,
    /// The rows of the lost rank; saves are as far apart as would be best for everybody.
    Partial,
    /// Whichever costs less; saves are as far apart as `pls_target` allows.
    Cpr,
}

impl RecoveryMode {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Partial => "partial",
            Self::Cpr => "cpr",
        }
    }
}

/// Which rows are saved first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// All are saved together.
    #[default]
    None,
    /// Those that have changed most.
    Scar,
    /// Those that have been updated most often.
    Mfu,
    /// Those that are in a sample of updates.
    Ssu,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            mode: None,
            priority: Priority::None,
            priority_share: 0.125,
            priority_tables: 7,
            pls_target: 0.02,
            mtbf_s: None,
            save_s: None,
            load_s: None,
            reschedule_s: None,
            inject: Inject::default(),
        }
    }
}

impl RecoveryConfig {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// When ranks that hold rows are lost, in a run that plays it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureTimes {
    /// Without memory, `mtbf_s` apart in the mean.
    Exponential,
    /// Gamma of `failure_shape`, the same.
    Gamma,
    /// As many as `job_s` has of `mtbf_s`, anywhere.
    Uniform,
    /// At `failure_steps`.
    Steps,
}

/// `[recovery.inject]`: faults that a run causes itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Inject {
    /// Rows are lost, and come back as they were last saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures: Option<FailureTimes>,
    /// Of gamma times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_shape: Option<f64>,
    /// The steps after which it happens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failure_steps: Vec<u64>,
    /// Seconds that the run stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_s: Option<f64>,
    /// Shards of the rows; as many as there are partitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<u32>,
    /// How many of them a failure takes.
    pub lost_shards: u32,
    /// Trainer whose replica gets a NaN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nan_trainer: Option<usize>,
    /// Step before which it gets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nan_step: Option<u64>,
    /// Step in which the run is asked to stop, as by SIGUSR1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_step: Option<u64>,
    /// Trainer that panics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub panic_trainer: Option<usize>,
    /// Step in which it does, unless the run has gone on from a checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub panic_step: Option<u64>,
    /// Trainer whose process is killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kill_trainer: Option<usize>,
    /// Step in which it is, of a run that neither has gone on from a checkpoint nor lost a rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kill_step: Option<u64>,
    /// Trainer that runs out of data early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_trainer: Option<usize>,
    /// Share of its data that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_share: Option<f64>,
    /// This trainer is slow; all are without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_trainer: Option<usize>,
    /// Steps take so many times as long, most of which the worker sleeps,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_factor: Option<f64>,
    /// from this step on,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_from: Option<u64>,
    /// until this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_to: Option<u64>,
}

impl Default for Inject {
    fn default() -> Self {
        Self {
            failures: None,
            failure_shape: None,
            failure_steps: vec![],
            job_s: None,
            shards: None,
            lost_shards: 1,
            nan_trainer: None,
            nan_step: None,
            stop_step: None,
            panic_trainer: None,
            panic_step: None,
            kill_trainer: None,
            kill_step: None,
            short_trainer: None,
            short_share: None,
            slow_trainer: None,
            slow_factor: None,
            slow_from: None,
            slow_to: None,
        }
    }
}
