//! What is written: files of so many rows, vocabularies that grow, rows without labels.

use std::fs;

use umbra_datasets::Dataset;
use umbra_datasets::prepare::{Format, PrepareOptions};

use crate::fields::csv;
use crate::{Folder, column, criteo_lines, message, open, run, vocabulary};

#[test]
fn parts_hold_the_rows_in_order_and_the_first_the_vocabulary() {
    let folder = Folder::new();
    folder.write("in", criteo_lines(2500));
    let whole = folder.options(Format::Criteo, "in", "whole.h5");
    run(&whole).unwrap();
    let parts = PrepareOptions {
        rows_per_file: Some(1000),
        ..folder.options(Format::Criteo, "in", "part.h5")
    };
    run(&parts).unwrap();
    let names = ["in", "part-00000.h5", "part-00001.h5", "part-00002.h5", "whole.h5"];
    assert_eq!(folder.names(), names);
    let paths: Vec<_> = names[1..4].iter().map(|name| folder.path(name)).collect();
    for name in ["sparse", "dense", "label"] {
        let one: Vec<u32> = bits(&whole.output, name);
        let all: Vec<u32> = paths.iter().flat_map(|path| bits(path, name)).collect();
        assert!(one == all, "{name}");
    }
    assert_eq!(Dataset::open(&paths).unwrap().rows(), 2500);
    assert_eq!(vocabulary(&paths[0], 3), vocabulary(&whole.output, 3));
    assert_eq!(vocabulary(&paths[1], 3), None);

    // What is there is not replaced unasked, and then wholly.
    assert!(message(&parts).contains("part-00000.h5: the output exists"));
    let fewer = PrepareOptions { rows_per_file: Some(2000), overwrite: true, ..parts.clone() };
    run(&fewer).unwrap();
    assert_eq!(folder.names(), ["in", "part-00000.h5", "part-00001.h5", "whole.h5"]);
    assert_eq!(open(&paths[1]).rows(), 500);

    // A failure in the last part leaves none.
    folder.write("bad", criteo_lines(2500) + "x\n");
    let bad = PrepareOptions {
        rows_per_file: Some(1000),
        hash_size: Some(9),
        ..folder.options(Format::Criteo, "bad", "no.h5")
    };
    let before = folder.names();
    assert!(message(&bad).contains("bad:2501"));
    assert_eq!(folder.names(), before);
}

/// A column as words, whatever its type.
fn bits(path: &std::path::Path, name: &str) -> Vec<u32> {
    if name == "sparse" {
        return column(path, name);
    }
    column::<f32>(path, name).into_iter().map(f32::to_bits).collect()
}

#[test]
fn bags_too_are_cut_into_parts() {
    let folder = Folder::new();
    let schema =
        "label = 1\nheader = false\ncolumns = 2\nsparse = [{ column = 2, separator = '|' }]";
    let text: String = (0..70).map(|i| format!("1,{}\n", "a|".repeat(i % 4))).collect();
    let options =
        PrepareOptions { rows_per_file: Some(30), ..csv(&folder, schema, &text, "bag.h5") };
    run(&options).unwrap();
    let mut lengths = Vec::new();
    for part in 0..3 {
        let path = folder.path(&format!("bag-0000{part}.h5"));
        let offsets: Vec<u64> = column(&path, "sparse_offsets");
        assert_eq!(offsets.len(), [31, 31, 11][part]);
        lengths.extend(offsets.windows(2).map(|w| w[1] - w[0]));
    }
    assert_eq!(lengths, (0..70).map(|i| i % 4).collect::<Vec<u64>>());
}

#[test]
fn a_vocabulary_grows_by_the_day_and_old_ids_stay() {
    let folder = Folder::new();
    let schema = "label = \"y\"\nsparse = [{ column = \"a\", min_count = 2, cap = 5, \
                  oov_buckets = 2 }, \"b\"]";
    let day = |name: &str, keys: &str, from: Option<&str>, grow: bool| {
        let rows = keys.split(' ').map(|key| format!("1,{key},{name}\n"));
        let text = "y,a,b\n".to_owned() + &rows.collect::<String>();
        let output = format!("{name}.h5");
        let options = PrepareOptions {
            vocabulary_from: from.map(|from| folder.path(&format!("{from}.h5"))),
            grow,
            ..csv(&folder, schema, &text, &output)
        };
        let summary = run(&options).unwrap();
        let field = &summary.fields[0];
        (field.cardinality, field.values_out_of_vocabulary, field.keys, field.keys_left_out)
    };
    assert_eq!(day("one", "p q q p p r", None, false), (4, 1, Some(3), Some(1)));
    assert_eq!(day("two", "q s s t t t u", Some("one"), true), (6, 1, Some(4), Some(1)));
    assert_eq!(day("three", "v v w w w s", Some("two"), true), (7, 2, Some(3), Some(1)));
    let [one, two, three] = ["one", "two", "three"]
        .map(|day| vocabulary(&folder.path(&format!("{day}.h5")), 0).unwrap());
    assert_eq!(one, ["p", "q"]);
    assert_eq!(two, ["p", "q", "t", "s"]);
    assert_eq!(three, ["p", "q", "t", "s", "w"]);
    let ids: Vec<u32> = column(&folder.path("three.h5"), "sparse");
    let a: Vec<u32> = ids.iter().step_by(2).copied().collect();
    assert_eq!(a[2..], [6, 6, 6, 5]);
    assert!(a[0] < 2 && a[0] == a[1]);

    // A file that was encoded with another's vocabulary does not keep it, and says so.
    assert_eq!(day("valid", "p t w x", Some("three"), false).0, 7);
    assert_eq!(vocabulary(&folder.path("valid.h5"), 0), None);
    let from = PrepareOptions {
        vocabulary_from: Some(folder.path("valid.h5")),
        ..csv(&folder, schema, "y,a,b\n1,p,q\n", "no.h5")
    };
    assert!(message(&from).contains("it was itself encoded with --vocabulary"));
    assert!(
        message(&PrepareOptions { vocabulary_from: None, grow: true, ..from })
            .contains("--grow needs --vocabulary")
    );
}

#[test]
fn outputs_that_cannot_be_written_are_refused_before_the_work() {
    let folder = Folder::new();
    folder.write("in", criteo_lines(50));
    fs::create_dir(folder.path("out.h5")).unwrap();
    let options = folder.options(Format::Criteo, "in", "out.h5");
    let options = PrepareOptions { overwrite: true, ..options };
    let mut passes = 0;
    let error = umbra_datasets::prepare::prepare(&options, &mut |progress| passes = progress.pass);
    let error = error.unwrap_err();
    assert!(error.to_string().contains("the output is a folder"), "{error}");
    assert_eq!((error.is_usage(), passes), (true, 0));
}

#[test]
fn rows_without_labels_get_the_ids_of_rows_with_labels() {
    let folder = Folder::new();
    let text = criteo_lines(300);
    let bare: String = text.lines().map(|line| format!("{}\n", &line[2..])).collect();
    folder.write("criteo", &text);
    folder.write("criteo_bare", bare);
    folder.write("libfm", "1 3:1 4:1\n0 5:1 4:1\n");
    folder.write("libfm_bare", "3:1 4:1\n5:1 4:1\n");
    for (format, name) in [(Format::Criteo, "criteo"), (Format::Libfm, "libfm")] {
        let train = folder.options(format, name, &format!("{name}.h5"));
        run(&train).unwrap();
        let (input, output) = (format!("{name}_bare"), format!("{name}_bare.h5"));
        let bare = PrepareOptions {
            no_label: true,
            vocabulary_from: Some(train.output.clone()),
            ..folder.options(format, &input, &output)
        };
        assert_eq!(run(&bare).unwrap().label_sum, None);
        same_but_the_label(&train.output, &bare.output);
        let got = message(&PrepareOptions { no_label: false, overwrite: true, ..bare });
        let expected = match format {
            Format::Criteo => "rows without labels are read with --no-label",
            // The first id is taken for the label.
            _ => "sparse fields: expected F1 as in this run, got F1, F2",
        };
        assert!(got.contains(expected), "{got}");
    }
    let schema = "label = \"y\"\nsparse = [\"a\"]";
    let train = csv(&folder, schema, "y,a\n1,p\n0,q\n", "csv.h5");
    run(&train).unwrap();
    let bare = PrepareOptions {
        vocabulary_from: Some(train.output.clone()),
        ..csv(&folder, "sparse = [\"a\"]", "a,z\np,1\nq,2\n", "csv_bare.h5")
    };
    run(&bare).unwrap();
    same_but_the_label(&train.output, &bare.output);
    let got = message(&PrepareOptions { no_label: true, overwrite: true, ..bare });
    assert!(got.contains("leave `label` out of the schema instead"), "{got}");
}

fn same_but_the_label(with: &std::path::Path, without: &std::path::Path) {
    let (with_data, without_data) = (open(with), open(without));
    assert!(with_data.has_labels() && !without_data.has_labels());
    assert_eq!(with_data.transform(), without_data.transform());
    assert_eq!(with_data.vocabulary(), without_data.vocabulary());
    assert_eq!(column::<u32>(with, "sparse"), column::<u32>(without, "sparse"));
}
