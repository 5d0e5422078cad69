//! h5py reads what we write, and we read what h5py writes.
//!
//! Needs a Python with h5py: $UMBRA_PYTHON, else `python3`. Skipped, loudly, when there is none.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use common::{PLAIN, RICH, drain, written};
use umbra_datasets::{Dataset, Pipeline, verify};

/// One test at a time: HDF5 opens its files without close-on-exec, so a Python started meanwhile
/// would keep the locks of the other test's files alive.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs `script` with `arguments`, or `None` without h5py.
fn python(script: &str, arguments: &[&Path]) -> Option<Output> {
    let program = std::env::var("UMBRA_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&program).args(["-c", "import h5py"]).output();
    if !found.is_ok_and(|o| o.status.success()) {
        println!("SKIPPED: no h5py in {program}; set UMBRA_PYTHON to a Python that has it");
        return None;
    }
    Some(Command::new(program).arg("-c").arg(script).args(arguments).output().unwrap())
}

fn succeed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

const READ: &str = r"
import sys, h5py
f = h5py.File(sys.argv[1])
names = lambda a: list(f.attrs[a])
print(int(f.attrs['umbra_version']), int(f.attrs['rows']),
      names('dense_names'), names('sparse_names'),
      f.attrs['cardinality'].tolist(), repr(f.attrs['transform']), f.attrs['fingerprint'])
for name in ['label', 'weight', 'dense', 'sparse', 'sparse_values', 'sparse_offsets', 'group']:
    if name in f:
        d = f[name]
        assert d.fletcher32 and d.shuffle and d.compression == 'gzip', name
        print(name, d.shape, d.dtype, float(d[...].astype('f8').sum()))
";

#[test]
fn h5py_reads_ours() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (shape, sparse) in [
        (PLAIN, vec!["sparse (5000, 2) uint32"]),
        (
            RICH,
            vec![
                "sparse_values (",
                "sparse_offsets (10001,) uint64",
                "weight (5000,) float32",
                "group (5000,) uint64",
            ],
        ),
    ] {
        let (_folder, path, table) = written(shape);
        let Some(output) = python(READ, &[&path]) else { return };
        let text = succeed(&output);
        let print = verify(&path).unwrap().fingerprint;
        assert!(
            text.starts_with(&format!(
                "1 5000 ['count-0', 'count-1', 'count-2'] ['id-0', 'id-1'] [7, 1000] 'kind = \
                 \"test\"\\n' {print}"
            )),
            "{text}"
        );
        let sum = |values: &[f32]| values.iter().map(|&v| f64::from(v)).sum::<f64>();
        assert!(
            text.contains(&format!("label (5000,) float32 {:?}\n", sum(&table.label))),
            "{text}"
        );
        assert!(
            text.contains(&format!("dense (5000, 3) float32 {:?}\n", sum(&table.dense))),
            "{text}"
        );
        let ids: f64 = table.values.iter().map(|&v| f64::from(v)).sum();
        assert!(text.contains(&format!(" {ids:?}\n")), "{text}");
        sparse.iter().for_each(|line| assert!(text.contains(line), "{text}"));
    }
}

/// Writes variants of one table: label = row % 2, dense = row + column / 4,
/// ids = (row + field) % c.
const WRITE: &str = r"
import sys, h5py, numpy as np
n, card = 3000, np.array([7, 1000])
row = np.arange(n)
label = (row % 2).astype('f4')
dense = (row[:, None] + np.arange(3) / 4).astype('f4')
sparse = ((row[:, None] + np.arange(2)) % card).astype('u4')
variants = {
    'plain': dict(), 'gzip': dict(compression='gzip', chunks=True), 'lzf': dict(compression='lzf'),
    'chunks': dict(chunks=(100, 2), compression='gzip', compression_opts=9,
                   shuffle=True, fletcher32=True),
}
for name, how in variants.items():
    with h5py.File(f'{sys.argv[1]}/{name}.h5', 'w') as f:
        f.attrs['umbra_version'] = 1
        f.attrs['cardinality'] = card
        if name == 'gzip':
            f.attrs['dense_names'] = ['a', 'b', 'ü']
            f.attrs['sparse_names'] = np.array([b'first', b'second'])
            f.attrs['rows'] = n
            f.attrs['transform'] = 'none'
        f['label'] = label
        if name == 'chunks':
            f.create_dataset('dense', data=dense, **how)
            f['sparse_values'] = sparse.reshape(-1)
            f['sparse_offsets'] = np.arange(n * 2 + 1, dtype='u8')
            f['weight'] = np.ones(n, 'f4')
            f['group'] = row.astype('u8')
        else:
            f.create_dataset('dense', data=dense, **how)
            f.create_dataset('sparse', data=sparse, **how)
";

#[test]
fn we_read_what_h5py_writes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = python(WRITE, &[folder.path()]) else { return };
    succeed(&output);
    for variant in ["plain", "gzip", "chunks"] {
        let dataset = Dataset::open(&[folder.path().join(format!("{variant}.h5"))]).unwrap();
        let (_pipeline, mut batches) = Pipeline::evaluate(&dataset, 0, 1, 1, 128, 2).unwrap();
        let mut rows = 0u32;
        for batch in &drain(&mut batches)[0] {
            for (i, &row) in batch.row.iter().enumerate() {
                assert_eq!(row, u64::from(rows));
                assert_eq!(batch.label[i], (rows % 2) as f32);
                assert_eq!(
                    batch.dense[3 * i..3 * i + 3],
                    [0.0, 0.25, 0.5].map(|c| rows as f32 + c)
                );
                assert_eq!(batch.values[2 * i..2 * i + 2], [rows % 7, (rows + 1) % 1000]);
                assert_eq!(batch.weight.len(), if variant == "chunks" { batch.len() } else { 0 });
                rows += 1;
            }
        }
        assert_eq!(rows, 3000);
        let named = variant == "gzip";
        assert_eq!(dataset.dense_names()[2], if named { "ü" } else { "dense2" });
        assert_eq!(dataset.sparse_names()[1], if named { "second" } else { "sparse1" });
        assert_eq!(dataset.fingerprint(), "absent");
        verify(&folder.path().join(format!("{variant}.h5"))).unwrap();
    }
    let error = verify(&folder.path().join("lzf.h5")).unwrap_err().to_string();
    assert!(
        error
            .ends_with("filters of dataset `dense`: expected compression by gzip or none, got lzf"),
        "{error}"
    );
}
