//! What a run says while it runs, and what of it is recorded.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_tests::{Folder, Job};

/// Steps of the runs here.
const STEPS: u64 = 50;

/// Reports by the clock would come between points: none is due.
const POINTS_ALONE: &str = "run.log_every_s=3600";

fn metrics(folder: &Folder, run: &str) -> Vec<Value> {
    let lines = folder.text(&format!("{run}/metrics.jsonl"));
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn steps(metrics: &[Value]) -> Vec<u64> {
    metrics.iter().map(|line| line["step"].as_u64().unwrap()).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// A run that is over in a moment has a curve, at the same steps whoever trains it: points lie
/// where the data say, not where somebody looked.
#[test]
fn the_shortest_run_has_its_points_whoever_trains_it() {
    let folder = Job::PLAIN.folder(STEPS * 256, 100);
    for (name, ranks, sets) in [
        ("alone", 1, &["train.batch_size=256"][..]),
        ("hogwild", 1, &["train.batch_size=128", "train.worker_threads=2"]),
        ("bsp", 2, &["train.batch_size=128"]),
        ("wide", 4, &["train.batch_size=64"]),
        ("shadow", 2, &["train.batch_size=128", "sync.method=shadow_easgd"]),
        ("servers", 2, &["train.batch_size=128", "sync.method=async_ps"]),
    ] {
        let sets = [&["train.epochs=1", POINTS_ALONE], sets].concat();
        folder.train(ranks, "job.toml", name, &sets);
        let (metrics, summary) = (metrics(&folder, name), folder.summary(name));
        let expected: Vec<u64> = (1..=STEPS / 2).map(|point| 2 * point).collect();
        assert_eq!(steps(&metrics), expected, "{name}");
        // They divide the run: what lies between them is all of it, once.
        let (mut before, mut loss) = (0, 0.0);
        for line in &metrics {
            let examples = line["examples"].as_u64().unwrap();
            loss += (examples - before) as f64 * number(&line["logloss"]);
            before = examples;
        }
        assert_eq!(before, summary["examples"].as_u64().unwrap(), "{name}");
        let (mean, whole) = (loss / before as f64, number(&summary["train"]["logloss"]));
        assert!((mean - whole).abs() < 1e-9, "{name}: {mean} and {whole}");
        for key in ["seconds", "time"] {
            let values: Vec<f64> = metrics.iter().map(|line| number(&line[key])).collect();
            assert!(values.is_sorted(), "{name}: {key} {values:?}");
        }
        if name != "hogwild" && name != "servers" {
            let even = metrics.iter().all(|line| {
                line["examples"].as_u64().unwrap() == 256 * line["step"].as_u64().unwrap()
            });
            assert!(even, "{name}: a point is a step of everybody");
        }
    }
}

/// Evaluations and ends of epochs are reports of their own; a run that goes on has each once.
#[test]
fn epochs_evaluations_and_a_second_start_lie_between_the_points() {
    let folder = Job::PLAIN.folder(25 * 64, 100);
    folder.synth("valid.h5", 200, 5000);
    let epochs = ["train.epochs=2", POINTS_ALONE];
    folder.train(1, "job.toml", "epochs", &epochs);
    let even = |from: u64, to: u64| (from..=to).filter(|step| step % 2 == 0);
    let with = |extra: u64| {
        let mut all: Vec<u64> = even(2, 50).chain([extra]).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(steps(&metrics(&folder, "epochs")), with(25));

    let valid = [&epochs[..], &["data.valid=valid.h5", "train.eval_every=10"]].concat();
    folder.train(1, "job.toml", "valid", &valid);
    let lines = metrics(&folder, "valid");
    assert_eq!(steps(&lines), with(25));
    let scored: Vec<&Value> = lines.iter().filter(|line| !line["valid"].is_null()).collect();
    let at: Vec<u64> = scored.iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(at, [10, 20, 30, 40, 50]);
    assert!(scored.iter().all(|line| number(&line["logloss"]) > 0.0));

    let stop = [&epochs[..], &["recovery.inject.stop_step=12"]].concat();
    assert_eq!(folder.try_train(1, "job.toml", "again", &stop).code, 75);
    folder.train(1, "job.toml", "again", &epochs);
    let mut lines = steps(&metrics(&folder, "again"));
    // And one where it stopped.
    lines.dedup();
    let mut expected = with(25);
    expected.extend([13]);
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

/// It says what it is, how far it is and how it ended; on request the end alone.
#[test]
fn a_run_says_what_it_is_or_is_quiet() {
    let folder = Job::PLAIN.folder(STEPS * 64, 100);
    let train = |run: &str, more: &[&str]| {
        let sets = Folder::sets(run, &["train.epochs=2"]);
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        folder.umbra(1, &[&["train", "-c", "job.toml"], &*sets, more].concat()).fine()
    };
    let usual = train("usual", &[]);
    for part in [
        "umbra 0.",
        "\n  ranks   1 on 1 host: ",
        "\n  roles   1 trainer × 1 worker thread, 1 embedding PS\n",
        "\n  train   train.h5, 3200 rows, fingerprint ",
        "\n  test    test.h5, 100 rows, fingerprint ",
        "\n  model   dlrm: ",
        "\n  method  none: 100 steps of 64 examples, 50 an epoch, 2 epochs\n",
        "\n  run     usual\n",
        "\nepoch 0 step 50 · 50.0 % · ",
        "\nepoch 1 step 100 · 100.0 % · ",
    ] {
        assert!(usual.stderr.contains(part), "{part:?} in {}", usual.stderr);
    }
    assert!(!usual.stderr.contains("valid"), "{}", usual.stderr);
    assert!(usual.stdout.contains("run ") && usual.stdout.contains("test auc"), "{}", usual.stdout);

    let quiet = train("quiet", &["--quiet"]);
    assert_eq!(quiet.stderr, "");
    assert!(quiet.stdout.contains("test auc"), "{}", quiet.stdout);

    let verbose = train("verbose", &["-v"]);
    let lines = |text: &str| text.lines().filter(|line| line.starts_with("epoch ")).count();
    assert!(lines(&verbose.stderr) >= 20, "{}", verbose.stderr);
    assert!(verbose.stderr.contains("\n  mpi     "), "{}", verbose.stderr);

    let events = std::fs::read_dir(folder.path("usual")).unwrap();
    let mut names = events.map(|file| file.unwrap().file_name().into_string().unwrap());
    let name = names.find(|name| name.contains("tfevents")).unwrap();
    let events = folder.read(&format!("usual/{name}"));
    for tag in ["test/auc", "test/logloss", "_hparams_/session_start_info", "optim.dense.lr"] {
        assert!(events.windows(tag.len()).any(|there| there == tag.as_bytes()), "{tag}");
    }
}

/// A run folder is its newest checkpoint, and `-` is stdout.
#[test]
fn a_run_folder_is_a_checkpoint_and_a_hyphen_is_stdout() {
    let folder = Job::PLAIN.folder(STEPS * 64, 100);
    folder.train(1, "job.toml", "run", &[]);
    let scores = |checkpoint: &str, output: &str| {
        let given = ["predict", "--checkpoint", checkpoint, "--data", "test.h5"];
        folder.umbra(1, &[&given[..], &["--output", output]].concat()).fine()
    };
    let to_file = scores("run/checkpoints/last", "scores");
    let piped = scores("run", "-");
    assert_eq!(piped.stdout, folder.text("scores"));
    let told = "umbra: the checkpoint is run/checkpoints/step-50\n";
    assert_eq!((piped.stderr.as_str(), to_file.stderr.as_str()), (told, ""));
    assert!(!folder.path("-").exists());
    let of_run = folder.umbra(1, &["eval", "--checkpoint", "run", "--data", "test.h5", "-q"]);
    assert_eq!(of_run.fine().stderr, "");
    for verb in [&["checkpoint", "verify", "run"], &["checkpoint", "inspect", "run"]] {
        let ended = folder.umbra(1, verb).fine();
        assert!(ended.stdout.contains("run/checkpoints/step-50"), "{}", ended.stdout);
    }
}
