//! What a batch makes of every row, row by row.
//!
//! Where a batch uses rows of most pages of a table, they are dealt to buckets of neighbours first,
//! and told apart bucket by bucket. So rows that are updated one after the other lie close: their
//! pages, and the entries that say where those are, serve several of them; and what a row is
//! compared with is near, however many a batch has.
//!
//! Invariant: the uses of a row are in the order of their values, wherever the row comes.

use super::coalesce::{distinct, heads_len};
use super::direct::DirectBags;

/// A row in a bag: whose vector it is part of, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// The place of the bag among those with values.
    pub vector: u32,
    /// What the gradient of the vector is multiplied by.
    pub scale: f32,
}

/// Uses of a bucket, in the mean: what they are compared with stays in the second cache level.
/// Measured with 820,000 values in 8 million rows of 256 bytes, ns a value: grouping 18 and
/// updating 40; 20 and 41 with a quarter of it, 13 and 47 with four times as many, 25 and 52 in
/// one bucket.
const USES: usize = 16384;

/// Most buckets.
const BUCKETS: usize = 2048;

/// Memory for [`DirectBags::group_uses`] of up to so many values.
#[derive(Debug)]
pub struct GroupScratch<'a> {
    /// Rows and their uses, bucket after bucket. `[values]`
    pub dealt: &'a mut [(u32, Use)],
    /// Which of the distinct rows those of a bucket are. `[values]`
    pub slot: &'a mut [u32],
    /// `[heads_len(values)]`
    pub heads: &'a mut [u32],
    /// Where buckets end. `[buckets(values)]`
    pub ends: &'a mut [u32],
}

/// The uses of rows.
#[derive(Debug)]
pub struct Groups<'a> {
    /// The distinct rows. `[values]` or more
    pub rows: &'a mut [u32],
    /// Where the uses of each of them end. `[values]` or more
    pub ends: &'a mut [u32],
    /// Row after row. `[values]`
    pub uses: &'a mut [Use],
}

/// Buckets of up to so many values.
#[must_use]
pub const fn buckets(values: usize) -> usize {
    let wanted = values.div_ceil(USES).next_power_of_two();
    if wanted < BUCKETS { wanted } else { BUCKETS }
}

/// The rows of the bags' values, and how they are spread.
#[derive(Clone, Copy, Debug)]
pub struct Spread<'a> {
    /// `[values]`
    pub rows: &'a [u32],
    /// All are below this.
    pub end: usize,
    /// Rows of a page of memory: how many neighbours it takes until one is reached faster.
    pub page: usize,
}

impl DirectBags<'_> {
    /// Finds the distinct rows among those of the bags' values, and the uses of each. Returns how
    /// many there are. Which comes first depends on nothing but the bags and the spread.
    ///
    /// # Panics
    /// When a length is not as told, or a row is not below `end`.
    pub fn group_uses(
        &self,
        of: Spread<'_>,
        scratch: GroupScratch<'_>,
        groups: Groups<'_>,
    ) -> usize {
        let Spread { rows, end, page } = of;
        let count = if rows.len() * page < end { 1 } else { buckets(rows.len()) };
        if count == 1 {
            // Nothing is dealt: uses go straight to where they stay.
            let slots = &mut scratch.slot[..rows.len()];
            slots.copy_from_slice(rows);
            let heads = &mut scratch.heads[..heads_len(rows.len())];
            let found = distinct(slots, heads, groups.rows);
            let ends = &mut groups.ends[..found];
            self.sort(slots, 0, ends, |place, _, of| groups.uses[place] = of);
            return found;
        }
        let bits = usize::BITS - end.saturating_sub(1).leading_zeros();
        let shift = bits.saturating_sub(count.trailing_zeros());
        let bucket_ends = &mut scratch.ends[..count];
        self.sort(rows, shift, bucket_ends, |place, row, of| scratch.dealt[place] = (row, of));
        let (mut start, mut found) = (0, 0);
        for end in bucket_ends {
            let bucket = &scratch.dealt[start as usize..*end as usize];
            let slots = &mut scratch.slot[..bucket.len()];
            slots.iter_mut().zip(bucket).for_each(|(slot, (row, _))| *slot = *row);
            let heads = &mut scratch.heads[..heads_len(slots.len())];
            let rows = distinct(slots, heads, &mut groups.rows[found..]);
            let ends = &mut groups.ends[found..found + rows];
            count_starts(slots, 0, start, ends);
            for (slot, (_, of)) in slots.iter().zip(bucket) {
                let next = &mut ends[*slot as usize];
                groups.uses[*next as usize] = *of;
                *next += 1;
            }
            (start, found) = (*end, found + rows);
        }
        found
    }

    /// Sorts the uses of values by their `keys` without the last `shift` bits, a counting sort, and
    /// writes where those of each end. `put` gets the place of a value, its key and its use.
    #[inline]
    fn sort(
        &self,
        keys: &[u32],
        shift: u32,
        ends: &mut [u32],
        mut put: impl FnMut(usize, u32, Use),
    ) {
        count_starts(keys, shift, 0, ends);
        let bags = self.bags.offsets.windows(2).filter(|ends| ends[0] < ends[1]);
        for (vector, bag) in (0..).zip(bags) {
            let range = bag[0] as usize..bag[1] as usize;
            let (weights, scale) = self.weights(range.clone());
            for (i, key) in keys[range].iter().enumerate() {
                let next = &mut ends[*key as usize >> shift];
                let scale = weights.get(i).map_or(scale, |weight| weight * scale);
                put(*next as usize, *key, Use { vector, scale });
                *next += 1;
            }
        }
    }
}

/// Writes where the keys begin, from `start` on, if sorted: once each is put there and counted, it
/// is where they end.
fn count_starts(keys: &[u32], shift: u32, mut start: u32, starts: &mut [u32]) {
    starts.fill(0);
    keys.iter().for_each(|key| starts[*key as usize >> shift] += 1);
    for at in starts {
        (start, *at) = (start + *at, start);
    }
}
