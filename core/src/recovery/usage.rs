//! Which rows have been updated since they were saved: what a save of a part looks at.
//!
//! arXiv 2011.02999. *Counts* are 4 bytes a row (MFU, most frequently used). A *sample* is a list
//! of as many rows as a save takes, filled by some of the accesses (SSU, sub-sampled used). Here
//! it is a set: a row has a place among the few that its number gives it, and pushes another one
//! out when all are taken, so it holds a row once and costs a look at one cache line.
//!
//! Invariants: entries are relaxed atomics, like rows. Where workers share a table two that count
//! at once may count once, which a choice of rows can bear. Rows of the small tables are not
//! sampled: they are always saved.

use core::ops::Range;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::kernel::prefetch::prefetch;

/// What is remembered of updates.
#[derive(Clone, Copy, Debug, Default)]
pub enum Usage<'a> {
    /// Nothing.
    #[default]
    None,
    /// How many each row had. `[rows]`
    Counts(&'a [AtomicU32]),
    /// Some of the rows that had one.
    Sample(Sample<'a>),
}

/// Rows that have been updated, some of them.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The tables that are sampled, ascending.
    pub tables: &'a [Sampled],
    /// The set of every table, one behind the other.
    pub slots: &'a [AtomicU32],
    /// Accesses so far: what is sampled follows from it.
    pub accesses: &'a AtomicU32,
}

/// One table of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Places of its rows.
    pub rows: Range<u32>,
    /// Its part of the slots: whole buckets.
    pub slots: Range<u32>,
}

/// Slots that a row can be in: half a cache line.
pub const BUCKET: u32 = 8;
/// One call in so many is sampled: between two saves there are far more than a set has slots for.
const PERIOD: u32 = 8;
/// Nobody's slot.
pub const EMPTY: u32 = u32::MAX;

impl<'a> Usage<'a> {
    /// What the rows of one call are counted in: of a sample one call in eight.
    #[inline(always)]
    pub(crate) fn of_a_call(self) -> Self {
        let Self::Sample(sample) = self else { return self };
        let before = sample.accesses.load(Relaxed);
        sample.accesses.store(before.wrapping_add(1), Relaxed);
        if before.is_multiple_of(PERIOD) { self } else { Self::None }
    }

    /// Whether anything is counted.
    #[inline(always)]
    pub(crate) const fn is_some(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Asks for what counting the row at `index` will touch.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: usize) {
        match self {
            Self::None => {}
            Self::Counts(counts) => prefetch(&counts[index]),
            Self::Sample(sample) => {
                sample.bucket(index).into_iter().flatten().take(1).for_each(prefetch)
            }
        }
    }

    /// The row at `index` has been updated.
    #[inline(always)]
    pub(crate) fn count(&self, index: usize) {
        match self {
            Self::None => {}
            Self::Counts(counts) => {
                let count = &counts[index];
                count.store(count.load(Relaxed).saturating_add(1), Relaxed);
            }
            Self::Sample(sample) => sample.add(index),
        }
    }
}

impl<'a> Sample<'a> {
    /// The slots that the row at `index` can be in; `None` where it is not sampled.
    #[inline(always)]
    fn bucket(&self, index: usize) -> Option<&'a [AtomicU32]> {
        #[expect(clippy::cast_possible_truncation, reason = "rows have numbers of 32 bits")]
        let row = index as u32;
        let at = self.tables.partition_point(|table| table.rows.end <= row);
        let table = self.tables.get(at).filter(|table| table.rows.contains(&row))?;
        let buckets = table.slots.len() as u64 / u64::from(BUCKET);
        let hash = row.wrapping_mul(0x9E37_79B1);
        let bucket = (u64::from(hash) * buckets) >> 32;
        let first = table.slots.start as usize + (bucket as usize) * BUCKET as usize;
        Some(&self.slots[first..][..BUCKET as usize])
    }

    #[inline(always)]
    fn add(&self, index: usize) {
        let Some(slots) = self.bucket(index) else { return };
        #[expect(clippy::cast_possible_truncation, reason = "rows have numbers of 32 bits")]
        let row = index as u32;
        for slot in slots {
            match slot.load(Relaxed) {
                EMPTY => return slot.store(row, Relaxed),
                other if other == row => return,
                _ => {}
            }
        }
        // Any of them, as random as the order of accesses.
        let accesses = self.accesses.load(Relaxed).wrapping_mul(0x85EB_CA77);
        let out = ((accesses ^ row).wrapping_mul(0xC2B2_AE3D) >> 16) % BUCKET;
        slots[out as usize].store(row, Relaxed);
    }

    /// Lets all rows go: what it held has been saved.
    pub fn clear(&self) {
        self.slots.iter().for_each(|slot| slot.store(EMPTY, Relaxed));
    }

    /// The rows of table number `table` that it holds.
    pub fn rows(&self, table: usize) -> impl Iterator<Item = u32> + 'a {
        let Range { start, end } = self.tables[table].slots;
        let slots = &self.slots[start as usize..end as usize];
        slots.iter().map(|slot| slot.load(Relaxed)).filter(|row| *row != EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u32 = 64;

    fn with_sample(test: impl Fn(Sample<'_>)) {
        let tables = [
            Sampled { rows: 10..200, slots: 0..24 },
            Sampled { rows: 300..1000, slots: 24..SLOTS },
        ];
        let slots = [const { AtomicU32::new(EMPTY) }; SLOTS as usize];
        let accesses = AtomicU32::new(0);
        test(Sample { tables: &tables, slots: &slots, accesses: &accesses });
    }

    #[test]
    fn a_sample_holds_a_row_once_and_those_of_sampled_tables_alone() {
        with_sample(|sample| {
            for row in [5, 250, 1000, 12, 12, 12, 400] {
                sample.add(row);
            }
            assert!(sample.rows(0).eq([12]));
            assert!(sample.rows(1).eq([400]));
        });
    }

    #[test]
    fn a_full_sample_takes_new_rows_and_no_more_than_it_has_slots_for() {
        with_sample(|sample| {
            (300..1000).for_each(|row| sample.add(row));
            assert_eq!(sample.rows(1).count(), SLOTS as usize - 24);
            sample.add(301);
            assert!(sample.rows(1).any(|row| row == 301));
            assert_eq!(sample.rows(0).count(), 0);
            sample.clear();
            assert_eq!(sample.rows(1).count(), 0);
        });
    }

    #[test]
    fn one_call_in_eight_is_sampled() {
        with_sample(|sample| {
            let usage = Usage::Sample(sample);
            let sampled = (0..80).filter(|_| matches!(usage.of_a_call(), Usage::Sample(_)));
            assert_eq!(sampled.count(), 10);
        });
    }

    #[test]
    fn counts_count() {
        let counts = [const { AtomicU32::new(0) }; 3];
        let usage = Usage::Counts(&counts);
        [1, 1, 2].iter().for_each(|row| usage.of_a_call().count(*row));
        assert_eq!(counts.each_ref().map(|count| count.load(Relaxed)), [0, 2, 1]);
    }
}
