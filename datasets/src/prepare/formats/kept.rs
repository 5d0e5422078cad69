//! Rows that were read, as bytes, so that they can be kept until their ids are known.
//!
//! Columns stand one after the other, each as its elements are in memory: label, weight, group,
//! dense, numbers that are measured, keys of every field, ends of bags, weights in bags.

use bytemuck::{Pod, cast_slice, cast_slice_mut};

use super::parsed::Parsed;
use crate::prepare::keys::hash::hash_key;
use crate::prepare::keys::key_column::Keys;

/// The rows of one block.
pub(crate) struct KeptBlock {
    pub(crate) shape: Shape,
    pub(crate) bytes: Vec<u8>,
}

/// What of the bytes of a block is what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    rows: usize,
    /// Of every column in turn.
    bytes: Vec<usize>,
}

impl Shape {
    /// Bytes of all columns.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.iter().sum()
    }

    /// The columns in `bytes`, which are those of all.
    pub(crate) fn columns<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = bytes;
        self.bytes.iter().map(move |length| {
            let (column, behind) = rest.split_at(*length);
            rest = behind;
            column
        })
    }
}

/// Of the columns of a block in turn.
pub(crate) fn checksum<'a>(columns: impl Iterator<Item = &'a [u8]>) -> u64 {
    columns.fold(0, |sum, column| hash_key(column, sum))
}

/// The columns of `parsed` in turn, with `numbers` in the place of its keys. `[S]`
pub(crate) fn columns<'a>(
    parsed: &'a Parsed,
    numbers: impl Iterator<Item = &'a [u32]>,
) -> (Shape, Vec<&'a [u8]>) {
    let Parsed { label, weight, group, dense, bag_ends, bag_weights, measured, .. } = parsed;
    let mut columns: Vec<&[u8]> =
        vec![cast_slice(label), cast_slice(weight), cast_slice(group), cast_slice(dense)];
    columns.extend(measured.iter().map(|numbers| cast_slice::<_, u8>(numbers)));
    columns.extend(numbers.map(cast_slice::<_, u8>));
    columns.extend(bag_ends.iter().flatten().map(|ends| cast_slice::<_, u8>(ends)));
    columns.extend(bag_weights.iter().flatten().map(|weights| cast_slice::<_, u8>(weights)));
    let bytes = columns.iter().map(|column| column.len()).collect();
    (Shape { rows: parsed.rows, bytes }, columns)
}

impl KeptBlock {
    /// Replaces the rows of `parsed`, whose columns are of the same format.
    pub(crate) fn restore(&self, parsed: &mut Parsed) {
        let mut columns = self.shape.columns(&self.bytes);
        let mut next = || columns.next().unwrap_or_default();
        parsed.rows = self.shape.rows;
        fill(&mut parsed.label, next());
        fill(&mut parsed.weight, next());
        fill(&mut parsed.group, next());
        fill(&mut parsed.dense, next());
        parsed.measured.iter_mut().for_each(|numbers| fill(numbers, next()));
        for keys in &mut parsed.keys {
            if !matches!(keys, Keys::Numbered(_)) {
                *keys = Keys::Numbered(Vec::new());
            }
            if let Keys::Numbered(numbers) = keys {
                fill(numbers, next());
            }
        }
        parsed.bag_ends.iter_mut().flatten().for_each(|ends| fill(ends, next()));
        parsed.bag_weights.iter_mut().flatten().for_each(|weights| fill(weights, next()));
    }
}

/// Replaces the contents of `column`.
fn fill<T: Pod>(column: &mut Vec<T>, bytes: &[u8]) {
    column.resize(bytes.len() / size_of::<T>(), T::zeroed());
    cast_slice_mut(column).copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back() {
        let parsed = || Parsed {
            label: vec![1.0, 0.0],
            group: vec![7, u64::MAX],
            dense: vec![1.5, -2.0, 0.0, f32::MAX],
            keys: vec![Keys::Number(vec![4, 9]), Keys::Number(vec![1, 2, 3])],
            bag_ends: vec![None, Some(vec![0, 3])],
            bag_weights: vec![None, Some(vec![0.5, 1.0, 2.0])],
            measured: vec![vec![f64::MIN_POSITIVE, -1.0]],
            dense_features: 2,
            rows: 2,
            ..Parsed::default()
        };
        let numbers = [vec![1, 2], vec![u32::MAX, 5, 6]];
        let rows = parsed();
        let (shape, columns) = columns(&rows, numbers.iter().map(Vec::as_slice));
        let block = KeptBlock { bytes: columns.concat(), shape };
        assert_eq!(block.shape.bytes(), block.bytes.len());
        let expected = || Parsed { keys: numbers.clone().map(Keys::Numbered).into(), ..parsed() };
        let mut others = Parsed {
            bag_ends: vec![None, Some(vec![1])],
            bag_weights: vec![None, Some(vec![3.0; 5])],
            weight: vec![1.0],
            measured: vec![Vec::new()],
            rows: 1,
            ..parsed()
        };
        for _ in 0..2 {
            block.restore(&mut others);
            assert_eq!(format!("{others:?}"), format!("{:?}", expected()));
        }
    }
}
