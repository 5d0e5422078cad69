//! Which rows are saved first, and the memory for what is remembered of their updates.
//!
//! arXiv 2011.02999: of the large tables a save has a share of the rows alone, and
//! comes the more often. Small tables, which are few rows together, are in every save. Each large
//! table has a share of its own: rows of all that compete for one left out those with few updates
//! for good, and on Frappe more was lost.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use umbra_core::recovery::largest::{Histogram, largest};
use umbra_core::recovery::usage::{BUCKET, EMPTY, Sample, Sampled, Usage};

use crate::memory::Words;
use crate::rows::tables::{Partition, TableLayout};

/// Which rows of the large tables are saved first.
#[derive(Clone, Debug)]
pub struct SaveFirst {
    /// What decides.
    pub by: By,
    /// The large tables, ascending.
    pub large: Arc<[usize]>,
    /// Share of their rows that a save has.
    pub share: f64,
}

/// What decides which rows are saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// How far their values are from the saved ones (SCAR).
    Change,
    /// How often they were updated since (MFU).
    Updates,
    /// That they are in a sample of updates (SSU).
    Sample,
}

impl SaveFirst {
    /// The `count` largest of tables with these `cardinality`; of equal ones the first.
    #[must_use]
    pub fn of_the_largest(by: By, cardinality: &[u64], count: usize, share: f64) -> Self {
        let mut tables: Vec<usize> = (0..cardinality.len()).collect();
        tables.sort_by_key(|table| (u64::MAX - cardinality[*table], *table));
        tables.truncate(count);
        tables.sort_unstable();
        Self { by, large: tables.into(), share }
    }

    /// The same of all strips of these tables, which are numbers of fields.
    #[must_use]
    pub fn in_strips(self, layout: &TableLayout) -> Self {
        let strips = self.large.iter().flat_map(|field| layout.tables_of(*field));
        Self { large: strips.collect(), ..self }
    }

    /// How many of `rows` rows of a large table a save has, at least one.
    #[must_use]
    pub fn count(&self, rows: u32) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a number of rows"
        )]
        let count = (f64::from(rows) * self.share).ceil() as u32;
        count.clamp(1.min(rows), rows)
    }

    /// Places of the rows of `partition` that the next save takes, ascending: all of the small
    /// tables, and of the large ones those that come first. They count as saved from here on.
    /// `saved` are the records as they were last saved. Others may train meanwhile.
    pub fn choose(
        &self,
        layout: &TableLayout,
        partition: &Partition,
        saved: &[u32],
        histogram: &mut Histogram,
    ) -> Vec<u32> {
        let usage = partition.usage().map(UsageMemory::usage);
        let mut chosen = vec![];
        for table in 0..layout.numbering().fields() {
            let places = layout.range_of(partition.number, table);
            let Ok(large) = self.large.binary_search(&table) else {
                chosen.extend(places);
                continue;
            };
            let rows = places.clone().map(|place| place as usize);
            // Of which those with the largest come first; they must stay while they are looked at.
            let keys: Vec<u32> = match (self.by, usage) {
                (By::Updates, Some(Usage::Counts(counts))) => {
                    rows.map(|place| counts[place].load(Relaxed)).collect()
                }
                (By::Sample, Some(Usage::Sample(sample))) => {
                    // One that moves while it is looked at may be there twice.
                    chosen.extend(sample.rows(large).collect::<BTreeSet<u32>>());
                    continue;
                }
                _ => rows.map(|place| change(partition, layout, saved, place).to_bits()).collect(),
            };
            let count = self.count(places.end - places.start) as usize;
            let take = |row| chosen.extend(places.clone().nth(row));
            largest(keys.len(), count, |row| keys[row], histogram, take);
        }
        match usage {
            Some(Usage::Counts(counts)) => {
                // Rows that are not saved keep their counts.
                chosen.iter().for_each(|place| counts[*place as usize].store(0, Relaxed));
            }
            Some(Usage::Sample(sample)) => sample.clear(),
            _ => {}
        }
        chosen
    }
}

/// Square of the distance of a row's values from the saved ones.
fn change(partition: &Partition, layout: &TableLayout, saved: &[u32], place: usize) -> f32 {
    let (now, record) = (partition.table().record(place), layout.record());
    let saved = &saved[place * now.len()..][..now.len()];
    let values = record.values(|at| now[at].load(Relaxed));
    let differences = values.zip(record.values(|at| saved[at])).map(|(now, saved)| {
        let difference = now - saved;
        difference * difference
    });
    differences.sum()
}

/// What is remembered of the updates of a partition's rows.
#[derive(Debug)]
pub enum UsageMemory {
    /// A count of each row.
    Counts(Words),
    /// Some of the rows.
    Sample {
        /// The large tables.
        tables: Vec<Sampled>,
        /// The rows, table by table.
        slots: Words,
        /// Accesses so far.
        accesses: AtomicU32,
    },
}

impl UsageMemory {
    /// For `partition`; `None` where nothing needs to be remembered.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub fn new(layout: &TableLayout, partition: u32) -> io::Result<Option<Self>> {
        let Some(rule) = &layout.save_first else { return Ok(None) };
        Ok(match rule.by {
            By::Change => None,
            By::Updates => Some(Self::Counts(Words::new(layout.rows_of(partition) as usize)?)),
            By::Sample => {
                let mut end = 0;
                let sampled = rule.large.iter().map(|table| {
                    let rows = layout.range_of(partition, *table);
                    let start = end;
                    end += rule.count(rows.end - rows.start).next_multiple_of(BUCKET);
                    Sampled { rows, slots: start..end }
                });
                let tables = sampled.collect();
                let slots = Words::new(end as usize)?;
                slots.iter().for_each(|slot| slot.store(EMPTY, Relaxed));
                Some(Self::Sample { tables, slots, accesses: AtomicU32::new(0) })
            }
        })
    }

    /// Lends it.
    #[must_use]
    pub fn usage(&self) -> Usage<'_> {
        match self {
            Self::Counts(counts) => Usage::Counts(counts),
            Self::Sample { tables, slots, accesses } => {
                Usage::Sample(Sample { tables, slots, accesses })
            }
        }
    }

    /// All rows have been saved. Nothing may train meanwhile.
    pub fn clear(&self) {
        match self.usage() {
            Usage::Counts(counts) => counts.iter().for_each(|count| count.store(0, Relaxed)),
            Usage::Sample(sample) => sample.clear(),
            Usage::None => {}
        }
    }

    /// Bytes that it is going to take for `partition`.
    #[must_use]
    pub fn bytes_of(layout: &TableLayout, partition: u32) -> u64 {
        let Some(rule) = &layout.save_first else { return 0 };
        let words: u64 = match rule.by {
            By::Change => 0,
            By::Updates => layout.rows_of(partition).into(),
            By::Sample => {
                let sampled = rule.large.iter().map(|table| {
                    let rows = layout.range_of(partition, *table);
                    u64::from(rule.count(rows.end - rows.start).next_multiple_of(BUCKET))
                });
                sampled.sum()
            }
        };
        4 * words
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let words = match self {
            Self::Counts(counts) => counts.len(),
            Self::Sample { slots, .. } => slots.len(),
        };
        4 * words as u64
    }
}
