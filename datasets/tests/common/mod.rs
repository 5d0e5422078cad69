//! A table in memory, to write and to compare with what is read.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::path::{Path, PathBuf};

use umbra_core::rng::{Purpose, Stream};
use umbra_datasets::{BatchBuffer, DatasetInfo, DatasetSummary, RowBlock, WorkerBatches, Writer};

/// Shape of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) dense: usize,
    pub(crate) cardinality: &'static [u64],
    pub(crate) bags: bool,
    pub(crate) weight: bool,
    pub(crate) group: bool,
    pub(crate) value_weights: bool,
}

/// The plain case.
pub(crate) const PLAIN: Shape = Shape {
    rows: 5000,
    dense: 3,
    cardinality: &[7, 1000],
    bags: false,
    weight: false,
    group: false,
    value_weights: false,
};

/// Everything at once: weights, groups, bags of 0 to 3 ids that have weights.
pub(crate) const RICH: Shape =
    Shape { bags: true, weight: true, group: true, value_weights: true, ..PLAIN };

/// Columns of all rows; every value is a function of its row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    pub(crate) label: Vec<f32>,
    pub(crate) weight: Vec<f32>,
    pub(crate) dense: Vec<f32>,
    pub(crate) values: Vec<u32>,
    pub(crate) value_weights: Vec<f32>,
    pub(crate) offsets: Vec<u32>,
    pub(crate) group: Vec<u64>,
}

impl Table {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let stream = Stream::new(seed, Purpose::Test(1));
        let mut counter = 0;
        let mut below = |bound: u64| {
            counter += 1;
            stream.below(counter, bound)
        };
        let mut table = Self { offsets: vec![0], ..Self::default() };
        for _ in 0..shape.rows {
            table.label.push(below(5) as f32 / 4.0);
            if shape.weight {
                table.weight.push(below(9) as f32 / 2.0);
            }
            if shape.group {
                table.group.push(below(50));
            }
            table.dense.extend((0..shape.dense).map(|_| below(1000) as f32 - 500.0));
            for &cardinality in shape.cardinality {
                let length = if shape.bags { below(4) } else { 1 };
                table.values.extend((0..length).map(|_| below(cardinality) as u32));
                table.offsets.push(table.values.len() as u32);
            }
        }
        if shape.value_weights {
            table.value_weights = table.values.iter().map(|_| below(9) as f32 / 4.0).collect();
        }
        table
    }

    /// Rows `from..to` as a block to append, with the offsets in `offsets`.
    pub(crate) fn block<'a>(
        &'a self,
        shape: Shape,
        (from, to): (usize, usize),
        offsets: &'a mut Vec<u32>,
    ) -> RowBlock<'a> {
        let fields = shape.cardinality.len();
        let bounds = &self.offsets[from * fields..=to * fields];
        offsets.clear();
        offsets.extend(bounds.iter().map(|o| o - bounds[0]));
        let cut = |there: bool| if there { from..to } else { 0..0 };
        let values = bounds[0] as usize..bounds[to * fields - from * fields] as usize;
        RowBlock {
            rows: to - from,
            label: &self.label[from..to],
            weight: &self.weight[cut(shape.weight)],
            dense: &self.dense[from * shape.dense..to * shape.dense],
            values: &self.values[values.clone()],
            value_weights: self.value_weights.get(values).unwrap_or_default(),
            offsets,
            group: &self.group[cut(shape.group)],
        }
    }

    /// Writes the table in blocks of `step` rows.
    pub(crate) fn write(&self, shape: Shape, path: &Path, step: usize) -> DatasetSummary {
        let mut writer = Writer::create(path, info(shape)).unwrap();
        let mut offsets = Vec::new();
        for from in (0..shape.rows).step_by(step) {
            let to = shape.rows.min(from + step);
            writer.append(&self.block(shape, (from, to), &mut offsets)).unwrap();
        }
        writer.finish().unwrap()
    }

    /// Every row of `batch` is the row of the table that it says it is.
    pub(crate) fn check(&self, shape: Shape, batch: &BatchBuffer) {
        let (fields, dense) = (shape.cardinality.len(), shape.dense);
        assert_eq!(batch.offsets.len(), batch.len() * fields + 1);
        assert_eq!(batch.offsets[0], 0);
        assert_eq!(batch.values.len(), batch.offsets[batch.len() * fields] as usize);
        assert_eq!(batch.dense.len(), batch.len() * dense);
        assert_eq!(batch.weight.len(), if shape.weight { batch.len() } else { 0 });
        assert_eq!(batch.group.len(), if shape.group { batch.len() } else { 0 });
        let weights = if shape.value_weights { batch.values.len() } else { 0 };
        assert_eq!(batch.value_weights.len(), weights);
        assert_eq!(batch.row.len(), batch.len());
        for (i, &row) in batch.row.iter().enumerate() {
            let row = row as usize;
            assert_eq!(batch.label[i], self.label[row], "row {row}");
            assert_eq!(
                batch.dense[i * dense..(i + 1) * dense],
                self.dense[row * dense..(row + 1) * dense],
                "row {row}"
            );
            if shape.weight {
                assert_eq!(batch.weight[i], self.weight[row], "row {row}");
            }
            if shape.group {
                assert_eq!(batch.group[i], self.group[row], "row {row}");
            }
            for field in 0..fields {
                fn ids<T: Copy>(values: &[T], offsets: &[u32], bag: usize) -> Vec<T> {
                    values[offsets[bag] as usize..offsets[bag + 1] as usize].to_vec()
                }
                if shape.value_weights {
                    assert_eq!(
                        ids(&batch.value_weights, &batch.offsets, i * fields + field),
                        ids(&self.value_weights, &self.offsets, row * fields + field),
                        "row {row} field {field}"
                    );
                }
                assert_eq!(
                    ids(&batch.values, &batch.offsets, i * fields + field),
                    ids(&self.values, &self.offsets, row * fields + field),
                    "row {row} field {field}"
                );
            }
        }
    }
}

/// What the writer is told about `shape`.
pub(crate) fn info(shape: Shape) -> DatasetInfo {
    let names = |prefix: &str, n: usize| (0..n).map(|i| format!("{prefix}-{i}")).collect();
    DatasetInfo {
        dense_names: names("count", shape.dense),
        sparse_names: names("id", shape.cardinality.len()),
        cardinality: shape.cardinality.to_vec(),
        transform: "kind = \"test\"\n".into(),
        one_hot: !shape.bags,
        has_label: true,
        has_weight: shape.weight,
        has_group: shape.group,
        has_value_weights: shape.value_weights,
    }
}

/// A folder, and a file of `shape` in it.
pub(crate) fn written(shape: Shape) -> (tempfile::TempDir, PathBuf, Table) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.h5");
    let table = Table::new(shape, 1);
    table.write(shape, &path, 777);
    (folder, path, table)
}

/// All batches of every worker, taken in turn. `[workers][batches]`
pub(crate) fn drain(batches: &mut [WorkerBatches]) -> Vec<Vec<BatchBuffer>> {
    let mut all: Vec<Vec<BatchBuffer>> = batches.iter().map(|_| Vec::new()).collect();
    loop {
        let mut ended = true;
        for (worker, all) in batches.iter_mut().zip(&mut all) {
            if let Some(batch) = worker.next(&mut || ()).unwrap() {
                ended = false;
                all.push(batch);
            }
        }
        if ended {
            return all;
        }
    }
}
