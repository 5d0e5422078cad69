//! Jobs that are started again where they were: ranks on nodes that are left have their images, the
//! rows of a node that was lost come from the shared checkpoint.
#![allow(clippy::unwrap_used)]

use umbra_tests::{Ended, Folder, Job, tensors};

const JOB: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [16, 8]\ntop = [24, 12]",
    optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
    batch_size: 64,
};

/// 125 steps of 256 examples, images after every tenth, shared checkpoints after every fortieth.
const ROWS: u64 = 125 * 256;
const IMAGES: [&str; 4] = [
    "checkpoint.every=40",
    "checkpoint.local_dir=local",
    "checkpoint.local_every=10",
    "checkpoint.background=false",
];

fn sets<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&IMAGES[..], more].concat()
}

/// A run that loses trainer 1 in step 75.
fn killed(folder: &Folder, ranks: usize, more: &[&str]) {
    killed_with(folder, ranks, &sets(more));
}

fn killed_with(folder: &Folder, ranks: usize, sets: &[&str]) {
    let kill = ["recovery.inject.kill_trainer=1", "recovery.inject.kill_step=75"];
    let ended = folder.try_train(ranks, "job.toml", "run", &[&kill, sets].concat());
    // Not refused either.
    assert!(![0, 2].contains(&ended.code), "{}", ended.stderr);
}

fn again(folder: &Folder, ranks: usize, more: &[&str]) -> Ended {
    folder.train(ranks, "job.toml", "run", &sets(more))
}

/// The images of a rank.
fn images(folder: &Folder, rank: usize) -> std::path::PathBuf {
    let mut places = std::fs::read_dir(folder.path("local")).unwrap();
    places.next().unwrap().unwrap().path().join(format!("rank-{rank}"))
}

fn model(folder: &Folder, run: &str) -> Vec<u8> {
    tensors(&folder.path(run).join("checkpoints/last"), |name| {
        name.starts_with("dense") || name.starts_with("rows")
    })
}

/// Where no node was lost nothing is: bits are those of a run without a loss.
#[test]
fn with_all_images_a_run_is_the_one_without_a_loss() {
    let folder = JOB.folder(ROWS, 500);
    let two = ["sync.method=bsp", "train.worker_threads=2"];
    folder.train(2, "job.toml", "plain", &two);
    killed(&folder, 2, &two);
    let ended = again(&folder, 2, &two);
    assert!(
        ended.stderr.contains("going on from local images, step 70 of 125"),
        "{}",
        ended.stderr
    );
    assert!(model(&folder, "run") == model(&folder, "plain"));
    assert_eq!(folder.summary("run")["recovery"], serde_json::Value::Null);
    // A run that is done leaves none.
    assert_eq!(std::fs::read_dir(folder.path("local")).unwrap().count(), 0);
}

/// Centers and replicas that are apart are there as well.
#[test]
fn with_all_images_every_method_goes_on_where_it_was() {
    for method in ["shadow_easgd", "shadow_bmuf", "local_sgd"] {
        let folder = JOB.folder(ROWS, 2000);
        let method = format!("sync.method={method}");
        let own = [method.as_str(), "train.worker_threads=2", "sync.every=2"];
        let own = if method.ends_with("local_sgd") { &own[..] } else { &own[..2] };
        killed(&folder, 2, own);
        let ended = again(&folder, 2, own);
        let says = "going on from local images, step ";
        assert!(ended.stderr.contains(says), "{method}: {}", ended.stderr);
        let summary = folder.summary("run");
        assert_eq!(summary["recovery"], serde_json::Value::Null, "{method}");
        let auc = summary["test"]["auc"].as_f64().unwrap();
        assert!(auc > 0.6, "{method}: {auc}");
    }
}

/// What a run did not go on from is nobody's afterwards: a full recovery, then a loss of all ranks.
#[test]
fn images_that_were_passed_over_do_not_come_back() {
    let folder = JOB.folder(ROWS, 500);
    let own = ["sync.method=bsp", "train.worker_threads=2", "recovery.mode=full"];
    killed(&folder, 2, &own);
    let before = images(&folder, 0);
    assert!(before.join("step-70").is_dir());
    std::fs::remove_dir_all(images(&folder, 1)).unwrap();
    // Goes back to step 40, and is stopped before it has been at step 70 again.
    let stop = [&own[..], &["recovery.inject.stop_step=45"]].concat();
    let ended = folder.try_train(2, "job.toml", "run", &sets(&stop));
    assert_eq!(ended.code, 75, "{}", ended.stderr);
    assert!(!before.exists(), "an image of another past is left");
}

#[test]
fn the_rows_of_a_lost_node_alone_are_read_again() {
    // Not with batches that are handed out: a slow trainer may never come to its step 75.
    for method in ["bsp", "shadow_ma", "shadow_easgd"] {
        let folder = JOB.folder(ROWS, 2000);
        let method = format!("sync.method={method}");
        let own = [method.as_str(), "train.worker_threads=1", "recovery.mode=partial"];
        killed(&folder, 4, &own);
        std::fs::remove_dir_all(images(&folder, 1)).unwrap();
        let ended = again(&folder, 4, &own);
        assert!(ended.stderr.contains("rank 1 lost"), "{method}: {}", ended.stderr);
        let summary = folder.summary("run");
        let loss = &summary["recovery"]["losses"][0];
        // Of the two images that are there the newest, and the checkpoint before it.
        let (step, from) = (loss["step"].as_u64().unwrap(), loss["from_step"].as_u64().unwrap());
        assert!(step.is_multiple_of(10) && from.is_multiple_of(40) && step > from, "{loss}");
        let share = (step - from) as f64 / 125.0 / 4.0;
        assert!((loss["pls"].as_f64().unwrap() - share).abs() < 1e-9, "{method}: {loss}");
        let rows = summary["memory"]["embedding_bytes"].as_f64().unwrap();
        let read = loss["bytes_read"].as_f64().unwrap() / (rows / 4.0);
        assert!((0.9..1.1).contains(&read), "{method}: {read}: {loss}");
        let auc = summary["test"]["auc"].as_f64().unwrap();
        assert!(auc > 0.6, "{method}: {auc}");
        assert_eq!(summary["status"], "done");
    }
}

/// Whoever wants everybody to go back has that: to the shared checkpoint.
#[test]
fn a_full_recovery_takes_no_image_where_a_node_was_lost() {
    let folder = JOB.folder(ROWS, 500);
    let own = ["sync.method=bsp", "train.worker_threads=2", "recovery.mode=full"];
    folder.train(2, "job.toml", "plain", &own);
    killed(&folder, 2, &own);
    std::fs::remove_dir_all(images(&folder, 1)).unwrap();
    let ended = again(&folder, 2, &own);
    assert!(ended.stderr.contains("checkpoints/step-40, step 40 of 125"), "{}", ended.stderr);
    assert!(model(&folder, "run") == model(&folder, "plain"));
}

/// Images of a run that was given up are not those of the one in its place.
#[test]
fn a_run_that_begins_anew_knows_no_images() {
    let folder = JOB.folder(ROWS, 500);
    let own = ["sync.method=bsp", "train.worker_threads=2"];
    folder.train(2, "job.toml", "plain", &own);
    killed(&folder, 2, &own);
    let anew = [&own[..], &["checkpoint.resume=none", "run.overwrite=true"]].concat();
    let ended = again(&folder, 2, &anew);
    assert!(!ended.stderr.contains("going on from"), "{}", ended.stderr);
    assert!(model(&folder, "run") == model(&folder, "plain"));
}

/// The rows of a lost node are those of the newest row saves, over the checkpoint before.
#[test]
fn rows_that_were_saved_first_come_back_newer() {
    for priority in ["mfu", "ssu", "scar"] {
        let folder = JOB.folder(ROWS, 2000);
        let priority = format!("recovery.priority={priority}");
        // Row saves after every fifth step.
        let own = [
            &IMAGES[..3],
            &["sync.method=bsp", "train.worker_threads=1", "recovery.priority_share=0.125"],
            &[&priority],
        ];
        killed_with(&folder, 4, &own.concat());
        std::fs::remove_dir_all(images(&folder, 1)).unwrap();
        let ended = folder.train(4, "job.toml", "run", &own.concat());
        let summary = folder.summary("run");
        let loss = &summary["recovery"]["losses"][0];
        // A checkpoint that was begun in the step of the image need not have been written.
        let (step, from) = (loss["step"].as_u64().unwrap(), loss["from_step"].as_u64().unwrap());
        assert!(step > from && from.is_multiple_of(40), "{loss}");
        let saves = loss["row_saves"].as_u64().unwrap();
        let most = (step - from) / 5;
        assert!((1..=most).contains(&saves), "{priority}: {saves} of {most}: {loss}");
        assert!(ended.stderr.contains(" row saves since"), "{}", ended.stderr);
        let figures = &summary["checkpoint"]["row_saves"];
        assert!(figures["count"].as_u64() > Some(0) && figures["bytes"].as_u64() > Some(0));
        let counted = figures["usage_bytes"].as_u64().unwrap();
        assert_eq!(counted > 0, !priority.ends_with("scar"), "{figures}");
        // The last checkpoint takes them along.
        let names = std::fs::read_dir(folder.path("run/checkpoints")).unwrap();
        let left: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("rows-"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
