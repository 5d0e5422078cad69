//! Key lists that cannot be found are not key lists that are not there, and bytes that are not
//! UTF-8 are no names.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]

mod common;

use common::{PLAIN, Shape, Table, info};
use hdf5::types::VarLenUnicode;
use umbra_datasets::{Dataset, Writer, read_vocabulary};

const SHAPE: Shape = Shape { rows: 50, ..PLAIN };

/// Any bit of the library's object headers, those of the groups of key lists among them: the lists
/// are read as they were written, or there is an error that names the file.
#[test]
fn a_damaged_group_is_not_an_absent_one() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bad) = (folder.path().join("data.h5"), folder.path().join("bad.h5"));
    let mut writer = Writer::create(&path, info(SHAPE)).unwrap();
    let table = Table::new(SHAPE, 1);
    writer.append(&table.block(SHAPE, (0, SHAPE.rows), &mut Vec::new())).unwrap();
    for field in [0, 1] {
        writer.write_vocabulary(field, b"abcd", &[0, 1, 3, 4]).unwrap();
    }
    writer.finish().unwrap();
    let good = std::fs::read(&path).unwrap();
    let lists = read_vocabulary(&path, 1).unwrap();
    assert!(lists.is_some());
    let (mut seen, mut tried) = (0, 0);
    for header in memchr::memmem::find_iter(&good, b"OHDR") {
        for at in (header..good.len().min(header + HEADER_BYTES)).step_by(3) {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << (at % 8);
            let _ = std::fs::remove_file(&bad);
            std::fs::write(&bad, &bytes).unwrap();
            tried += 1;
            match read_vocabulary(&bad, 1) {
                Ok(found) => assert_eq!(found, lists, "a bit of byte {at}"),
                Err(error) => {
                    assert!(error.to_string().starts_with(bad.to_str().unwrap()), "{error}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen * 10 > tried, "{seen} of {tried}");
}

/// Of a header that are tried: its own, and what is in it.
const HEADER_BYTES: usize = 150;

/// The binding of HDF5 takes the bytes of strings of variable length for UTF-8.
#[test]
fn names_that_are_not_utf_8_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("foreign.h5");
    let file = hdf5::File::create(&path).unwrap();
    file.new_attr::<i64>().create("umbra_version").unwrap().write_scalar(&1i64).unwrap();
    file.new_attr_builder().with_data(&[5i64]).create("cardinality").unwrap();
    let name: VarLenUnicode = "caf\u{e9}".parse().unwrap();
    file.new_attr_builder().with_data(&[name]).create("sparse_names").unwrap();
    file.new_dataset_builder().with_data(&[1f32; 4]).create("label").unwrap();
    let sparse = file.new_dataset::<u32>().shape((4, 1)).create("sparse").unwrap();
    sparse.write_raw(&[1u32; 4]).unwrap();
    drop((sparse, file));
    let opened = Dataset::open(core::slice::from_ref(&path)).unwrap();
    assert_eq!(opened.sparse_names(), ["caf\u{e9}"]);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = memchr::memmem::find(&bytes, "caf\u{e9}".as_bytes()).unwrap();
    bytes[at + 4] = b'(';
    let bad = folder.path().join("bad.h5");
    std::fs::write(&bad, &bytes).unwrap();
    let message = Dataset::open(core::slice::from_ref(&bad)).unwrap_err().to_string();
    assert!(message.starts_with(bad.to_str().unwrap()), "{message}");
    assert!(message.contains("attribute `sparse_names`: invalid utf-8"), "{message}");
}
