//! The distinct rows of a batch.
//!
//! Duplicate ids are one row: it travels once, and its gradient is summed before one update. Rows
//! come out in the order of their first appearance, so the same batch always gives the same list.

use core::ops::Range;

use super::Numbering;
use crate::batch::Jagged;
use crate::kernel::prefetch::prefetch;

/// Words of scratch that [`coalesce`] needs for up to `values_max` ids: a power of two.
#[must_use]
pub const fn heads_len(values_max: usize) -> usize {
    (2 * values_max + 1).next_power_of_two()
}

/// Finds the distinct rows of `bags` and writes their numbers to `unique` and, for every id, its
/// index in `unique` to `slot`, by way of the number of its row. Returns how many there are.
///
/// `heads: [heads_len(values)]` or more, a power of two, scratch; `unique` and `slot`: `[values]`
/// or more. Ids are below their field's cardinality (the reader has checked).
pub fn coalesce(
    bags: Jagged<'_>,
    numbering: Numbering<'_>,
    heads: &mut [u32],
    unique: &mut [u32],
    slot: &mut [u32],
) -> usize {
    row_numbers(bags, numbering, slot);
    let first = bags.offsets.first().map_or(0, |first| *first as usize);
    let last = bags.offsets.last().map_or(0, |last| *last as usize);
    distinct(&mut slot[first..last], heads, unique)
}

/// Writes the number of every id's row. `rows: [values]` or more
fn row_numbers(bags: Jagged<'_>, numbering: Numbering<'_>, rows: &mut [u32]) {
    let Jagged { values, offsets, .. } = bags;
    let fields = numbering.fields();
    if fields == 0 {
        return;
    }
    for (example, ends) in offsets.windows(fields + 1).step_by(fields).enumerate() {
        let own = ends[0] as usize..ends[fields] as usize;
        ask_ahead(bags, example * fields..(example + 1) * fields);
        let (values, rows) = (&values[own.clone()], &mut rows[own]);
        // All are looked at, many at once.
        let others = ends.windows(2).fold(0, |others, bag| others | ((bag[1] - bag[0]) ^ 1));
        if others == 0 {
            for (field, (value, row)) in values.iter().zip(rows).enumerate() {
                *row = numbering.of(field).row(*value);
            }
            continue;
        }
        let mut next = 0;
        for (field, bag) in ends.windows(2).enumerate() {
            let (table, bag) = (numbering.of(field), next..next + (bag[1] - bag[0]) as usize);
            for (value, row) in values[bag.clone()].iter().zip(&mut rows[bag.clone()]) {
                *row = table.row(*value);
            }
            next = bag.end;
        }
    }
}

/// Asks for what comes behind these bags: a batch comes from far away, in memory or from another
/// core.
#[inline]
pub(super) fn ask_ahead(of: Jagged<'_>, bags: Range<usize>) {
    let values = of.offsets[bags.start] as usize..of.offsets[bags.end] as usize;
    for at in bags.step_by(LINE) {
        of.offsets.get(at + AHEAD).into_iter().for_each(prefetch);
    }
    for at in values.step_by(LINE) {
        of.values.get(at + AHEAD).into_iter().for_each(prefetch);
    }
}

/// Puts in the place of every row in `rows` its index among the distinct ones, which are written to
/// `unique` in the order of their first appearance. Returns how many there are. `heads:
/// [heads_len(rows)]` or more, a power of two, scratch; `unique: [rows]` or more
pub(super) fn distinct(rows: &mut [u32], heads: &mut [u32], unique: &mut [u32]) -> usize {
    debug_assert!(heads.len().is_power_of_two() && heads.len() > rows.len());
    heads.fill(EMPTY);
    let shift = 32 - heads.len().trailing_zeros();
    let mask = heads.len() - 1;
    let mut found = 0u32;
    for i in 0..rows.len() {
        if let Some(row) = rows.get(i + HEADS_AHEAD) {
            prefetch(&heads[home(*row, shift) & mask]);
        }
        let row = rows[i];
        let mut at = home(row, shift) & mask;
        rows[i] = loop {
            match heads[at] {
                EMPTY => {
                    heads[at] = found;
                    unique[found as usize] = row;
                    found += 1;
                    break found - 1;
                }
                index if unique[index as usize] == row => break index,
                _ => at = (at + 1) & mask,
            }
        };
    }
    found as usize
}

const EMPTY: u32 = u32::MAX;

/// Elements of a cache line, and of the batch asked for ahead: ten of them.
const LINE: usize = 16;
const AHEAD: usize = 10 * LINE;

/// Ids whose heads are asked for ahead: those of a large batch are far.
const HEADS_AHEAD: usize = 16;

/// Fibonacci hashing (Knuth, The Art of Computer Programming 3, section 6.4).
#[inline]
fn home(row: u32, shift: u32) -> usize {
    row.wrapping_mul(0x9E37_79B9).checked_shr(shift).unwrap_or(0) as usize
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "small test data")]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::super::Numbers;
    use super::*;
    use crate::rng::{Purpose, Stream};

    /// Against a plain search through a list.
    #[test]
    fn equals_the_plain_search() {
        for seed in 0..50 {
            let stream = Stream::new(seed, Purpose::Test(0));
            let fields = 1 + stream.below(0, 4) as usize;
            let bags_count = fields * stream.below(1, 40) as usize;
            let mut offsets = vec![0u32];
            for bag in 0..bags_count {
                offsets.push(offsets[bag] + stream.below(100 + bag as u64, 4) as u32);
            }
            let n = offsets[bags_count] as usize;
            let values: Vec<u32> =
                (0..n as u64).map(|i| stream.below(10_000 + i, 7) as u32).collect();
            let mut tables = vec![Numbers::default(); fields];
            Numbering::deal(&vec![7; fields], &[], &mut tables).unwrap();
            let numbering = Numbering::new(&tables);
            let mut heads = vec![0; heads_len(n)];
            let (mut unique, mut slot) = (vec![0; n], vec![0; n]);
            let bags = Jagged { values: &values, offsets: &offsets, weights: &[] };
            let count = coalesce(bags, numbering, &mut heads, &mut unique, &mut slot);
            let mut plain: Vec<u32> = vec![];
            for bag in 0..bags_count {
                for value in offsets[bag] as usize..offsets[bag + 1] as usize {
                    let row = (bag % fields) as u32 * 7 + values[value];
                    if !plain.contains(&row) {
                        plain.push(row);
                    }
                    assert_eq!(unique[slot[value] as usize], row, "seed {seed}");
                }
            }
            assert_eq!(unique[..count], plain, "seed {seed}");
        }
    }
}
