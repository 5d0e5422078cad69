//! Sums of gradients per row, as binary trees over numbered terms.
//!
//! Invariant: the sum of a row depends on the numbers of its terms and their values, never on the
//! order in which they are listed; terms without the row are left out of its tree.

use core::ops::Range;

use crate::sync::reduction::add;

/// A row's gradient among those of an update: how they are sorted by row, then term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    row: u32,
    /// Its place in the tree: a worker's number, a member's.
    term: u32,
    /// Whose push has it, and where.
    contributor: u32,
    at: u32,
}

/// Elements of scratch that sums over so many terms need: a partial sum per level of the tree.
#[must_use]
pub const fn sums_len(terms: u32, width: usize) -> usize {
    (terms.next_power_of_two().ilog2() as usize + 1) * width
}

/// Gradients to be summed per row, in lent memory.
pub(super) struct RowSums<'a> {
    /// The first `listed` are in use.
    entries: &'a mut [Entry],
    listed: usize,
    /// `[sums_len(terms, width)]`
    sums: &'a mut [f32],
    terms: u32,
    width: usize,
}

/// Why gradients are not summed.
pub(super) enum Defect {
    /// Memory is too short.
    Scratch { got: usize, needed: usize },
    /// A term has two gradients for one row.
    RowTwice { row: u32, term: u32 },
}

impl<'a> RowSums<'a> {
    /// For up to `gradients` gradients of so many terms, `[width]` each.
    pub(super) const fn new(
        (entries, sums): (&'a mut [Entry], &'a mut [f32]),
        gradients: usize,
        terms: u32,
        width: usize,
    ) -> Result<Self, Defect> {
        let needed = sums_len(terms, width);
        if sums.len() < needed {
            return Err(Defect::Scratch { got: sums.len(), needed });
        }
        if entries.len() < gradients {
            return Err(Defect::Scratch { got: entries.len(), needed: gradients });
        }
        Ok(Self { entries, listed: 0, sums, terms, width })
    }

    /// Lists what a push has for a term: gradients of distinct `rows`, the first one at `at`.
    pub(super) fn list(&mut self, contributor: u32, term: u32, rows: &[u32], at: u32) {
        for (at, row) in (at..).step_by(self.width).zip(rows) {
            self.entries[self.listed] = Entry { row: *row, term, contributor, at };
            self.listed += 1;
        }
    }

    /// Calls `each` with every row, in ascending order, its number of gradients and their sum.
    /// `leaf(contributor, at, out)` writes a gradient.
    ///
    /// # Errors
    /// A row that a term has twice; rows before it have then been summed.
    pub(super) fn each(
        self,
        leaf: impl Fn(u32, u32, &mut [f32]),
        mut each: impl FnMut(u32, usize, &mut [f32]),
    ) -> Result<(), Defect> {
        let Self { entries, listed, sums, terms, width } = self;
        let entries = &mut entries[..listed];
        entries.sort_unstable();
        let leaf = |entry: &Entry, out: &mut [f32]| leaf(entry.contributor, entry.at, out);
        for same_row in entries.chunk_by(|a, b| a.row == b.row) {
            let Entry { row, .. } = same_row[0];
            if let Some(twice) = same_row.windows(2).find(|pair| pair[0].term == pair[1].term) {
                return Err(Defect::RowTwice { row, term: twice[0].term });
            }
            tree_sum(same_row, 0..terms.next_power_of_two(), &leaf, width, sums);
            each(row, same_row.len(), &mut sums[..width]);
        }
        Ok(())
    }
}

/// Sums the gradients of one row into the first `width` of `sums` as a binary tree over the terms
/// of `range`, whose length is a power of two, with one entry of a term at most; a term without the
/// row adds nothing.
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
