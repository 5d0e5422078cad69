//! The store of embedding rows.
//!
//! A row and its optimizer state are one record, `[values | state]`, so that they travel, are saved
//! and are recovered together. Words are relaxed atomics like the dense replica's: on one rank the
//! workers share a store Hogwild-fashion; on an embedding PS each partition has one thread that
//! writes to it, and the words cost nothing more.

use core::sync::atomic::AtomicU32;

use crate::dense::replica::{load, store};
use crate::optim::RowOptimizer;

/// Records of rows over lent words.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    words: &'a [AtomicU32],
    width: usize,
    record_len: usize,
}

impl<'a> Table<'a> {
    /// A store over `words: [rows * (width + state_len)]`.
    #[must_use]
    pub const fn new(words: &'a [AtomicU32], width: usize, state_len: usize) -> Self {
        assert!(words.len().is_multiple_of(width + state_len), "words are no whole records");
        Self { words, width, record_len: width + state_len }
    }

    /// Number of rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.words.len() / self.record_len
    }

    /// f32s of a record.
    #[must_use]
    pub const fn record_len(&self) -> usize {
        self.record_len
    }

    /// The words of the record at `index`.
    #[must_use]
    pub fn record(&self, index: usize) -> &'a [AtomicU32] {
        &self.words[index * self.record_len..][..self.record_len]
    }

    /// Copies the values of the row at `index` out. `out: [width]`
    pub fn read(&self, index: usize, out: &mut [f32]) {
        load(&self.record(index)[..self.width], out);
    }

    /// Updates the row at `index` with its gradient. `gradient: [width]`; `scratch: [record_len]`
    pub fn update(
        &self,
        optimizer: &impl RowOptimizer,
        rate: f32,
        index: usize,
        gradient: &[f32],
        scratch: &mut [f32],
    ) {
        let record = self.record(index);
        load(record, scratch);
        optimizer.update(rate, scratch, gradient);
        store(record, scratch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::{Optimizer, OptimizerKind, SparseOptimizer};

    #[test]
    fn updates_one_record_and_leaves_its_neighbours() {
        let words = [const { AtomicU32::new(0) }; 9];
        let table = Table::new(&words, 2, 1);
        assert_eq!((table.rows(), table.record_len()), (3, 3));
        let sgd =
            SparseOptimizer::Elementwise(Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 });
        let mut scratch = [0.0; 3];
        table.update(&sgd, 0.5, 1, &[1.0, -2.0], &mut scratch);
        let mut rows = [[9.0f32; 2]; 3];
        rows.iter_mut().enumerate().for_each(|(i, row)| table.read(i, row));
        assert_eq!(rows, [[0.0, 0.0], [-0.5, 1.0], [0.0, 0.0]]);
    }
}
