//! Batches on their way to a model: owned, reused columns.

use umbra_core::batch::{Batch, Jagged};

/// The columns of one batch. Filled, lent as a [`Batch`], cleared, filled again.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchBuffer {
    /// Clicked (1) or not (0). `[n]`
    pub label: Vec<f32>,
    /// Weight of every example, or empty for all ones. `[n]` or `[0]`
    pub weight: Vec<f32>,
    /// Dense features, row-major. `[n, D]`
    pub dense: Vec<f32>,
    /// Ids of all bags. `[offsets[n * S]]`
    pub values: Vec<u32>,
    /// Weight of every id in its bag, or empty for all ones. As long as `values`, or `[0]`
    pub value_weights: Vec<f32>,
    /// Bounds of the bags, from 0. `[n * S + 1]`
    pub offsets: Vec<u32>,
    /// Number of every example in its dataset, over the list of files. `[n]`
    pub row: Vec<u64>,
    /// Group of every example, or empty. `[n]` or `[0]`
    pub group: Vec<u64>,
    /// The pass over the data that the batch belongs to.
    pub epoch: u32,
    /// Global step in the epoch, from 0.
    pub step: u64,
}

impl Default for BatchBuffer {
    /// An empty batch, without memory of its own but for the one offset.
    fn default() -> Self {
        Self {
            label: Vec::new(),
            weight: Vec::new(),
            dense: Vec::new(),
            values: Vec::new(),
            value_weights: Vec::new(),
            offsets: vec![0],
            row: Vec::new(),
            group: Vec::new(),
            epoch: 0,
            step: 0,
        }
    }
}

impl BatchBuffer {
    /// The batch as a model sees it.
    #[must_use]
    pub fn batch(&self) -> Batch<'_> {
        Batch {
            label: &self.label,
            weight: &self.weight,
            dense: &self.dense,
            bags: Jagged {
                values: &self.values,
                offsets: &self.offsets,
                weights: &self.value_weights,
            },
            row: &self.row,
        }
    }

    /// Examples in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.label.len()
    }

    /// No examples: a worker's batch at the ragged end of an epoch may be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.label.is_empty()
    }

    /// An empty batch with the same memory.
    pub fn clear(&mut self) {
        self.label.clear();
        self.weight.clear();
        self.dense.clear();
        self.values.clear();
        self.value_weights.clear();
        self.offsets.clear();
        self.offsets.push(0);
        self.row.clear();
        self.group.clear();
    }
}
