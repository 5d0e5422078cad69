//! The program as a user meets it: mistakes, their one message and their exit code.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

/// Runs umbra in `folder`, as one process without a launcher.
fn umbra(folder: &Path, arguments: &[&str]) -> Output {
    launched(folder, arguments, &[])
}

/// Runs umbra as if a launcher had left `variables`, and nothing else, in the environment.
fn launched(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umbra"));
    for (name, _) in std::env::vars() {
        if ["OMPI_COMM", "PMI", "SLURM_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.envs(variables.iter().copied());
    command.current_dir(folder).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const JOB: &str = r#"
[data]
train = "train.h5"
test = "train.h5"
[model]
kind = "lr"
[optim.dense]
kind = "sgd"
lr = 0.1
[optim.sparse]
kind = "sgd"
lr = 0.1
"#;

/// A folder with a small dataset and a job.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("job.toml"), JOB).unwrap();
    std::fs::write(folder.path().join("text.h5"), "not HDF5 at all").unwrap();
    let made = umbra(folder.path(), &["synth", "--rows", "500", "--output", "train.h5"]);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    assert!(text(&made.stdout).contains("planted AUC  "), "{}", text(&made.stdout));
    folder
}

#[test]
fn a_mistake_is_one_message_and_its_exit_code() {
    let cases: &[(i32, &str, &str)] = &[
        (2, "train -c none.toml", "cannot read the configuration none.toml"),
        (2, "train", "`data.train` is missing"),
        (2, "train -c job.toml --set optim.dense.learning_rate=1", "`optim.dense.lr`"),
        (2, "train -c job.toml --set train.epochs=0", "`train.epochs = 0`: expected"),
        (2, "train -c job.toml --set sync.method=gba", "not in this version; built: none, bsp"),
        (2, "train -c job.toml --set run.dir=job.toml", "expected a folder"),
        (2, "train -c job.toml --dry-run --set model.kind=fm --set model.top=[8]", "model.top"),
        (3, "train -c job.toml --set data.train=none.h5", "none.h5: cannot open"),
        (3, "train -c job.toml --set data.test=text.h5", "text.h5: not an HDF5 file"),
        (4, "eval --checkpoint none --data train.h5", "none is no checkpoint"),
        (4, "predict --checkpoint . --data train.h5 --output p", "is no checkpoint"),
        (5, "train -c job.toml --set roles.trainers=3", "roles.trainers = 3 need 3 ranks"),
        (2, "prepare --format csv --input text.h5 --output a.h5", "--schema"),
        (2, "prepare --format libfm --input text.h5 --output train.h5", "train.h5"),
        (3, "prepare --format libfm --input none --output a.h5", "none: cannot read the input"),
    ];
    let folder = folder();
    for (code, arguments, message) in cases {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let output = umbra(folder.path(), &arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(message), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("umbra: ") && output.stdout.is_empty(), "{arguments:?}");
    }
    // Messages of the argument parser show the usage as well.
    for arguments in [&["frobnicate"][..], &["train", "--bogus"], &["synth", "--rows", "0"], &[]] {
        let output = umbra(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_run_leaves_its_folder_and_is_not_overwritten() {
    let folder = folder();
    let run = |arguments: &[&str]| umbra(folder.path(), arguments);
    let planned = run(&["train", "-c", "job.toml", "--dry-run"]);
    assert_eq!(planned.status.code(), Some(0), "{}", text(&planned.stderr));
    assert!(!folder.path().join("runs").exists(), "a dry run writes nothing");

    let trained = run(&["train", "-c", "job.toml"]);
    assert_eq!(trained.status.code(), Some(0), "{}", text(&trained.stderr));
    assert!(text(&trained.stdout).contains("test auc"), "{}", text(&trained.stdout));
    for file in ["config.toml", "summary.json", "metrics.jsonl", "checkpoints/last"] {
        assert!(folder.path().join("runs/job").join(file).exists(), "{file}");
    }
    let again = run(&["train", "-c", "job.toml"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("--set run.overwrite=true"), "{}", text(&again.stderr));
    // The resolved configuration repeats the run.
    let set = ["--set", "run.dir=repeat", "--set", "checkpoint.save=none"];
    let repeat = run(&[&["train", "-c", "runs/job/config.toml"], &set[..]].concat());
    assert_eq!(repeat.status.code(), Some(0), "{}", text(&repeat.stderr));
}

#[test]
fn help_lists_every_key_and_version_names_the_commit() {
    let here = Path::new(".");
    let help = text(&umbra(here, &["train", "--help"]).stdout);
    for key in ["optim.sparse.initial_accumulator", "train.early_stop.patience", "sync.method"] {
        assert!(help.contains(key), "{key}");
    }
    let version = text(&umbra(here, &["--version"]).stdout);
    let commit = version.split(['(', ')']).nth(1).unwrap();
    assert!(!commit.is_empty(), "{version}");
}

#[test]
fn a_launcher_that_mpi_does_not_know_is_refused() {
    let folder = folder();
    let started = |variables: &[(&str, &str)]| {
        launched(folder.path(), &["train", "-c", "job.toml"], variables)
    };
    let of_four = [("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_STEP_ID", "0")];
    let first = started(&[&of_four[..], &[("SLURM_PROCID", "0")]].concat());
    assert_eq!(first.status.code(), Some(5), "{}", text(&first.stderr));
    assert!(text(&first.stderr).contains("srun --mpi=pmix"), "{}", text(&first.stderr));
    // The others leave with the same code and say nothing.
    let other = started(&[&of_four[..], &[("SLURM_PROCID", "2")]].concat());
    assert_eq!((other.status.code(), text(&other.stderr)), (Some(5), String::new()));
}
