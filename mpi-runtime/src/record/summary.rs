//! `summary.json`, version 1: what a run was and what it measured.
//!
//! Names are the contract of INTERFACE.md. Every figure is measured; one that does not apply is
//! absent, never zero.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{build_hash, write_atomically};
use crate::config::Job;
use crate::error::Error;

/// Layout of this file.
pub const VERSION: u32 = 1;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// [`VERSION`].
    pub version: u32,
    /// How it ended.
    pub status: Status,
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
    /// Figures of `data.valid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<EvalFigures>,
    /// Figures of `data.test`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<EvalFigures>,
    /// Figures of `data.test` for the first trainer's own replica, where `test` is of another model: the
    /// center, or the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_replica: Option<EvalFigures>,
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

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
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
    /// Time from the end of training to the model that is evaluated and saved: the rounds under way, and the final
    /// mean or the way of the center to the trainers; over all evaluations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_publish: Option<f64>,
    /// Time rounds ran beside the workers, mean over trainers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_background: Option<f64>,
    /// Processor time that a trainer's synchronizing threads took, mean over trainers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_processor: Option<f64>,
    /// Processor time that centers took, over all sync PSs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_processor_center: Option<f64>,
    /// Distance between a replica and what it moves towards, over the replica's norm: mean of samples
    /// a second apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disagreement: Option<f64>,
    /// Averaging: distance between a replica and the mean of all, over the replica's norm, when that mean was last
    /// taken; mean over trainers.
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
    /// Changes of the method.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<SyncSwitch>,
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
}

/// What was sent, over all ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireFigures {
    /// Dense parameters and gradients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_bytes: Option<u64>,
    /// Embedding rows and gradients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_bytes: Option<u64>,
    /// Everything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_bytes: Option<u64>,
    /// Compression: dense elements sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_elements_kept: Option<u64>,
    /// Compression: dense elements there were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_elements_total: Option<u64>,
    /// Compression: embedding elements sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mp_elements_kept: Option<u64>,
    /// Compression: embedding elements there were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mp_elements_total: Option<u64>,
}

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
    /// Time it ran beside the workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_background: Option<f64>,
    /// Time between two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_s: Option<f64>,
}

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
    /// Work done again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_lost: Option<f64>,
    /// Saving, loading and lost work over training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead_fraction: Option<f64>,
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
    /// A summary of `job` on `ranks` ranks with nothing measured yet and status failed, so that a
    /// run that ends early is not taken for a finished one.
    ///
    /// # Errors
    /// A configuration that cannot be written as TOML.
    pub fn new(job: &Job, ranks: usize) -> Result<Self, Error> {
        Ok(Self {
            version: VERSION,
            status: Status::Failed,
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
            valid: None,
            test: None,
            test_replica: None,
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
        let json = serde_json::to_string_pretty(self)
            .map_err(|error| Error::Failure(format!("summary.json: {error}")))?;
        write_atomically(path, format!("{json}\n").as_bytes())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn job() -> Job {
        let sets = [
            "data.train=a",
            "model.kind=lr",
            "optim.dense.kind=sgd",
            "optim.dense.lr=1",
            "optim.sparse.kind=sgd",
            "optim.sparse.lr=1",
            "train.worker_threads=2",
        ];
        let config = Config::load(None, &sets.map(String::from)).unwrap();
        config.resolve(3, 3, 6).unwrap()
    }

    #[test]
    fn what_was_not_measured_is_absent() {
        let mut summary = Summary::new(&job(), 3).unwrap();
        summary.git = "abc".into();
        summary.config_hash = "0".into();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("summary.json");
        summary.write(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            r#"{
  "version": 1,
  "status": "failed",
  "git": "abc",
  "config_hash": "0",
  "seed": 1,
  "virtual": false,
  "ranks": 3,
  "roles": {
    "trainers": 3,
    "embedding_ps": 3,
    "sync_ps": 0
  },
  "worker_threads": 2,
  "batch_size": 128,
  "elp": 768
}
"#
        );
        assert_eq!(serde_json::from_str::<Summary>(&text).unwrap(), summary);
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }

    /// The names of the contract, section by section, in its order.
    #[test]
    fn names_are_those_of_the_contract() {
        let mut summary = Summary::new(&job(), 3).unwrap();
        let eval = EvalFigures {
            examples: 1,
            auc: Some(0.5),
            logloss: Some(0.5),
            normalized_entropy: Some(0.5),
            calibration: Some(0.5),
            gauc: Some(0.5),
        };
        summary.data_fingerprint = Some("f".into());
        (summary.examples, summary.steps) = (Some(1), Some(1));
        (summary.seconds, summary.examples_per_second) = (Some(1.0), Some(1.0));
        summary.train = Some(TrainFigures { logloss: Some(0.5), normalized_entropy: Some(0.5) });
        (summary.valid, summary.test) = (Some(eval.clone()), Some(eval.clone()));
        summary.test_replica = Some(eval);
        summary.sync = Some(SyncFigures {
            method: "bsp".into(),
            rounds: Some(1),
            gap_mean: Some(1.0),
            gap_p99: Some(1.0),
            seconds_exposed: Some(1.0),
            seconds_background: Some(1.0),
            seconds_processor: Some(1.0),
            seconds_publish: Some(1.0),
            seconds_processor_center: Some(1.0),
            disagreement: Some(1.0),
            distance_to_mean: Some(1.0),
            refused: Some(1),
            trainers: vec![TrainerSync::default()],
            token_staleness_mean: Some(1.0),
            token_staleness_max: Some(1),
            version_lag_mean: Some(1.0),
            dropped: Some(1),
            switches: vec![SyncSwitch { step: 1, method: "bsp".into() }],
        });
        summary.wire = Some(WireFigures {
            dense_bytes: Some(1),
            embedding_bytes: Some(1),
            control_bytes: Some(1),
            dense_elements_kept: Some(1),
            dense_elements_total: Some(1),
            mp_elements_kept: Some(1),
            mp_elements_total: Some(1),
        });
        summary.checkpoint = Some(CheckpointFigures {
            count: 1,
            bytes: Some(1),
            seconds_exposed: Some(1.0),
            seconds_background: Some(1.0),
            interval_s: Some(1.0),
        });
        summary.recovery = Some(RecoveryFigures {
            failures: 1,
            mode: "full".into(),
            pls: Some(0.1),
            seconds_lost: Some(1.0),
            overhead_fraction: Some(0.1),
        });
        summary.memory = Some(MemoryFigures {
            rss_bytes_max: Some(1),
            embedding_bytes: Some(1),
            dense_bytes: Some(1),
        });
        summary.wait = Some(WaitFigures {
            data_seconds: Some(1.0),
            embedding_seconds: Some(1.0),
            sync_seconds: Some(1.0),
        });
        let value = serde_json::to_value(&summary).unwrap();
        let keys = |value: &serde_json::Value| {
            let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        for (section, names) in CONTRACT {
            let mut names: Vec<&str> = names.split_whitespace().collect();
            names.sort_unstable();
            let found = if section.is_empty() { keys(&value) } else { keys(&value[section]) };
            assert_eq!(found, names, "section `{section}`");
        }
    }

    const CONTRACT: &[(&str, &str)] = &[
        (
            "",
            "version status git config_hash data_fingerprint seed virtual ranks roles \
             worker_threads batch_size elp examples steps seconds examples_per_second train valid \
             test test_replica sync wire checkpoint recovery memory wait",
        ),
        ("roles", "trainers embedding_ps sync_ps"),
        ("train", "logloss normalized_entropy"),
        ("valid", "examples auc logloss normalized_entropy calibration gauc"),
        ("test", "examples auc logloss normalized_entropy calibration gauc"),
        (
            "sync",
            "method rounds gap_mean gap_p99 seconds_exposed seconds_background \
             seconds_processor seconds_processor_center seconds_publish disagreement \
             distance_to_mean refused trainers token_staleness_mean token_staleness_max version_lag_mean dropped switches",
        ),
        (
            "wire",
            "dense_bytes embedding_bytes control_bytes dense_elements_kept dense_elements_total \
             mp_elements_kept mp_elements_total",
        ),
        ("checkpoint", "count bytes seconds_exposed seconds_background interval_s"),
        ("recovery", "failures mode pls seconds_lost overhead_fraction"),
        ("memory", "rss_bytes_max embedding_bytes dense_bytes"),
        ("wait", "data_seconds embedding_seconds sync_seconds"),
    ];
}
