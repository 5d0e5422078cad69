//! Parameter servers on real ranks: every method learns and ends, one worker's global batch is a
//! synchronous step, runs stop and go on, and a trainer that stands still loses nothing.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_tests::{Job, numbers};

const JOB: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [16, 8]\ntop = [24, 12]",
    optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
    batch_size: 64,
};

const METHODS: [&str; 5] = ["async_ps", "bsp_ps", "hop_bs", "hop_bw", "gba"];

fn auc(summary: &Value) -> f64 {
    summary["test"]["auc"].as_f64().unwrap()
}

fn count(summary: &Value, name: &str) -> u64 {
    summary["sync"][name].as_u64().unwrap_or(0)
}

/// Batches that were added, dropped and brought in vain.
fn gradients(summary: &Value) -> [u64; 3] {
    ["counted", "dropped", "twins"].map(|name| count(summary, name))
}

/// All methods come near to what bulk-synchronous training learns; every batch is added or dropped
/// once; what is saved is the model that the summary scores.
#[test]
fn every_method_learns_what_the_synchronous_run_learns() {
    let folder = JOB.folder(60_000, 4000);
    folder.train(2, "job.toml", "bsp", &["sync.method=bsp"]);
    let expected = auc(&folder.summary("bsp"));
    assert!(expected > 0.6, "nothing is learnt: {expected}");
    for name in METHODS {
        let method = format!("sync.method={name}");
        folder.train(2, "job.toml", name, &[&method, "train.worker_threads=2"]);
        let summary = folder.summary(name);
        assert!((auc(&summary) - expected).abs() < 0.03, "{name}: {}, {expected}", auc(&summary));
        assert_eq!(folder.eval(1, name, "test.h5"), summary["test"], "{name}");
        assert_eq!(summary["examples"], 60_000, "{name}");
        let batches = 60_000u64.div_ceil(64 * 4) * 4;
        let [counted, dropped, twins] = gradients(&summary);
        assert_eq!((counted + dropped, twins), (batches, 0), "{name}");
        let aggregates = count(&summary, "aggregates");
        match name {
            "async_ps" | "hop_bs" => assert_eq!(aggregates, batches, "{name}"),
            // One of four is not waited for, and comes too late.
            "hop_bw" => assert_eq!(aggregates, counted.div_ceil(3), "{name}"),
            _ => assert_eq!(aggregates, batches / 4, "{name}"),
        }
    }
}

/// One worker: M gradients of one version are one synchronous step of the global batch, dense
/// parameters, rows and their optimizer state, to the order of a sum.
#[test]
fn the_global_batch_of_one_worker_is_a_synchronous_step() {
    let folder = JOB.folder(64 * 4 * 10, 500);
    // Adam, and Adagrad from accumulators of 0, divide by its own size what is hardly there: the
    // rate bounds the difference of the one, accumulators that of the other.
    let cases =
        [("sgd", "sgd", 0.05), ("adagrad", "rowwise_adagrad", 0.02), ("adam", "adam", 0.001)];
    for (dense, sparse, rate) in cases {
        let mut kinds = vec![
            format!("optim.dense.kind={dense}"),
            format!("optim.sparse.kind={sparse}"),
            format!("optim.dense.lr={rate}"),
            format!("optim.sparse.lr={rate}"),
        ];
        if dense == "adagrad" {
            let given = ["dense", "sparse"].map(|of| format!("optim.{of}.initial_accumulator=0.1"));
            kinds.extend(given);
        }
        let train = |run: &str, sets: &[&str]| {
            let all: Vec<&str> =
                kinds.iter().map(String::as_str).chain(sets.iter().copied()).collect();
            folder.train(1, "job.toml", run, &all);
            numbers(&folder.path(run).join("checkpoints/last"))
        };
        let bsp =
            train("bsp", &["sync.method=bsp", "train.worker_threads=4", "run.overwrite=true"]);
        let gba = train(
            "gba",
            &[
                "sync.method=gba",
                "train.worker_threads=1",
                "sync.server.members=4",
                "run.overwrite=true",
            ],
        );
        assert!(bsp.len() > 8 && bsp.keys().eq(gba.keys()), "{:?}", gba.keys());
        for (name, expected) in &bsp {
            let apart = expected.iter().zip(&gba[name]).map(|(a, b)| (a - b).abs());
            let apart = apart.fold(0.0, f32::max);
            assert!(apart < 1e-6, "{dense}, {name}: {apart}");
        }
    }
}

/// Servers on ranks of their own; several of them; more members than workers; the forms that are
/// not the default.
#[test]
fn layouts_and_forms() {
    let folder = JOB.folder(20_000, 4000);
    let separate = ["roles.layout=separate", "roles.trainers=2", "roles.embedding_ps=1"];
    let cases: [(usize, &str, &[&str]); 6] = [
        (5, "gba", &["roles.sync_ps=2", "sync.server.row_divisor=own_count"]),
        (4, "async_ps", &["roles.sync_ps=1", "train.worker_threads=2"]),
        (3, "gba", &["roles.sync_ps=3", "sync.server.decay=power", "sync.server.divisor=weights"]),
        (2, "gba", &["sync.server.members=5", "optim.dense.kind=adam", "optim.dense.lr=0.002"]),
        (2, "bsp_ps", &["model.batch_norm=true", "sync.server.reissue_s=0"]),
        // Stretches of training, with evaluations and checkpoints between them.
        (2, "gba", &["data.valid=test.h5", "train.eval_every=40", "checkpoint.every=60"]),
    ];
    for (number, (ranks, method, sets)) in cases.into_iter().enumerate() {
        let method = format!("sync.method={method}");
        let mut all = vec![&*method];
        all.extend(if ranks > 3 { &separate[..] } else { &[] });
        all.extend(sets);
        let run = format!("run{number}");
        folder.train(ranks, "job.toml", &run, &all);
        let summary = folder.summary(&run);
        assert!(auc(&summary) > 0.6, "{sets:?}: {}", auc(&summary));
        assert_eq!(summary["examples"], 20_000, "{sets:?}");
    }
}

/// A run that is stopped goes on where its data stood, with the optimizer state of the servers.
#[test]
fn a_run_that_stops_goes_on() {
    let folder = JOB.folder(40_000, 4000);
    let sets = ["sync.method=gba", "train.worker_threads=2"];
    let stop = [&sets[..], &["recovery.inject.stop_step=60"]].concat();
    let ended = folder.try_train(2, "job.toml", "run", &stop);
    assert_eq!(ended.code, 75, "{}", ended.stderr);
    let (before, made) = (folder.summary("run"), 40_000u64.div_ceil(256));
    let step = before["steps"].as_u64().unwrap();
    assert!((60..made).contains(&step), "{step}");
    folder.train(2, "job.toml", "run", &sets);
    let summary = folder.summary("run");
    let examples = |summary: &Value| summary["examples"].as_u64().unwrap();
    assert_eq!(
        (examples(&before) + examples(&summary), summary["steps"].as_u64()),
        (40_000, Some(made))
    );
    assert!(auc(&summary) > 0.6, "{}", auc(&summary));
}

/// Parameters, rows and optimizer state go over to another method with a checkpoint, both ways.
#[test]
fn a_run_goes_on_with_another_method() {
    let folder = JOB.folder(40_000, 4000);
    let bsp = ["sync.method=bsp", "train.worker_threads=2"];
    folder.train(2, "job.toml", "whole", &bsp);
    let gba = ["sync.method=gba", "train.worker_threads=2"];
    let mut examples = 0;
    for (sets, stop) in [(bsp, Some(50)), (gba, Some(100)), (bsp, None)] {
        let stop = stop.map(|step| format!("recovery.inject.stop_step={step}"));
        let sets: Vec<&str> = sets.into_iter().chain(stop.as_deref()).collect();
        let ended = folder.try_train(2, "job.toml", "run", &sets);
        assert_eq!(ended.code, if stop.is_some() { 75 } else { 0 }, "{}", ended.stderr);
        examples += folder.summary("run")["examples"].as_u64().unwrap();
    }
    assert_eq!(examples, 40_000);
    let [whole, parts] = ["whole", "run"].map(|run| auc(&folder.summary(run)));
    assert!((whole - parts).abs() < 0.02, "{whole}, {parts}");
}

/// A trainer that stands still for longer than the time after which batches are handed out again:
/// nothing is lost, and nothing counts twice.
#[test]
fn a_trainer_that_stands_still_loses_nothing() {
    let folder = JOB.folder(20_000, 4000);
    let sets = ["sync.method=gba", "sync.server.reissue_s=0.5", "train.epochs=60"];
    folder.train_with_a_pause(3, 2, &sets);
    let summary = folder.summary("run");
    let [counted, dropped, twins] = gradients(&summary);
    let steps = summary["steps"].as_u64().unwrap();
    assert_eq!(counted + dropped, 3 * steps, "{twins} twins");
    assert!(auc(&summary) > 0.6, "{}", auc(&summary));
}
