//! Lost shards of rows, played by runs: rows come back as they were saved, the rest goes on, and
//! what is counted is what happened.
#![allow(clippy::unwrap_used)]

use umbra_tests::{Folder, Job, numbers, tensors};

const JOB: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [16, 8]\ntop = [24, 12]",
    optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
    batch_size: 64,
};

/// A job of 1000 seconds that fails after given steps. A save costs 10 seconds, so Young's interval
/// is the root of 2 × 10 × 80 = 40 seconds: a step in the runs of 25.
const FAILING: [&str; 7] = [
    "recovery.mtbf_s=80",
    "recovery.save_s=10",
    "recovery.load_s=3",
    "recovery.reschedule_s=4",
    "recovery.inject.job_s=1000",
    "recovery.inject.failures=steps",
    "recovery.inject.shards=4",
];

/// The parameters and their optimizer state; with `rows`, which are named by partitions, all.
fn model(folder: &Folder, run: &str, rows: bool) -> Vec<u8> {
    let dir = folder.path(run).join("checkpoints/last");
    tensors(&dir, |name| name.starts_with("dense") || (rows && name.starts_with("rows")))
}

fn train(folder: &Folder, ranks: usize, run: &str, sets: &[&str]) {
    let all = [&["run.overwrite=true", "sync.method=bsp"][..], sets].concat();
    folder.train(ranks, "job.toml", run, &all);
}

/// 25 steps of 256 examples.
fn folder() -> Folder {
    JOB.folder(25 * 256, 500)
}

const FOUR: &str = "train.worker_threads=4";

#[test]
fn a_failure_right_after_a_save_and_one_of_everybody_change_nothing() {
    let folder = folder();
    train(&folder, 1, "plain", &[FOUR]);
    let plain = model(&folder, "plain", true);
    for (run, mode) in [("everybody", "full"), ("saved", "partial")] {
        let mode = format!("recovery.mode={mode}");
        let steps = "recovery.inject.failure_steps=[7, 8]";
        train(&folder, 1, run, &[&FAILING[..], &[&mode, steps, FOUR]].concat());
        assert!(model(&folder, run, true) == plain, "{run}");
        let recovery = &folder.summary(run)["recovery"];
        assert_eq!(recovery["failures"], 2, "{recovery}");
        // 24 saves and two failures, none of which loses work: all was saved in that very step.
        assert_eq!(recovery["saves"], 24, "{recovery}");
        let overhead = recovery["overhead_fraction"].as_f64().unwrap();
        assert!((overhead - (24.0 * 10.0 + 2.0 * 7.0) / 1000.0).abs() < 1e-9, "{recovery}");
    }
}

/// A run that loses all its rows in its last step has the rows of the one that ended with its only
/// save, in the middle.
#[test]
fn lost_rows_come_back_with_their_state_as_they_were_saved() {
    let folder = folder();
    let twelve = "train.max_examples=3072";
    train(&folder, 1, "half", &[FOUR, "train.max_examples=1536"]);
    train(&folder, 1, "whole", &[FOUR, twelve]);
    let sets = [
        "recovery.mode=cpr",
        "recovery.pls_target=1",
        "recovery.inject.lost_shards=4",
        "recovery.inject.failure_steps=[12]",
        twelve,
        FOUR,
    ];
    train(&folder, 1, "lost", &[&FAILING[..], &sets].concat());
    let last = |run: &str| numbers(&folder.path(run).join("checkpoints/last"));
    let (half, whole, lost) = (last("half"), last("whole"), last("lost"));
    for (name, values) in &lost {
        let rows = name.starts_with("rows");
        assert!((values == &half[name]) == rows, "{name}");
        assert!((values == &whole[name]) != rows, "{name}");
    }
    let recovery = &folder.summary("lost")["recovery"];
    // 6 of 12 steps, all shards.
    assert_eq!((&recovery["pls"], &recovery["saves"]), (&0.5.into(), &1.into()), "{recovery}");
}

/// Whoever holds which partition: the same rows are lost, and the same bits come out.
#[test]
fn ranks_do_not_change_what_is_lost() {
    let folder = folder();
    for priority in ["none", "mfu", "scar"] {
        // Where no rows come first, nobody uses a share of them.
        let share = if priority == "none" { "0.125" } else { "0.2" };
        let share = format!("recovery.priority_share={share}");
        let priority = format!("recovery.priority={priority}");
        let sets = [
            "recovery.mode=cpr",
            "recovery.pls_target=0.5",
            &share,
            "recovery.inject.failure_steps=[9, 17, 25]",
            &priority,
        ];
        let sets = [&FAILING[..], &sets].concat();
        train(&folder, 1, "one", &[&sets[..], &[FOUR]].concat());
        train(&folder, 2, "two", &[&sets[..], &["train.worker_threads=2"]].concat());
        train(&folder, 4, "four", &[&sets[..], &["train.worker_threads=1"]].concat());
        train(&folder, 1, "plain", &[FOUR]);
        let one = model(&folder, "one", false);
        assert!(one != model(&folder, "plain", false), "{priority}");
        let expected = folder.summary("one")["recovery"].clone();
        for other in ["two", "four"] {
            let found = &folder.summary(other)["recovery"];
            for figure in ["failures", "pls", "saves", "interval_s"] {
                assert_eq!(found[figure], expected[figure], "{priority} {other} {figure}");
            }
            // Partitions are others, and of each a share is saved: the same rows where all are.
            if priority.ends_with("none") {
                assert!(model(&folder, other, false) == one, "{other}");
                assert_eq!(found["full_saves"], expected["full_saves"], "{other}");
            }
        }
    }
}

/// Every method goes on with what is left, and a save of a share of the rows is a share of a save.
#[test]
fn every_method_goes_on_with_what_is_left() {
    let folder = JOB.folder(40_000, 4000);
    let methods = ["shadow_ma", "shadow_easgd", "ds_sync", "gba", "local_sgd"];
    for (number, method) in methods.into_iter().enumerate() {
        let priority = ["mfu", "ssu", "scar", "none", "ssu"][number];
        let (method, priority) =
            (format!("sync.method={method}"), format!("recovery.priority={priority}"));
        let sets = [
            "recovery.mode=cpr",
            "recovery.pls_target=0.6",
            "recovery.inject.failure_steps=[20, 60]",
            "train.worker_threads=2",
            &method,
            &priority,
        ];
        train(&folder, 2, "run", &[&FAILING[..], &sets].concat());
        let summary = folder.summary("run");
        let recovery = &summary["recovery"];
        assert_eq!((&summary["status"], &recovery["failures"]), (&"done".into(), &2.into()));
        let auc = summary["test"]["auc"].as_f64().unwrap();
        assert!(auc > 0.6, "{method}: {auc}");
        let (saves, full) = (recovery["saves"].as_f64(), recovery["full_saves"].as_f64());
        let (saves, full) = (saves.unwrap(), full.unwrap());
        assert!(full <= saves && full > 0.0, "{method}: {recovery}");
    }
}

/// A run that is told how often it fails saves by itself, as often as what a save takes says.
#[test]
fn checkpoints_are_as_far_apart_as_what_they_take_says() {
    let folder = JOB.folder(250 * 128, 500);
    // A first guess of next to nothing: due after the first hundred steps, which tell the pace.
    let sets = ["recovery.mode=full", "recovery.mtbf_s=100", "recovery.save_s=1e-9"];
    let ended = folder.train(2, "job.toml", "run", &sets);
    let checkpoint = &folder.summary("run")["checkpoint"];
    assert!(checkpoint["count"].as_u64() >= Some(2), "{checkpoint}");
    let interval = checkpoint["interval_s"].as_f64().unwrap();
    assert!((1.0..=100.0).contains(&interval), "{checkpoint}");
    assert!(ended.stderr.contains("umbra: a checkpoint every "), "{}", ended.stderr);
}

/// `umbra plan`: the job whose full recovery takes 8.46 %, as the formula of `overhead.rs` has it.
#[test]
fn a_plan_has_every_way_to_recover_and_says_what_is_missing() {
    let folder = Folder::new();
    let job = ["plan", "--length", "56h", "--mtbf", "28 h", "--shards", "18"];
    let costs = ["--save", "336", "--load", "100 s", "--reschedule", "200"];
    let plan = |more: &[&str]| folder.umbra(1, &[&job[..], more].concat());
    let told = plan(&[&costs[..], &["--pls", "0.02,0.0001"]].concat()).fine();
    for line in [
        "everybody goes back                      2.3 h     8.46 %          0",
        "lost rows go back                        2.3 h     4.38 %    0.00224",
        "lost rows, PLS of 0.02 allowed          20.2 h     0.76 %    0.01876",
        "cpr, PLS of 0.02 allowed: lost rows go back",
        "cpr, PLS of 0.0001 allowed: everybody goes back: lost rows alone would cost more",
    ] {
        assert!(told.stdout.contains(line), "{line}\n{}", told.stdout);
    }
    for (more, message) in [
        (&["--save", "soon"][..], "expected seconds above 0, or a time"),
        (&["--save", "1", "--pls", "2"], "umbra: --pls 2: expected a number above 0, 1 at most"),
        (&["--save", "1", "--share", "0"], "umbra: --share 0: expected a number above 0"),
        (&[], "--save <TIME>"),
        (&["--bytes-per-s", "1e9", "-c", "none.toml"], "none.toml: No such file"),
    ] {
        let ended = plan(more);
        assert_eq!(ended.code, 2, "{more:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(message), "{more:?}: {}", ended.stderr);
    }
}

/// Checkpoints on the way change nothing of the saves that a run plays.
#[test]
fn checkpoints_leave_what_is_played_alone() {
    let folder = folder();
    let own = [
        "recovery.mode=cpr",
        "recovery.priority=mfu",
        "recovery.priority_share=0.05",
        "recovery.pls_target=0.05",
        "recovery.inject.failure_steps=[20]",
        FOUR,
    ];
    let sets = [&FAILING[..], &own].concat();
    train(&folder, 1, "plain", &sets);
    train(&folder, 1, "saving", &[&sets[..], &["checkpoint.every=3"]].concat());
    assert!(model(&folder, "saving", true) == model(&folder, "plain", true));
    let figure = |run: &str| folder.summary(run)["recovery"]["full_saves"].clone();
    assert_eq!(figure("saving"), figure("plain"));
}
