//! A partition's rows as they were last saved, in memory.
//!
//! Rows that were saved at different times stand side by side: a lost shard comes back as the most
//! recent of what is there, which is what saving a part first is for. Invariant: between two
//! stretches of training, so nobody writes to rows meanwhile.

use core::sync::atomic::Ordering::Relaxed;

use umbra_core::recovery::largest::Histogram;
use umbra_core::recovery::usage::Usage;

use crate::rows::tables::{Partition, TableLayout};
use crate::rows::usage::UsageMemory;

/// A partition and the image of its rows.
pub(super) struct PartitionImage {
    partition: Partition,
    /// `[rows, record_len]`
    words: Vec<u32>,
}

impl PartitionImage {
    /// The rows as they are.
    pub(super) fn new(partition: &Partition) -> Self {
        let words = partition.words().iter().map(|word| word.load(Relaxed)).collect();
        Self { partition: partition.clone(), words }
    }

    /// Bytes that are remembered of updates.
    pub(super) fn usage_bytes(&self) -> u64 {
        self.partition.usage().map_or(0, UsageMemory::bytes)
    }

    /// Saves the rows that `layout` has first and all of the small tables; all rows where it has
    /// none first. Returns how many.
    pub(super) fn save(&mut self, layout: &TableLayout, histogram: &mut Histogram) -> u64 {
        let table = self.partition.table();
        let Some(rule) = &layout.save_first else {
            for (saved, word) in self.words.iter_mut().zip(self.partition.words()) {
                *saved = word.load(Relaxed);
            }
            return table.rows() as u64;
        };
        let chosen = rule.choose(layout, &self.partition, &self.words, histogram);
        for place in &chosen {
            let record = table.record(*place as usize);
            let saved = &mut self.words[*place as usize * record.len()..][..record.len()];
            saved.iter_mut().zip(record).for_each(|(saved, word)| *saved = word.load(Relaxed));
        }
        chosen.len() as u64
    }

    /// Takes the rows of which `lost` is true of their number back to how they were saved.
    pub(super) fn revert(&self, layout: &TableLayout, lost: impl Fn(u32) -> bool) {
        let table = self.partition.table();
        for (place, saved) in (0..).zip(self.words.chunks_exact(table.record_len())) {
            if lost(layout.partitioning.row(self.partition.number, place)) {
                let record = table.record(place as usize);
                record.iter().zip(saved).for_each(|(word, saved)| word.store(*saved, Relaxed));
                if let Some(Usage::Counts(counts)) = self.partition.usage().map(|it| it.usage()) {
                    counts[place as usize].store(0, Relaxed);
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use umbra_core::model::{Cross, Model, ModelConfig, ModelKind, Pooling};
    use umbra_core::optim::{Optimizer, OptimizerKind, SparseOptimizer};

    use super::*;
    use crate::rows::usage::{By, SaveFirst};

    const CARDINALITY: [u64; 2] = [80, 4];
    const WIDTH: usize = 2;

    /// One of two partitions: 40 places of a large table and 2 of a small one; of the large one a
    /// save has a tenth, or as many as a bucket of a sample.
    fn partition(by: By) -> (TableLayout, Partition) {
        let config = ModelConfig {
            kind: ModelKind::Fm,
            dense_features: 0,
            fields: CARDINALITY.len(),
            embedding_dim: WIDTH - 1,
            pooling: Pooling::Sum,
            bottom: &[],
            top: &[],
            batch_norm: false,
            batch_norm_momentum: 0.1,
            dropout: 0.0,
            cross: Cross::NONE,
        };
        let model = Model::new(&config).unwrap();
        assert_eq!(model.row_width(), WIDTH);
        let sgd = Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 };
        let optimizer = SparseOptimizer::Elementwise(sgd);
        let mut layout = TableLayout::new(&CARDINALITY, 2, WIDTH, optimizer).unwrap();
        layout.save_first = Some(SaveFirst::of_the_largest(by, &CARDINALITY, 1, 0.1));
        let partition = Partition::initialized(1, &layout, &model, 1).unwrap();
        (layout, partition)
    }

    /// Updates a row so many times, so far each.
    fn update(layout: &TableLayout, partition: &Partition, place: usize, times: u32, step: f32) {
        let gradient = [step; WIDTH];
        for _ in 0..times {
            let rows = [place].into_iter();
            partition.table().update(&layout.optimizer, 1.0, rows, &gradient);
        }
    }

    /// Places that are as they were saved.
    fn saved(image: &PartitionImage) -> Vec<usize> {
        let table = image.partition.table();
        let same = |place: &usize| {
            let saved = &image.words[place * WIDTH..][..WIDTH];
            table.record(*place).iter().zip(saved).all(|(word, saved)| word.load(Relaxed) == *saved)
        };
        (0..table.rows()).filter(same).collect()
    }

    /// All rows of a large table have been updated, 4 often, 4 others far; those of the small one
    /// once.
    fn saved_first(by: By) -> Vec<usize> {
        let (layout, partition) = partition(by);
        let mut image = PartitionImage::new(&partition);
        assert_eq!(saved(&image).len(), 42);
        for place in 0..42 {
            update(&layout, &partition, place, 1, 0.01);
        }
        assert!(saved(&image).is_empty());
        (10..14).for_each(|place| update(&layout, &partition, place, 30, 0.001));
        (30..34).for_each(|place| update(&layout, &partition, place, 2, 5.0));
        let rows = image.save(&layout, &mut [0; 1 << 16]);
        let saved = saved(&image);
        assert_eq!(rows, saved.len() as u64);
        assert_eq!(saved[saved.len() - 2..], [40, 41], "the small table");
        saved[..saved.len() - 2].to_vec()
    }

    #[test]
    fn the_rows_updated_most_are_saved_first() {
        assert_eq!(saved_first(By::Updates), [10, 11, 12, 13]);
    }

    #[test]
    fn the_rows_that_changed_most_are_saved_first() {
        assert_eq!(saved_first(By::Change), [30, 31, 32, 33]);
    }

    #[test]
    fn rows_of_a_sample_of_updates_are_saved_first() {
        let saved = saved_first(By::Sample);
        // A bucket of eight, of which those that were updated often are more likely to be.
        assert!(!saved.is_empty() && saved.len() <= 8, "{saved:?}");
        assert!(saved.iter().filter(|place| (10..14).contains(*place)).count() >= 2, "{saved:?}");
    }

    #[test]
    fn what_has_been_saved_counts_anew_and_what_comes_back_too() {
        let (layout, partition) = partition(By::Updates);
        let mut image = PartitionImage::new(&partition);
        let times = (1..=8).rev();
        (0..8).zip(times).for_each(|(place, times)| update(&layout, &partition, place, times, 0.1));
        let histogram = &mut [0; 1 << 16];
        let mut next = |image: &mut PartitionImage| {
            let before = saved(image);
            let rows = image.save(&layout, histogram);
            let new = saved(image).into_iter().filter(|place| !before.contains(place));
            // The two of the small table beside.
            (new.collect::<Vec<_>>(), rows - 2)
        };
        assert_eq!(next(&mut image), (vec![0, 1, 2, 3], 4));
        // Row numbers of partition 1 of 2 are odd: place 4 is row 9, and goes back.
        image.revert(&layout, |row| row == 9);
        assert_eq!(next(&mut image), (vec![5, 6, 7], 3));
        assert_eq!(saved(&image).len(), 42);
    }
}
