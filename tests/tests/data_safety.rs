//! Data that cannot lie: outputs harm nothing, files that do not belong together are refused, rows
//! without labels are only scored, and who is interrupted leaves nothing.
#![allow(clippy::unwrap_used)]

use core::time::Duration;
use std::fs;
use std::time::Instant;

use umbra_tests::{Ended, Folder, Job, LIMIT, program, start};

fn run(folder: &Folder, arguments: &[&str]) -> Ended {
    start(folder.root(), 1, &program("umbra"), arguments, &[]).wait(LIMIT)
}

fn refused(folder: &Folder, code: i32, arguments: &[&str], says: &str) {
    let ended = run(folder, arguments);
    assert_eq!(ended.code, code, "{arguments:?}: {}", ended.stderr);
    assert!(ended.stderr.contains(says), "{arguments:?}: {}", ended.stderr);
}

fn done(folder: &Folder, arguments: &[&str]) -> String {
    let ended = run(folder, arguments);
    assert_eq!(ended.code, 0, "{arguments:?}: {}", ended.stderr);
    ended.stdout
}

/// A job on synthetic data, trained.
fn trained() -> Folder {
    let folder = Job::PLAIN.folder(640, 64);
    done(&folder, &["train", "-c", "job.toml", "--set", "run.dir=run"]);
    folder
}

const LAST: &str = "run/checkpoints/last";

#[test]
fn outputs_never_replace_what_is_read_or_what_is_no_file() {
    let folder = trained();
    let before = fs::read(folder.path("test.h5")).unwrap();
    let predict = |output| {
        ["predict", "--checkpoint", LAST, "--data", "test.h5", "--overwrite", "--output", output]
    };
    refused(&folder, 2, &predict("test.h5"), "the output is one of the files to read");
    fs::hard_link(folder.path("test.h5"), folder.path("same.h5")).unwrap();
    refused(&folder, 2, &predict("same.h5"), "the output is one of the files to read");
    refused(&folder, 2, &predict("run"), "the output is a folder");
    refused(&folder, 2, &predict("/dev/null"), "the output is a device");
    assert_eq!(fs::read(folder.path("test.h5")).unwrap(), before);

    let manifest = "run/checkpoints/last/manifest.json";
    let export = ["export", "--checkpoint", LAST, "--format", "flat", "--overwrite", "--output"];
    refused(&folder, 2, &[&export[..], &[manifest]].concat(), "one of the files to read");
    refused(&folder, 2, &[&export[..], &["/dev/null"]].concat(), "the output is a device");

    let bench = |json| ["bench", "--peak-only", "--json", json];
    refused(&folder, 2, &bench("/dev/null"), "the output is a device");
    let simulate = |json| ["simulate", "-c", "job.toml", "--cluster", "no.toml", "--json", json];
    refused(&folder, 2, &simulate("/dev/null"), "the output is a device");
    for own in ["job.toml", "train.h5", "test.h5"] {
        refused(
            &folder,
            2,
            &["bench", "-c", "job.toml", "--json", own],
            "one of the files to read",
        );
        refused(&folder, 2, &simulate(own), "one of the files to read");
    }
    assert_eq!(fs::read(folder.path("test.h5")).unwrap(), before);

    // Nothing is replaced unasked.
    folder.write("scores.txt", "mine");
    let plain = ["predict", "--checkpoint", LAST, "--data", "test.h5", "--output", "scores.txt"];
    refused(&folder, 2, &plain, "the output exists");
    refused(&folder, 2, &["synth", "--rows", "9", "--output", "test.h5"], "the output exists");
    assert_eq!(fs::read(folder.path("test.h5")).unwrap(), before);
    assert_eq!(folder.text("scores.txt"), "mine");

    // A link is followed.
    std::os::unix::fs::symlink(folder.path("scores.txt"), folder.path("link.txt")).unwrap();
    done(&folder, &predict("link.txt"));
    assert!(fs::symlink_metadata(folder.path("link.txt")).unwrap().is_symlink());
    assert_eq!(folder.text("scores.txt").lines().count(), 64);
}

/// Rows whose field has the same three keys in another order of frequency.
fn csv(keys: [&str; 3]) -> String {
    let [a, b, c] = keys;
    let keys = [a, a, a, b, b, c];
    let rows = keys.iter().enumerate().map(|(row, key)| format!("{},{key},{row}\n", row % 2));
    format!("label,key,number\n{}", rows.collect::<String>())
}

#[test]
fn splits_prepared_apart_are_refused() {
    let folder = Folder::new();
    folder.write("schema.toml", "label = 'label'\nsparse = ['key']\ndense = ['number']\n");
    folder.write("a.csv", csv(["x", "y", "z"]));
    folder.write("b.csv", csv(["z", "y", "x"]));
    let prepare = |input: &str, output: &str, more: &[&str]| {
        let given = ["prepare", "--format", "csv", "--schema", "schema.toml", "--input", input];
        done(&folder, &[&given[..], &["--output", output], more].concat());
    };
    prepare("a.csv", "train.h5", &[]);
    prepare("b.csv", "apart.h5", &[]);
    prepare("b.csv", "test.h5", &["--vocabulary", "train.h5"]);
    prepare("b.csv", "log.h5", &["--dense-transform", "log", "--hash-size", "4"]);
    prepare("b.csv", "none.h5", &["--hash-size", "4"]);
    folder.write("job.toml", Job::PLAIN.text());
    let train = |train: &str, test: &str, run: &str| {
        let sets = [
            format!("data.train={train}"),
            format!("data.test={test}"),
            format!("run.dir={run}"),
            "train.batch_size=2".into(),
        ];
        let mut arguments = vec!["train".to_owned(), "-c".into(), "job.toml".into()];
        arguments.extend(sets.into_iter().flat_map(|set| ["--set".to_owned(), set]));
        arguments
    };
    let told = |arguments: &[String], says: &str| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        refused(&folder, 3, &arguments, says);
    };
    told(
        &train("train.h5", "apart.h5", "no"),
        "hash of the keys behind the ids of field 0 (`key`)",
    );
    told(&train("log.h5", "none.h5", "no"), "what was done to the raw values");
    let good = train("train.h5", "test.h5", "run");
    done(&folder, &good.iter().map(String::as_str).collect::<Vec<_>>());

    // A saved model knows what its ids meant.
    let eval = |data| ["eval", "--checkpoint", LAST, "--data", data];
    done(&folder, &eval("test.h5"));
    refused(&folder, 4, &eval("apart.h5"), "the keys behind the ids");
    refused(
        &folder,
        4,
        &["predict", "--checkpoint", LAST, "--data", "apart.h5", "--output", "p"],
        "keys",
    );
    assert!(!folder.path("p").exists());
}

#[test]
fn datasets_are_inspected_and_verified() {
    let folder = Folder::new();
    folder.synth("a.h5", 3000, 0);
    let inspected = done(&folder, &["data", "inspect", "a.h5"]);
    for part in ["rows", "3000", "mean 0.", "C1: cardinality", "preset = \"small\"", "fingerprint"]
    {
        assert!(inspected.contains(part), "{part}: {inspected}");
    }
    let verified = done(&folder, &["data", "verify", "a.h5"]);
    assert!(verified.contains("its fingerprint is that of its content"), "{verified}");
    let mut bytes = fs::read(folder.path("a.h5")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(folder.path("b.h5"), &bytes).unwrap();
    refused(&folder, 3, &["data", "verify", "b.h5"], "b.h5");
    bytes.truncate(middle);
    fs::write(folder.path("c.h5"), &bytes).unwrap();
    refused(&folder, 3, &["data", "inspect", "c.h5"], "c.h5");
}

/// A signal in the middle of the work.
#[test]
fn who_is_interrupted_leaves_nothing() {
    for (name, signal) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        let folder = Folder::new();
        let names = || {
            let entries = fs::read_dir(folder.root()).unwrap();
            entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect::<Vec<_>>()
        };
        let rows = "1000000000";
        let synth = ["synth", "--rows", rows, "--output", "a.h5", "--preset", "criteo-kaggle"];
        let running = start(folder.root(), 1, &program("umbra"), &synth, &[]);
        let begun = Instant::now();
        while names().is_empty() {
            assert!(begun.elapsed() < LIMIT, "no file was begun");
            std::thread::sleep(Duration::from_millis(10));
        }
        running.signal(name);
        let ended = running.wait(LIMIT);
        assert_eq!(ended.code, 128 + signal, "{}", ended.stderr);
        assert!(ended.stderr.contains(&format!("stopped by signal {signal}: nothing was written")));
        assert_eq!(names(), Vec::<String>::new());
    }
}
