//! What a dataset is, apart from the file that holds it: names, sizes, rows, fingerprint.
//!
//! The layout in HDF5 is the project's "HDF5 dataset, version 2": `label` f32 `[N]` (not there for
//! rows that are only to be scored), `dense` f32 `[N, D]`, `sparse` u32 `[N, S]` or `sparse_values`
//! u32 `[K]` with `sparse_offsets` u64 `[N·S + 1]` and optionally `sparse_weights` f32 `[K]`,
//! optional `weight` f32 `[N]` and `group` u64 `[N]`. Version 1 is read as well: the same, always
//! with labels, without the attributes `vocabulary` and `metadata`, its own metadata without
//! checksums.
//!
//! What covers each byte of a file of version 2: a Fletcher-32 in every chunk, HDF5's checksums of
//! its metadata (library version 1.10), the attribute `metadata` over all other attributes, which
//! is compared at each opening, and the fingerprint over all values ([`crate::verify`]).

use crc32fast::Hasher;

/// The layout this crate writes: attribute `umbra_version`. All from 1 on are read.
pub const VERSION: u64 = 2;

/// Rows in a chunk of a file that we write.
///
/// Small on purpose: a chunk is the unit of the shuffle, and 1024 rows of 39 features are 160 kB,
/// which deflate compresses as well as more.
pub const CHUNK_ROWS: usize = 1024;

/// What a dataset to be written will hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetInfo {
    /// Names of the dense features. `[D]`
    pub dense_names: Vec<String>,
    /// Names of the sparse fields. `[S]`
    pub sparse_names: Vec<String>,
    /// Ids of every field are below it. `[S]`; may be set as late as [`Writer::set_cardinality`].
    ///
    /// [`Writer::set_cardinality`]: crate::Writer::set_cardinality
    pub cardinality: Vec<u64>,
    /// What was done to the raw values, as TOML: for people, to repeat it on other data, and to
    /// refuse data that something else was done to.
    pub transform: String,
    /// One id per field and row (`sparse`), or bags of any length (`sparse_values`).
    pub one_hot: bool,
    /// Rows carry a label; without, they can only be scored.
    pub has_label: bool,
    /// Rows carry a weight.
    pub has_weight: bool,
    /// Rows carry a group, for AUC per group.
    pub has_group: bool,
    /// Ids carry a weight in their bags; never of a one-hot dataset.
    pub has_value_weights: bool,
}

/// Rows to append: borrowed columns of `n` rows.
#[derive(Clone, Copy, Debug)]
pub struct RowBlock<'a> {
    /// n.
    pub rows: usize,
    /// Between 0 and 1; empty when the dataset has none. `[n]` or `[0]`
    pub label: &'a [f32],
    /// Finite, not negative; empty when the dataset has none. `[n]` or `[0]`
    pub weight: &'a [f32],
    /// Finite, row-major. `[n, D]`
    pub dense: &'a [f32],
    /// Ids, row-major. `[offsets[n * S]]`, or `[n * S]` for one-hot
    pub values: &'a [u32],
    /// Of the ids in their bags, finite, not negative; empty when the dataset has none. As long as
    /// `values`, or `[0]`
    pub value_weights: &'a [f32],
    /// Start of every bag in `values` and the end of the last, from 0; a one-hot dataset takes
    /// an empty slice as well. `[n * S + 1]` or `[0]`
    pub offsets: &'a [u32],
    /// Empty when the dataset has none. `[n]` or `[0]`
    pub group: &'a [u64],
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetSummary {
    /// Rows.
    pub rows: u64,
    /// Sparse values over all rows.
    pub values: u64,
    /// Most sparse values in one row.
    pub values_per_row_max: u64,
    /// Cardinality of every field. `[S]`
    pub cardinality: Vec<u64>,
    /// Fingerprint of the content.
    pub fingerprint: String,
    /// Size of the file.
    pub file_bytes: u64,
}

/// Fingerprint of the content of one file: four CRC-32, one each of (labels, weights, groups),
/// dense features, sparse values, and lengths of bags.
///
/// It depends on the values alone: not on chunks, on compression or on how rows were appended, and
/// bags that all hold one id count as one-hot. Weights of ids, where there are any, are in the
/// word of the lengths.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fingerprint {
    label: Hasher,
    weight: Hasher,
    group: Hasher,
    dense: Hasher,
    values: Hasher,
    lengths: Hasher,
    bags: bool,
    /// Of datasets that have them.
    value_weights: Option<Hasher>,
}

impl Fingerprint {
    pub(crate) fn label(&mut self, rows: &[f32]) {
        self.label.update(bytemuck::cast_slice(rows));
    }

    pub(crate) fn weight(&mut self, rows: &[f32]) {
        self.weight.update(bytemuck::cast_slice(rows));
    }

    pub(crate) fn group(&mut self, rows: &[u64]) {
        self.group.update(bytemuck::cast_slice(rows));
    }

    pub(crate) fn dense(&mut self, rows: &[f32]) {
        self.dense.update(bytemuck::cast_slice(rows));
    }

    pub(crate) fn values(&mut self, values: &[u32]) {
        self.values.update(bytemuck::cast_slice(values));
    }

    /// Weights of the values, in order; not called where there are none.
    pub(crate) fn value_weights(&mut self, weights: &[f32]) {
        let hasher = self.value_weights.get_or_insert_default();
        hasher.update(bytemuck::cast_slice(weights));
    }

    /// Lengths of bags, in order; not called for one-hot rows.
    pub(crate) fn lengths(&mut self, lengths: impl Iterator<Item = u32>) {
        let mut buffer = [0u32; 256];
        let mut filled = 0;
        for length in lengths {
            self.bags |= length != 1;
            buffer[filled] = length;
            filled += 1;
            if filled == buffer.len() {
                self.lengths.update(bytemuck::cast_slice(&buffer));
                filled = 0;
            }
        }
        self.lengths.update(bytemuck::cast_slice(&buffer[..filled]));
    }

    /// 32 hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        let mut rows = Hasher::new();
        for part in [self.label, self.weight, self.group] {
            rows.update(&part.finalize().to_le_bytes());
        }
        let mut lengths = if self.bags { self.lengths.finalize() } else { 0 };
        if let Some(weights) = self.value_weights {
            let mut both = Hasher::new();
            both.update(&lengths.to_le_bytes());
            both.update(&weights.finalize().to_le_bytes());
            lengths = both.finalize();
        }
        let (rows, dense, values) =
            (rows.finalize(), self.dense.finalize(), self.values.finalize());
        format!("{rows:08x}{dense:08x}{values:08x}{lengths:08x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[u32], lengths: Option<&[u32]>) -> String {
        let mut print = Fingerprint::default();
        print.label(&[1.0, 0.0]);
        print.values(values);
        if let Some(lengths) = lengths {
            print.lengths(lengths.iter().copied());
        }
        print.finish()
    }

    #[test]
    fn fingerprint_sees_values_and_lengths_but_not_the_layout() {
        assert_eq!(of(&[1, 2, 3, 4], None), of(&[1, 2, 3, 4], Some(&[1, 1, 1, 1])));
        assert_ne!(of(&[1, 2, 3, 4], None), of(&[1, 2, 4, 3], None));
        assert_ne!(of(&[1, 2, 3, 4], Some(&[2, 0, 1, 1])), of(&[1, 2, 3, 4], Some(&[1, 1, 2, 0])));
        assert_ne!(of(&[1, 2, 3, 4], Some(&[2, 0, 1, 1])), of(&[1, 2, 3, 4], None));
    }

    #[test]
    fn fingerprint_sees_weights_of_ids() {
        let weighted = |weights: &[&[f32]]| {
            let mut print = Fingerprint::default();
            print.values(&[1, 2]);
            print.lengths([2].into_iter());
            weights.iter().for_each(|weights| print.value_weights(weights));
            print.finish()
        };
        let all = [weighted(&[]), weighted(&[&[1.0, 1.0]]), weighted(&[&[1.0, 0.5]])];
        assert_eq!(weighted(&[&[1.0], &[0.5]]), all[2]);
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
    }

    #[test]
    fn fingerprint_does_not_depend_on_how_rows_arrive() {
        let labels: [f32; 300] = core::array::from_fn(|i| if i % 3 == 0 { 1.0 } else { 0.0 });
        let mut whole = Fingerprint::default();
        whole.label(&labels);
        whole.lengths((0..300).map(|i| i % 5));
        let mut parts = Fingerprint::default();
        for (from, to) in [(0, 1), (1, 200), (200, 300u16)] {
            parts.label(&labels[usize::from(from)..usize::from(to)]);
            parts.lengths((from..to).map(|i| u32::from(i) % 5));
        }
        assert_eq!(whole.finish(), parts.finish());
    }
}
