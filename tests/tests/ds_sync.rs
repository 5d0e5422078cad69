//! Divide and shuffle on real ranks: every schedule learns, and its limits are what they should be,
//! bit for bit. What it shares with the other methods of rounds (uneven data, a NaN, one trainer)
//! is in `shadow.rs`.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_tests::{Folder, Job, SavedModel, TIME_FOR_ROUNDS, manifest, tensors};

const JOB: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [16, 8]\ntop = [24, 12]\n\
            batch_norm = true",
    optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
    batch_size: 64,
};

fn train(folder: &Folder, ranks: usize, sets: &[&str]) -> Value {
    folder.train(ranks, "job.toml", "run", &[&["run.overwrite=true"], sets].concat());
    folder.summary("run")
}

/// Groups of two or three, full and uneven, in the foreground and in the background.
#[test]
fn every_schedule_learns() {
    let folder = JOB.folder(160_000, 4000);
    let alone = train(&folder, 1, &["sync.method=none"])["test"]["auc"].as_f64().unwrap();
    for (ranks, method, sets) in [
        (4, "ds_sync", &["sync.schedule=grid"][..]),
        (4, "ds_sync", &["sync.schedule=ring", "sync.every=2"]),
        (3, "ds_sync", &["sync.schedule=nodes"]),
        (5, "ds_sync", &["sync.schedule=grid", "train.batch_size=32"]),
        (4, "shadow_ds_sync", &["sync.schedule=hypercube", TIME_FOR_ROUNDS]),
        (3, "shadow_ds_sync", &["sync.schedule=random", "sync.intake=delta", TIME_FOR_ROUNDS]),
        (4, "ds_slowmo", &["sync.every=4", "sync.block_momentum=0.3"]),
    ] {
        let method = format!("sync.method={method}");
        let summary = train(&folder, ranks, &[&[&*method], sets].concat());
        let auc = summary["test"]["auc"].as_f64().unwrap();
        assert!((auc - alone).abs() < 0.04, "{method} {sets:?}: {auc}, one trainer {alone}");
        assert_eq!(summary["examples"], 160_000, "{method} {sets:?}");
        assert!(summary["wire"]["dense_bytes"].as_u64().unwrap() > 0, "{method} {sets:?}");
        assert_eq!(folder.eval(1, "run", "test.h5"), summary["test"], "{method} {sets:?}");
    }
}

/// Groups of all trainers are full averaging; groups of one are no synchronization; so is a single
/// trainer. Rows, for which ranks race, stand still.
#[test]
fn the_limits_are_full_averaging_and_none_bit_for_bit() {
    let folder = JOB.folder(10_000, 4000);
    let still = "optim.sparse.lr=1e-30";
    let dealt = |ranks, group: &str| {
        let group = format!("sync.group_size={group}");
        train(&folder, ranks, &["sync.method=ds_sync", "sync.schedule=random", &group, still])
    };
    for ranks in [2, 3] {
        let all = dealt(ranks, &ranks.to_string());
        let full = train(&folder, ranks, &["sync.method=foreground_ma", "sync.every=1", still]);
        for figure in ["test", "test_replica", "train"] {
            assert_eq!(all[figure], full[figure], "{ranks} ranks, {figure}");
        }
        let none = train(&folder, ranks, &["sync.method=independent", still]);
        let one = dealt(ranks, "1");
        // Without synchronization the first replica is what is evaluated.
        assert_eq!(one["test_replica"], none["test"], "{ranks} ranks");
        assert_eq!(one["train"], none["train"], "{ranks} ranks");
    }
    let alone = train(&folder, 1, &["sync.method=none"]);
    let dealt = train(&folder, 1, &["sync.method=ds_sync"]);
    assert_eq!(alone["test"], dealt["test"]);
}

/// One seed, one answer: rounds with gated workers repeat themselves.
#[test]
fn foreground_rounds_repeat_bit_for_bit() {
    let folder = JOB.folder(10_000, 4000);
    let sets = ["sync.method=ds_sync", "sync.schedule=random", "optim.sparse.lr=1e-30"];
    let first = train(&folder, 4, &sets);
    let again = train(&folder, 4, &sets);
    for figure in ["test", "test_replica", "train"] {
        assert_eq!(first[figure], again[figure], "{figure}");
    }
    let other = train(&folder, 4, &[&sets[..], &["seed=8"]].concat());
    assert_ne!(first["test"], other["test"]);
}

/// The first trainer's optimizer state is saved, or the mean of all; the model is the same, and so
/// is the distance that replicas had to it.
#[test]
fn a_checkpoint_can_hold_the_mean_of_optimizer_states() {
    let folder = JOB.folder(10_000, 4000);
    // Half of the way: all of it would bring four trainers to one mean.
    let sets = ["sync.method=ds_sync", "sync.alpha=0.5", "optim.sparse.lr=1e-30"];
    let saved = |more: &[&str]| {
        let summary = train(&folder, 4, &[&sets[..], more].concat());
        let saved = folder.path("run/checkpoints/last");
        let [replica, state] = [false, true].map(|state| {
            tensors(&saved, |name| name.starts_with("dense.") && name.contains(".state.") == state)
        });
        (summary, replica, state)
    };
    let (own, replica, first) = saved(&[]);
    let (mean, averaged, state) = saved(&["sync.average_state=true"]);
    assert_eq!((own["test"].clone(), replica), (mean["test"].clone(), averaged));
    assert!(first != state, "the state that was saved is the first trainer's");
    let sum = |bytes: &[u8]| -> f64 {
        bytes.as_chunks().0.iter().map(|word| f64::from(f32::from_le_bytes(*word))).sum()
    };
    let ratio = sum(&state) / sum(&first);
    assert!((0.5..2.0).contains(&ratio), "Adagrad's sums, of all over those of one: {ratio}");
    let distance = mean["sync"]["distance_to_mean"].as_f64().unwrap();
    assert!((1e-6..0.1).contains(&distance), "{distance}");
    assert_eq!(own["sync"]["distance_to_mean"], distance);
}

/// What does not fit is refused before anything starts.
#[test]
fn mistakes_are_one_message() {
    let folder = JOB.folder(1000, 4000);
    for (sets, part) in [
        (
            &["sync.method=ds_sync", "sync.schedule=ring", "sync.group_size=2"][..],
            "groups are pairs",
        ),
        (&["sync.method=ds_sync", "sync.schedule=hypercube", "sync.group_size=1"], "at least 2"),
        (&["sync.method=shadow_ma", "sync.group_size=2"], "\"shadow_ma\" has no use for it"),
        (&["sync.method=ds_sync", "sync.pair=same"], "\"ds_sync\" has no use for it"),
        (
            &["sync.method=shadow_easgd", "sync.average_state=true"],
            "\"shadow_easgd\" has no use for it",
        ),
        (&["sync.method=ds_sync", "sync.core_share=0.5"], "\"ds_sync\" has no use for it"),
    ] {
        let ended = folder.try_train(2, "job.toml", "run", sets);
        assert_eq!(ended.code, 2, "{sets:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{sets:?}: {}", ended.stderr);
    }
}

/// The model that a run ends with is the best one whole: its replica, and the mean of the optimizer
/// states that belongs to it. Rows stand still, so that the run repeats itself.
#[test]
fn the_best_model_is_restored_with_its_mean_of_optimizer_states() {
    let folder = JOB.folder(2000, 4000);
    let stop = ["train.epochs=40", "train.early_stop.patience=1", "data.valid=test.h5"];
    let rates = ["optim.dense.lr=0.5", "optim.sparse.lr=1e-30"];
    let sets = ["sync.method=ds_sync", "sync.average_state=true"];
    let summary = train(&folder, 2, &[&stop[..], &rates, &sets].concat());
    let [best, last] = ["best", "last"].map(|name| {
        let saved = folder.path(&format!("run/checkpoints/{name}"));
        (manifest(&saved)["steps"].as_u64().unwrap(), SavedModel::read(&saved))
    });
    assert!(best.0 < summary["steps"].as_u64().unwrap(), "the best model was the last one");
    assert!(best == last, "{} steps, {} steps", best.0, last.0);
}

/// A schedule goes on where the stretch before left it. A stretch of one step has a round, and one
/// that brings the last work: eight trainers meet along two of the three directions of a cube, and
/// only in the next stretch along the third, after which all have the mean. The second step changes
/// nothing by itself.
#[test]
fn groups_change_from_stretch_to_stretch() {
    let folder = JOB.folder(8 * 64 * 2, 4000);
    let once = ["optim.dense.decay_start_step=0", "optim.dense.decay_steps=1"];
    let rates = ["optim.dense.final_lr=0", "optim.sparse.lr=1e-30", "model.batch_norm=false"];
    let groups = ["sync.method=ds_sync", "sync.schedule=hypercube", "sync.group_size=2"];
    let sets = [&once[..], &rates, &groups, &["data.valid=test.h5", "train.eval_every=1"]].concat();
    let distance = |sets: &[&str]| {
        let summary = train(&folder, 8, sets);
        (summary["steps"].clone(), summary["sync"]["distance_to_mean"].as_f64().unwrap())
    };
    let (steps, apart) = distance(&[&sets[..], &["train.batch_size=128"]].concat());
    assert!(steps == 1 && apart > 1e-4, "after {steps} steps, two directions: {apart}");
    let (steps, apart) = distance(&sets);
    assert!(steps == 2 && apart < 1e-6, "after {steps} steps, all directions: {apart}");
}
