//! A partition's rows as they were last saved, in memory.
//!
//! Rows that were saved at different times stand side by side: a lost shard comes back as the most
//! recent of what is there, which is what saving a part first is for. Invariant: between two
//! stretches of training, so nobody writes to rows meanwhile.

use core::sync::atomic::Ordering::Relaxed;

use umbra_core::recovery::largest::{Histogram, largest};
use umbra_core::recovery::usage::Usage;

use crate::rows::tables::{Partition, TableLayout};
use crate::rows::usage::{By, UsageMemory};

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
        let Some(rule) = &layout.save_first else {
            for (saved, word) in self.words.iter_mut().zip(self.partition.words()) {
                *saved = word.load(Relaxed);
            }
            return self.partition.table().rows() as u64;
        };
        let mut rows = 0;
        for table in 0..layout.numbering().fields() {
            let places = layout.range_of(self.partition.number, table);
            let Ok(large) = rule.large.binary_search(&table) else {
                places.for_each(|place| self.save_row(place as usize, &mut rows));
                continue;
            };
            let (start, length) = (places.start as usize, places.len());
            let count = rule.count(places.end - places.start) as usize;
            let mut chosen = Vec::with_capacity(count);
            let take = |place| chosen.push(start + place);
            match (rule.by, self.partition.usage().map(|usage| usage.usage())) {
                (By::Updates, Some(Usage::Counts(counts))) => {
                    let updates = |place: usize| counts[start + place].load(Relaxed);
                    largest(length, count, updates, histogram, take);
                }
                (By::Sample, Some(Usage::Sample(sample))) => {
                    chosen.extend(sample.rows(large).map(|row| row as usize));
                }
                _ => {
                    let changes: Vec<u32> = (start..start + length)
                        .map(|place| self.change(place, layout.width).to_bits())
                        .collect();
                    largest(length, count, |place| changes[place], histogram, take);
                }
            }
            chosen.iter().for_each(|place| self.save_row(*place, &mut rows));
        }
        // Rows that were not saved keep their counts.
        if let Some(Usage::Sample(sample)) = self.partition.usage().map(|usage| usage.usage()) {
            sample.clear();
        }
        rows
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

    fn save_row(&mut self, place: usize, rows: &mut u64) {
        let record = self.partition.table().record(place);
        let saved = &mut self.words[place * record.len()..][..record.len()];
        saved.iter_mut().zip(record).for_each(|(saved, word)| *saved = word.load(Relaxed));
        if let Some(Usage::Counts(counts)) = self.partition.usage().map(|usage| usage.usage()) {
            counts[place].store(0, Relaxed);
        }
        *rows += 1;
    }

    /// Square of the distance of a row's values from the saved ones.
    fn change(&self, place: usize, width: usize) -> f32 {
        let record = self.partition.table().record(place);
        let saved = &self.words[place * record.len()..][..width];
        let differences = record.iter().zip(saved).map(|(word, saved)| {
            let difference = f32::from_bits(word.load(Relaxed)) - f32::from_bits(*saved);
            difference * difference
        });
        differences.sum()
    }
}
