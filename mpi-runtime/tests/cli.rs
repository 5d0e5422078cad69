//! The program as a user meets it, as one process: help, run folder, launchers. The table of
//! mistakes is `tests/tests/bad_input.rs`.
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
    let made = umbra(folder.path(), &["synth", "--rows", "500", "--output", "train.h5"]);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    assert!(text(&made.stdout).contains("planted AUC  "), "{}", text(&made.stdout));
    folder
}

/// The defaults of a list are shown as they are typed.
#[test]
fn defaults_in_the_help_of_bench_can_be_typed() {
    let help = text(&umbra(Path::new("."), &["bench", "--help"]).stdout);
    for default in ["128,512,2048", "sgd,rowwise_adagrad", "1,2"] {
        assert!(help.contains(&format!("[default: {default}]")), "{default}: {help}");
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

/// Data and the kind of the model are a job, and its file needs no option.
#[test]
fn the_least_job_trains() {
    let folder = folder();
    let least = "data = { train = \"train.h5\" }\nmodel = { kind = \"dlrm\" }\n";
    std::fs::write(folder.path().join("least.toml"), least).unwrap();
    let arguments = ["train", "least.toml", "--set", "optim.dense.lr=.01"];
    let trained = umbra(folder.path(), &arguments);
    assert_eq!(trained.status.code(), Some(0), "{}", text(&trained.stderr));
    let config = folder.path().join("runs/least/config.toml");
    let config = std::fs::read_to_string(config).unwrap();
    for line in ["lr = 0.01", "kind = \"adam\"", "kind = \"rowwise_adagrad\"", "lr = 0.05"] {
        assert!(config.contains(line), "{line}: {config}");
    }
    let both = umbra(folder.path(), &["train", "least.toml", "-c", "job.toml"]);
    assert_eq!(both.status.code(), Some(2));
    assert!(text(&both.stderr).contains("cannot be used with"), "{}", text(&both.stderr));
}

/// Completions and manual pages have verbs and keys, and shells can read them.
#[test]
fn shells_and_man_know_verbs_and_keys() {
    let folder = tempfile::tempdir().unwrap();
    let write = |arguments: &[&str]| {
        let written = umbra(folder.path(), &[&["reference"], arguments].concat());
        assert_eq!(written.status.code(), Some(0), "{}", text(&written.stderr));
        text(&written.stdout)
    };
    for shell in ["bash", "zsh", "fish"] {
        let script = write(&["completions", shell]);
        for word in ["simulate", "optim.dense.lr=", "sync.method=shadow_ma"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        std::fs::write(folder.path().join(shell), script).unwrap();
        // Of the shells only bash is everywhere.
        let read = Command::new(shell).arg("-n").arg(folder.path().join(shell)).status();
        assert!(read.is_ok_and(|read| read.success()) || shell != "bash", "{shell}");
    }
    for (words, word, before, expected) in [
        ("umbra train --set sync.met", "sync.met", "--set", "sync.method=auto"),
        ("umbra train --set sync.method = shadow_m", "shadow_m", "=", "shadow_ma\n"),
        ("umbra train --set sync.method =", "", "sync.method", "ds_slowmo"),
        ("umbra tra", "tra", "umbra", "train\n"),
    ] {
        let script = format!(
            "source ./bash; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _umbra_setting umbra '{word}' '{before}'; printf '%s\n' \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        let offered = bash.current_dir(folder.path()).args(["-c", &script]).output().unwrap();
        assert!(text(&offered.stdout).contains(expected), "{words}: {}", text(&offered.stdout));
    }
    write(&["man", "--output", "man"]);
    let page = |name: &str| std::fs::read_to_string(folder.path().join("man").join(name)).unwrap();
    assert!(page("umbra.1").contains("umbra\\-train(1)"), "{}", page("umbra.1"));
    let train = page("umbra-train.1");
    for word in ["JOB.toml", "dry\\-run", "umbra\\-job(5)"] {
        assert!(train.contains(word), "{word}");
    }
    let job = page("umbra-job.5");
    for word in ["\\fBoptim.sparse.initial_accumulator\\fR", ".SH sync.server"] {
        assert!(job.contains(word), "{word}: {job}");
    }
    assert!(
        write(&["keys"])
            .contains("| `lr` | a number, above 0 | `1e-3` if optim.dense.kind is `adam`;")
    );
    assert!(write(&["schema"]).starts_with('{'));
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

/// A script in the place of a job: what it does depends on how often it has been started.
fn supervised(script: &str) -> (Option<i32>, String, usize) {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("echo . >> starts; n=$(wc -l < starts); {script}");
    let ended = umbra(folder.path(), &["launch", "--restarts", "1", "--", "sh", "-c", &script]);
    let starts = std::fs::read_to_string(folder.path().join("starts")).unwrap_or_default();
    (ended.status.code(), text(&ended.stderr), starts.lines().count())
}

#[test]
fn a_job_is_started_again_until_it_ends() {
    // Stopped, lost a rank, done.
    let script = "case $n in 1) exit 75;; 2) kill -9 $$;; *) exit 0;; esac";
    let (code, stderr, starts) = supervised(script);
    assert_eq!((code, starts), (Some(0), 3), "{stderr}");
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
    // A mistake is not mended by a second start.
    assert_eq!(supervised("exit 3").2, 1);
}

#[test]
fn a_job_that_saves_nothing_new_is_given_up() {
    let (code, stderr, starts) = supervised("exit 1");
    assert_eq!((code, starts), (Some(1), 2), "{stderr}");
    assert!(
        stderr.ends_with("umbra: gave up: 2 starts in a row saved nothing new (exit code 1)\n")
    );
    // As long as it saves, it is started again.
    let script = "test $n = 5 && exit 0; echo umbra: saved here >&2; exit 1";
    let (code, stderr, starts) = supervised(script);
    assert_eq!((code, starts), (Some(0), 5), "{stderr}");
}
