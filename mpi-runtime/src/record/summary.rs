//! `summary.json`, version 1: what a run was and what it measured.
//!
//! Names are the contract of docs/run-folder.md. Every figure is measured; one that does not apply
//! is absent, never zero.

mod checkpoints;
mod recovery;
mod wire;

use std::path::Path;

use serde::{Deserialize, Serialize};
use umbra_core::sync::server::Tally;

use super::{build_hash, write_atomically};
use crate::config::Job;
use crate::error::Error;

pub use checkpoints::{CheckpointFigures, RowSaveFigures};
pub use recovery::{RankLoss, RecoveryFigures};
pub use wire::{ExchangedFigures, WireFigures, WireOfRank};

/// Its name in a run folder.
pub(super) const NAME: &str = "summary.json";

/// Layout of this file.
pub const VERSION: u32 = 1;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// [`VERSION`].
    pub version: u32,
    /// How it ended.
    pub status: Status,
    /// Why it did not come to its end; absent of a run that did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The step that it went on from; absent of a run from the beginning. `examples`, `seconds` and
    /// what is counted are of this part alone; `steps` and figures are of the whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_step: Option<u64>,
    /// Time until its state was read from there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_seconds: Option<f64>,
    /// Commit the program was built from.
    pub git: String,
    /// Of the resolved configuration.
    pub config_hash: String,
    /// Of the training files; absent when they could not be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_fingerprint: Option<String>,
    /// Seed of the run.
    pub seed: u64,
    /// Whether time was simulated.
    pub r#virtual: bool,
    /// Number of ranks.
    pub ranks: usize,
    /// Ranks by role.
    pub roles: Roles,
    /// Worker threads per trainer.
    pub worker_threads: usize,
    /// Examples per worker thread and step.
    pub batch_size: usize,
    /// batch × worker threads × trainers.
    pub elp: usize,
    /// Examples trained on, over all trainers and epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub examples: Option<u64>,
    /// Steps of one worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Wall time of the training loop: reading included, evaluation excluded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// `examples / seconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub examples_per_second: Option<f64>,
    /// Loss on the training examples as they were learned from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<TrainFigures>,
    /// Figures of the examples of the first pass, each scored before it was learnt from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progressive: Option<ProgressiveFigures>,
    /// Figures of `data.valid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<EvalFigures>,
    /// Figures of `data.test`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<EvalFigures>,
    /// Figures of `data.test` for the first trainer's own replica, where `test` is of another
    /// model: the center, or the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_replica: Option<EvalFigures>,
    /// Figures of `data.test` where of pooled vectors comes what passes the thresholds of training;
    /// `test` has all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_masked: Option<EvalFigures>,
    /// Synchronization of dense replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncFigures>,
    /// What was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire: Option<WireFigures>,
    /// Checkpoints written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointFigures>,
    /// Failures and what they cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryFigures>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryFigures>,
    /// What a worker thread waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<WaitFigures>,
}

/// How a run ended, or that it has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It has not ended, or was killed and nobody was left to say so.
    Running,
    /// All epochs, or early stopping.
    Done,
    /// On a signal.
    Stopped,
    /// With an error.
    Failed,
}

/// Ranks by role; a collocated rank counts in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    /// Ranks that train.
    pub trainers: usize,
    /// Ranks that hold embedding rows.
    pub embedding_ps: usize,
    /// Ranks that hold dense parameters.
    pub sync_ps: usize,
}

/// Loss while training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainFigures {
    /// Mean log loss, nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logloss: Option<f64>,
    /// Log loss over the entropy of the mean label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalized_entropy: Option<f64>,
}

/// Figures of a dataset that was scored, exact over all ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalFigures {
    /// Examples scored.
    pub examples: u64,
    /// Area under the ROC curve; absent when one class only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auc: Option<f64>,
    /// Mean log loss, nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logloss: Option<f64>,
    /// Log loss over the entropy of the mean label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalized_entropy: Option<f64>,
    /// Sum of predictions over sum of labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<f64>,
    /// AUC within groups; absent when the dataset has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gauc: Option<f64>,
}

/// Progressive validation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgressiveFigures {
    /// Steps before those that it counts: of a run that went on, those until then.
    pub from_step: u64,
    /// The figures.
    #[serde(flatten)]
    pub figures: EvalFigures,
}

/// Synchronization of dense replicas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SyncFigures {
    /// `sync.method`.
    pub method: String,
    /// Rounds completed by the first trainer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u64>,
    /// Steps of a trainer's workers between its rounds, mean over trainers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_mean: Option<f64>,
    /// Steps of a trainer's workers between its rounds, 99th percentile over all rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_p99: Option<f64>,
    /// Time workers stood still for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_exposed: Option<f64>,
    /// Time from the end of training to the model that is evaluated and saved: the rounds under
    /// way, and the final mean or the way of the center to the trainers; over all evaluations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_publish: Option<f64>,
    /// Time rounds ran beside the workers, mean over trainers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_background: Option<f64>,
    /// Processor time that a trainer's synchronizing threads took, mean over trainers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_processor: Option<f64>,
    /// Processor time that centers, or servers and their dispatcher, took, over all sync PSs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_processor_center: Option<f64>,
    /// Distance between a replica and what it moves towards, over the replica's norm: mean of
    /// samples a second apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disagreement: Option<f64>,
    /// Averaging: distance between a replica and the mean of all, over the replica's norm, when
    /// that mean was last taken; mean over trainers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distance_to_mean: Option<f64>,
    /// Rounds in which a replica was not finite, was kept out and replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<u64>,
    /// Trainer by trainer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trainers: Vec<TrainerSync>,
    /// Steps a gradient's token was behind, mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_staleness_mean: Option<f64>,
    /// Steps a gradient's token was behind, greatest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_staleness_max: Option<u64>,
    /// Versions between reading and updating, mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_lag_mean: Option<f64>,
    /// Steps whose gradient was thrown away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
    /// Parameter servers: gradients that were added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted: Option<u64>,
    /// Parameter servers: gradients of batches that somebody else had brought before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub twins: Option<u64>,
    /// Parameter servers: global batches that were applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregates: Option<u64>,
    /// Gradients whose token was 0, 1, 2, … steps behind; the last of 64 counts all beyond.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub token_staleness: Vec<u64>,
    /// Gradients with 0, 1, 2, … versions between reading and updating, the same way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub version_lag: Vec<u64>,
    /// Changes of the method.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<SyncSwitch>,
}

impl SyncFigures {
    /// With what became of gradients on parameter servers.
    #[must_use]
    pub fn with_gradients(self, tally: &Tally) -> Self {
        let bins = |bins: &[u64]| {
            let used = bins.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
            bins[..used].to_vec()
        };
        let token_staleness = bins(&tally.staleness);
        Self {
            counted: Some(tally.counted),
            dropped: (tally.dropped > 0).then_some(tally.dropped),
            twins: (tally.twins > 0).then_some(tally.twins),
            aggregates: Some(tally.aggregates),
            token_staleness_mean: Some(Tally::mean(&tally.staleness)),
            token_staleness_max: token_staleness.len().checked_sub(1).map(|last| last as u64),
            version_lag_mean: Some(Tally::mean(&tally.lag)),
            token_staleness,
            version_lag: bins(&tally.lag),
            ..self
        }
    }
}

/// Rounds of one trainer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainerSync {
    /// Rounds completed.
    pub rounds: u64,
    /// Steps of its workers between rounds, mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_mean: Option<f64>,
    /// Steps of its workers between rounds, 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_p99: Option<f64>,
    /// Steps of all its workers.
    pub steps: u64,
    /// Training until its last worker had ended.
    pub seconds: f64,
    /// Time its rounds took.
    pub seconds_background: f64,
    /// Processor time of its synchronizing threads.
    pub seconds_processor: f64,
}

/// A change of the method during a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncSwitch {
    /// Step it took effect.
    pub step: u64,
    /// The method from then on.
    pub method: String,
    /// What it took.
    pub seconds: f64,
    /// Why, where the run decides by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryFigures {
    /// Greatest resident set of any rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes_max: Option<u64>,
    /// Embedding rows with their state, over all ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_bytes: Option<u64>,
    /// One dense replica with its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_bytes: Option<u64>,
}

/// What a worker thread waited for, mean over worker threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitFigures {
    /// For the reader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_seconds: Option<f64>,
    /// For embedding rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_seconds: Option<f64>,
    /// For dense synchronization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_seconds: Option<f64>,
}

impl Summary {
    /// A summary of `job` on `ranks` ranks that runs, with nothing measured yet.
    ///
    /// # Errors
    /// A configuration that cannot be written as TOML.
    pub fn new(job: &Job, ranks: usize) -> Result<Self, Error> {
        Ok(Self {
            version: VERSION,
            status: Status::Running,
            reason: None,
            from_step: None,
            resume_seconds: None,
            git: build_hash().into(),
            config_hash: super::config_hash(&job.config)?,
            data_fingerprint: None,
            seed: job.config.seed,
            r#virtual: false,
            ranks,
            roles: Roles {
                trainers: job.trainers,
                embedding_ps: job.embedding_ps,
                sync_ps: job.sync_ps,
            },
            worker_threads: job.worker_threads,
            batch_size: job.config.train.batch_size,
            elp: job.elp(),
            examples: None,
            steps: None,
            seconds: None,
            examples_per_second: None,
            train: None,
            progressive: None,
            valid: None,
            test: None,
            test_replica: None,
            test_masked: None,
            sync: None,
            wire: None,
            checkpoint: None,
            recovery: None,
            memory: None,
            wait: None,
        })
    }

    /// Writes it to `path`: a temporary name, fsync, rename.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        write_atomically(path, self.to_json()?.as_bytes())
    }

    /// The file's text.
    pub(super) fn to_json(&self) -> Result<String, Error> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|error| Error::Failure(format!("{NAME}: {error}")))?;
        Ok(format!("{json}\n"))
    }
}

#[cfg(test)]
mod tests;
