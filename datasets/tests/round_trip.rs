//! What is written is what is read, whatever the layout, the chunks and the number of files.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use std::path::PathBuf;

use common::{PLAIN, RICH, Shape, Table, drain, info, written};
use umbra_datasets::{Dataset, Pipeline, RowBlock, Writer, read_vocabulary, verify};

/// All rows, in order.
fn read_all(paths: &[PathBuf], shape: Shape, table: &Table) {
    let dataset = Dataset::open(paths).unwrap();
    assert_eq!(dataset.rows(), table.label.len() as u64);
    let (_pipeline, mut batches) = Pipeline::evaluate(&dataset, 0, 1, 1, 333, 2).unwrap();
    let batches = drain(&mut batches).remove(0);
    let rows: Vec<u64> = batches.iter().flat_map(|b| b.row.iter().copied()).collect();
    assert!(rows.into_iter().eq(0..table.label.len() as u64));
    batches.iter().for_each(|batch| table.check(shape, batch));
}

#[test]
fn every_layout_comes_back() {
    for bags in [false, true] {
        for (dense, cardinality) in
            [(3, &[7u64, 1000][..]), (0, &[5]), (1, &[5, 1]), (2, &[]), (0, &[])]
        {
            for (weight, group) in [(false, false), (true, true)] {
                let value_weights = bags && group && !cardinality.is_empty();
                let shape = Shape {
                    value_weights,
                    bags: bags && !cardinality.is_empty(),
                    dense,
                    cardinality,
                    weight,
                    group,
                    ..PLAIN
                };
                let (_folder, path, table) = written(shape);
                read_all(core::slice::from_ref(&path), shape, &table);
                let dataset = Dataset::open(core::slice::from_ref(&path)).unwrap();
                assert_eq!(dataset.dense_features(), dense);
                assert_eq!(dataset.fields(), cardinality.len());
                assert_eq!(dataset.cardinality(), cardinality);
                assert_eq!((dataset.has_weights(), dataset.has_groups()), (weight, group));
                assert_eq!(dataset.has_value_weights(), value_weights);
                assert_eq!(dataset.dense_names(), info(shape).dense_names);
                assert_eq!(dataset.sparse_names(), info(shape).sparse_names);
                assert_eq!(dataset.transform(), "kind = \"test\"\n");
                let summary = verify(&path).unwrap();
                assert_eq!(summary.fingerprint, dataset.fingerprint());
                assert_eq!(summary.values_per_row_max, dataset.values_per_row_max() as u64);
            }
        }
    }
}

#[test]
fn empty_bags_and_rows_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty-bags.h5");
    let shape = Shape { rows: 3, dense: 0, cardinality: &[4, 4], bags: true, ..PLAIN };
    let table = Table {
        label: vec![0.0, 1.0, 0.5],
        values: vec![3, 3, 0],
        offsets: vec![0, 0, 0, 2, 2, 2, 3],
        ..Table::default()
    };
    let summary = table.write(shape, &path, 1);
    assert_eq!((summary.rows, summary.values, summary.values_per_row_max), (3, 3, 2));
    read_all(core::slice::from_ref(&path), shape, &table);

    // No id at all in the whole file.
    let table = Table { label: vec![0.0; 3], offsets: vec![0; 7], ..Table::default() };
    table.write(shape, &path, 3);
    read_all(core::slice::from_ref(&path), shape, &table);
    assert_eq!(Dataset::open(&[path]).unwrap().values_per_row_max(), 0);
}

#[test]
fn the_file_does_not_depend_on_how_rows_arrive() {
    let folder = tempfile::tempdir().unwrap();
    for shape in [PLAIN, RICH, Shape { rows: 40_000, ..RICH }] {
        let table = Table::new(shape, 2);
        let (one, many) = (folder.path().join("one.h5"), folder.path().join("many.h5"));
        let first = table.write(shape, &one, shape.rows);
        let second = table.write(shape, &many, 61);
        assert_eq!(first.fingerprint, second.fingerprint);
        // Neither when they do: nothing in the file is a time.
        std::thread::sleep(core::time::Duration::from_millis(1100));
        table.write(shape, &one, 61);
        assert!(std::fs::read(&one).unwrap() == std::fs::read(&many).unwrap());
        read_all(&[many], shape, &table);
        let mut other = table.clone();
        other.dense[17] += 0.5;
        assert_ne!(other.write(shape, &one, 100).fingerprint, first.fingerprint);
        if shape.value_weights {
            let mut other = table.clone();
            other.value_weights[17] += 0.5;
            assert_ne!(other.write(shape, &one, 100).fingerprint, first.fingerprint);
        }
    }
}

#[test]
fn files_follow_one_another() {
    let folder = tempfile::tempdir().unwrap();
    let table = Table::new(RICH, 3);
    let mut offsets = Vec::new();
    let mut paths = Vec::new();
    for (number, (from, to)) in [(0, 1), (1, 2049), (2049, RICH.rows)].into_iter().enumerate() {
        let path = folder.path().join(format!("part-{number}.h5"));
        let mut writer = Writer::create(&path, info(RICH)).unwrap();
        writer.append(&table.block(RICH, (from, to), &mut offsets)).unwrap();
        writer.finish().unwrap();
        paths.push(path);
    }
    read_all(&paths, RICH, &table);
    let dataset = Dataset::open(&paths).unwrap();
    let backwards: Vec<PathBuf> = paths.iter().rev().cloned().collect();
    assert_ne!(dataset.fingerprint(), Dataset::open(&backwards).unwrap().fingerprint());
    assert!(dataset.paths().eq(paths.iter().map(PathBuf::as_path)));
}

#[test]
fn one_hot_and_bag_files_mix() {
    let folder = tempfile::tempdir().unwrap();
    let one_hot = Table::new(PLAIN, 4);
    let bags = Shape { bags: true, ..PLAIN };
    let (first, second) = (folder.path().join("a.h5"), folder.path().join("b.h5"));
    let print = one_hot.write(PLAIN, &first, 500).fingerprint;
    // The same content in the layout of bags has the same fingerprint.
    assert_eq!(one_hot.write(bags, &second, 500).fingerprint, print);
    let mut both = one_hot.clone();
    both.label.extend(&one_hot.label);
    both.dense.extend(&one_hot.dense);
    both.values.extend(&one_hot.values);
    let end = one_hot.values.len() as u32;
    both.offsets.extend(one_hot.offsets[1..].iter().map(|o| end + o));
    read_all(&[first.clone(), second.clone()], PLAIN, &both);
    read_all(&[second, first], PLAIN, &both);
}

#[test]
fn a_writer_that_is_dropped_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.h5");
    let names = || {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let table = Table::new(PLAIN, 5);
    let mut writer = Writer::create(&path, info(PLAIN)).unwrap();
    writer.append(&table.block(PLAIN, (0, 10), &mut Vec::new())).unwrap();
    assert_eq!(names().len(), 1, "the temporary file stands beside");
    assert!(!path.exists());
    drop(writer);
    assert!(names().is_empty(), "{:?}", names());

    // An older file stays until the new one is complete.
    table.write(PLAIN, &path, 1000);
    let before = std::fs::read(&path).unwrap();
    let writer = Writer::create(&path, info(PLAIN)).unwrap();
    drop(writer);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(names(), ["data.h5"]);
}

#[test]
fn vocabularies_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.h5");
    let table = Table::new(PLAIN, 6);
    let mut writer = Writer::create(&path, info(PLAIN)).unwrap();
    writer.append(&table.block(PLAIN, (0, 10), &mut Vec::new())).unwrap();
    writer.write_vocabulary(1, "abücd".as_bytes(), &[0, 0, 2, 4, 6]).unwrap();
    let error = writer.write_vocabulary(0, b"abc", &[0, 2]).unwrap_err().to_string();
    assert!(
        error.contains("offsets of a vocabulary: expected bounds that grow from 0 to 3"),
        "{error}"
    );
    writer.set_cardinality(vec![9, 2000]);
    assert_eq!(writer.rows(), 10);
    assert_eq!(writer.finish().unwrap().cardinality, [9, 2000]);
    assert_eq!(read_vocabulary(&path, 0).unwrap(), None);
    let expected = ("abücd".as_bytes().to_vec(), vec![0, 0, 2, 4, 6]);
    assert_eq!(read_vocabulary(&path, 1).unwrap(), Some(expected));
}

#[test]
fn the_writer_refuses_rows_that_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.h5");
    let good = RowBlock {
        rows: 2,
        label: &[1.0, 0.0],
        weight: &[1.0, 2.0],
        dense: &[0.5; 6],
        values: &[1, 2, 3],
        value_weights: &[0.0, 1.0, 2.5],
        offsets: &[0, 2, 2, 3, 3],
        group: &[1, 1],
    };
    let cases: [(RowBlock<'_>, &str); 13] = [
        (RowBlock { weight: &[1.0], ..good }, "weights: expected 2 for 2 rows, got 1"),
        (RowBlock { group: &[], ..good }, "groups: expected 2 for 2 rows, got 0"),
        (RowBlock { dense: &[0.5; 5], ..good }, "dense features: expected 6 for 2 rows, got 5"),
        (RowBlock { offsets: &[0, 2, 3], ..good }, "sparse offsets: expected 5 for 2 rows, got 3"),
        (RowBlock { offsets: &[], ..good }, "sparse offsets: expected 5 for 2 rows, got 0"),
        (RowBlock { offsets: &[0, 2, 1, 3, 3], ..good }, "bounds that grow from 0 to 3"),
        (RowBlock { offsets: &[0, 2, 2, 2, 2], ..good }, "bounds that grow from 0 to 3, got 0..2"),
        (RowBlock { label: &[1.0, 1.5], ..good }, "label: expected a number from 0 to 1, got 1.5"),
        (RowBlock { label: &[f32::NAN, 1.0], ..good }, "a number from 0 to 1, got NaN"),
        (
            RowBlock { weight: &[1.0, -1.0], ..good },
            "weight: expected a finite number from 0, got -1",
        ),
        (
            RowBlock { value_weights: &[1.0; 2], ..good },
            "weights of ids: expected 3 for 2 rows, got 2",
        ),
        (
            RowBlock { value_weights: &[0.0, f32::NAN, 1.0], ..good },
            "weight of an id: expected a finite number from 0, got NaN",
        ),
        (
            RowBlock { dense: &[0.0, 1.0, f32::INFINITY, 0.0, 0.0, 0.0], ..good },
            "dense feature: expected a finite number, got inf",
        ),
    ];
    let mut writer = Writer::create(&path, info(RICH)).unwrap();
    for (block, expected) in cases {
        let error = writer.append(&block).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("data.h5"), "{error}");
    }
    // A refused block changes nothing.
    writer.append(&good).unwrap();
    writer.set_cardinality(vec![4, 1]);
    assert_eq!(writer.finish().unwrap().rows, 2);
    verify(&path).unwrap();

    let mut writer = Writer::create(&path, info(RICH)).unwrap();
    writer.append(&good).unwrap();
    writer.set_cardinality(vec![3, 1]);
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("ids of field `id-0` below its cardinality 3, got 3"), "{error}");

    let mut writer = Writer::create(&path, info(RICH)).unwrap();
    writer.set_cardinality(vec![3]);
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("cardinality: expected 2 numbers, one per field, got 1"), "{error}");

    let one_hot = Shape { weight: false, group: false, ..PLAIN };
    let mut writer = Writer::create(&path, info(one_hot)).unwrap();
    let bag = RowBlock { weight: &[], group: &[], value_weights: &[], ..good };
    let error = writer.append(&bag).unwrap_err().to_string();
    assert!(error.contains("sparse values: expected one per field, got a bag"), "{error}");

    let weighted = info(Shape { value_weights: true, ..PLAIN });
    let error = Writer::create(&path, weighted).unwrap_err().to_string();
    assert!(error.contains("weights of ids: expected bags"), "{error}");

    let missing = folder.path().join("no-such-folder/data.h5");
    let error = Writer::create(&missing, info(PLAIN)).unwrap_err().to_string();
    assert!(error.contains("cannot create: No such file or directory"), "{error}");
}
