//! The names in a summary, and that what was not measured is absent.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::config::{Config, Placement, PoolAt};
use crate::record::LEAST;

fn job() -> Job {
    let mut sets = LEAST.map(String::from).to_vec();
    sets.push("train.worker_threads=2".into());
    let config = Config::load(None, &sets).unwrap();
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
  "status": "running",
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
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
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
    summary.progressive = Some(ProgressiveFigures { from_step: 1, figures: eval.clone() });
    (summary.test_replica, summary.test_masked) = (Some(eval.clone()), Some(eval));
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
        counted: Some(1),
        twins: Some(1),
        aggregates: Some(1),
        token_staleness: vec![1],
        version_lag: vec![1],
        switches: vec![SyncSwitch { step: 1, method: "bsp".into(), seconds: 1.0, reason: None }],
    });
    summary.wire = Some(WireFigures {
        dense_bytes: Some(1),
        embedding_bytes: Some(1),
        control_bytes: Some(1),
        dense_elements_kept: Some(1),
        dense_elements_total: Some(1),
        dense_bytes_coded: Some(1),
        dense_bytes_uncoded: Some(1),
        seconds_coding: Some(1.0),
        seconds_trial_plain: Some(1.0),
        seconds_trial_coded: Some(1.0),
        embedding_placement: Some(Placement::Tables),
        embedding_pool_at: Some(PoolAt::Ps),
        embedding_step_bytes_trainer: Some(1.0),
        embedding_step_bytes_ps: Some(1.0),
        embedding_elements_kept: Some(1),
        embedding_elements_total: Some(1),
        embedding_bytes_coded: Some(1),
        embedding_bytes_uncoded: Some(1),
        embedding_bytes_rows: Some(1),
        activation_elements_kept: Some(1),
        activation_elements_total: Some(1),
        activation_bytes_coded: Some(1),
        activation_bytes_uncoded: Some(1),
        seconds_crossing: Some(1.0),
        mp_elements_kept: Some(1),
        mp_elements_total: Some(1),
        ranks: vec![WireOfRank::default()],
    });
    summary.checkpoint = Some(CheckpointFigures {
        count: 1,
        bytes: Some(1),
        seconds_exposed: Some(1.0),
        seconds_local: Some(1.0),
        seconds_background: Some(1.0),
        interval_s: Some(1.0),
        row_saves: Some(RowSaveFigures::default()),
    });
    summary.recovery = Some(RecoveryFigures {
        failures: 1,
        mode: "full".into(),
        pls: Some(0.1),
        pls_expected: Some(0.1),
        seconds_lost: Some(1.0),
        overhead_fraction: Some(0.1),
        overhead_simulated: Some(0.1),
        interval_s: Some(1.0),
        saves: Some(1),
        full_saves: Some(1.0),
        seconds_saving: Some(1.0),
        usage_bytes: Some(1),
        losses: vec![RankLoss::default()],
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
         worker_threads batch_size elp examples steps seconds examples_per_second train \
         progressive valid test test_replica test_masked sync wire checkpoint recovery memory wait",
    ),
    ("roles", "trainers embedding_ps sync_ps"),
    ("train", "logloss normalized_entropy"),
    ("progressive", "from_step examples auc logloss normalized_entropy calibration gauc"),
    ("valid", "examples auc logloss normalized_entropy calibration gauc"),
    ("test", "examples auc logloss normalized_entropy calibration gauc"),
    (
        "sync",
        "method rounds gap_mean gap_p99 seconds_exposed seconds_background \
         seconds_processor seconds_processor_center seconds_publish disagreement \
         distance_to_mean refused trainers token_staleness_mean token_staleness_max \
         version_lag_mean dropped counted twins aggregates token_staleness version_lag switches",
    ),
    (
        "wire",
        "dense_bytes embedding_bytes control_bytes dense_elements_kept dense_elements_total \
         dense_bytes_coded dense_bytes_uncoded seconds_coding seconds_trial_plain \
         seconds_trial_coded embedding_placement embedding_pool_at \
         embedding_step_bytes_trainer embedding_step_bytes_ps embedding_elements_kept \
         embedding_elements_total \
         embedding_bytes_coded embedding_bytes_uncoded embedding_bytes_rows \
         activation_elements_kept activation_elements_total activation_bytes_coded \
         activation_bytes_uncoded seconds_crossing mp_elements_kept mp_elements_total ranks",
    ),
    (
        "checkpoint",
        "count bytes seconds_exposed seconds_local seconds_background interval_s row_saves",
    ),
    (
        "recovery",
        "failures mode pls pls_expected seconds_lost overhead_fraction overhead_simulated \
         interval_s saves \
         full_saves seconds_saving usage_bytes losses",
    ),
    ("memory", "rss_bytes_max embedding_bytes dense_bytes"),
    ("wait", "data_seconds embedding_seconds sync_seconds"),
];
