//! Runs that change their method on the way: nothing is lost, the model and its optimizer state go
//! over, a run that stops goes on by the method that it was in.
#![allow(clippy::unwrap_used)]

use umbra_tests::{Folder, Job, numbers};

const JOB: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [16, 8]\ntop = [24, 12]",
    optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
    batch_size: 64,
};

fn auc(folder: &Folder, run: &str) -> f64 {
    folder.summary(run)["test"]["auc"].as_f64().unwrap()
}

/// Steps and methods of the changes of a run.
fn switches(folder: &Folder, run: &str) -> Vec<(u64, String)> {
    let summary = folder.summary(run);
    let switches = summary["sync"]["switches"].as_array().cloned().unwrap_or_default();
    let of = |it: &serde_json::Value| {
        (it["step"].as_u64().unwrap(), it["method"].as_str().unwrap().to_owned())
    };
    switches.iter().map(of).collect()
}

/// One worker: bsp → gba → bsp is the unswitched run to the order of sums, dense parameters, rows
/// and optimizer state, for three optimizers.
#[test]
fn a_switched_run_of_one_worker_is_the_unswitched_run() {
    let folder = JOB.folder(64 * 4 * 6, 500);
    let cases =
        [("sgd", "sgd", 0.05), ("adagrad", "rowwise_adagrad", 0.02), ("adam", "adam", 0.001)];
    for (dense, sparse, rate) in cases {
        let mut kinds = vec![
            format!("optim.dense.kind={dense}"),
            format!("optim.sparse.kind={sparse}"),
            format!("optim.dense.lr={rate}"),
            format!("optim.sparse.lr={rate}"),
            "run.overwrite=true".to_owned(),
        ];
        if dense == "adagrad" {
            let given = ["dense", "sparse"].map(|of| format!("optim.{of}.initial_accumulator=0.1"));
            kinds.extend(given);
        }
        let train = |run: &str, sets: &[&str]| {
            let kinds = kinds.iter().map(String::as_str);
            let all: Vec<&str> = kinds.chain(sets.iter().copied()).collect();
            folder.train(1, "job.toml", run, &all);
            numbers(&folder.path(run).join("checkpoints/last"))
        };
        let whole = train("whole", &["sync.method=bsp", "train.worker_threads=4"]);
        // One worker, four gradients a step in all three parts.
        let parts = train(
            "parts",
            &[
                "sync.method=bsp",
                "train.worker_threads=1",
                "sync.server.members=4",
                "sync.switch.to=gba",
                "sync.switch.at=[2, 4]",
            ],
        );
        let expected = [(2, "gba".to_owned()), (4, "bsp".to_owned())];
        assert_eq!(switches(&folder, "parts"), expected);
        assert!(whole.len() > 8 && whole.keys().eq(parts.keys()), "{:?}", parts.keys());
        for (name, expected) in &whole {
            let apart = expected.iter().zip(&parts[name]).map(|(a, b)| (a - b).abs());
            let apart = apart.fold(0.0, f32::max);
            assert!(apart < 1e-6, "{dense}, {name}: {apart}");
        }
    }
}

/// Every pair of methods, on several layouts, with evaluations and checkpoints between: every
/// example is trained once, and the run learns what the unswitched one learns.
#[test]
fn every_method_goes_over_into_another() {
    let folder = JOB.folder(40_000, 4000);
    folder.train(2, "job.toml", "bsp", &["sync.method=bsp"]);
    let expected = auc(&folder, "bsp");
    let separate: &[&str] =
        &["roles.layout=separate", "roles.trainers=2", "roles.embedding_ps=1", "roles.sync_ps=2"];
    // Ranks, threads of each trainer.
    let cases: [([usize; 2], &str, &str, &[&str]); 6] = [
        ([2, 2], "bsp", "gba", &["data.valid=test.h5", "train.eval_every=40"]),
        ([5, 2], "gba", "bsp", separate),
        ([2, 1], "bsp_ps", "async_ps", &["checkpoint.every=30"]),
        ([3, 1], "hop_bs", "hop_bw", &["roles.sync_ps=2"]),
        ([2, 1], "gba", "async_ps", &["sync.server.tolerance=2", "train.progressive=true"]),
        ([1, 2], "bsp", "gba", &["run.trace=true"]),
    ];
    for (number, ([ranks, threads], from, to, sets)) in cases.into_iter().enumerate() {
        let trainers = if sets == separate { 2 } else { ranks };
        let steps = 40_000u64.div_ceil((64 * threads * trainers) as u64);
        let at = [steps / 3, 2 * steps / 3];
        let threads = format!("train.worker_threads={threads}");
        let (from, to_set) = (format!("sync.method={from}"), format!("sync.switch.to={to}"));
        let at_set = format!("sync.switch.at=[{}, {}]", at[0], at[1]);
        let run = format!("run{number}");
        folder.train(
            ranks,
            "job.toml",
            &run,
            &[&[&*from, &to_set, &at_set, &threads], sets].concat(),
        );
        let summary = folder.summary(&run);
        assert_eq!(summary["examples"], 40_000, "{from} {to}");
        let steps: Vec<u64> = switches(&folder, &run).iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, at, "{from} {to}");
        let auc = auc(&folder, &run);
        assert!((auc - expected).abs() < 0.03, "{from} {to}: {auc}, {expected}");
        assert_eq!(folder.eval(1, &run, "test.h5"), summary["test"], "{from} {to}");
        let wanted = ["counted", "dropped"].map(|name| summary["sync"][name].as_u64().unwrap_or(0));
        assert!(wanted[0] > 0, "{from} {to}: {wanted:?}");
    }
}

/// A run that changes its method by itself does so when a trainer becomes slow, and says why.
#[test]
fn a_run_leaves_synchronous_steps_when_a_trainer_is_slow() {
    let folder = JOB.folder(60_000, 4000);
    let sets = [
        "sync.method=bsp",
        "sync.switch.to=gba",
        "sync.switch.policy=stragglers",
        "sync.switch.window=20",
        "train.worker_threads=1",
        "train.epochs=20",
        "train.max_examples=600000",
        "recovery.inject.slow_trainer=1",
        // Whatever else the machine does: nobody is that slow by chance.
        "recovery.inject.slow_factor=60",
        "recovery.inject.slow_to=4000",
    ];
    let ended = folder.train(2, "job.toml", "run", &sets);
    let summary = folder.summary("run");
    assert_eq!(summary["examples"], 599_776, "{}", ended.stderr);
    // Before the method that was never in use would be tried anyway.
    let first = &summary["sync"]["switches"][0];
    assert!(first["step"].as_u64().unwrap() < 80 && first["method"] == "gba", "{first}");
    let reason = first["reason"].as_str().unwrap();
    assert!(reason.starts_with("trainer 1 takes "), "{reason}");
    assert!(ended.stderr.contains(reason), "{}", ended.stderr);
    assert!(auc(&folder, "run") > 0.6);
}

/// A run that stops between two changes goes on by the method that it was in.
#[test]
fn a_run_that_stops_goes_on_by_the_method_it_was_in() {
    let folder = JOB.folder(40_000, 4000);
    let sets = [
        "sync.method=bsp",
        "train.worker_threads=2",
        "sync.switch.to=gba",
        "sync.switch.at=[50, 100]",
    ];
    let mut examples = 0;
    let mut seen = vec![];
    for stop in [Some(20), Some(70), Some(120), None] {
        let stop = stop.map(|step| format!("recovery.inject.stop_step={step}"));
        let all: Vec<&str> = sets.into_iter().chain(stop.as_deref()).collect();
        let ended = folder.try_train(2, "job.toml", "run", &all);
        assert_eq!(ended.code, if stop.is_some() { 75 } else { 0 }, "{}", ended.stderr);
        examples += folder.summary("run")["examples"].as_u64().unwrap();
        seen.extend(switches(&folder, "run"));
    }
    assert_eq!(examples, 40_000);
    assert_eq!(seen, [(50, "gba".to_owned()), (100, "bsp".to_owned())]);
    assert!(auc(&folder, "run") > 0.6);
}
