//! Reads rows in the order of the files for the workers of a rank, in whole pieces.
//!
//! A rank wants some rows of every global batch and may want none of a piece: such a piece is not
//! read. The pieces used last are kept, one more than there are workers, so that a piece is read
//! once for workers that stand close together, and once for each of those that stand apart, as
//! they can in a run that goes on from a checkpoint.

use core::ops::Range;

use crate::dataset_reader::DatasetReader;
use crate::hdf5::RowBuffer;
use crate::order::{Piece, cut};
use crate::{BatchBuffer, Dataset, DatasetError};

/// The rows of a dataset in their order.
#[derive(Debug)]
pub(crate) struct OrderedReader<'a> {
    files: &'a mut DatasetReader,
    /// All rows, ascending.
    pieces: Vec<Piece>,
    fields: usize,
    dense_features: usize,
    /// Pieces in memory, the one used last at the end.
    held: Vec<Held>,
    held_max: usize,
}

/// A piece in memory.
#[derive(Debug)]
struct Held {
    number: usize,
    block: RowBuffer,
}

impl<'a> OrderedReader<'a> {
    /// For `workers` workers.
    pub(crate) fn new(dataset: &Dataset, workers: usize, files: &'a mut DatasetReader) -> Self {
        Self {
            files,
            pieces: cut(0..dataset.rows(), dataset.grid()).concat(),
            fields: dataset.fields(),
            dense_features: dataset.dense_features(),
            held: vec![],
            held_max: workers + 1,
        }
    }

    /// All files are still those of the beginning.
    pub(crate) fn unchanged(&self) -> Result<(), DatasetError> {
        self.files.unchanged()
    }

    /// Appends `rows` to `batch`.
    pub(crate) fn take(
        &mut self,
        mut rows: Range<u64>,
        batch: &mut BatchBuffer,
    ) -> Result<(), DatasetError> {
        while rows.start < rows.end {
            let number = self.pieces.partition_point(|piece| piece.first <= rows.start) - 1;
            let piece = self.pieces[number];
            self.hold(number)?;
            let end = rows.end.min(piece.first + piece.rows);
            if let Some(held) = self.held.last() {
                let from = usize::try_from(rows.start - piece.first).unwrap_or(usize::MAX);
                let count = usize::try_from(end - rows.start).unwrap_or(usize::MAX);
                append(&held.block, from..from + count, self.fields, self.dense_features, batch);
            }
            batch.row.extend(rows.start..end);
            rows.start = end;
        }
        Ok(())
    }

    /// Makes piece `number` the last of those held.
    fn hold(&mut self, number: usize) -> Result<(), DatasetError> {
        let found = self.held.iter().position(|held| held.number == number);
        if let Some(at) = found {
            self.held[at..].rotate_left(1);
            return Ok(());
        }
        if self.held.len() == self.held_max {
            self.files.recycle(self.held.remove(0).block);
        }
        let piece = self.pieces[number];
        let begun = self.files.begin(piece.first..piece.first + piece.rows)?;
        let block = self.files.finish(begun)?;
        self.held.push(Held { number, block });
        Ok(())
    }
}

/// Appends the rows `rows` of `block` to `batch`, but for their numbers.
#[expect(clippy::cast_possible_truncation, reason = "values of one batch, counted in u32")]
fn append(
    block: &RowBuffer,
    rows: Range<usize>,
    fields: usize,
    dense: usize,
    batch: &mut BatchBuffer,
) {
    batch.label.extend_from_slice(&block.label[rows.clone()]);
    batch.dense.extend_from_slice(&block.dense[rows.start * dense..rows.end * dense]);
    batch.weight.extend_from_slice(block.weight.get(rows.clone()).unwrap_or_default());
    batch.group.extend_from_slice(block.group.get(rows.clone()).unwrap_or_default());
    let end = batch.values.len() as u32;
    let bags = rows.start * fields..rows.end * fields;
    if block.bags {
        let before = |bag: usize| if bag == 0 { 0 } else { block.ends[bag - 1] };
        let values = before(bags.start)..before(bags.end);
        let bounds = block.ends[bags].iter();
        batch.offsets.extend(bounds.map(|bound| end + (bound - values.start) as u32));
        batch.values.extend_from_slice(&block.values[values.clone()]);
        let weights = block.value_weights.get(values).unwrap_or_default();
        batch.value_weights.extend_from_slice(weights);
    } else {
        batch.offsets.extend((1..=bags.len() as u32).map(|bag| end + bag));
        batch.values.extend_from_slice(&block.values[bags]);
    }
}
