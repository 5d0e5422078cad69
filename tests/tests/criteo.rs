//! The first 10,000 rows of the Criteo Kaggle file, from raw text to a model that knows something.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use umbra_tests::Folder;

fn sample() -> PathBuf {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::env::var_os("UMBRA_DATA")
        .map_or_else(|| project.join("../shared/data"), PathBuf::from)
        .join("criteo/first10k.tsv.xz")
}

#[test]
fn raw_criteo_text_becomes_a_model_better_than_the_base_rate() {
    let packed = sample();
    if !packed.exists() {
        eprintln!("SKIPPED: no {}; set UMBRA_DATA to the folder of the data", packed.display());
        return;
    }
    let unpacked = Command::new("xz").arg("-dc").arg(&packed).output().unwrap();
    assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
    let folder = Folder::new();
    let lines: Vec<&[u8]> = unpacked.stdout.split_inclusive(|byte| *byte == b'\n').collect();
    assert_eq!(lines.len(), 10_000);
    folder.write("train.tsv", lines[..8000].concat());
    folder.write("test.tsv", lines[8000..].concat());
    std::fs::create_dir_all(folder.path("runs/data")).unwrap();
    let (train, test) = ("runs/data/criteo_train.h5", "runs/data/criteo_test.h5");
    let prepare = |input: &str, output: &str, more: &[&str]| {
        let arguments = ["prepare", "--format", "criteo", "--input", input, "--output", output];
        folder.umbra(1, &[&arguments[..], more].concat()).fine()
    };
    assert_eq!(prepare("train.tsv", train, &[]).figure("rows"), 8000.0);
    assert_eq!(prepare("test.tsv", test, &["--vocabulary", train]).figure("rows"), 2000.0);
    let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hpc/jobs/criteo-sample.toml");
    folder.train(1, job.to_str().unwrap(), "run", &[]);
    let test = &folder.summary("run")["test"];
    let figure = |name: &str| test[name].as_f64().unwrap();
    assert_eq!(test["examples"], 2000);
    // Below 1: better than always saying the share of clicks of these very rows.
    assert!(figure("normalized_entropy") < 1.0, "{test:#}");
    assert!(figure("auc") > 0.65, "{test:#}");
    assert!((figure("calibration") - 1.0).abs() < 0.2, "{test:#}");
}
