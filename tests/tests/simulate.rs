//! `umbra simulate`, as a user runs it.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_tests::{Folder, Job};

const DLRM: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 16\nbottom = [32, 16]\ntop = [64, 32]",
    optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
    batch_size: 128,
};

const ROWS: u64 = 40_000;
const CLUSTER: &str = "trainers = 4\n[link]\nbytes_per_s = 1e9\n[compute]\nexample_us = 10\n";

/// A folder with data, a job and a cluster of each fidelity; the AUC of the planted model.
fn folder() -> (Folder, f64) {
    let folder = Folder::new();
    folder.synth("train.h5", ROWS, 0);
    let planted = folder.synth("test.h5", 10_000, ROWS).unwrap();
    folder.write("job.toml", DLRM.text());
    folder.write("timing.toml", CLUSTER);
    folder.write("training.toml", format!("fidelity = \"training\"\n{CLUSTER}"));
    (folder, planted)
}

fn simulate(folder: &Folder, cluster: &str, run: &str, sets: &[&str]) -> Value {
    let sets = Folder::sets(run, sets);
    let arguments: Vec<&str> = ["simulate", "-c", "job.toml", "--cluster", cluster]
        .into_iter()
        .chain(sets.iter().map(String::as_str))
        .collect();
    drop(folder.umbra(1, &arguments).fine());
    folder.summary(run)
}

/// Virtual time changes nothing but time: one worker learns what it learns in `umbra train`, bit
/// for bit.
#[test]
fn one_worker_learns_what_it_learns_in_real_time() {
    let (folder, _) = folder();
    folder.train(1, "job.toml", "real", &["sync.method=none"]);
    folder.write("one.toml", format!("fidelity = \"training\"\n{}", CLUSTER.replace('4', "1")));
    let simulated = simulate(&folder, "one.toml", "virtual", &["sync.method=none"]);
    let real = folder.summary("real");
    assert_eq!(
        (&real["virtual"], &simulated["virtual"]),
        (&Value::from(false), &Value::from(true))
    );
    assert_eq!(real["test"], simulated["test"]);
    assert_eq!(real["train"], simulated["train"]);
    assert_eq!(real["examples"], simulated["examples"]);
}

/// The simulator and the MPI driver run the same conversations with the same arithmetic. Rows would
/// show how ranks race for them, so they get a learning rate that moves nothing.
#[test]
fn gated_averaging_equals_that_of_real_ranks_bit_for_bit() {
    let (folder, _) = folder();
    for (ranks, method, more) in [
        (2, "foreground_ma", "sync.every=5"),
        (4, "foreground_bmuf", "sync.every=5"),
        (4, "ds_sync", "sync.schedule=hypercube"),
        (3, "ds_sync", "sync.schedule=random"),
    ] {
        let sets = [
            &*format!("sync.method={method}"),
            more,
            "optim.sparse.lr=1e-30",
            "run.overwrite=true",
        ];
        folder.train(ranks, "job.toml", "real", &sets);
        let cluster = CLUSTER.replace('4', &ranks.to_string());
        folder.write("ranks.toml", format!("fidelity = \"training\"\n{cluster}"));
        let simulated = simulate(&folder, "ranks.toml", "virtual", &sets);
        let real = folder.summary("real");
        assert_eq!(real["test"], simulated["test"], "{method} on {ranks} ranks");
        assert_eq!(real["test_replica"], simulated["test_replica"], "{method} on {ranks} ranks");
        for figure in ["rounds", "gap_mean", "gap_p99"] {
            assert_eq!(real["sync"][figure], simulated["sync"][figure], "{method}: {figure}");
        }
    }
}

/// `bsp` is a function of the examples alone, so its model is that of real ranks without a
/// condition: rows move, and slices, threads and trainers need not be powers of two.
#[test]
fn bsp_equals_that_of_real_ranks_bit_for_bit() {
    let (folder, _) = folder();
    let norm = ["model.batch_norm=true", "sync.batch_norm=local"];
    let lanes = ["train.worker_threads=2", "data.lanes=5"];
    let cases: [(usize, &[&str]); 5] = [(2, &[]), (4, &[]), (2, &norm), (4, &norm), (3, &lanes)];
    for (ranks, more) in cases {
        let common = ["sync.method=bsp", "train.max_examples=20000", "run.overwrite=true"];
        let sets = [&common[..], more].concat();
        folder.train(ranks, "job.toml", "real", &sets);
        let cluster = CLUSTER.replace('4', &ranks.to_string());
        folder.write("ranks.toml", format!("fidelity = \"training\"\n{cluster}"));
        let simulated = simulate(&folder, "ranks.toml", "virtual", &sets);
        let real = folder.summary("real");
        assert!(real["test"]["auc"].as_f64().unwrap() > 0.55, "{}", real["test"]);
        for figure in ["test", "examples", "steps"] {
            assert_eq!(real[figure], simulated[figure], "{ranks} ranks, {more:?}: {figure}");
        }
        assert_eq!(simulated["sync"]["rounds"], simulated["steps"], "{ranks} ranks, {more:?}");
    }
}

#[test]
fn four_trainers_learn_in_virtual_time_and_repeat_bit_for_bit() {
    let (folder, planted) = folder();
    let short = "\n[[short]]\ntrainer = 3\nshare = 0.5\n";
    folder.write("short.toml", folder.text("training.toml") + short);
    for method in ["shadow_easgd", "shadow_ma", "foreground_bmuf", "shadow_ds_sync"] {
        let every =
            if method.starts_with("shadow") { "run.overwrite=true" } else { "sync.every=5" };
        let sets = [&*format!("sync.method={method}"), every, "run.overwrite=true"];
        let first = simulate(&folder, "training.toml", "run", &sets);
        let auc = first["test"]["auc"].as_f64().unwrap();
        assert!(auc > planted - 0.1, "{method}: AUC {auc}, planted {planted}");
        assert_eq!(first["examples"], ROWS);
        assert!(first["sync"]["rounds"].as_u64().unwrap() > 0);
        let again = simulate(&folder, "training.toml", "run", &sets);
        assert_eq!(first, again, "{method}");
        let less = simulate(&folder, "short.toml", "run", &sets);
        assert_eq!(less["sync"]["trainers"][3]["steps"], 39, "{method}: half of 79 steps");
        assert_eq!(less["sync"]["trainers"][0]["steps"], 79, "{method}");
    }
}

#[test]
fn a_sweep_prints_and_writes_what_each_number_of_trainers_gives() {
    let (folder, _) = folder();
    let sets = ["--set", "sync.method=shadow_ma"];
    let sweep = ["--trainers", "1,2,8", "--json", "sweep.json"];
    let mut arguments = vec!["simulate", "-c", "job.toml", "--cluster", "timing.toml"];
    arguments.extend(sets.into_iter().chain(sweep));
    let ended = folder.umbra(1, &arguments).fine();
    assert_eq!(ended.stdout.lines().count(), 4, "{}", ended.stdout);
    let json: Value = serde_json::from_str(&folder.text("sweep.json")).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let trainers: Vec<u64> = rows.iter().map(|row| row["trainers"].as_u64().unwrap()).collect();
    assert_eq!(trainers, [1, 2, 8]);
    assert_eq!(rows[0]["efficiency"], 1.0);
    let speed = |row: &Value| row["summary"]["examples_per_second"].as_f64().unwrap();
    let eight = rows[2]["efficiency"].as_f64().unwrap();
    assert!((eight - speed(&rows[2]) / speed(&rows[0]) / 8.0).abs() < 1e-12);
    assert!(!folder.path("runs").exists(), "a sweep leaves no run folder");
}

#[test]
fn mistakes_are_one_message_with_its_place() {
    let (folder, _) = folder();
    folder.write("short.toml", format!("{CLUSTER}[[short]]\ntrainer = 1\nshare = 0.5\n"));
    folder.write("typo.toml", CLUSTER.replace("bytes_per_s", "bytes_per_sec"));
    let try_it = |ranks, cluster: &str, set: &str| {
        let arguments = ["simulate", "-c", "job.toml", "--cluster", cluster, "--set", set];
        let ended = folder.umbra(ranks, &arguments);
        (ended.code, ended.stderr)
    };
    for (ranks, cluster, set, code, message) in [
        (1, "typo.toml", "sync.method=shadow_ma", 2, "typo.toml:3: unknown field `bytes_per_sec`"),
        (1, "nowhere.toml", "sync.method=shadow_ma", 2, "--cluster nowhere.toml: cannot read it"),
        (
            1,
            "training.toml",
            "model.batch_norm=true",
            2,
            "sync.batch_norm = \"global\": workers would meet in the middle of a step",
        ),
        (
            1,
            "training.toml",
            "compress.mp_keep=0.5",
            2,
            "bags are pooled by trainers in virtual time",
        ),
        (
            1,
            "short.toml",
            "sync.method=bsp",
            2,
            "sync.method = \"bsp\": all trainers make equally many steps",
        ),
        (
            2,
            "timing.toml",
            "sync.method=shadow_ma",
            5,
            "simulate is one process, and 2 were started",
        ),
    ] {
        let (got, stderr) = try_it(ranks, cluster, set);
        assert_eq!(got, code, "{stderr}");
        assert_eq!(stderr.matches("umbra: ").count(), 1, "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
    }
}

/// Servers hand out every batch once, the same job gives the same figures, and a slow trainer holds
/// up those alone that wait for it.
#[test]
fn servers_in_virtual_time() {
    let (folder, _) = folder();
    let straggler = "[[straggler]]\ntrainer = 2\nfactor = 4\n";
    folder.write("slow.toml", format!("steps = 100\n{CLUSTER}{straggler}"));
    let run = |method: &str, run: &str| {
        let method = format!("sync.method={method}");
        let sets = [&*method, "train.worker_threads=1", "run.overwrite=true"];
        simulate(&folder, "slow.toml", run, &sets)
    };
    let rate = |summary: &Value| summary["examples_per_second"].as_f64().unwrap();
    let waits = rate(&run("bsp_ps", "waits"));
    for method in ["bsp_ps", "hop_bs", "hop_bw", "async_ps", "gba"] {
        let (one, other) = (run(method, method), run(method, "again"));
        assert_eq!((&one["sync"], rate(&one)), (&other["sync"], rate(&other)), "{method}");
        let count = |name: &str| one["sync"][name].as_u64().unwrap_or(0);
        assert_eq!(count("counted") + count("dropped"), 400, "{method}");
        let gain = rate(&one) / waits;
        // One backup worker: the slow one.
        let does_not_wait = ["hop_bw", "async_ps", "gba"].contains(&method);
        assert_eq!(gain > 2.0, does_not_wait, "{method}: {gain}");
    }
    folder.write("dead.toml", format!("{CLUSTER}[[death]]\ntrainer = 1\nat_s = 1\n"));
    let mut arguments = vec!["simulate", "-c", "job.toml", "--cluster", "dead.toml"];
    arguments.extend(["--set", "sync.method=gba", "--set", "train.worker_threads=1"]);
    let ended = folder.umbra(1, &arguments);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("no [[death]]"), "{}", ended.stderr);
}

/// One worker learns from servers in virtual time what it learns in real time, bit for bit: rows
/// and parameters of the same versions. Four learn with GBA beside a slow one what synchronous
/// steps teach, the same twice.
#[test]
fn servers_train_in_virtual_time() {
    let (folder, planted) = folder();
    folder.write("one.toml", format!("fidelity = \"training\"\n{}", CLUSTER.replace('4', "1")));
    for rows in ["global", "own_count"] {
        let rows = format!("sync.server.row_divisor={rows}");
        let sets = ["sync.method=gba", "sync.server.members=4", "train.worker_threads=1", &rows];
        let sets = [&sets[..], &["run.overwrite=true"]].concat();
        folder.train(1, "job.toml", "real", &sets);
        let (real, simulated) =
            (folder.summary("real"), simulate(&folder, "one.toml", "virtual", &sets));
        for figures in ["test", "examples"] {
            assert_eq!(real[figures], simulated[figures], "{rows}, {figures}");
        }
        let counts = ["counted", "aggregates", "version_lag"];
        counts.iter().for_each(|it| assert_eq!(real["sync"][it], simulated["sync"][it], "{it}"));
    }
    let slow = "[[straggler]]\ntrainer = 2\nfactor = 4\n";
    folder.write("slow.toml", folder.text("training.toml") + slow);
    let auc = |summary: &Value| summary["test"]["auc"].as_f64().unwrap();
    let run = |method: &str, run: &str| {
        let method = format!("sync.method={method}");
        let sets = [
            &*method,
            "train.worker_threads=1",
            "train.epochs=2",
            // From 0 a first gradient is divided by its own size, and so is what rounding leaves.
            "optim.dense.initial_accumulator=0.1",
            "optim.sparse.initial_accumulator=0.1",
            "optim.dense.lr=0.05",
            "optim.sparse.lr=0.2",
        ];
        simulate(&folder, "slow.toml", run, &sets)
    };
    let (bsp, sums, gba) = (run("bsp", "bsp"), run("bsp_ps", "sums"), run("gba", "gba"));
    let again = run("gba", "again");
    assert_eq!((&gba["test"], &gba["sync"]), (&again["test"], &again["sync"]));
    assert!((auc(&bsp) - auc(&sums)).abs() < 1e-4, "{} {}", auc(&bsp), auc(&sums));
    assert!((auc(&bsp) - auc(&gba)).abs() < 0.01, "{} {}", auc(&bsp), auc(&gba));
    assert!(auc(&gba) > planted - 0.1, "{} of {planted}", auc(&gba));
    assert!(gba["sync"]["token_staleness_max"].as_u64().unwrap() > 0);
}

/// A job that changes by itself tries the other method once, does so when a trainer becomes slow
/// and when it is not any more, and no more often; one that changes at given steps does it there.
#[test]
fn a_job_changes_its_method_in_virtual_time() {
    let (folder, _) = folder();
    // Little varies: nobody gains by not waiting but for the straggler.
    let cluster =
        CLUSTER.replace('4', "8").replace("example_us = 10", "example_us = 100\nspread = 0.02");
    let slow = "[[straggler]]\ntrainer = 5\nfactor = 6.0\nfrom_step = 300\nto_step = 600\n";
    // And a server is what all wait for while nobody is slow.
    let servers = "embedding_ps = 2\nsync_ps = 1\nsteps = 900\n";
    let slow = format!("[memory]\nserve_bytes_per_s = 2e7\n{slow}");
    folder.write("day.toml", format!("{servers}{cluster}{slow}"));
    let policy = ["sync.switch.policy=stragglers", "sync.switch.window=20"];
    let common = ["sync.method=bsp", "sync.switch.to=gba", "train.worker_threads=1"];
    for (run, sets) in [("policy", &policy[..]), ("steps", &["sync.switch.at=[100, 250]"])] {
        let summary = simulate(&folder, "day.toml", run, &[&common[..], sets].concat());
        let switches = summary["sync"]["switches"].as_array().unwrap();
        let steps: Vec<u64> = switches.iter().map(|it| it["step"].as_u64().unwrap()).collect();
        let methods: Vec<&str> = switches.iter().map(|it| it["method"].as_str().unwrap()).collect();
        assert!(methods.iter().step_by(2).all(|method| *method == "gba"), "{run}: {steps:?}");
        assert!(methods.iter().skip(1).step_by(2).all(|method| *method == "bsp"), "{steps:?}");
        assert_eq!(summary["examples"], 900 * 8 * 128, "{run}");
        if run == "steps" {
            assert_eq!(steps, [100, 250]);
            continue;
        }
        // The other method is tried early, and left.
        let [tried, left, leaves, returns] = steps[..] else { panic!("{steps:?}") };
        assert!(tried == 80 && (120..300).contains(&left), "{steps:?}");
        // Two windows of 20 steps would end at step 340, each six times as long as usual.
        assert!((302..320).contains(&leaves) && (620..=700).contains(&returns), "{steps:?}");
        let reason = switches[2]["reason"].as_str().unwrap();
        assert!(reason.starts_with("trainer 5 takes "), "{reason}");
    }
    for (set, expected) in [("sync.method=bsp", "from_step"), ("sync.switch.at=[5]", "timing")] {
        let cluster = if set.contains("switch") { "training.toml" } else { "day.toml" };
        let mut sets = vec!["train.worker_threads=1", set];
        sets.extend(if set.contains("switch") { &common[..2] } else { &[] });
        let sets = Folder::sets("refused", &sets);
        let arguments = ["simulate", "-c", "job.toml", "--cluster", cluster].into_iter();
        let arguments: Vec<&str> = arguments.chain(sets.iter().map(String::as_str)).collect();
        let ended = folder.umbra(1, &arguments);
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    }
}

/// A job of 1000 seconds whose save costs 10 and whose recovery 30; Young's interval is √(2 × 10 ×
/// 500) = 100 seconds.
const FAILING: [&str; 7] = [
    "recovery.mtbf_s=500",
    "recovery.save_s=10",
    "recovery.load_s=20",
    "recovery.reschedule_s=10",
    "recovery.inject.job_s=1000",
    "recovery.inject.failures=steps",
    "recovery.inject.shards=4",
];

/// Rows that are lost in virtual time are those that real ranks lose, bit for bit.
#[test]
fn lost_rows_come_back_as_on_real_ranks() {
    let (folder, _) = folder();
    let common = [
        "sync.method=bsp",
        "train.worker_threads=2",
        "train.max_examples=20000",
        "run.overwrite=true",
    ];
    folder.train(2, "job.toml", "plain", &common);
    let steps = ["recovery.mode=partial", "recovery.inject.failure_steps=[6, 13]"];
    let sets = [&common[..], &FAILING, &steps].concat();
    folder.train(2, "job.toml", "real", &sets);
    let two = CLUSTER.replace('4', "2");
    folder.write("two.toml", format!("fidelity = \"training\"\n{two}"));
    let simulated = simulate(&folder, "two.toml", "virtual", &sets);
    let real = folder.summary("real");
    assert_eq!(real["test"], simulated["test"]);
    assert_ne!(real["test"], folder.summary("plain")["test"]);
    for figure in ["failures", "pls", "saves", "full_saves", "overhead_fraction"] {
        assert_eq!(real["recovery"][figure], simulated["recovery"][figure], "{figure}");
    }
}

/// Every method goes on with what is left, and repeats bit for bit.
#[test]
fn every_method_loses_rows_in_virtual_time() {
    let (folder, planted) = folder();
    let own = ["recovery.mode=cpr", "recovery.pls_target=0.05", "run.overwrite=true"];
    let steps = "recovery.inject.failure_steps=[20, 55]";
    for (method, priority) in
        [("shadow_easgd", "none"), ("ds_sync", "mfu"), ("gba", "scar"), ("bsp", "ssu")]
    {
        let (method, priority) =
            (format!("sync.method={method}"), format!("recovery.priority={priority}"));
        let sets = [&FAILING[..], &own, &[&method, &priority]].concat();
        let set = |more| [&sets[..], &[more]].concat();
        let lost = simulate(&folder, "training.toml", "run", &set(steps));
        let again = simulate(&folder, "training.toml", "run", &set(steps));
        let figures = |run: &Value| (run["test"].clone(), run["seconds"].clone());
        assert_eq!(figures(&lost), figures(&again), "{method}");
        let without = "recovery.inject.failure_steps=[1000000]";
        let without = simulate(&folder, "training.toml", "run", &set(without));
        assert_ne!(lost["test"], without["test"], "{method}");
        assert_eq!(lost["recovery"]["failures"], 2, "{method}");
        let auc = lost["test"]["auc"].as_f64().unwrap();
        assert!(auc > planted - 0.12, "{method}: AUC {auc}, planted {planted}");
    }
}

/// Trainers stand still for as long as the formula says, on a cluster that is not there.
#[test]
fn what_failures_take_of_virtual_time_is_what_the_formula_says() {
    let (folder, _) = folder();
    // Bound by what trainers compute: stores catch up while these stand still.
    let many = CLUSTER.replace('4', "64").replace("= 10\n", "= 100\n");
    folder.write("many.toml", format!("embedding_ps = 16\nsteps = 500\n{many}"));
    let mut found = vec![];
    for mode in ["full", "partial", "cpr"] {
        for method in ["shadow_ma", "bsp"] {
            let own = [
                &*format!("sync.method={method}"),
                &*format!("recovery.mode={mode}"),
                "train.worker_threads=2",
                "recovery.pls_target=0.05",
                "recovery.inject.failure_steps=[190, 405]",
                "run.overwrite=true",
            ];
            let run = simulate(&folder, "many.toml", "run", &[&FAILING[..], &own].concat());
            let recovery = &run["recovery"];
            let [told, simulated] = ["overhead_fraction", "overhead_simulated"]
                .map(|figure| recovery[figure].as_f64().unwrap());
            assert!((simulated / told - 1.0).abs() < 0.05, "{mode}, {method}: {recovery}");
            found.push(simulated);
        }
    }
    // Less of the work is done again, then less is saved.
    assert!(found[0] > found[2] && found[2] > found[4], "{found:?}");
}
