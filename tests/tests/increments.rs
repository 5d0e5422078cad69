//! Checkpoints that have only the rows that changed, and rows of 16 bits.
#![allow(clippy::unwrap_used)]

use std::fs;

use umbra_tests::{Ended, Folder, Job, SavedModel, manifest};

/// Rows enough that a few steps leave most of them alone.
const SETS: [&str; 6] = [
    "sync.method=bsp",
    "train.batch_size=16",
    "train.max_examples=1280",
    "checkpoint.every=5",
    "checkpoint.keep=100",
    "run.tensorboard=false",
];
/// 1280 examples on two ranks.
const STEPS: u64 = 40;

fn train(folder: &Folder, run: &str, sets: &[&str]) -> Ended {
    let ended = folder.try_train(2, "job.toml", run, &[&SETS[..], sets].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended
}

fn folder() -> Folder {
    Job::DLRM.folder(2000, 500)
}

/// Its bytes but for the manifest.
fn bytes(folder: &Folder, run: &str, step: u64) -> u64 {
    let dir = folder.path(&format!("{run}/checkpoints/step-{step}"));
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let data = files.filter(|file| file.file_name() != "manifest.json");
    data.map(|file| file.metadata().unwrap().len()).sum()
}

/// A run whose checkpoints after step `last` are gone: as if it had been killed then.
fn cut(folder: &Folder, run: &str, last: u64) {
    let dir = folder.path(&format!("{run}/checkpoints"));
    for step in (last + 1)..=STEPS {
        let _ = fs::remove_dir_all(dir.join(format!("step-{step}")));
    }
    fs::remove_file(dir.join("LATEST")).unwrap();
    fs::remove_file(folder.path(&format!("{run}/summary.json"))).unwrap();
}

#[test]
fn one_with_the_rows_that_changed_is_the_one_with_all() {
    let folder = folder();
    train(&folder, "whole", &[]);
    train(&folder, "changed", &["checkpoint.full_every=4"]);
    let saved = |run: &str, step: u64| {
        SavedModel::read(&folder.path(&format!("{run}/checkpoints/step-{step}")))
    };
    for step in (5..=STEPS).step_by(5) {
        let dir = folder.path(&format!("changed/checkpoints/step-{step}"));
        // Of four one is whole, and so is the last of a run.
        let base = (step - 5) / 20 * 20 + 5;
        let whole = base == step || step == STEPS;
        let expected = (!whole).then_some(base);
        assert_eq!(manifest(&dir)["base"]["step"].as_u64(), expected, "step {step}");
        assert!(saved("changed", step) == saved("whole", step), "step {step}");
        let [smaller, all] = ["changed", "whole"].map(|run| bytes(&folder, run, step));
        assert_eq!(smaller == all, whole, "step {step}: {smaller} of {all} bytes");
        assert!(smaller <= all + 100, "step {step}: {smaller} of {all} bytes");
    }
    // A run that was killed goes on from such a one, on other ranks, to the same bits.
    cut(&folder, "changed", 35);
    let other = ["train.batch_size=8", "checkpoint.full_every=4"];
    let ended = folder.try_train(4, "job.toml", "changed", &[&SETS[..], &other].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("step-35, step 35 of "), "{}", ended.stderr);
    assert!(saved("changed", STEPS) == saved("whole", STEPS));
    assert_eq!(folder.summary("changed")["test"], folder.summary("whole")["test"]);
}

/// What is taken away by its name, the best and the last, is whole, whatever was saved at its step.
#[test]
fn the_best_and_the_last_have_all_rows() {
    let folder = folder();
    let sets = [
        "checkpoint.full_every=9",
        "data.valid=test.h5",
        "train.eval_every=5",
        "train.early_stop.patience=100",
    ];
    for save in ["last", "best"] {
        let save = format!("checkpoint.save={save}");
        train(&folder, &save, &[&sets[..], &[&save]].concat());
        let of = |name: &str| folder.path(&format!("{save}/checkpoints/{name}"));
        for name in ["best", "last"] {
            assert!(manifest(&of(name))["base"].is_null(), "{save}: {name}");
        }
        let all = fs::read_dir(of("")).unwrap().map(|entry| entry.unwrap().path());
        let mut steps = all.filter(|path| path.join("manifest.json").exists());
        assert!(steps.any(|step| !manifest(&step)["base"].is_null()), "{save}");
    }
    // Stopped at a step at which one of the rows that changed would be due.
    let asked = "recovery.inject.stop_step=19";
    let ended = folder.try_train(
        2,
        "job.toml",
        "stopped",
        &[&SETS[..], &["checkpoint.full_every=9", asked]].concat(),
    );
    assert_eq!(ended.code, 75, "{}", ended.stderr);
    assert!(manifest(&folder.path("stopped/checkpoints/step-20"))["base"].is_null());
}

/// Without its base, or with one that is damaged, such a one is passed over, and refused by name.
#[test]
fn one_without_its_base_is_none() {
    let folder = folder();
    train(&folder, "whole", &[]);
    for (damage, says) in [(false, "that is not there"), (true, "the file is damaged")] {
        let run = format!("run-{damage}");
        train(&folder, &run, &["checkpoint.full_every=3"]);
        cut(&folder, &run, 25);
        let step = |step: u64| format!("{run}/checkpoints/step-{step}");
        let inspect = folder.umbra(1, &["checkpoint", "inspect", &step(25)]).fine();
        assert!(inspect.stdout.contains("changed since step 20"), "{}", inspect.stdout);
        if damage {
            let file = format!("{}/rank-00001.safetensors", step(20));
            let mut bytes = folder.read(&file);
            *bytes.last_mut().unwrap() ^= 1;
            folder.write(&file, bytes);
        } else {
            fs::remove_dir_all(folder.path(&step(20))).unwrap();
        }
        let refused = folder.umbra(1, &["checkpoint", "verify", &step(25)]);
        assert_eq!(refused.code, 4, "{}", refused.stderr);
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
        let ended = train(&folder, &run, &["checkpoint.full_every=3"]);
        assert!(ended.stderr.contains("step-15, step 15 of "), "{}", ended.stderr);
        assert_eq!(folder.summary(&run)["test"], folder.summary("whole")["test"]);
    }
}

/// Half the bytes; a run that goes on says that it has not the same bits, and ends near.
#[test]
fn rows_of_16_bits_take_half_the_bytes() {
    let folder = folder();
    let halves = ["checkpoint.row_precision=bf16"];
    train(&folder, "whole", &[]);
    train(&folder, "halves", &halves);
    let [small, all] = ["halves", "whole"].map(|run| {
        let path = folder.path(&format!("{run}/checkpoints/step-10"));
        SavedModel::read(&path)
    });
    assert_eq!(small.dense, all.dense);
    for (small, all) in small.rows.iter().zip(&all.rows) {
        assert_eq!(2 * small.len(), all.len());
        for (half, word) in small.as_chunks::<2>().0.iter().zip(all.as_chunks::<4>().0) {
            let was = f32::from_le_bytes(*word);
            let is = f32::from_le_bytes([0, 0, half[0], half[1]]);
            // Below the normal numbers the distance is always the same.
            let most = (was.abs() / 256.0).max(f32::MIN_POSITIVE / 128.0);
            assert!((is - was).abs() <= most, "{was} became {is}");
        }
    }
    cut(&folder, "halves", 20);
    let ended = train(&folder, "halves", &halves);
    assert!(ended.stderr.contains("step-20, step 20 of "), "{}", ended.stderr);
    assert!(!ended.stderr.contains("bit for bit"), "{}", ended.stderr);
    let auc = |run: &str| folder.summary(run)["test"]["auc"].as_f64().unwrap();
    let (halves, whole) = (auc("halves"), auc("whole"));
    assert!(halves != whole && (halves - whole).abs() < 0.02, "{halves} and {whole}");
}

/// There is no copy to see it against.
#[test]
fn what_has_changed_is_seen_in_the_background_alone() {
    let folder = folder();
    let sets = ["checkpoint.full_every=2", "checkpoint.background=false"];
    let ended = folder.try_train(1, "job.toml", "run", &sets);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("checkpoint.full_every"), "{}", ended.stderr);
}
