//! Gradients of which what matters is sent (DCT), over real ranks.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_tests::{Folder, Job, TIME_FOR_ROUNDS, tensors};

/// Two of its tensors are coded, the others too small.
const JOB: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [64, 8]\ntop = [128, 96]",
    optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
    batch_size: 64,
};

/// 125 steps of 256 examples.
const ROWS: u64 = 125 * 256;

/// Of methods with few rounds: all that is left out for later has its turn.
const MORE_ROWS: u64 = 8 * ROWS;

/// As [`TIME_FOR_ROUNDS`], of more steps.
const SOME_TIME: &str = "recovery.inject.slow_factor=4";

fn model(folder: &Folder, run: &str) -> Vec<u8> {
    tensors(&folder.path(run).join("checkpoints/last"), |name| {
        name.starts_with("dense") || name.starts_with("rows")
    })
}

fn train(folder: &Folder, ranks: usize, run: &str, more: &[&str]) -> Value {
    let threads = format!("train.worker_threads={}", 4 / ranks.min(4));
    let sets = [&["sync.method=bsp", &threads, "run.overwrite=true"], more].concat();
    folder.train(ranks, "job.toml", run, &sets);
    folder.summary(run)
}

fn auc(run: &Value) -> f64 {
    run["test"]["auc"].as_f64().unwrap()
}

/// With all elements kept it is the run without compression, bit for bit.
#[test]
fn all_elements_are_the_sum_that_is_not_coded() {
    let folder = JOB.folder(ROWS, 500);
    for ranks in [2, 3, 4] {
        train(&folder, ranks, "plain", &[]);
        let all = ["compress.dp_keep=1", "compress.values=f32"];
        let coded = train(&folder, ranks, "coded", &all);
        assert!(model(&folder, "coded") == model(&folder, "plain"), "{ranks} ranks");
        let wire = &coded["wire"];
        // Zeros, of units that are off for a whole batch, need not be sent.
        let [kept, all] = ["dense_elements_kept", "dense_elements_total"]
            .map(|name| wire[name].as_u64().unwrap());
        assert!(kept > all / 2 && kept <= all, "{wire}");
    }
}

/// A twentieth of the elements teach the model nearly as much, in few bytes, and the same twice.
#[test]
fn few_elements_teach_as_much_and_repeat_bit_for_bit() {
    let folder = JOB.folder(ROWS, 10_000);
    for ranks in [2, 4] {
        let plain = train(&folder, ranks, "plain", &[]);
        let keep = ["compress.dp_keep=0.05", "compress.refresh_every=20"];
        let coded = train(&folder, ranks, "coded", &keep);
        let once = model(&folder, "coded");
        train(&folder, ranks, "coded", &keep);
        assert!(model(&folder, "coded") == once, "{ranks} ranks");
        assert!(once != model(&folder, "plain"));
        assert!(auc(&coded) > auc(&plain) - 0.01, "{} of {}", auc(&coded), auc(&plain));
        let figure = |run: &Value, name: &str| run["wire"][name].as_f64().unwrap();
        let share = figure(&coded, "dense_elements_kept") / figure(&coded, "dense_elements_total");
        assert!((0.01..0.1).contains(&share), "{share}");
        let ratio = figure(&coded, "dense_bytes_uncoded") / figure(&coded, "dense_bytes_coded");
        assert!(ratio > 15.0, "{ratio}");
        // Small tensors and losses are sent as they are.
        let all = figure(&plain, "dense_bytes") / figure(&coded, "dense_bytes");
        assert!(all > 3.0 && all < ratio, "{all} of {ratio}");
    }
}

/// A replica that is no number ends the run as it does without compression: nothing that has passed
/// or was kept hides it.
#[test]
fn what_is_not_finite_is_told_as_without_compression() {
    let folder = JOB.folder(ROWS, 500);
    let bad = [
        "sync.method=bsp",
        "train.worker_threads=2",
        "recovery.inject.nan_trainer=1",
        "recovery.inject.nan_step=30",
    ];
    let plain = folder.try_train(2, "job.toml", "plain", &bad);
    let keep = [&bad[..], &["compress.dp_keep=0.05"]].concat();
    let coded = folder.try_train(2, "job.toml", "coded", &keep);
    let status = |run: &str| folder.summary(run)["status"].clone();
    let told = |run: &str, code: i32| (code, status(run));
    assert_eq!(told("plain", plain.code), (1, "failed".into()), "{}", plain.stderr);
    assert_eq!(told("coded", coded.code), (1, "failed".into()), "{}", coded.stderr);
}

/// A run that goes on has not what was not sent, and learns as much.
#[test]
fn a_run_that_goes_on_begins_without_a_residual() {
    let (folder, longer) = (JOB.folder(ROWS, 10_000), JOB.folder(MORE_ROWS, 10_000));
    for method in ["bsp", "gba", "shadow_ma", "foreground_easgd"] {
        let folder = if method == "foreground_easgd" { &longer } else { &folder };
        let beside = if method == "shadow_ma" { TIME_FOR_ROUNDS } else { "seed=7" };
        let method_set = format!("sync.method={method}");
        let threads = if method == "bsp" { 2 } else { 1 };
        let threads = format!("train.worker_threads={threads}");
        let sets = ["compress.dp_keep=0.02", &method_set, &threads, beside, "run.overwrite=true"];
        folder.train(2, "job.toml", "whole", &sets);
        let whole = folder.summary("whole");
        let stop = [&sets[..], &["recovery.inject.stop_step=60"]].concat();
        let ended = folder.try_train(2, "job.toml", "run", &stop);
        assert_eq!(ended.code, 75, "{method}: {}", ended.stderr);
        folder.train(2, "job.toml", "run", &sets[..4]);
        let run = folder.summary("run");
        let (run, whole) = (auc(&run), auc(&whole));
        assert!((run - whole).abs() < 0.015, "{method}: {run} and {whole}");
    }
}

/// Averages begin to be compressed, and no longer are, at a checkpoint.
#[test]
fn a_run_goes_on_with_compression_and_without() {
    let folder = JOB.folder(ROWS, 10_000);
    let sets = ["sync.method=shadow_ma", "train.worker_threads=1"];
    let keep = [&sets[..], &["compress.dp_keep=0.05"]].concat();
    for (run, first, then) in [("on", &sets[..], &keep[..]), ("off", &keep[..], &sets[..])] {
        let stop = [first, &["recovery.inject.stop_step=60"]].concat();
        let ended = folder.try_train(2, "job.toml", run, &stop);
        assert_eq!(ended.code, 75, "{run}: {}", ended.stderr);
        folder.train(2, "job.toml", run, then);
        let summary = folder.summary(run);
        assert!(auc(&summary) > 0.75, "{run}: {}", auc(&summary));
        assert_eq!(summary["wire"]["dense_bytes_coded"].is_null(), run == "off", "{run}");
    }
}

/// Averages, centers and servers are sent what matters too, and learn nearly as much; all elements
/// as they are change nothing.
#[test]
fn replicas_centers_and_servers_are_sent_what_matters() {
    let (folder, longer) = (JOB.folder(ROWS, 10_000), JOB.folder(MORE_ROWS, 10_000));
    for (method, more) in [
        ("local_sgd", &["sync.every=4"][..]),
        ("foreground_bmuf", &["sync.every=4", "sync.block_momentum=0.5"]),
        ("foreground_easgd", &["sync.every=4", "sync.pair=same"]),
        ("foreground_easgd", &["sync.every=4", "sync.pair=sequential"]),
        ("ds_sync", &["sync.every=4"]),
        ("ds_slowmo", &["sync.every=4"]),
        ("shadow_ds_sync", &[SOME_TIME]),
        ("shadow_ma", &["sync.alpha=0.5", SOME_TIME]),
        ("shadow_easgd", &[SOME_TIME]),
        ("shadow_easgd", &["sync.pair=same", SOME_TIME]),
        ("bsp_ps", &[]),
        ("gba", &[]),
        ("async_ps", &[]),
    ] {
        let on_servers = ["bsp_ps", "gba", "async_ps"].contains(&method);
        let folder = if on_servers { &folder } else { &longer };
        let train = |run: &str, keep: &[&str]| {
            let method = format!("sync.method={method}");
            let sets = [&[&*method, "train.worker_threads=1", "run.overwrite=true"], more, keep];
            let ranks = if method.contains("ds_") { 4 } else { 2 };
            folder.train(ranks, "job.toml", run, &sets.concat());
            folder.summary(run)
        };
        let plain = train("plain", &[]);
        let coded = train("coded", &["compress.dp_keep=0.05"]);
        assert!(auc(&coded) > auc(&plain) - 0.01, "{method}: {} of {}", auc(&coded), auc(&plain));
        let figure = |name: &str| coded["wire"][name].as_f64().unwrap();
        let ratio = figure("dense_bytes_uncoded") / figure("dense_bytes_coded");
        assert!(ratio > 10.0, "{method}: {ratio}");
        eprintln!("{method} {more:?}: {} of {}, {ratio}", auc(&coded), auc(&plain));
        if method == "bsp_ps" {
            let all = ["compress.dp_keep=1", "compress.values=f32"];
            let once = model(folder, "plain");
            let all = train("all", &all);
            assert!(all["wire"]["dense_bytes_coded"].is_null());
            assert!(model(folder, "all") == once, "{method}");
        }
    }
}

/// A plan expects no fewer bytes than are sent, and not many times as many: gradients that shrink
/// pass less often than thresholds were made for. The simulator counts what a plan expects.
#[test]
fn bytes_are_expected_before_a_run() {
    let folder = JOB.folder(ROWS, 500);
    let cluster =
        "trainers = 2\nsteps = 50\n[link]\nbytes_per_s = 1e8\n[compute]\nexample_us = 10\n";
    folder.write("cluster.toml", cluster);
    // Rounds at fixed steps: in the background their number is the scheduler's.
    for (method, more) in [("bsp", "seed=1"), ("gba", "seed=1"), ("local_sgd", "sync.every=4")] {
        let method_set = format!("sync.method={method}");
        let keep = ["compress.dp_keep=0.05", &method_set, "train.worker_threads=1", more];
        let plan = ["train", "-c", "job.toml", "--dry-run", "--json", "--ranks", "2"];
        let sets = Folder::sets("planned", &keep);
        let plan: Vec<&str> = plan.into_iter().chain(sets.iter().map(String::as_str)).collect();
        let planned: Value = serde_json::from_str(&folder.umbra(1, &plan).fine().stdout).unwrap();
        let run = format!("coded-{method}");
        folder.train(2, "job.toml", &run, &keep);
        let coded = folder.summary(&run);
        let bytes = |run: &Value, kind: &str| -> f64 {
            let ranks = run["ranks"].as_array().unwrap().iter();
            ranks.map(|rank| rank[kind]["bytes_sent"].as_f64().unwrap_or(0.0)).sum()
        };
        let (kind, times) = match method {
            "bsp" => ("dense", &coded["steps"]),
            "gba" => ("dense_round", &coded["steps"]),
            _ => ("dense_round", &coded["sync"]["rounds"]),
        };
        // Of steps and rounds alone: a mean is published in the end.
        let sent = coded["wire"]["dense_bytes"].as_f64().unwrap() / times.as_f64().unwrap();
        let expected = bytes(&planned, kind);
        assert!(sent < 1.05 * expected && sent > expected / 5.0, "{method}: {sent} of {expected}");
        let simulated = |run: &str, sets: &[&str]| {
            let verb = ["simulate", "-c", "job.toml", "--cluster", "cluster.toml"];
            let sets = Folder::sets(run, &[sets, &["run.overwrite=true"]].concat());
            let arguments: Vec<&str> =
                verb.into_iter().chain(sets.iter().map(String::as_str)).collect();
            drop(folder.umbra(1, &arguments).fine());
            let summary = folder.summary(run);
            let figure = |name: &str| summary["wire"][name].as_f64().unwrap();
            (figure("dense_bytes"), summary["examples_per_second"].as_f64().unwrap())
        };
        let (few, fast) = simulated("virtual-coded", &keep);
        let (all, slow) = simulated("virtual-plain", &keep[1..]);
        assert!(few < all / 4.0 && fast > slow, "{method}: {few} of {all}, {fast} and {slow}");
    }
}

/// What was counted before a run changes its method is counted on.
#[test]
fn a_change_of_the_method_forgets_nothing() {
    let folder = JOB.folder(ROWS, 500);
    let elements = |run: &str, more: &[&str]| {
        let sets = ["compress.dp_keep=0.05", "train.worker_threads=1", "data.lanes=2"];
        folder.train(2, "job.toml", run, &[&sets[..], more].concat());
        folder.summary(run)["wire"]["dense_elements_total"].as_f64().unwrap()
    };
    let bsp = elements("bsp", &["sync.method=bsp"]);
    let steps = folder.summary("bsp")["steps"].as_f64().unwrap();
    let before = (0.8 * steps).round();
    let at = format!("sync.switch.at=[{before}]");
    let both = elements("both", &["sync.method=bsp", "sync.switch.to=gba", &at]);
    // After it parameters are sent as often as they are new to a worker, which the scheduler
    // decides: of as many steps it is no more than twice this.
    let (counted, after) = (before * bsp / steps, (steps - before) * bsp / steps);
    assert!(both > counted && both < counted + 2.0 * after, "{both}: {bsp} in {steps} steps");
}

/// Whether it pays is tried, told, and done, whatever these links are.
#[test]
fn what_is_tried_is_done() {
    let folder = JOB.folder(ROWS, 500);
    for method in ["bsp", "shadow_ma", "gba"] {
        let method = format!("sync.method={method}");
        let sets = ["compress.dp_keep=0.05", "compress.auto=true", &method, "run.overwrite=true"];
        let sets = [&sets[..], &["train.worker_threads=1"]].concat();
        let stderr = folder.train(2, "job.toml", "run", &sets).stderr;
        let wire = &folder.summary("run")["wire"];
        let [plain, coded] =
            ["seconds_trial_plain", "seconds_trial_coded"].map(|name| wire[name].as_f64().unwrap());
        let pays = coded < 0.95 * plain;
        assert_eq!(wire["dense_bytes_coded"].is_null(), !pays, "{method}: {wire}");
        let told = if pays { "compressed: it is on" } else { "compressed: it is off" };
        assert!(stderr.contains(told), "{stderr}");
    }
}

#[test]
fn other_methods_and_keys_without_effect_are_refused() {
    let folder = JOB.folder(1000, 100);
    for (sets, says) in [
        (&["sync.method=independent", "compress.dp_keep=0.1"][..], "send each other nothing"),
        (&["sync.method=bsp", "compress.refresh_every=5"], "`compress.dp_keep` is missing"),
        (&["sync.method=bsp", "compress.dp_keep=0"], "compress.dp_keep"),
    ] {
        let ended = folder.try_train(2, "job.toml", "run", sets);
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
}
