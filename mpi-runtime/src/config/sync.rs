//! `[sync]`: how dense replicas stay together.

use serde::{Deserialize, Serialize};

use super::server::ServerConfig;
use super::switch::SwitchConfig;

/// `[sync]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyncConfig {
    /// How replicas stay together.
    pub method: SyncMethod,
    /// `local_sgd`, `ds_sync` and the foreground methods: steps between rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// `foreground_easgd`: who stands still together during a round.
    pub gate: Gate,
    /// `bsp`: whose statistics batch normalisation uses.
    pub batch_norm: BatchNormScope,
    /// Share of the way that replicas and center move towards each other in a round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// Elastic averaging: what the two sides of an exchange see.
    pub pair: Pair,
    /// Averaging methods: how a replica that has moved meanwhile takes the mean in.
    pub intake: Intake,
    /// DS-Sync: how groups are dealt.
    pub schedule: Schedule,
    /// DS-Sync: trainers of a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_size: Option<usize>,
    /// Averaging methods: the mean of all trainers' optimizer state is what is saved, not the first
    /// trainer's.
    pub average_state: bool,
    /// BMUF: share of the mean's step that the global model takes.
    pub block_rate: f64,
    /// BMUF: share of the last step that it takes again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_momentum: Option<f64>,
    /// BMUF: replicas start a step of momentum ahead.
    pub nesterov: bool,
    /// Microseconds between two looks of a synchronizing thread at MPI; 0 only yields.
    pub poll_us: u64,
    /// Shadow methods: least microseconds from round to round.
    pub min_interval_us: u64,
    /// Shadow methods: most bytes a trainer sends per second; 0 for no bound.
    pub max_bytes_per_s: u64,
    /// Shadow methods: share of a core that a synchronizing thread may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_share: Option<f64>,
    /// Parameter servers.
    pub server: ServerConfig,
    /// Changing the method during a run.
    #[serde(skip_serializing_if = "SwitchConfig::is_off")]
    pub switch: SwitchConfig,
}

impl Default for SyncConfig {
    fn default() -> Self {
        Self {
            method: SyncMethod::Auto,
            every: None,
            gate: Gate::Trainer,
            batch_norm: BatchNormScope::Global,
            alpha: None,
            pair: Pair::Sequential,
            intake: Intake::Interpolate,
            schedule: Schedule::Grid,
            group_size: None,
            average_state: false,
            block_rate: 1.0,
            block_momentum: None,
            nesterov: false,
            poll_us: 50,
            min_interval_us: 0,
            max_bytes_per_s: 0,
            core_share: None,
            server: ServerConfig::default(),
            switch: SwitchConfig::default(),
        }
    }
}

/// How dense replicas stay together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncMethod {
    /// `none` with one trainer, `bsp` with more; never left after `Config::resolve`.
    #[default]
    Auto,
    /// One trainer.
    None,
    /// Several trainers that share the rows and nothing else: the anchor that methods are measured
    /// against.
    Independent,
    /// Gradients summed every step.
    Bsp,
    /// Replicas averaged every so many steps.
    LocalSgd,
    /// Elastic averaging in the background.
    ShadowEasgd,
    /// Model averaging in the background.
    ShadowMa,
    /// Block momentum in the background.
    ShadowBmuf,
    /// Elastic averaging with the workers gated.
    ForegroundEasgd,
    /// Model averaging with the workers gated.
    ForegroundMa,
    /// Block momentum with the workers gated.
    ForegroundBmuf,
    /// Averages within groups that change from round to round, with the workers gated.
    DsSync,
    /// The same in the background.
    ShadowDsSync,
    /// Averages within groups with momentum from round to round, with the workers gated.
    DsSlowmo,
    /// Gradients go to servers, which apply each at once.
    AsyncPs,
    /// Servers apply one gradient of every worker together, and all wait for it.
    BspPs,
    /// As `AsyncPs`, but no worker is far ahead of the slowest.
    HopBs,
    /// As `BspPs`, but nobody waits for the slowest few.
    HopBw,
    /// Servers apply the gradients of a global batch together, and nobody waits.
    Gba,
}

impl SyncMethod {
    /// All of them, in their order.
    pub const ALL: [Self; Self::NAMES.len()] = [
        Self::Auto,
        Self::None,
        Self::Independent,
        Self::Bsp,
        Self::LocalSgd,
        Self::ShadowEasgd,
        Self::ShadowMa,
        Self::ShadowBmuf,
        Self::ForegroundEasgd,
        Self::ForegroundMa,
        Self::ForegroundBmuf,
        Self::DsSync,
        Self::ShadowDsSync,
        Self::DsSlowmo,
        Self::AsyncPs,
        Self::BspPs,
        Self::HopBs,
        Self::HopBw,
        Self::Gba,
    ];

    /// Names in the file and in the summary, in the order of the methods.
    pub const NAMES: [&'static str; Self::Gba as usize + 1] = [
        "auto",
        "none",
        "independent",
        "bsp",
        "local_sgd",
        "shadow_easgd",
        "shadow_ma",
        "shadow_bmuf",
        "foreground_easgd",
        "foreground_ma",
        "foreground_bmuf",
        "ds_sync",
        "shadow_ds_sync",
        "ds_slowmo",
        "async_ps",
        "bsp_ps",
        "hop_bs",
        "hop_bw",
        "gba",
    ];

    /// Its name in the file and in the summary.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Who stands still together during a foreground round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gate {
    /// All workers of a trainer.
    #[default]
    Trainer,
    /// Each worker by itself, after so many of its own steps, while the others train on.
    Worker,
}

/// What the two sides of an elastic exchange see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pair {
    /// The trainer moves towards the center that has moved already.
    #[default]
    Sequential,
    /// Both move by the same difference.
    Same,
}

/// How the groups of DS-Sync are dealt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Rows of a grid, then its columns.
    #[default]
    Grid,
    /// The trainers of a node, then one of each node.
    Nodes,
    /// Trainers whose numbers differ in one digit.
    Hypercube,
    /// Neighbours to one side, then to the other.
    Ring,
    /// Drawn anew every round.
    Random,
}

/// How a replica that has moved during a round takes the mean in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Intake {
    /// Towards the mean from where it is.
    #[default]
    Interpolate,
    /// By what the mean was away from the replica as loaded: what workers did meanwhile stays
    /// whole.
    Delta,
}

/// Whose batch the statistics of batch normalisation describe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchNormScope {
    /// The global batch.
    #[default]
    Global,
    /// The worker's own.
    Local,
}
