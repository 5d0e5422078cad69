//! Sums of gradients per row, as binary trees over numbered terms.
//!
//! Invariant: the sum of a row depends on the numbers of its terms and their values, never on the
//! order in which they are listed; terms without the row are left out of its tree.

use core::ops::Range;

use crate::sync::reduction::add;

/// A row's gradient among those of an update: how they are sorted by row, then term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub(super) row: u32,
    /// Its place in the tree: a worker's number, a member's.
    pub(super) term: u32,
    /// Whose push has it, and where.
    pub(super) contributor: u32,
    pub(super) at: u32,
}

/// Elements of scratch that sums over so many terms need: a partial sum per level of the tree.
#[must_use]
pub const fn sums_len(terms: u32, width: usize) -> usize {
    (terms.next_power_of_two().ilog2() as usize + 1) * width
}

/// Calls `each` with the entries and the sum of every row, in ascending order of rows. `leaf`
/// writes an entry's gradient. `sums: [sums_len(terms, width)]` is scratch.
///
/// # Errors
/// The first of `each`; rows before it have then been summed.
pub(super) fn each_row<E>(
    entries: &mut [Entry],
    terms: u32,
    width: usize,
    sums: &mut [f32],
    leaf: impl Fn(&Entry, &mut [f32]),
    mut each: impl FnMut(&[Entry], &mut [f32]) -> Result<(), E>,
) -> Result<(), E> {
    entries.sort_unstable();
    for same_row in entries.chunk_by(|a, b| a.row == b.row) {
        tree_sum(same_row, 0..terms.next_power_of_two(), &leaf, width, sums);
        each(same_row, &mut sums[..width])?;
    }
    Ok(())
}

/// Sums the gradients of one row into the first `width` of `sums` as a binary tree over the terms
/// of `range`, whose length is a power of two; a term without the row adds nothing.
fn tree_sum(
    entries: &[Entry],
    range: Range<u32>,
    leaf: &impl Fn(&Entry, &mut [f32]),
    width: usize,
    sums: &mut [f32],
) {
    if let [entry] = entries {
        leaf(entry, &mut sums[..width]);
        return;
    }
    if range.len() < 2 {
        // Several of one term, which whoever asks refuses.
        return;
    }
    let middle = range.start + (range.end - range.start) / 2;
    let (left, right) = entries.split_at(entries.partition_point(|entry| entry.term < middle));
    match (left.is_empty(), right.is_empty()) {
        (true, _) => tree_sum(right, middle..range.end, leaf, width, sums),
        (_, true) => tree_sum(left, range.start..middle, leaf, width, sums),
        _ => {
            tree_sum(left, range.start..middle, leaf, width, sums);
            let (sum, deeper) = sums.split_at_mut(width);
            tree_sum(right, middle..range.end, leaf, width, deeper);
            add(sum, &deeper[..width]);
        }
    }
}
