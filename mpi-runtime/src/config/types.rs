//! The configuration as types. Names are those of the file; `key_list.rs` says what each may hold.
//!
//! A `Config` is written back, resolved, to the run folder and into checkpoints, and reads back to
//! itself. `Option` fields are either truly optional or decided by the launch
//! ([`Config::resolve`](super::Config::resolve)).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use umbra_datasets::Reading;

use super::checkpoint::CheckpointConfig;
use super::compress::CompressConfig;
use super::embedding::EmbeddingConfig;
use super::every::Seconds;
use super::recovery::RecoveryConfig;
use super::sync::SyncConfig;

/// A job: everything a user can set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// One seed for data order, initialisation and dropout.
    #[serde(default = "defaults::seed")]
    pub seed: u64,
    /// Files and reading.
    pub data: DataConfig,
    /// What is trained.
    pub model: ModelSection,
    /// Optimizers.
    pub optim: OptimConfig,
    /// The training loop.
    #[serde(default)]
    pub train: TrainConfig,
    /// Which rank does what.
    #[serde(default)]
    pub roles: RolesConfig,
    /// Embedding communication.
    #[serde(default)]
    pub embedding: EmbeddingConfig,
    /// Synchronization of dense replicas.
    #[serde(default)]
    pub sync: SyncConfig,
    /// What passes a threshold before it is sent.
    #[serde(default, skip_serializing_if = "CompressConfig::is_default")]
    pub compress: CompressConfig,
    /// What is kept of the model.
    #[serde(default)]
    pub checkpoint: CheckpointConfig,
    /// Faults and what becomes of them.
    #[serde(default, skip_serializing_if = "RecoveryConfig::is_default")]
    pub recovery: RecoveryConfig,
    /// Run folder and reports.
    #[serde(default)]
    pub run: RunConfig,
}

/// `[data]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Training files, relative to the current directory.
    pub train: Vec<PathBuf>,
    /// Validation files; empty for none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub valid: Vec<PathBuf>,
    /// Test files, scored once at the end; empty for none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub test: Vec<PathBuf>,
    /// Batches read ahead per worker thread.
    #[serde(default = "defaults::prefetch_batches")]
    pub prefetch_batches: usize,
    /// Threads of a trainer that undo the compression of the data, with the one that reads.
    #[serde(default = "defaults::reader_threads")]
    pub reader_threads: usize,
    /// Contiguous ranges the file is cut into; what makes the order independent of the ranks.
    #[serde(default = "defaults::lanes")]
    pub lanes: usize,
    /// Shuffle within lanes; else the order of the files.
    #[serde(default = "defaults::yes")]
    pub shuffle: bool,
}

impl DataConfig {
    /// All files that a job reads, those for training first.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.train, &self.valid, &self.test].into_iter().flatten().map(PathBuf::as_path)
    }
}

impl DataConfig {
    /// How data is read.
    #[must_use]
    pub fn reading(&self) -> Reading {
        Reading { threads: self.reader_threads, ..Reading::from(self.prefetch_batches) }
    }
}

/// `[model]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSection {
    /// Architecture.
    pub kind: ModelKind,
    /// d, values of an embedding vector.
    #[serde(default = "defaults::embedding_dim")]
    pub embedding_dim: usize,
    /// Widths of DLRM's bottom MLP; the last is `embedding_dim`.
    #[serde(default)]
    pub bottom: Vec<usize>,
    /// Hidden widths of DLRM's top or another model's deep MLP, without the final 1.
    #[serde(default)]
    pub top: Vec<usize>,
    /// DCN v2: layers of the cross network; always present once read (default: 3, for others 0).
    #[serde(default)]
    pub cross_layers: usize,
    /// DCN v2: rank of their matrices, 0 for full ones.
    #[serde(default)]
    pub cross_rank: usize,
    /// DCN v2: where the deep MLP stands.
    #[serde(default)]
    pub structure: Structure,
    /// How a bag becomes a vector.
    #[serde(default)]
    pub pooling: Pooling,
    /// Batch normalisation on hidden layers.
    #[serde(default)]
    pub batch_norm: bool,
    /// Share of the new batch in the running statistics.
    #[serde(default = "defaults::batch_norm_momentum")]
    pub batch_norm_momentum: f64,
    /// Probability that a hidden unit is dropped.
    #[serde(default)]
    pub dropout: f64,
}

/// Architectures that are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Deep learning recommendation model.
    Dlrm,
    /// Factorization machine beside an MLP.
    DeepFm,
    /// Factorization machine.
    Fm,
    /// Logistic regression.
    Lr,
    /// Cross network and MLP.
    #[serde(rename = "dcn_v2")]
    DcnV2,
    /// Logistic regression beside an MLP.
    #[serde(rename = "wide_deep")]
    WideDeep,
}

/// How DCN v2 puts cross network and deep MLP together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Structure {
    /// Side by side on the input.
    #[default]
    Parallel,
    /// The MLP on the output of the cross network.
    Stacked,
}

/// How the rows of a bag become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// Their sum.
    #[default]
    Sum,
    /// Their mean; zero for an empty bag.
    Mean,
}

/// `[optim]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimConfig {
    /// Dense parameters.
    pub dense: OptimSection,
    /// Embedding rows.
    pub sparse: OptimSection,
}

/// `[optim.dense]` or `[optim.sparse]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimSection {
    /// The rule.
    pub kind: OptimKind,
    /// Learning rate on the plateau.
    pub lr: f64,
    /// λ of `g ← g + λp`.
    #[serde(default)]
    pub weight_decay: f64,
    /// Share of the velocity kept per step.
    #[serde(default = "defaults::momentum")]
    pub momentum: f64,
    /// Adam: share of the first moment kept.
    #[serde(default = "defaults::beta1")]
    pub beta1: f64,
    /// Adam: share of the second moment kept.
    #[serde(default = "defaults::beta2")]
    pub beta2: f64,
    /// Added to the root; always present once read: 1e-8 for adam, 1e-10 for the Adagrads.
    #[serde(default = "defaults::eps")]
    pub eps: f64,
    /// Adagrad: value the accumulator starts from.
    #[serde(default)]
    pub initial_accumulator: f64,
    /// Steps of linear warm-up.
    #[serde(default)]
    pub warmup_steps: u64,
    /// First step of the linear decay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decay_start_step: Option<u64>,
    /// Steps the decay takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decay_steps: Option<u64>,
    /// Learning rate after the decay.
    #[serde(default)]
    pub final_lr: f64,
}

/// Optimizer rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimKind {
    /// Plain gradient steps.
    Sgd,
    /// Heavy ball.
    Momentum,
    /// Element-wise Adagrad.
    Adagrad,
    /// One accumulator per embedding row; sparse only.
    RowwiseAdagrad,
    /// Adam.
    Adam,
}

/// `[train]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Examples per worker thread and step.
    pub batch_size: usize,
    /// Passes over the training files.
    pub epochs: u32,
    /// Stop after this many examples over all trainers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_examples: Option<u64>,
    /// Worker threads per trainer; decided by the launch when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_threads: Option<usize>,
    /// In what the operands of products are rounded, of MLPs and of DLRM's interaction.
    pub precision: Precision,
    /// Worker threads stay on a core each, synchronizing threads on the others.
    pub pin_workers: bool,
    /// Steps between evaluations; 0 for the end of each epoch.
    pub eval_every: u64,
    /// Progressive validation: figures of the first pass, every example scored before it is learnt
    /// from.
    pub progressive: bool,
    /// Examples per batch of an evaluation; always present once read (default: `batch_size`).
    pub eval_batch_size: usize,
    /// Stop when validation no longer improves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<EarlyStop>,
}

/// Operands of products in training steps, or values of embedding rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// f32
    #[default]
    F32,
    /// bf16, with everything else in f32: of products sums and weights, of rows what they learn
    /// from and optimizer state.
    Bf16,
}

/// `[train.early_stop]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyStop {
    /// Which figure must improve.
    #[serde(default)]
    pub metric: StopMetric,
    /// Evaluations in a row without improvement before training stops.
    pub patience: u32,
    /// Least change that counts as an improvement.
    #[serde(default = "defaults::min_delta")]
    pub min_delta: f64,
    /// Both learning rates are multiplied by this after an evaluation without improvement.
    #[serde(default = "defaults::one")]
    pub lr_factor: f64,
    /// End with the parameters of the best evaluation.
    #[serde(default = "defaults::yes")]
    pub restore_best: bool,
}

/// Figures that early stopping can watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopMetric {
    /// Area under the ROC curve, higher is better.
    #[default]
    Auc,
    /// Log loss, lower is better.
    LogLoss,
}

/// `[roles]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RolesConfig {
    /// Whether ranks carry both roles.
    pub layout: Layout,
    /// Ranks that train; all of them when collocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trainers: Option<usize>,
    /// Ranks that hold embedding rows; all of them when collocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_ps: Option<usize>,
    /// Ranks that hold a center of the dense parameters; only elastic averaging has any. When
    /// collocated they are the first trainers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_ps: Option<usize>,
    /// Ranks that the layers of a dense replica are dealt to.
    pub dense_partitions: usize,
}

impl Default for RolesConfig {
    fn default() -> Self {
        let layout = Layout::default();
        Self { layout, trainers: None, embedding_ps: None, sync_ps: None, dense_partitions: 1 }
    }
}

/// Whether ranks carry both roles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Every rank is a trainer and an embedding PS.
    #[default]
    Collocated,
    /// The first `trainers` ranks train, the next `embedding_ps` hold rows.
    Separate,
}

/// `[run]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// Run folder; always present once read (default: runs/ and the name of the file).
    pub dir: PathBuf,
    /// Replace a finished run in it.
    pub overwrite: bool,
    /// Time after which it stops and can go on later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_time: Option<Seconds>,
    /// Seconds between reports.
    pub log_every_s: f64,
    /// Write TensorBoard event files.
    pub tensorboard: bool,
    /// Write a Chrome trace of every thread.
    pub trace: bool,
    /// `bsp`: write the loss of every step over the global batch to losses.csv.
    pub step_losses: bool,
    /// Seconds without progress before the watchdog names the late rank.
    pub watchdog_s: u64,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            batch_size: 128,
            epochs: 1,
            max_examples: None,
            worker_threads: None,
            precision: Precision::F32,
            pin_workers: false,
            eval_every: 0,
            progressive: false,
            eval_batch_size: 128,
            early_stop: None,
        }
    }
}

impl RunConfig {
    /// The longest wait.
    #[must_use]
    pub const fn watchdog(&self) -> core::time::Duration {
        core::time::Duration::from_secs(self.watchdog_s)
    }
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("runs/job"),
            overwrite: false,
            max_time: None,
            log_every_s: 10.0,
            tensorboard: true,
            trace: false,
            step_losses: false,
            watchdog_s: 300,
        }
    }
}

/// Defaults of sections that have required keys, and therefore no `Default`.
mod defaults {
    pub(super) const fn seed() -> u64 {
        1
    }
    pub(super) const fn prefetch_batches() -> usize {
        4
    }
    pub(super) const fn reader_threads() -> usize {
        1
    }
    pub(super) const fn lanes() -> usize {
        8
    }
    pub(super) const fn yes() -> bool {
        true
    }
    pub(super) const fn embedding_dim() -> usize {
        16
    }
    pub(super) const fn batch_norm_momentum() -> f64 {
        0.1
    }
    pub(super) const fn momentum() -> f64 {
        0.9
    }
    pub(super) const fn beta1() -> f64 {
        0.9
    }
    pub(super) const fn beta2() -> f64 {
        0.999
    }
    pub(super) const fn eps() -> f64 {
        1e-10
    }
    pub(super) const fn min_delta() -> f64 {
        1e-6
    }
    pub(super) const fn one() -> f64 {
        1.0
    }
}
