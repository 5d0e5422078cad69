//! By which random numbers the rows of a table are rounded.
//!
//! They are a function of (seed, row number, step, worker, element) alone: not of the partition a
//! row is in, of the order of updates, or of what was rounded before. So rounding repeats bit for
//! bit where updates do, on any number of ranks, and a run that goes on needs no state for it.
//! Philox makes a key of all but the element, and a cheaper mix of the key and the element the
//! numbers (`rng.rs`).

use super::Partitioning;
use crate::rng::{Purpose, Stream};

/// The random numbers of one table.
#[derive(Clone, Copy, Debug)]
pub struct Rounding {
    seed: u64,
    partitioning: Partitioning,
    partition: u32,
    clock: u32,
    worker: u32,
}

impl Rounding {
    /// Where nothing is rounded.
    pub(super) const NONE: Self = Self::new(0, Partitioning { partitions: 1 }, 0);

    /// Of the rows of a partition, before any step.
    #[must_use]
    pub const fn new(seed: u64, partitioning: Partitioning, partition: u32) -> Self {
        Self { seed, partitioning, partition, clock: 0, worker: 0 }
    }

    /// In step `clock`, counted from 0, of `worker`.
    pub(super) const fn at(self, clock: u32, worker: u32) -> Self {
        Self { clock: clock.wrapping_add(1), worker, ..self }
    }

    /// The key of the random numbers of the row at `index` of the partition: half a block.
    #[inline(always)]
    pub(super) fn key(&self, index: usize) -> [u32; 2] {
        #[expect(clippy::cast_possible_truncation, reason = "a partition has fewer than 2^32 rows")]
        let row = self.partitioning.row(self.partition, index as u32);
        let stream = Stream::new(self.seed, Purpose::Rounding(self.clock));
        let [a, b, ..] = stream.block(u64::from(row) << 32 | u64::from(self.worker));
        [a, b]
    }
}
