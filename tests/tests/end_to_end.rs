//! From a data file to predictions, as a user goes: synth or prepare, train, eval, predict.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use umbra_core::metrics::{AucPart, LossSums, Scored};
use umbra_datasets::{Dataset, Pipeline};
use umbra_tests::{Ended, Folder, Job, SavedModel};

/// Learns the small synthetic world in seconds.
const DLRM: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 16\nbottom = [32, 16]\ntop = [64, 32]",
    optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
    batch_size: 128,
};

const TRAIN_ROWS: u64 = 100_000;
const TEST_ROWS: u64 = 12_345;

fn paths(value: &Value, prefix: &str, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                paths(value, &format!("{prefix}{name}."), into);
            }
        }
        _ => into.push(prefix.trim_end_matches('.').to_owned()),
    }
}

fn number(value: &Value, path: &str) -> f64 {
    let found = path.split('.').fold(value, |value, name| &value[name]);
    found.as_f64().unwrap_or_else(|| panic!("{path} is {found} in {value:#}"))
}

/// One long training shared by the checks that only read.
#[test]
fn synthetic_data_to_predictions() {
    let folder = Folder::new();
    folder.synth("train.h5", TRAIN_ROWS, 0);
    let planted = folder.synth("test.h5", TEST_ROWS, TRAIN_ROWS).unwrap();
    folder.write("job.toml", DLRM.text());
    let ended = folder.train(1, "job.toml", "run", &["run.log_every_s=0.1"]);
    let summary = folder.summary("run");
    let auc = number(&summary, "test.auc");
    assert!(auc > planted - 0.03, "test AUC {auc}, planted {planted}");
    assert!(auc < planted + 0.01, "test AUC {auc} is above the ceiling, {planted}");
    assert!((ended.figure("test auc") - auc).abs() < 1e-6, "{}", ended.stdout);

    run_folder(&folder, &summary);
    evaluation(&folder, &summary);
}

/// What a run leaves behind, by the contract.
fn run_folder(folder: &Folder, summary: &Value) {
    let mut names: Vec<String> = std::fs::read_dir(folder.path("run"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let events = names.iter().position(|name| name.contains("tfevents")).unwrap();
    assert!(!folder.read(&format!("run/{}", names.remove(events))).is_empty());
    assert_eq!(names, ["checkpoints", "config.toml", "metrics.jsonl", "summary.json"]);

    let mut keys = vec![];
    paths(summary, "", &mut keys);
    keys.sort();
    // One rank without synchronization: no rounds, nothing on the wire, no groups, no validation.
    let mut expected = vec![
        "version",
        "status",
        "git",
        "config_hash",
        "data_fingerprint",
        "seed",
        "virtual",
        "ranks",
        "roles.trainers",
        "roles.embedding_ps",
        "roles.sync_ps",
        "worker_threads",
        "batch_size",
        "elp",
        "examples",
        "steps",
        "seconds",
        "examples_per_second",
        "train.logloss",
        "test.examples",
        "test.auc",
        "test.logloss",
        "test.normalized_entropy",
        "test.calibration",
        "sync.method",
        "checkpoint.count",
        "checkpoint.bytes",
        "checkpoint.seconds_exposed",
        "memory.rss_bytes_max",
        "memory.embedding_bytes",
        "memory.dense_bytes",
        "wait.data_seconds",
        "wait.embedding_seconds",
        "wait.sync_seconds",
    ];
    expected.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!(summary["version"], 1);
    assert_eq!(summary["status"], "done");
    assert_eq!(summary["virtual"], false);
    assert_eq!((&summary["ranks"], &summary["elp"]), (&1.into(), &128.into()));
    assert_eq!(summary["examples"], TRAIN_ROWS);
    assert_eq!(summary["steps"], TRAIN_ROWS.div_ceil(128));
    assert_eq!(summary["test"]["examples"], TEST_ROWS);
    let speed = number(summary, "examples") / number(summary, "seconds");
    assert!((number(summary, "examples_per_second") / speed - 1.0).abs() < 1e-9);
    let files = std::fs::read_dir(folder.path("run/checkpoints/last")).unwrap();
    let files = files.map(|file| file.unwrap()).filter(|file| file.file_name() != "manifest.json");
    let bytes: u64 = files.map(|file| file.metadata().unwrap().len()).sum();
    assert_eq!(summary["checkpoint"]["bytes"], bytes);

    let reports: Vec<Value> = folder
        .text("run/metrics.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!reports.is_empty());
    let steps: Vec<u64> = reports.iter().map(|report| report["step"].as_u64().unwrap()).collect();
    assert!(steps.is_sorted(), "{steps:?}");
    assert!(reports.iter().all(|report| number(report, "logloss") > 0.0));
}

/// The saved model has the summary's figures, whatever the ranks; predictions are those figures.
fn evaluation(folder: &Folder, summary: &Value) {
    let evals = [1, 2, 4].map(|ranks| folder.eval(ranks, "run", "test.h5"));
    assert_eq!(evals[0], summary["test"], "eval on 1 rank, and the summary");
    assert_eq!(evals[1], evals[0], "eval on 2 ranks, and on 1");
    assert_eq!(evals[2], evals[0], "eval on 4 ranks, and on 1");

    let predict = |ranks: usize, output: &str| -> Ended {
        let checkpoint = "run/checkpoints/last";
        let data = ["--data", "test.h5", "--output", output];
        folder.umbra(ranks, &[&["predict", "--checkpoint", checkpoint], &data[..]].concat()).fine()
    };
    let ended = predict(1, "1.txt");
    assert!(ended.stdout.contains(&TEST_ROWS.to_string()), "{}", ended.stdout);
    for (ranks, output) in [(2, "2.txt"), (4, "4.txt")] {
        let _ = predict(ranks, output);
        assert!(folder.read(output) == folder.read("1.txt"), "predictions on {ranks} ranks differ");
    }
    let text = folder.text("1.txt");
    let probabilities: Vec<f32> = text.lines().map(|line| line.parse().unwrap()).collect();
    let labels = labels(folder);
    assert_eq!(probabilities.len(), labels.len());
    let mut sums = LossSums::default();
    let mut scored: Vec<Scored> = vec![];
    for (&p, &label) in probabilities.iter().zip(&labels) {
        assert!(p > 0.0 && p < 1.0, "{p}");
        sums.add((p / (1.0 - p)).ln(), label, 1.0);
        scored.push(Scored { score: p, label, weight: 1.0 });
    }
    // A probability has fewer bits than its logit: some neighbours become ties.
    let auc = AucPart::of(&mut scored).unwrap().auc().unwrap();
    assert!((auc - number(&evals[0], "auc")).abs() < 1e-6, "{auc}");
    let logloss = sums.log_loss().unwrap();
    assert!((logloss / number(&evals[0], "logloss") - 1.0).abs() < 1e-6, "{logloss}");
}

/// Labels of test.h5 in the order of its rows.
fn labels(folder: &Folder) -> Vec<f32> {
    let dataset = Dataset::open(&[folder.path("test.h5")]).unwrap();
    let (_reader, mut batches) = Pipeline::evaluate(&dataset, 0, 1, 1, 1000, 2).unwrap();
    let mut labels = vec![];
    while let Some(batch) = batches[0].next(&mut || ()).unwrap() {
        labels.extend_from_slice(&batch.label);
    }
    labels
}

/// The run folder's own configuration makes the same model, byte for byte.
#[test]
fn the_resolved_configuration_repeats_the_run() {
    let folder = Folder::new();
    folder.synth("train.h5", 3000, 0);
    folder.synth("test.h5", 500, 3000);
    folder.write("job.toml", DLRM.text());
    folder.train(1, "job.toml", "first", &["train.epochs=2"]);
    folder.train(1, "first/config.toml", "second", &[]);
    let model = |run: &str| SavedModel::read(&folder.path(&format!("{run}/checkpoints/last")));
    assert!(model("first") == model("second"), "another model");
    assert_eq!(folder.summary("first")["test"], folder.summary("second")["test"]);
    // Another seed is another model: the comparison can fail.
    folder.train(1, "first/config.toml", "third", &["seed=8"]);
    assert!(model("first") != model("third"), "the seed does nothing");
}

#[test]
fn a_dry_run_prints_the_plan_and_writes_nothing() {
    let folder = Folder::new();
    folder.synth("train.h5", 1000, 0);
    folder.synth("test.h5", 200, 1000);
    folder.write("job.toml", DLRM.text());
    let list = || {
        let mut files: Vec<_> = std::fs::read_dir(folder.root())
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name(), entry.metadata().unwrap().modified().unwrap()))
            .collect();
        files.sort();
        files
    };
    let before = list();
    for ranks in [1, 2] {
        let ended = folder.umbra(ranks, &["train", "-c", "job.toml", "--dry-run"]).fine();
        let trainers = format!("{ranks} trainers × 1 worker threads");
        for part in [&*trainers, "train 1000 rows, valid none, test 200 rows", "Dlrm", "memory"] {
            assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
        }
        assert_eq!(ended.stdout.matches("ranks   ").count(), 1, "{}", ended.stdout);
        assert_eq!(list(), before, "a dry run on {ranks} ranks left something");
    }
}

/// Overfits on purpose, so that the last evaluation is not the best.
#[test]
fn early_stopping_ends_with_the_best_model() {
    let folder = Folder::new();
    folder.synth("train.h5", 2000, 0);
    folder.synth("valid.h5", 1000, 2000);
    folder.write("job.toml", DLRM.text());
    let early = [
        "data.valid=valid.h5",
        "data.test=valid.h5",
        "train.epochs=40",
        "train.early_stop.patience=3",
        "optim.dense.lr=0.1",
        "optim.sparse.lr=0.5",
    ];
    folder.train(1, "job.toml", "best", &early);
    let last = [&early[..], &["train.early_stop.restore_best=false"]].concat();
    folder.train(1, "job.toml", "last", &last);
    let valid: Vec<f64> = folder
        .text("best/metrics.jsonl")
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|report| report.get("valid").is_some())
        .map(|report| number(&report, "valid.auc"))
        .collect();
    let best = valid.iter().copied().fold(0.0, f64::max);
    assert!(valid.len() < 40, "never stopped: {valid:?}");
    // The best, then exactly three that were not better.
    assert_eq!(valid.iter().position(|auc| *auc == best), Some(valid.len() - 4), "{valid:?}");
    assert!(*valid.last().unwrap() < best);
    let auc = |run: &str| number(&folder.summary(run), "test.auc");
    assert_eq!(auc("best"), best, "the test figures are those of the best model");
    assert_eq!(number(&folder.summary("best"), "valid.auc"), best);
    assert_eq!(number(&folder.eval(1, "best", "valid.h5"), "auc"), best, "and so is what is saved");
    assert_eq!(auc("last"), *valid.last().unwrap(), "restore_best = false keeps the last");
}

/// Raw text in both formats, all the way to a trained model.
#[test]
fn prepared_text_trains() {
    let folder = Folder::new();
    // The first id decides the label.
    let (mut criteo, mut libfm) = (String::new(), String::new());
    for row in 0..600 {
        let (first, second) = (row % 10, row % 7);
        let label = u32::from(first < 3);
        let counts: Vec<String> = (0..13).map(|i| ((row + i) % 5).to_string()).collect();
        let mut ids = vec![format!("{:08x}", 0xa0 + first), format!("{second:08x}")];
        ids.extend((2..26).map(|i| if i == 5 { String::new() } else { format!("{i:08x}") }));
        criteo.push_str(&format!("{label}\t{}\t{}\n", counts.join("\t"), ids.join("\t")));
        libfm.push_str(&format!("{label} {first}:1 {}:1\n", 10 + second));
    }
    for (format, text, fields) in [("criteo", criteo, 26), ("libfm", libfm, 2)] {
        folder.write("rows.txt", text);
        let ended = folder
            .umbra(
                1,
                &[
                    "prepare",
                    "--format",
                    format,
                    "--input",
                    "rows.txt",
                    "--output",
                    "train.h5",
                    "--overwrite",
                ],
            )
            .fine();
        assert_eq!((ended.figure("rows"), ended.figure("mean label")), (600.0, 0.3));
        assert_eq!(ended.figure("sparse fields"), f64::from(fields));
        folder.write("job.toml", Job { model: "kind = \"lr\"", ..DLRM }.text());
        let sets = ["data.test=train.h5", "train.epochs=20", "train.batch_size=50"];
        folder.train(1, "job.toml", format, &sets);
        let summary = folder.summary(format);
        assert!(number(&summary, "test.auc") > 0.999, "{format}: {summary:#}");
    }
}
