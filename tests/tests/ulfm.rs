//! Jobs that go on inside when a rank is killed, on an MPI that survives it.
//!
//! `make test-ulfm`: installs Open MPI 5, whose library this program runs on as on that of version
//! 4, and runs these tests.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use serde_json::Value;
use umbra_tests::{Ended, Folder, Job, LIMIT, program, start};

const JOB: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [16, 8]\ntop = [24, 12]",
    optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
    batch_size: 64,
};

/// 250 steps of 256 examples.
const ROWS: u64 = 250 * 256;

const KILLED: [&str; 6] = [
    "sync.method=bsp",
    "train.worker_threads=1",
    "checkpoint.every=50",
    "recovery.inject.kill_trainer=0",
    "recovery.inject.kill_step=110",
    "run.watchdog_s=60",
];

fn launcher() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("hpc/mpirun-ulfm")
}

/// Trains on `ranks` ranks; trainer `victim` is killed in step 110, between two checkpoints.
fn train(folder: &Folder, ranks: usize, victim: usize, more: &[&str]) -> Ended {
    let victim = format!("recovery.inject.kill_trainer={victim}");
    let sets = [&KILLED[..], &["run.overwrite=true", &victim], more].concat();
    let sets = Folder::sets("run", &sets);
    let (umbra, ranks) = (program("umbra"), ranks.to_string());
    let umbra = umbra.to_str().unwrap();
    let arguments = ["-n", &ranks, umbra, "train", "-c", "job.toml"].into_iter();
    let arguments: Vec<&str> = arguments.chain(sets.iter().map(String::as_str)).collect();
    // Open MPI 5 ends another rank now and then when one was killed (ARCHITECTURE.md).
    let once = || start(folder.root(), 1, &launcher(), &arguments, &[]).wait(LIMIT);
    let failed_itself = |ended: &Ended| ended.stderr.contains("Send error after request freed");
    (0..4).map(|_| once()).find(|ended| !failed_itself(ended)).unwrap_or_else(once)
}

/// The job went on inside without `lost`. Returns what its summary says of it.
fn went_on(folder: &Folder, ended: &Ended, lost: usize) -> Value {
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let summary = folder.summary("run");
    assert_eq!(summary["status"], "done");
    let losses = summary["recovery"]["losses"].as_array().unwrap().clone();
    assert_eq!((losses.len(), &losses[0]["ranks"]), (1, &Value::from(vec![lost])), "{losses:?}");
    assert!(summary["test"]["auc"].as_f64().unwrap() > 0.6, "{summary}");
    losses[0].clone()
}

#[test]
#[ignore = "needs Open MPI 5: make test-ulfm"]
fn every_method_goes_on_without_a_rank() {
    let folder = JOB.folder(ROWS, 4000);
    for method in ["bsp", "shadow_ma", "shadow_easgd", "ds_sync", "local_sgd"] {
        let set = format!("sync.method={method}");
        let ended = train(&folder, 4, 2, &[&set]);
        let loss = went_on(&folder, &ended, 2);
        // A quarter of the rows, as they were at the last checkpoint.
        assert!(loss["bytes_read"].as_u64() > Some(0), "{method}: {loss}");
        let pls = loss["pls"].as_f64().unwrap();
        assert!((0.0..0.25).contains(&pls) && loss["from_step"].is_u64(), "{method}: {loss}");
        assert!(loss["next_step_unix"].as_f64().unwrap() > 1e9, "{method}: {loss}");
    }
}

/// Batches are handed out, and a trainer makes as many steps as it can: it is killed in an early
/// one.
#[test]
#[ignore = "needs Open MPI 5: make test-ulfm"]
fn servers_go_on_without_a_rank() {
    let folder = JOB.folder(ROWS, 4000);
    for victim in [0, 2] {
        let sets = ["sync.method=gba", "recovery.inject.kill_step=10"];
        let ended = train(&folder, 4, victim, &sets);
        went_on(&folder, &ended, victim);
    }
}

/// The records go to another rank, and so does the center.
#[test]
#[ignore = "needs Open MPI 5: make test-ulfm"]
fn the_first_rank_is_replaced() {
    let folder = JOB.folder(ROWS, 4000);
    for method in ["bsp", "shadow_easgd"] {
        let set = format!("sync.method={method}");
        let ended = train(&folder, 4, 0, &[&set, "run.log_every_s=0.1"]);
        went_on(&folder, &ended, 0);
        assert!(folder.text("run/metrics.jsonl").lines().count() > 0, "{method}");
        assert!(!folder.path("run/run.lock").exists(), "{method}");
    }
}

/// A trainer without rows takes none along.
#[test]
#[ignore = "needs Open MPI 5: make test-ulfm"]
fn a_lost_trainer_takes_no_rows_along() {
    let folder = JOB.folder(ROWS, 4000);
    let separate = ["roles.layout=separate", "roles.trainers=3", "roles.embedding_ps=2"];
    let ended = train(&folder, 5, 1, &[&separate[..], &["sync.method=bsp"]].concat());
    let loss = went_on(&folder, &ended, 1);
    assert_eq!((&loss["bytes_read"], &loss["pls"]), (&0.into(), &0.0.into()), "{loss}");
    // Batches of two trainers from now on: as many examples are three halves of the steps.
    let step = loss["step"].as_u64().unwrap();
    assert!((164..=167).contains(&step), "{loss}");
}

#[test]
#[ignore = "needs Open MPI 5: make test-ulfm"]
fn everybody_goes_back_where_that_is_wanted() {
    let folder = JOB.folder(ROWS, 4000);
    let sets = ["sync.method=bsp", "recovery.mode=full", "checkpoint.background=false"];
    let ended = train(&folder, 4, 3, &sets);
    let loss = went_on(&folder, &ended, 3);
    // 100 steps of four trainers are 133 of three.
    assert_eq!((&loss["from_step"], &loss["step"]), (&100.into(), &133.into()), "{loss}");
    assert_eq!(loss["pls"], 0.0);
}

/// Half of a job is no job, unless it has the first rank: of two ranks the first may go on alone,
/// the other not. What does not go on is started again.
#[test]
#[ignore = "needs Open MPI 5: make test-ulfm"]
fn a_minority_ends_and_is_started_again() {
    let folder = JOB.folder(ROWS, 4000);
    let ended = train(&folder, 2, 1, &["sync.method=bsp"]);
    went_on(&folder, &ended, 1);
    // The launcher may call it a success: the summary says what it is.
    let ended = train(&folder, 2, 0, &["sync.method=bsp"]);
    let says = "those left can't know that they are the job";
    assert!(ended.stderr.contains(says), "{}", ended.stderr);
    assert_eq!(folder.summary("run")["status"], "failed");
    let (umbra, launcher) = (program("umbra"), launcher());
    let [umbra_text, launcher] = [&umbra, &launcher].map(|path| path.to_str().unwrap());
    let sets = Folder::sets("again", &KILLED);
    let job = ["launch", "--", launcher, "-n", "2", umbra_text, "train", "-c", "job.toml"];
    let job: Vec<&str> = job.into_iter().chain(sets.iter().map(String::as_str)).collect();
    let ended = start(folder.root(), 1, &umbra, &job, &[]).wait(LIMIT);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("umbra: starting again after exit code"), "{}", ended.stderr);
    assert_eq!(folder.summary("again")["status"], "done");
}

/// Lost rows are those of the newest row saves, over the checkpoint before.
#[test]
#[ignore = "needs Open MPI 5: make test-ulfm"]
fn rows_that_were_saved_first_come_back_newer() {
    let folder = JOB.folder(ROWS, 4000);
    // A checkpoint after step 100, row saves after every tenth; that after step 130 need not have
    // been written in step 135.
    let sets = [
        "sync.method=bsp",
        "recovery.priority=mfu",
        "recovery.priority_share=0.2",
        "recovery.inject.kill_step=135",
    ];
    let ended = train(&folder, 4, 2, &sets);
    let loss = went_on(&folder, &ended, 2);
    assert_eq!(loss["from_step"], 100, "{loss}");
    assert!((2..=3).contains(&loss["row_saves"].as_u64().unwrap()), "{loss}");
}
