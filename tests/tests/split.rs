//! Dense replicas whose layers are dealt to several ranks (DCT, model parallelism), for real.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_tests::{Folder, Job, tensors};

/// Two of its layers are split, between two that are not.
const JOB: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [64, 8]\ntop = [96, 256, 256, 32]",
    optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
    batch_size: 64,
};

const STEPS: u64 = 60;

fn model(folder: &Folder, run: &str) -> Vec<u8> {
    tensors(&folder.path(run).join("checkpoints/last"), |name| {
        name.starts_with("dense") || name.starts_with("rows")
    })
}

/// A run on `ranks` ranks of which `parts` train a replica, in slices as large as its batches.
fn sets(ranks: usize, parts: usize, more: &[&str]) -> Vec<String> {
    let own = [
        "sync.method=bsp".to_owned(),
        "run.step_losses=true".to_owned(),
        format!("data.lanes={}", ranks / parts),
        format!("roles.dense_partitions={parts}"),
    ];
    own.into_iter().chain(more.iter().map(|&set| set.to_owned())).collect()
}

fn train(folder: &Folder, (ranks, parts): (usize, usize), run: &str, more: &[&str]) -> Value {
    let all = [more, &["run.overwrite=true"]].concat();
    let sets = sets(ranks, parts, &all);
    folder.train(ranks, "job.toml", run, &sets.iter().map(String::as_str).collect::<Vec<_>>());
    folder.summary(run)
}

/// The loss of every step over the global batch.
fn losses(folder: &Folder, run: &str) -> Vec<f64> {
    let text = folder.text(&format!("{run}/losses.csv"));
    text.lines().skip(1).map(|line| line.split_once(',').unwrap().1.parse().unwrap()).collect()
}

/// Steps in which rounding has not yet been magnified: a ReLU that is on here and off there makes a
/// difference that shows.
const SAME: usize = 15;

fn assert_same(what: &str, one: &[f64], other: &[f64]) {
    assert!(one.len() == other.len() && one.len() >= SAME, "{what}: {} steps", one.len());
    for (step, (one, other)) in one.iter().zip(other).take(SAME).enumerate() {
        assert!((one - other).abs() < 1e-6 * one, "{what}, step {step}: {one} and {other}");
    }
}

/// With all activations sent it is the run of whole replicas, to rounding.
#[test]
fn parts_train_as_the_whole_does() {
    let folder = JOB.folder(64 * 2 * STEPS, 500);
    for (ranks, parts) in [(2, 2), (3, 3), (4, 4), (4, 2)] {
        let what = format!("{ranks} ranks, {parts} parts");
        let more = ["train.max_examples=2560"];
        let whole = train(&folder, (ranks / parts, 1), "whole", &more);
        let split = train(&folder, (ranks, parts), "split", &more);
        assert_same(&what, &losses(&folder, "whole"), &losses(&folder, "split"));
        assert_eq!(split["examples"], whole["examples"], "{what}");
        let logloss = |run: &Value| run["test"]["logloss"].as_f64().unwrap();
        assert!((logloss(&split) - logloss(&whole)).abs() < 0.01, "{what}");
        assert!(split["wire"]["activation_bytes_uncoded"].as_u64().unwrap() > 0, "{what}");
    }
}

/// A threshold that all pass changes no bit, and the same run twice is the same.
#[test]
fn bits_are_those_of_all_elements_and_repeat() {
    let folder = JOB.folder(64 * 2 * STEPS, 500);
    for ranks in [2, 4] {
        train(&folder, (ranks, 2), "plain", &[]);
        let all = ["compress.mp_keep=1", "compress.values=f32"];
        train(&folder, (ranks, 2), "all", &all);
        assert!(model(&folder, "all") == model(&folder, "plain"), "{ranks} ranks");
        let scored = folder.summary("all");
        assert_eq!(scored["test_masked"], scored["test"], "{ranks} ranks");
        assert!(folder.summary("plain").get("test_masked").is_none(), "{ranks} ranks");
        let few = ["compress.mp_keep=0.05", "compress.refresh_every=20"];
        let first = train(&folder, (ranks, 2), "few", &few);
        let once = model(&folder, "few");
        train(&folder, (ranks, 2), "few", &few);
        assert!(model(&folder, "few") == once, "{ranks} ranks");
        assert!(once != model(&folder, "plain"), "{ranks} ranks");
        let figure = |name: &str| first["wire"][name].as_f64().unwrap();
        let share = figure("activation_elements_kept") / figure("activation_elements_total");
        assert!((0.01..0.1).contains(&share), "{share}");
        let ratio = figure("activation_bytes_uncoded") / figure("activation_bytes_coded");
        assert!(ratio > 15.0, "{ratio}");
        // Not the same to rounding.
        assert!(more_than_masked(&first).abs() > 1e-4, "{ranks} ranks");
    }
}

/// How much larger the loss of a test is with all activations than with those that pass.
fn more_than_masked(summary: &Value) -> f64 {
    let logloss = |which: &str| summary[which]["logloss"].as_f64().unwrap();
    logloss("test") - logloss("test_masked")
}

/// Activations that were learnt with are scored better than all there are, in the mean: of one run
/// it need not be so.
#[test]
fn what_was_learnt_with_is_scored_better() {
    let folder = JOB.folder(64 * 2 * STEPS, 500);
    let runs = [1, 2, 3, 4].map(|seed: u32| {
        let seed = format!("seed={seed}");
        let few = ["compress.mp_keep=0.05", "compress.refresh_every=20", &seed];
        more_than_masked(&train(&folder, (4, 2), "few", &few))
    });
    assert!(runs.iter().sum::<f64>() / 4.0 > 0.02, "{runs:?}");
}

/// A rank holds what it computes of the replica, its optimizer state and its gradient; all of the
/// replica only while it begins and while the first rank saves.
#[test]
fn a_part_takes_a_part_of_the_memory() {
    let job = Job {
        model: "kind = \"deepfm\"\nembedding_dim = 8\ntop = [96, 4096, 2048, 32]",
        optim: [("adam", 0.001), ("rowwise_adagrad", 0.05)],
        ..JOB
    };
    let folder = job.folder(64 * 8, 64);
    let most = |run: &str, parts: usize| {
        let more = ["checkpoint.save=none", "train.batch_size=16"];
        let summary = train(&folder, (2, parts), run, &more);
        let figure = |name: &str| summary["memory"][name].as_f64().unwrap();
        (figure("rss_bytes_max"), figure("dense_bytes"))
    };
    let ((whole, dense), (part, same)) = (most("whole", 1), most("part", 2));
    assert_eq!(dense, same);
    // Values, two moments and a gradient of 8.8 million parameters, or half of that. What every
    // process takes is the same.
    assert!(dense > 100e6 && whole > dense * 4.0 / 3.0, "{dense}, {whole}");
    assert!(part < whole - dense / 3.0, "{part} of {whole}, for {dense}");
}

/// Replica and optimizer state are whole where they are saved: a run that was cut goes on on any
/// number of parts as if it had not been.
#[test]
fn a_checkpoint_is_of_no_number_of_parts() {
    let folder = JOB.folder(64 * STEPS, 500);
    let whole = ["train.max_examples=2560"];
    train(&folder, (1, 1), "whole", &whole);
    let cut = ["recovery.inject.stop_step=5"];
    for (run, before, after) in [("less", (2, 2), (1, 1)), ("more", (1, 1), (2, 2))] {
        let start = |(ranks, parts): (usize, usize), more: &[&str]| {
            let sets = sets(ranks, parts, more);
            let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
            folder.try_train(ranks, "job.toml", run, &sets)
        };
        let ended = start(before, &[&whole[..], &cut].concat());
        assert_eq!(ended.code, 75, "{run}: {}", ended.stderr);
        let ended = start(after, &whole);
        assert_eq!(ended.code, 0, "{run}: {}", ended.stderr);
        // Those of the steps since.
        assert_same(run, &losses(&folder, "whole")[6..], &losses(&folder, run));
        // And is scored by whoever is there.
        let scored = folder.eval(1, run, "test.h5")["logloss"].as_f64().unwrap();
        let told = folder.summary(run)["test"]["logloss"].as_f64().unwrap();
        assert!((scored - told).abs() < 1e-6, "{run}: {scored} and {told}");
    }
}

/// A replica that is no number on one of its ranks ends the run as a whole one does.
#[test]
fn what_is_not_finite_is_told() {
    let folder = JOB.folder(64 * STEPS, 500);
    for trainer in ["0", "1"] {
        let bad = format!("recovery.inject.nan_trainer={trainer}");
        let sets = sets(2, 2, &[&bad, "recovery.inject.nan_step=10", "run.overwrite=true"]);
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let ended = folder.try_train(2, "job.toml", "run", &sets);
        assert_eq!((ended.code, folder.summary("run")["status"].clone()), (1, "failed".into()));
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let folder = JOB.folder(1000, 100);
    let parts = "roles.dense_partitions=2";
    for (sets, says) in [
        (&[parts, "sync.method=shadow_ma"][..], "unless sync.method is \"bsp\""),
        (&[parts, "train.worker_threads=2"], "unless train.worker_threads is 1"),
        (&[parts, "sync.method=bsp", "compress.dp_keep=0.1"], "unless compress.dp_keep is left"),
        (&["roles.dense_partitions=3"], "a divisor of the ranks that train, which are 2"),
        (&[parts, "model.top=[96, 64, 32]"], "no layer can be split"),
        (&[parts, "model.batch_norm=true"], "no layer can be split"),
        (&[parts, "compress.mp_keep=0"], "compress.mp_keep"),
    ] {
        let ended = folder.try_train(2, "job.toml", "run", sets);
        assert_eq!(ended.code, 2, "{sets:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{sets:?}: {}", ended.stderr);
    }
}
