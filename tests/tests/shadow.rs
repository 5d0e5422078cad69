//! Synchronization in the background and with gates, on real ranks: every method learns, ends, and
//! bears uneven data, a trainer that stands still, and a replica that is not finite.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_tests::{Job, TIME_FOR_ROUNDS};

const JOB: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [16, 8]\ntop = [24, 12]\n\
            batch_norm = true",
    optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
    batch_size: 64,
};

const METHODS: [&str; 8] = [
    "shadow_easgd",
    "shadow_ma",
    "shadow_bmuf",
    "foreground_easgd",
    "foreground_ma",
    "foreground_bmuf",
    "ds_sync",
    "shadow_ds_sync",
];

fn auc(summary: &Value) -> f64 {
    summary["test"]["auc"].as_f64().unwrap()
}

fn method(name: &str) -> String {
    format!("sync.method={name}")
}

/// Steps between rounds, for the methods that have a use for it; another setting for the others.
fn every(name: &str, steps: u64) -> String {
    if name.starts_with("foreground") {
        format!("sync.every={steps}")
    } else {
        "sync.min_interval_us=0".into()
    }
}

/// All methods come near to what one trainer learns; what is saved is the model that the summary
/// scores; workers of shadow methods never stand still.
#[test]
fn every_method_learns_what_one_trainer_learns() {
    let folder = JOB.folder(60_000, 4000);
    folder.train(1, "job.toml", "alone", &[]);
    let expected = auc(&folder.summary("alone"));
    assert!(expected > 0.6, "one trainer learns nothing: {expected}");
    for name in METHODS {
        let beside = if name.starts_with("foreground") { "seed=7" } else { TIME_FOR_ROUNDS };
        folder.train(3, "job.toml", name, &[&*every(name, 8), &method(name), beside]);
        let summary = folder.summary(name);
        assert!((auc(&summary) - expected).abs() < 0.03, "{name}: {}, {expected}", auc(&summary));
        assert_eq!(folder.eval(1, name, "test.h5"), summary["test"], "{name}");
        let sync = &summary["sync"];
        assert_eq!(sync["trainers"].as_array().unwrap().len(), 3, "{name}");
        assert!(sync["rounds"].as_u64().unwrap() > 0, "{name}");
        assert!(sync["seconds_processor"].as_f64().unwrap() > 0.0, "{name}");
        assert!(summary["wire"]["dense_bytes"].as_u64().unwrap() > 0, "{name}");
        // The first trainer's own replica is another model than the mean or the center, unless its
        // last round took the mean whole.
        let apart = summary["test_replica"] != summary["test"];
        assert_eq!(apart, name != "foreground_ma", "{name}");
        if name.starts_with("foreground") {
            let workers = summary["worker_threads"].as_f64().unwrap();
            assert_eq!(sync["gap_p99"], 8.0 * workers, "{name}");
            let steps = summary["steps"].as_u64().unwrap();
            assert_eq!(sync["rounds"], steps.div_ceil(8), "{name}");
        }
    }
}

/// Workers with gates of their own exchange after as many of their own steps: more rounds, of fewer
/// steps each, and a model as good.
#[test]
fn workers_that_exchange_by_themselves() {
    let folder = JOB.folder(40_000, 4000);
    let run = |gate: &str| {
        let of = format!("sync.gate={gate}");
        let common = ["train.worker_threads=2", "sync.every=4", &method("foreground_easgd"), &of];
        folder.train(3, "job.toml", gate, &common);
        folder.summary(gate)
    };
    let (all, each) = (run("trainer"), run("worker"));
    assert!((auc(&all) - auc(&each)).abs() < 0.03, "{} and {}", auc(&all), auc(&each));
    assert_eq!(all["steps"], each["steps"]);
    let rounds = each["steps"].as_u64().unwrap().div_ceil(4);
    for (summary, workers, gap) in [(&all, 1, 8.0), (&each, 2, 4.0)] {
        assert_eq!(summary["sync"]["rounds"], workers * rounds);
        assert_eq!(summary["sync"]["gap_p99"], gap);
        for trainer in summary["sync"]["trainers"].as_array().unwrap() {
            assert_eq!(trainer["rounds"], workers * rounds);
        }
    }
}

/// Centers on ranks of their own, several slices, two workers each; the forms that are not the
/// default.
#[test]
fn layouts_and_forms() {
    let folder = JOB.folder(20_000, 4000);
    let separate = ["roles.layout=separate", "roles.trainers=2", "roles.embedding_ps=1"];
    let cases: [(usize, &str, &[&str]); 5] = [
        (5, "shadow_easgd", &["roles.sync_ps=2", "sync.pair=same"]),
        (4, "foreground_easgd", &["roles.sync_ps=1", "sync.every=4"]),
        (3, "shadow_ma", &["sync.intake=delta", "sync.min_interval_us=500"]),
        (3, "shadow_bmuf", &["sync.intake=delta", "sync.nesterov=true", "sync.core_share=0.5"]),
        (3, "shadow_ma", &["sync.max_bytes_per_s=1000000", "sync.poll_us=0"]),
    ];
    for (case, (ranks, name, sets)) in cases.into_iter().enumerate() {
        let run = format!("run-{case}");
        let common = ["train.worker_threads=2", &method(name)];
        folder.train(ranks, "job.toml", &run, &[&separate[..], &common, sets].concat());
        let summary = folder.summary(&run);
        assert!(auc(&summary) > 0.6, "{name} {sets:?}: {}", auc(&summary));
        assert_eq!(summary["examples"], 20_000, "{name} {sets:?}");
        // On average; the first round comes at once.
        if sets.contains(&"sync.max_bytes_per_s=1000000") {
            let bytes = summary["wire"]["dense_bytes"].as_f64().unwrap() / 2.0;
            let allowed = 1e6 * (summary["seconds"].as_f64().unwrap() + 0.5) + 50_000.0;
            assert!(bytes <= allowed, "{bytes} bytes, {allowed} allowed");
        }
    }
}

/// Evaluations in the middle do not touch the replicas: the same examples are learned from, and the
/// run ends.
#[test]
fn evaluations_come_between_stretches() {
    let folder = JOB.folder(20_000, 4000);
    for name in ["shadow_easgd", "shadow_bmuf", "foreground_ma"] {
        let sets = ["data.valid=test.h5", "train.eval_every=40", &method(name)];
        folder.train(2, "job.toml", name, &sets);
        let summary = folder.summary(name);
        assert!(auc(&summary) > 0.6, "{name}: {}", auc(&summary));
        assert_eq!(summary["valid"]["auc"], summary["test"]["auc"], "{name}");
    }
}

/// One rank: a trainer, its shadow thread and its center in one process.
#[test]
fn one_trainer_has_a_shadow_too() {
    let folder = JOB.folder(10_000, 4000);
    for name in METHODS {
        folder.train(1, "job.toml", name, &[&method(name)]);
        let summary = folder.summary(name);
        assert!(auc(&summary) > 0.6, "{name}: {}", auc(&summary));
        assert!(summary["sync"]["rounds"].as_u64().unwrap() > 0, "{name}");
    }
}

/// What workers do before a synchronizing thread is up counts: a stretch of a single step, which
/// may be over by then, has its round.
#[test]
fn every_stretch_of_one_step_has_a_round() {
    let folder = JOB.folder(640, 4000);
    folder.synth("valid.h5", 200, 5000);
    for name in ["shadow_easgd", "shadow_ma", "shadow_bmuf", "foreground_easgd", "foreground_ma"] {
        let sets = ["data.valid=valid.h5", "train.eval_every=1", "train.epochs=3", &method(name)];
        folder.train(1, "job.toml", name, &[&sets[..], &[&every(name, 4)]].concat());
        let summary = folder.summary(name);
        assert_eq!(summary["steps"], 30, "{name}");
        assert_eq!(summary["sync"]["rounds"], 30, "{name}");
    }
}

/// A trainer that runs out of data early stays in the collective until all have ended, and keeps
/// nobody.
#[test]
fn a_trainer_with_a_tenth_of_the_data() {
    let folder = JOB.folder(20_000, 4000);
    for name in METHODS {
        let short = ["recovery.inject.short_trainer=1", "recovery.inject.short_share=0.1"];
        let (method, every) = (method(name), every(name, 4));
        let common = ["train.epochs=2", &every, "train.worker_threads=1", &method];
        folder.train(3, "job.toml", name, &[&common[..], &short].concat());
        let summary = folder.summary(name);
        assert!(auc(&summary) > 0.6, "{name}: {}", auc(&summary));
        let steps =
            |trainer: usize| summary["sync"]["trainers"][trainer]["steps"].as_u64().unwrap();
        assert_eq!((steps(0), steps(1)), (steps(2), steps(0) / 10), "{name}");
    }
}

/// A NaN in one replica is reported, reaches neither mean nor center nor rows, and is gone after
/// the next round.
#[test]
fn a_nan_in_one_replica_stays_there() {
    let folder = JOB.folder(20_000, 4000);
    for name in METHODS {
        // The first trainer, whose own replica is scored beside the model.
        let nan = ["recovery.inject.nan_trainer=0", "recovery.inject.nan_step=40"];
        let (method, every) = (method(name), every(name, 4));
        let common = ["train.epochs=2", &every, "train.worker_threads=1", &method];
        let ended = folder.train(3, "job.toml", name, &[&common[..], &nan].concat());
        let summary = folder.summary(name);
        assert!(auc(&summary) > 0.6, "{name}: {}", auc(&summary));
        assert!(summary["sync"]["refused"].as_u64().unwrap() > 0, "{name}");
        let replica = &summary["test_replica"]["logloss"];
        assert!(replica.is_null() || replica.as_f64().unwrap() < 1.0, "{name}: {replica}");
        // The steps until the next round were dropped, and no others: in the foreground that many.
        if name.starts_with("foreground") {
            let dropped = summary["sync"]["dropped"].as_u64().unwrap_or(0);
            assert!(dropped <= 4, "{name}: {dropped} steps");
        }
        assert!(ended.stderr.contains("not finite"), "{name}: {}", ended.stderr);
    }
}

/// A trainer that is stopped for five seconds and goes on: the run ends well, and its model knows
/// what it was shown sixty times. Other examples would measure how much it has overfitted by then.
#[test]
fn a_trainer_that_stands_still_for_five_seconds() {
    for name in ["shadow_easgd", "shadow_ma", "shadow_bmuf", "foreground_ma"] {
        let folder = JOB.folder(10_000, 4000);
        // Rounds are not what it is about, and each takes long where ranks wait for a core.
        let (method, every) = (method(name), every(name, 16));
        let sets = ["train.epochs=60", "data.test=train.h5", &*every, &*method];
        folder.train_with_a_pause(3, 1, &sets);
        let summary = folder.summary("run");
        assert_eq!(summary["examples"], 60 * 10_000, "{name}");
        assert!(
            summary["seconds"].as_f64().unwrap() > 5.0,
            "{name}: it ended before it was stopped"
        );
        assert!(auc(&summary) > 0.95, "{name}: {}", auc(&summary));
    }
}

/// A Chrome trace has every rank's workers and synchronizing threads on one clock.
#[test]
fn the_trace_shows_rounds_beside_steps() {
    let folder = JOB.folder(20_000, 4000);
    for name in ["shadow_easgd", "foreground_ma"] {
        let sets = ["run.trace=true", "train.worker_threads=2", &method(name)];
        folder.train(2, "job.toml", name, &sets);
        let text = folder.text(&format!("{name}/trace.json"));
        let events: Vec<Value> = serde_json::from_str(&text).unwrap();
        let spans = |rank: u64, name: &str| {
            let of = |event: &&Value| event["pid"] == rank && event["name"] == name;
            let ends = |event: &Value| {
                let begin = event["ts"].as_f64().unwrap();
                (begin, begin + event["dur"].as_f64().unwrap())
            };
            events.iter().filter(of).map(ends).collect::<Vec<(f64, f64)>>()
        };
        for rank in [0, 1] {
            let (steps, rounds) = (spans(rank, "step"), spans(rank, "round"));
            assert_eq!(steps.len(), 20_000usize.div_ceil(64 * 4) * 2, "{name}");
            assert!(!rounds.is_empty(), "{name}");
            let beside = rounds
                .iter()
                .any(|round| steps.iter().any(|step| step.0 < round.1 && round.0 < step.1));
            // Gated workers stand still while a round runs.
            assert_eq!(beside, name == "shadow_easgd", "{name}");
            assert_eq!(spans(rank, "gate").is_empty(), name == "shadow_easgd", "{name}");
        }
    }
}

/// Trainers without synchronization: each learns by itself from shared rows, and the first is what
/// is scored.
#[test]
fn independent_trainers_are_the_anchor() {
    let folder = JOB.folder(20_000, 4000);
    folder.train(2, "job.toml", "run", &["sync.method=independent"]);
    let summary = folder.summary("run");
    assert!(auc(&summary) > 0.6, "{}", auc(&summary));
    assert_eq!(summary["wire"]["dense_bytes"], 0);
    assert_eq!(folder.eval(1, "run", "test.h5"), summary["test"]);
}
