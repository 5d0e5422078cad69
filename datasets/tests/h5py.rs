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
    let needed = if script.contains("pandas") { "h5py, pandas" } else { "h5py" };
    let found = Command::new(&program).args(["-c", &format!("import {needed}")]).output();
    if !found.is_ok_and(|o| o.status.success()) {
        println!("SKIPPED: no {needed} in {program}; set UMBRA_PYTHON to a Python that has it");
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
# Strings of fixed length come as bytes.
names = lambda a: [name.decode() for name in f.attrs[a]]
text = lambda a: f.attrs[a].decode()
print(int(f.attrs['umbra_version']), int(f.attrs['rows']),
      names('dense_names'), names('sparse_names'),
      f.attrs['cardinality'].tolist(), repr(text('transform')), text('fingerprint'))
for name in ['label', 'weight', 'dense', 'sparse', 'sparse_values', 'sparse_offsets',
             'sparse_weights', 'group']:
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
                "sparse_weights (",
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
                "2 5000 ['count-0', 'count-1', 'count-2'] ['id-0', 'id-1'] [7, 1000] 'kind = \
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
    'types': dict(compression='gzip', chunks=(700, 2)), 'big': dict(), 'checked': dict(
        chunks=(256, 1), fletcher32=True),
}
types = {
    'types': (bool, 'f8', 'i8', 'i8', 'f8', 'i4'),
    'big': ('>i2', '>f4', '>u4', '>u8', '>f8', '>u8'),
    'checked': ('u1', 'f4', 'u2', 'i4', 'f4', 'u1'),
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
        if name in types:
            t = types[name]
            f.create_dataset('label', data=label.astype(t[0]), chunks=(999,), fletcher32=True)
            f.create_dataset('dense', data=dense.astype(t[1]), **how)
            if name == 'big':
                f['sparse_values'] = sparse.reshape(-1).astype(t[2])
                f['sparse_offsets'] = np.arange(n * 2 + 1).astype(t[3])
            else:
                f.create_dataset('sparse', data=sparse.astype(t[2]), **how)
            f['weight'] = np.ones(n, t[4])
            f['group'] = (row % 100).astype(t[5])
            continue
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
    for variant in ["plain", "gzip", "chunks", "types", "big", "checked"] {
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
                let weights = !["plain", "gzip"].contains(&variant);
                assert_eq!(batch.weight.len(), if weights { batch.len() } else { 0 });
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

/// Frames for the documented writer: what it makes of each is in the test.
const FRAMES: &str = r#"
import sys
frame = pd.DataFrame({
    'click': [1, 0, 1, 0], 'price': [1.5, None, 2, 3],
    'count': pd.array([1, None, 2, 3], dtype='Int64'), 'new': [True, False, True, True],
    'site': pd.Categorical(['a', 'b', None, 'a'], categories=['z', 'a', 'b']),
    'tags': [['x', 'y'], [], None, ['y']], 'user': [5, 5, 7, 5], 'weight': [1, 2, 0.5, 1],
})
keys = vocabulary(frame, ['site', 'user', 'tags'])
dense = ['price', 'count', 'new']
write(f'{sys.argv[1]}/bags.h5', frame, 'click', dense, keys, weight='weight', group='user')
some = {name: keys[name] for name in ['site', 'user']}
write(f'{sys.argv[1]}/plain.h5', frame.iloc[[3, 1, 2]], 'click', [], some)
"#;

#[test]
fn the_documented_writer_writes_what_we_read() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let document = include_str!("../../docs/formats.md");
    let lines = document.split("```python\n").filter_map(|text| text.split("```").next());
    let writer = lines.last().filter(|text| text.contains("def write(")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = python(&format!("{writer}\n{FRAMES}"), &[folder.path()]) else { return };
    succeed(&output);
    let read = |name: &str| {
        let path = folder.path().join(name);
        verify(&path).unwrap();
        let dataset = Dataset::open(&[path]).unwrap();
        let (_pipeline, mut batches) = Pipeline::evaluate(&dataset, 0, 1, 1, 128, 2).unwrap();
        (dataset, drain(&mut batches).swap_remove(0).swap_remove(0))
    };
    let (dataset, bags) = read("bags.h5");
    assert_eq!(dataset.dense_names(), ["price", "count", "new"]);
    assert_eq!(dataset.sparse_names(), ["site", "user", "tags"]);
    assert_eq!(dataset.cardinality(), [3, 3, 3]);
    assert_eq!(bags.label, [1.0, 0.0, 1.0, 0.0]);
    assert_eq!(bags.weight, [1.0, 2.0, 0.5, 1.0]);
    assert_eq!(bags.group, [0, 0, 1, 0]);
    assert_eq!(bags.dense, [1.5, 1.0, 1.0, 0.0, 0.0, 0.0, 2.0, 2.0, 1.0, 3.0, 3.0, 1.0]);
    // site: a 1, b 2, missing 0; user: 5 1, 7 2; tags: y 1, x 2.
    assert_eq!(bags.values, [1, 1, 2, 1, 2, 1, 0, 2, 1, 1, 1]);
    assert_eq!(bags.offsets, [0, 1, 2, 4, 5, 6, 6, 7, 8, 8, 9, 10, 11]);
    let (dataset, plain) = read("plain.h5");
    assert_eq!((dataset.dense_features(), dataset.cardinality()), (0, &[3, 3][..]));
    assert_eq!(plain.values, [1, 1, 2, 1, 0, 2]);
}

/// Files whose values are not in them: virtual, external, never written.
const ELSEWHERE: &str = r"
import sys, h5py, numpy as np
def new(name):
    f = h5py.File(f'{sys.argv[1]}/{name}.h5', 'w')
    f.attrs['umbra_version'] = 1
    f.attrs['cardinality'] = [10]
    f['sparse'] = np.zeros((100, 1), 'u4')
    return f
with new('source') as f:
    f['label'] = np.ones(100, 'f4')
with new('virtual') as f:
    layout = h5py.VirtualLayout((100,), 'f4')
    layout[:] = h5py.VirtualSource(f'{sys.argv[1]}/source.h5', 'label', (100,))
    f.create_virtual_dataset('label', layout)
with new('external') as f:
    f.create_dataset('label', (100,), 'f4', external=[('raw.bin', 0, 400)])
with new('unwritten') as f:
    f.create_dataset('label', (100,), 'f4')
with new('half') as f:
    f.create_dataset('label', (100,), 'f4', chunks=(64,), compression='gzip')[:64] = 1
with new('earliest') as f:
    f.create_dataset('label', (100,), 'f4', chunks=(100,))
";

#[test]
fn values_that_are_not_in_the_file_are_refused() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = python(ELSEWHERE, &[folder.path()]) else { return };
    succeed(&output);
    verify(&folder.path().join("source.h5")).unwrap();
    for (name, message) in [
        ("virtual", "storage of dataset `label`: expected values in this file (with h5py: "),
        ("external", "values in the external file `raw.bin`"),
        ("unwritten", "values of dataset `label`: expected 100, got none: the dataset was made"),
        ("half", "number of chunks of dataset `label`: expected 2, got 1: the others were never"),
        ("earliest", "number of chunks of dataset `label`: expected 1, got 0: the others were"),
    ] {
        let path = folder.path().join(format!("{name}.h5"));
        let error = Dataset::open(&[path]).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
