//! Files that are not as the layout says: every one is refused with a message that names the file,
//! the object, what was expected and what was found.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use std::path::{Path, PathBuf};

use common::{PLAIN, RICH, Shape, Table, written};
use hdf5::File;
use umbra_datasets::{Dataset, DatasetError, Pipeline, verify};

/// Opens `path` and reads all of it, as training does.
fn read(path: &Path) -> Result<(), DatasetError> {
    let dataset = Dataset::open(&[path.to_owned()])?;
    let (_pipeline, mut batches) = Pipeline::evaluate(&dataset, 0, 1, 1, 100, 2)?;
    while batches[0].next(&mut || ())?.is_some() {}
    Ok(())
}

fn message(path: &Path) -> String {
    read(path).expect_err(&format!("not as the layout says: {}", path.display())).to_string()
}

const ROWS: usize = 10;

/// A minimal file as h5py would write it, without the objects in `without`.
fn minimal(path: &Path, without: &[&str]) -> File {
    let file = File::create(path).unwrap();
    let want = |name: &str| !without.contains(&name);
    if want("umbra_version") {
        file.new_attr::<i64>().create("umbra_version").unwrap().write_scalar(&1i64).unwrap();
    }
    if want("cardinality") {
        file.new_attr_builder().with_data(&[5i64, 9]).create("cardinality").unwrap();
    }
    if want("label") {
        vector(&file, "label", &[1.0f32; ROWS]);
    }
    if want("dense") {
        matrix(&file, "dense", &[0.5f32; 3 * ROWS], 3);
    }
    if want("sparse") {
        matrix(&file, "sparse", &[4u32; 2 * ROWS], 2);
    }
    file
}

fn vector<T: hdf5::H5Type + Copy>(file: &File, name: &str, values: &[T]) {
    file.new_dataset_builder().with_data(values).create(name).unwrap();
}

fn matrix<T: hdf5::H5Type + Copy>(file: &File, name: &str, values: &[T], width: usize) {
    let dataset =
        file.new_dataset::<T>().shape((values.len() / width, width)).create(name).unwrap();
    dataset.write_raw(values).unwrap();
}

/// Ten rows of two bags, one id each.
fn bags(file: &File, ids: &[u32], change: impl Fn(&mut Vec<u64>)) {
    let mut offsets: Vec<u64> = (0..=2 * ROWS as u64).collect();
    change(&mut offsets);
    vector(file, "sparse_values", ids);
    vector(file, "sparse_offsets", &offsets);
}

/// Ids of two bags per row.
const IDS: [u32; 2 * ROWS] = [1; 2 * ROWS];

#[test]
fn a_minimal_file_reads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.h5");
    drop(minimal(&path, &[]));
    read(&path).unwrap();
    let dataset = Dataset::open(core::slice::from_ref(&path)).unwrap();
    assert_eq!(dataset.sparse_names(), ["sparse0", "sparse1"]);
    assert_eq!(dataset.dense_names(), ["dense0", "dense1", "dense2"]);
    assert_eq!((dataset.fingerprint(), dataset.transform()), ("absent", ""));
    drop(minimal(&path, &["dense"]));
    read(&path).unwrap();
    bags(&minimal(&path, &["sparse"]), &IDS, |_| {});
    read(&path).unwrap();
    assert_eq!(Dataset::open(&[path]).unwrap().values_per_row_max(), 2);
}

/// Objects left out, what is put there instead, what the message says.
type Case = (&'static [&'static str], fn(&File), &'static str);

#[test]
fn a_wrong_structure_is_refused() {
    let cases: &[Case] = &[
        (
            &["umbra_version"],
            |_| (),
            "no attribute `umbra_version`: expected an integer from 1 to 2",
        ),
        (
            &["umbra_version"],
            |f| f.new_attr::<u32>().create("umbra_version").unwrap().write_scalar(&3u32).unwrap(),
            "attribute `umbra_version`: expected 1 to 2, the layouts this build reads, got 3",
        ),
        (
            &["umbra_version"],
            |f| f.new_attr::<f32>().create("umbra_version").unwrap().write_scalar(&1f32).unwrap(),
            "attribute `umbra_version`: expected integers from 0, got f32",
        ),
        (&["label"], |_| (), "no label: expected dataset `label`: the clicks, f32 [rows]"),
        (
            &["label"],
            |f| vector(f, "label", &[hdf5::types::FixedAscii::<4>::new(); ROWS]),
            "type of dataset `label`: expected f32, or f64, an integer or bool, which are cast,",
        ),
        (
            &["label"],
            |f| matrix(f, "label", &[1f32; ROWS], 1),
            "shape of dataset `label`: expected [rows], got [10, 1]",
        ),
        (
            &["label", "dense", "sparse"],
            |f| vector::<f32>(f, "label", &[]),
            "shape of dataset `label`: expected one row or more, got [0]",
        ),
        (
            &[],
            |f| f.new_attr::<u64>().create("rows").unwrap().write_scalar(&11u64).unwrap(),
            "shape of dataset `label`: expected [11] (attribute `rows`), got [10]",
        ),
        (
            &["dense"],
            |f| matrix(f, "dense", &[0f32; 27], 3),
            "shape of dataset `dense`: expected [10, columns], got [9, 3]",
        ),
        (
            &["sparse"],
            |f| matrix(f, "sparse", &[1u32; 30], 3),
            "shape of dataset `sparse`: expected [10, 2], got [10, 3]",
        ),
        (
            &["sparse"],
            |_| (),
            "datasets of 2 sparse fields: expected either `sparse` u32 [rows, fields], or both \
             `sparse_values` and `sparse_offsets`, got none",
        ),
        (
            &["sparse"],
            |f| vector(f, "sparse_values", &[1u32; 20]),
            "or both `sparse_values` and `sparse_offsets`, got `sparse_values`",
        ),
        (&[], |f| bags(f, &IDS, |_| ()), "got `sparse`, `sparse_values`, `sparse_offsets`"),
        (
            &["sparse"],
            |f| bags(f, &IDS, |offsets| offsets.push(20)),
            "shape of dataset `sparse_offsets`: expected [21], got [22]",
        ),
        (
            &["cardinality"],
            |_| (),
            "no attribute `cardinality`: expected u64 [fields], every id of a field below",
        ),
        (
            &["cardinality"],
            |f| drop(f.new_attr_builder().with_data(&[5i64, -9]).create("cardinality").unwrap()),
            "attribute `cardinality`: expected integers from 0, got -9",
        ),
        (
            &[],
            |f| {
                let name = hdf5::types::FixedAscii::<8>::from_ascii(b"only-one").unwrap();
                f.new_attr_builder().with_data(&[name]).create("sparse_names").unwrap();
            },
            "attribute `sparse_names`: expected 2 names, one per column, got 1",
        ),
        (
            &[],
            |f| drop(f.new_attr_builder().with_data(&[1, 2]).create("sparse_names").unwrap()),
            "attribute `sparse_names`: expected strings, got i32",
        ),
        (
            &[],
            |f| vector(f, "weight", &[1f32; 9]),
            "shape of dataset `weight`: expected [10], got [9]",
        ),
        (
            &["sparse"],
            |f| {
                bags(f, &[4; 20], |_| ());
                vector(f, "sparse_weights", &[1f32; ROWS]);
            },
            "shape of dataset `sparse_weights`: expected [20], got [10]",
        ),
        (
            &[],
            |f| vector(f, "sparse_weights", &[1f32; 2 * ROWS]),
            "dataset `sparse_weights`: expected `sparse_values` and `sparse_offsets` beside it",
        ),
        (
            &[],
            |f| vector(f, "group", &[1f64; ROWS]),
            "type of dataset `group`: expected u64, or another integer, which is cast, got f64",
        ),
        (
            &["sparse"],
            |f| matrix(f, "sparse", &[1f32; 20], 2),
            "type of dataset `sparse`: expected u32, or another integer, which is cast, got f32",
        ),
        (
            &["dense"],
            |f| {
                let dense =
                    f.new_dataset::<f32>().chunk((4, 3)).shape((hdf5::Extent::from(ROWS..), 3));
                let dense = dense.create("dense").unwrap();
                let rows = ndarray::Array2::from_elem((4, 3), 1f32);
                dense.write_slice(&rows, (0..4, 0..3)).unwrap();
            },
            "number of chunks of dataset `dense`: expected 3, got 1: the others were never written",
        ),
        (
            &["label"],
            |f| drop(f.new_dataset::<f32>().shape(ROWS).create("label").unwrap()),
            "values of dataset `label`: expected 10, got none: the dataset was made and never",
        ),
        (
            &["label"],
            |f| {
                let builder = f.new_dataset_builder().external("raw.bin", 0, 40);
                drop(builder.empty::<f32>().shape(ROWS).create("label").unwrap());
            },
            "storage of dataset `label`: expected values in this file (with h5py: x = \
             f['label'][:]; write x anew), got values in the external file `raw.bin`",
        ),
        (
            &["label"],
            |f| {
                let map =
                    f.new_dataset_builder().virtual_map("gone.h5", "label", ROWS, .., ROWS, ..);
                drop(map.empty::<f32>().shape(ROWS).create("label").unwrap());
            },
            "storage of dataset `label`: expected values in this file (with h5py: x = \
             f['label'][:]; write x anew), got a virtual dataset",
        ),
        (
            &["dense"],
            |f| {
                let rows = 1usize << 27;
                let dense = f.new_dataset::<f32>().deflate(1).chunk((rows, 3));
                dense.shape((hdf5::Extent::from(ROWS..), 3)).create("dense").unwrap();
            },
            "chunks of dataset `dense`: expected 1073741824 bytes or fewer (write it anew, with",
        ),
    ];
    refused(cases);
}

#[test]
fn a_wrong_value_is_refused() {
    let cases: &[Case] = &[
        (
            &["sparse"],
            |f| {
                bags(f, &[4; 20], |_| ());
                let mut weights = [1f64; 20];
                weights[13] = -0.5;
                vector(f, "sparse_weights", &weights);
            },
            "dataset `sparse_weights`: row 6, column 1: expected a finite number from 0, got -0.5",
        ),
        (
            &["sparse"],
            |f| {
                let mut ids = IDS;
                (ids[6], ids[15]) = (4, 9);
                matrix(f, "sparse", &ids, 2);
            },
            "dataset `sparse`: row 7, field 1 (`sparse1`): id 9 is not below the cardinality 9",
        ),
        (
            &["label"],
            |f| vector(f, "label", &[0.0, 1.0, 0.5, 1.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0f32]),
            "dataset `label`: row 3, column 0: expected a number from 0 to 1, got 1.25",
        ),
        (
            &["dense"],
            |f| {
                let mut dense = [0f32; 30];
                dense[17] = f32::NAN;
                matrix(f, "dense", &dense, 3);
            },
            "dataset `dense`: row 5, column 2: expected a finite number, got NaN",
        ),
        (
            &[],
            |f| vector(f, "weight", &[1.0, -2.0, 0.5, 1.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0f32]),
            "dataset `weight`: row 1, column 0: expected a finite number from 0, got -2",
        ),
        (
            &["sparse"],
            |f| {
                let mut ids = IDS;
                ids[6] = 5;
                bags(f, &ids, |_| ());
            },
            "dataset `sparse_values`: row 3, field 0 (`sparse0`): id 5 is not below the \
             cardinality 5",
        ),
        (
            &["sparse"],
            |f| bags(f, &IDS, |offsets| offsets[7] = 9),
            "dataset `sparse_offsets`: row 3, field 1: bag from 9 to 8 of 20 values: expected \
             offsets that never decrease",
        ),
        (
            &["sparse"],
            |f| bags(f, &IDS, |offsets| offsets[20] = 99),
            "row 9, field 1: bag from 19 to 99 of 20 values",
        ),
        (
            &["sparse"],
            |f| bags(f, &IDS, |offsets| offsets[20] = 19),
            "row 9, field 1: bag from 19 to 19 of 20 values",
        ),
        (
            &["sparse"],
            |f| bags(f, &IDS, |offsets| offsets[0] = 1),
            "row 0, field 0: bag from 1 to 1 of 20 values",
        ),
        (
            &["sparse"],
            |f| bags(f, &IDS, |offsets| offsets[20] = u64::MAX),
            "row 9, field 1: bag from 19 to 18446744073709551615 of 20 values",
        ),
        (
            &["sparse"],
            |f| {
                let mut ids = IDS.map(i64::from);
                ids[7] = -1;
                matrix(f, "sparse", &ids, 2);
            },
            "dataset `sparse`: row 3, column 1: expected an id from 0 to 4294967295, got -1",
        ),
        (
            &["sparse"],
            |f| {
                let mut ids = IDS.map(i64::from);
                ids[7] = 1 << 32;
                vector(f, "sparse_values", &ids);
                vector(f, "sparse_offsets", &core::array::from_fn::<i32, 21, _>(|i| i as i32));
            },
            "dataset `sparse_values`: row 3, column 1: expected an id from 0 to 4294967295, got \
             4294967296",
        ),
        (
            &["sparse"],
            |f| {
                vector(f, "sparse_values", &IDS);
                vector(f, "sparse_offsets", &core::array::from_fn::<i64, 21, _>(|i| i as i64 - 1));
            },
            "dataset `sparse_offsets`: row 0, column 0: expected a number from 0, got -1",
        ),
        (
            &["dense"],
            |f| {
                let mut dense = [0f64; 30];
                dense[17] = 1e300;
                matrix(f, "dense", &dense, 3);
            },
            "dataset `dense`: row 5, column 2: expected a finite number of f32, got 1000000000",
        ),
        (
            &["label"],
            |f| vector(f, "label", &[0i8, 1, -1, 0, 0, 0, 0, 0, 0, 0]),
            "dataset `label`: row 2, column 0: expected a number from 0 to 1, got -1",
        ),
        (
            &[],
            |f| vector(f, "group", &[0i16, 1, -3, 0, 0, 0, 0, 0, 0, 0]),
            "dataset `group`: row 2, column 0: expected a number from 0, got -3",
        ),
        (
            &["sparse"],
            |f| {
                bags(f, &IDS, |_| ());
                let attribute = f.new_attr::<u64>().create("values_per_row_max").unwrap();
                attribute.write_scalar(&1u64).unwrap();
            },
            "attribute `values_per_row_max`: expected 2 or more, the values of row 0, got 1",
        ),
    ];
    refused(cases);
}

fn refused(cases: &[Case]) {
    let folder = tempfile::tempdir().unwrap();
    for (number, (without, put, expected)) in cases.iter().enumerate() {
        let path = folder.path().join(format!("case-{number}.h5"));
        let file = minimal(&path, without);
        put(&file);
        drop(file);
        let message = message(&path);
        assert!(message.starts_with(path.to_str().unwrap()), "case {number}: {message}");
        assert!(message.contains(expected), "case {number}: {message}\nexpected: {expected}");
    }
}

#[test]
fn a_damaged_file_is_refused() {
    let (folder, path, _) = written(Shape { rows: 20_000, ..RICH });
    let bytes = std::fs::read(&path).unwrap();
    let damaged = folder.path().join("damaged.h5");

    for keep in [9, 2000, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&damaged, &bytes[..keep]).unwrap();
        let message = message(&damaged);
        assert!(message.contains("damaged.h5: cannot open the file: "), "{keep} bytes: {message}");
    }
    std::fs::write(&damaged, &bytes[..bytes.len() - 1]).unwrap();
    assert!(message(&damaged).contains("(the file is cut short: copy or prepare it again)"));

    // One bit in the middle of a chunk of every dataset.
    let bags = ["sparse_values", "sparse_offsets", "sparse_weights"];
    for name in ["label", "weight", "dense", "group"].into_iter().chain(bags) {
        let (at, size) = {
            let file = File::open(&path).unwrap();
            let chunk = file.dataset(name).unwrap().chunk_info(2).unwrap();
            (chunk.addr as usize, chunk.size as usize)
        };
        let mut bytes = bytes.clone();
        bytes[at + size / 2] ^= 0x10;
        std::fs::write(&damaged, &bytes).unwrap();
        Dataset::open(core::slice::from_ref(&damaged)).expect("structure is not damaged");
        for message in [message(&damaged), verify(&damaged).unwrap_err().to_string()] {
            assert!(message.contains(&format!("cannot read dataset `{name}` rows ")), "{message}");
            assert!(message.contains("Fletcher32"), "{message}");
            assert!(
                message.contains("(the file is damaged: copy or prepare it again)"),
                "{message}"
            );
        }
    }
}

#[test]
fn what_is_not_hdf5_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.csv");
    assert!(message(&path).contains("train.csv: cannot open: No such file or directory"));
    for content in [&b""[..], b"1\t2\t3\n", b"label,a,b\n0,1,2\n1,2,3\n"] {
        std::fs::write(&path, content).unwrap();
        let message = message(&path);
        assert!(message.contains("train.csv: not an HDF5 file"), "{message}");
        assert!(message.contains("`umbra prepare` turns text into one"), "{message}");
    }
    assert_eq!(
        Dataset::open(&[]).unwrap_err().to_string(),
        "no data file was given: expected one HDF5 file or more"
    );
    // A folder in place of a file.
    let message = message(folder.path());
    assert!(message.contains("cannot read the first bytes: Is a directory"), "{message}");
}

#[test]
fn changed_content_does_not_match_its_fingerprint() {
    let (_folder, path, table) = written(PLAIN);
    let before = verify(&path).unwrap().fingerprint;
    {
        let file = File::open_rw(&path).unwrap();
        let mut label = table.label.clone();
        label[4321] = 1.0 - label[4321] / 2.0;
        file.dataset("label").unwrap().write_raw(&label).unwrap();
    }
    // Chunks have valid checksums again: only the fingerprint tells.
    read(&path).unwrap();
    let message = verify(&path).unwrap_err().to_string();
    assert!(message.contains("content does not match its fingerprint"), "{message}");
    assert!(message.contains(&before), "{message}");
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str, shape: Shape| {
        let path = folder.path().join(name);
        Table::new(Shape { rows: 10, ..shape }, 1).write(Shape { rows: 10, ..shape }, &path, 10);
        path
    };
    let first = make("first.h5", PLAIN);
    let cases: [(PathBuf, &str); 5] = [
        (make("dense.h5", Shape { dense: 4, ..PLAIN }), "differ in number of dense features: "),
        (
            make("fields.h5", Shape { cardinality: &[7, 1000, 3], ..PLAIN }),
            "differ in number of sparse fields: ",
        ),
        (
            make("cardinality.h5", Shape { cardinality: &[7, 999], ..PLAIN }),
            "differ in cardinality of field 1 (`id-1`): ",
        ),
        (make("weight.h5", Shape { weight: true, ..PLAIN }), "differ in dataset `weight`: "),
        (make("group.h5", Shape { group: true, ..PLAIN }), "differ in dataset `group`: "),
    ];
    let (bags, weighted) = (
        make("bags.h5", Shape { bags: true, ..PLAIN }),
        make("weighted.h5", Shape { bags: true, value_weights: true, ..PLAIN }),
    );
    for paths in [[bags.clone(), weighted.clone()], [weighted.clone(), first.clone()]] {
        let message = Dataset::open(&paths).unwrap_err().to_string();
        assert!(message.contains("differ in dataset `sparse_weights`: "), "{message}");
    }
    let alone = |path| Dataset::open(&[path]).unwrap();
    alone(bags).check_compatible(&alone(weighted)).unwrap();
    for (number, (second, expected)) in cases.into_iter().enumerate() {
        let message = Dataset::open(&[first.clone(), second.clone()]).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        assert!(message.contains("first.h5 has"), "{message}");
        // A test set may have weights, of ids too, where the training set has none.
        let (train, test) = (
            Dataset::open(core::slice::from_ref(&first)).unwrap(),
            Dataset::open(&[second]).unwrap(),
        );
        match train.check_compatible(&test) {
            Ok(()) => assert!(number >= 3),
            Err(error) => assert_eq!((error.to_string(), number < 3), (message, true)),
        }
    }
}

/// A file of the same length at the same place and time, but with other contents by its own word.
/// (One of ours says that its metadata are damaged.)
#[test]
fn another_fingerprint_is_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.h5");
    let print = "0123456789abcdef0123456789abcdef";
    let value = hdf5::types::FixedAscii::<32>::from_ascii(print.as_bytes()).unwrap();
    let file = minimal(&path, &[]);
    let attribute = file.new_attr::<hdf5::types::FixedAscii<32>>().create("fingerprint").unwrap();
    attribute.write_scalar(&value).unwrap();
    drop((attribute, file));
    let dataset = Dataset::open(core::slice::from_ref(&path)).unwrap();
    // Nothing has it open: what HDF5 has open it does not read again.
    let mut bytes = std::fs::read(&path).unwrap();
    let print = print.as_bytes();
    let at = bytes.windows(print.len()).position(|window| window == print).unwrap();
    bytes[at] = b'1';
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let then = file.metadata().unwrap().modified().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    file.set_modified(then).unwrap();
    let read = || {
        let (_pipeline, mut batches) = Pipeline::evaluate(&dataset, 0, 1, 1, 100, 2)?;
        batches[0].next(&mut || ()).map(drop)
    };
    let error = read().unwrap_err();
    assert!(matches!(error, DatasetError::Changed { .. }), "{error}");
    assert!(error.to_string().contains("its fingerprint was"), "{error}");
}
