//! Which rows are saved first, and the memory for what is remembered of their updates.
//!
//! arXiv 2011.02999: of the large tables a save has a share of the rows alone, and
//! comes the more often. Small tables, which are few rows together, are in every save. Each large
//! table has a share of its own: rows of all that compete for one left out those with few updates
//! for good, and on Frappe more was lost.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use std::io;
use std::sync::Arc;

use umbra_core::recovery::usage::{BUCKET, EMPTY, Sample, Sampled, Usage};

use crate::memory::Words;
use crate::rows::tables::TableLayout;

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
