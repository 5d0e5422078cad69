//! Single bits of a dataset that are not what they were.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use common::{RICH, Shape, Table};
use umbra_datasets::{Dataset, Writer, verify};

/// Any single bit of a file of ours: seen when it is opened or read, or of no consequence.
#[test]
fn every_flipped_bit_is_seen_or_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bad) = (folder.path().join("data.h5"), folder.path().join("bad.h5"));
    let shape = Shape { rows: 300, ..RICH };
    let mut writer = Writer::create(&path, common::info(shape)).unwrap();
    let table = Table::new(shape, 1);
    writer.append(&table.block(shape, (0, shape.rows), &mut Vec::new())).unwrap();
    writer.write_vocabulary(0, b"abcd", &[0, 1, 3, 4]).unwrap();
    let fingerprint = writer.finish().unwrap().fingerprint;
    let good = std::fs::read(&path).unwrap();
    let (mut seen, mut harmless) = (0, 0);
    for (number, at) in (0..good.len()).step_by(29).enumerate() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (number % 8);
        std::fs::write(&bad, &bytes).unwrap();
        let opened = Dataset::open(core::slice::from_ref(&bad));
        match opened.and_then(|dataset| Ok((dataset, verify(&bad)?))) {
            Err(_) => seen += 1,
            Ok((dataset, summary)) => {
                let says = (dataset.transform(), dataset.cardinality(), dataset.vocabulary());
                let original = Dataset::open(core::slice::from_ref(&path)).unwrap();
                let said = (original.transform(), original.cardinality(), original.vocabulary());
                assert_eq!((summary.fingerprint, says), (fingerprint.clone(), said), "bit of {at}");
                harmless += 1;
            }
        }
    }
    assert!(seen > harmless, "{seen} seen, {harmless} harmless");
}
