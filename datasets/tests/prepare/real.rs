//! The public data sets, read from the published files. The expected figures were counted with awk.
//!
//! They lie in `$UMBRA_DATA`, else in `../shared/data` from the project's root; a test whose data
//! is missing says so and passes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::PoisonError;

use umbra_datasets::prepare::{Fields, Format, PrepareOptions, PrepareSummary};

use crate::{Folder, WRITERS, column, message, open, run, vocabulary};

/// The folder of the real data, or `None` with a loud word.
fn real_data(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("UMBRA_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
        PathBuf::from,
    );
    let folder = root.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("SKIPPED: no {} (set UMBRA_DATA to the folder of the real data)", folder.display());
    None
}

/// Unpacks `name`.xz of the real data into `folder`.
fn unpack(real: &Path, name: &str, folder: &Folder) {
    let _alone = WRITERS.write().unwrap_or_else(PoisonError::into_inner);
    let output = fs::File::create(folder.path(name)).unwrap();
    let status = Command::new("xz")
        .arg("-dc")
        .arg(real.join(format!("{name}.xz")))
        .stdout(output)
        .status()
        .expect("the program xz unpacks the real data");
    assert!(status.success(), "xz -dc {name}.xz: {status}");
}

fn cardinalities(summary: &PrepareSummary) -> Vec<u64> {
    summary.fields.iter().map(|field| field.cardinality).collect()
}

#[test]
fn frappe() {
    let Some(real) = real_data("frappe") else { return };
    let folder = Folder::new();
    let mut datasets = Vec::new();
    for (split, rows, positive) in
        [("train", 202_027, 67_604.0), ("valid", 57_722, 19_063.0), ("test", 28_860, 9_536.0)]
    {
        let input = format!("{split}.libsvm");
        unpack(&real, &input, &folder);
        let options = PrepareOptions {
            vocabulary_from: (split != "train").then(|| folder.path("train.h5")),
            ..folder.options(Format::Libfm, &input, &format!("{split}.h5"))
        };
        let summary = run(&options).unwrap();
        assert_eq!((summary.rows_written, summary.label_sum), (rows, Some(positive)), "{split}");
        assert_eq!(cardinalities(&summary), [955, 4083, 8, 8, 3, 4, 3, 10, 81, 234], "{split}");
        datasets.push(open(&options.output));
    }
    for dataset in &datasets {
        assert_eq!((dataset.fields(), dataset.dense_features()), (10, 0));
        datasets[0].check_compatible(dataset).unwrap();
    }
}

#[test]
fn a9a() {
    let Some(real) = real_data("a9a") else { return };
    let folder = Folder::new();
    for (split, rows, positive, values) in
        [("train", 32_561, 7841.0, 451_592), ("test", 16_281, 3846.0, 225_731)]
    {
        let input = format!("a9a_{split}.libsvm");
        unpack(&real, &input, &folder);
        let options = PrepareOptions {
            fields: Some(Fields::Bag),
            vocabulary_from: (split == "test").then(|| folder.path("train.h5")),
            ..folder.options(Format::Libfm, &input, &format!("{split}.h5"))
        };
        let summary = run(&options).unwrap();
        assert_eq!((summary.rows_written, summary.label_sum), (rows, Some(positive)), "{split}");
        let [field] = &summary.fields[..] else { panic!("{:?}", summary.fields) };
        assert_eq!((field.cardinality, field.values), (124, values), "{split}");
        assert_eq!(field.values_out_of_vocabulary, 0, "{split}");
        assert_eq!(open(&options.output).rows(), rows);
    }
    let positional = folder.options(Format::Libfm, "a9a_train.libsvm", "no.h5");
    let got = message(&positional);
    assert!(got.contains("if a line is a bag of ids of any length, use --fields bag"), "{got}");
}

#[test]
fn adult() {
    let Some(real) = real_data("adult") else { return };
    let folder = Folder::new();
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hpc/jobs/adult.schema.toml");
    for (input, rows, positive) in [("adult.data", 32_561, 7841.0), ("adult.test", 16_281, 3846.0)]
    {
        unpack(&real, input, &folder);
        let options = PrepareOptions {
            schema: Some(schema.clone()),
            vocabulary_from: (input == "adult.test").then(|| folder.path("adult.data.h5")),
            ..folder.options(Format::Csv, input, &format!("{input}.h5"))
        };
        let summary = run(&options).unwrap();
        assert_eq!((summary.rows_written, summary.label_sum), (rows, Some(positive)), "{input}");
        // The last line is blank.
        assert_eq!((summary.lines_skipped, summary.rows_bad), (1, 0), "{input}");
        assert_eq!(cardinalities(&summary), [10, 17, 8, 16, 7, 6, 3, 43], "{input}");
        assert!(summary.fields.iter().all(|field| field.values_out_of_vocabulary == 0));
        let dataset = open(&options.output);
        assert_eq!((dataset.rows(), dataset.dense_features(), dataset.fields()), (rows, 6, 8));
    }
    assert!(vocabulary(&folder.path("adult.data.h5"), 0).unwrap().contains(&String::new()));
}

#[test]
fn criteo() {
    let Some(real) = real_data("criteo") else { return };
    let folder = Folder::new();
    unpack(&real, "first10k.tsv", &folder);
    let all = folder.options(Format::Criteo, "first10k.tsv", "all.h5");
    let summary = run(&all).unwrap();
    assert_eq!((summary.rows_written, summary.label_sum), (10_000, Some(2182.0)));
    assert_eq!((summary.fields[0].cardinality, summary.fields[2].cardinality), (176, 5522));
    let frequent = PrepareOptions {
        min_count: 10,
        ..folder.options(Format::Criteo, "first10k.tsv", "frequent.h5")
    };
    let summary = run(&frequent).unwrap();
    assert_eq!(summary.fields[2].cardinality, 59);
    assert_eq!(summary.fields[2].keys_left_out, Some(5521 - 58));
    let dense = column::<f32>(&all.output, "dense");
    assert!(dense.iter().all(|x| *x >= 0.0 && x.is_finite()));

    // The same layout as csv, with a header and integers written as floats.
    unpack(&real, "sample200.csv", &folder);
    let names = |letter, last| {
        let names: Vec<String> = (1..=last).map(|i| format!("\"{letter}{i}\"")).collect();
        names.join(", ")
    };
    let schema = format!(
        "label = \"label\"\ndense_transform = \"log\"\ndense = [{}]\nsparse = [{}]\n",
        names('I', 13),
        names('C', 26)
    );
    let options = PrepareOptions {
        schema: Some(folder.write("schema.toml", schema)),
        ..folder.options(Format::Csv, "sample200.csv", "sample.h5")
    };
    let summary = run(&options).unwrap();
    assert_eq!((summary.rows_written, summary.label_sum), (200, Some(49.0)));
}

#[test]
fn movielens() {
    let Some(real) = real_data("ml-100k") else { return };
    let folder = Folder::new();
    unpack(&real, "ua.base", &folder);
    let schema = "delimiter = \"\\t\"\nheader = false\ncolumns = [\"user\", \"item\", \"rating\", \
                  \"time\"]\n\
                  label = \"rating\"\nlabel_at_least = 4\nsparse = [\"user\", \"item\"]\n\
                  group = [\"user\"]\n";
    let options = PrepareOptions {
        schema: Some(folder.write("schema.toml", schema)),
        ..folder.options(Format::Csv, "ua.base", "train.h5")
    };
    let summary = run(&options).unwrap();
    assert_eq!((summary.rows_written, summary.label_sum), (90_570, Some(49_906.0)));
    assert_eq!(cardinalities(&summary), [944, 1681]);
    assert!(open(&options.output).has_groups());
}
