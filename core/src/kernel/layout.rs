//! The two layouts of the kernels: panels for parameters, blocks for activations.
//!
//! A *panel* is 32 outputs of a layer, a *block* is 32 columns of activations. Both stay in the
//! order in which the micro-kernel (`tile.rs`) reads them, so nothing is packed in a step:
//!
//! - parameters W `[outputs, inputs]` stand as `[outputs / 32][inputs][32]`, the last panel as
//!   narrow as its outputs: a permutation of W without gaps;
//! - activations X `[n, width]` stand as `[width / 32][n + gap][32]`, or `[n, width]` if they are
//!   one block.

use core::ops::Range;

/// Columns of a panel or a block: two vectors of the widest instruction set.
pub const PANEL: usize = 32;

/// f32s of a cache line.
pub(super) const LINE: usize = 16;

/// A square of vectors of the widest instruction set. It starts with a cache line, so that each of
/// them is in one.
#[repr(C, align(64))]
pub(super) struct Square(pub(super) [f32; LINE * LINE]);

impl Square {
    pub(super) const ZEROS: Self = Self([0.0; LINE * LINE]);
}

/// Place of W(output, input) in the panels of W `[outputs, inputs]`.
#[must_use]
pub const fn panel_index(outputs: usize, inputs: usize, output: usize, input: usize) -> usize {
    let first = output / PANEL * PANEL;
    first * inputs + input * width_at(outputs, first) + (output - first)
}

/// Columns of the panel or block that starts at column `first`, of `columns` in all.
#[must_use]
pub(super) const fn width_at(columns: usize, first: usize) -> usize {
    let left = columns - first;
    if left < PANEL { left } else { PANEL }
}

/// Distances in a matrix of activations: element (i, f) is at
/// `i * row + f / PANEL * block + f % PANEL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// Between examples.
    pub row: usize,
    /// Between blocks.
    pub block: usize,
}

impl Strides {
    /// The blocked layout of `[n, width]`.
    #[must_use]
    pub const fn blocked(n: usize, width: usize) -> Self {
        if width <= PANEL {
            return Self { row: width, block: 0 };
        }
        // A tile of rows takes up to 28 lines of every block. With 14 rows of gap behind a multiple
        // of 32 rows, those lines of consecutive blocks fall on consecutive sets of a cache of 64.
        Self { row: PANEL, block: (n.next_multiple_of(32) + 14) * PANEL }
    }

    /// The row-major layout, examples `row` elements apart.
    #[must_use]
    pub const fn row_major(row: usize) -> Self {
        Self { row, block: PANEL }
    }

    /// Row-major, with rows an odd number of cache lines apart: each starts on a line if the first
    /// does, and those of a tile fall on different sets of a cache.
    #[must_use]
    pub const fn padded(width: usize) -> Self {
        Self::row_major(width.next_multiple_of(LINE) | LINE)
    }

    /// Elements from the first to the last of `[n, width]`, all others between them: kernels write
    /// through pointers on the word of this function.
    ///
    /// # Panics
    /// When elements would share places.
    fn extent(self, n: usize, width: usize) -> usize {
        if n == 0 || width == 0 {
            return 0;
        }
        let last = (width - 1) / PANEL;
        assert!(self.row >= width.min(PANEL), "rows {} apart overlap", self.row);
        assert!(last == 0 || self.block >= PANEL, "blocks {} apart overlap", self.block);
        let (rows, blocks) = ((n - 1).checked_mul(self.row), last.checked_mul(self.block));
        let end = rows.zip(blocks).and_then(|(rows, blocks)| rows.checked_add(blocks));
        end.and_then(|end| end.checked_add(width - last * PANEL)).unwrap_or(usize::MAX)
    }
}

/// Place of (example, column) in activations.
pub(super) const fn place(strides: Strides, row: usize, column: usize) -> usize {
    row * strides.row + column / PANEL * strides.block + column % PANEL
}

/// f32s of a blocked matrix `[n, width]`; never less for a smaller n.
#[must_use]
pub const fn blocked_len(n: usize, width: usize) -> usize {
    if width <= PANEL {
        n * width
    } else {
        width.div_ceil(PANEL) * Strides::blocked(n, width).block
    }
}

/// f32s of a padded matrix `[n, width]` ([`Strides::padded`]).
#[must_use]
pub const fn padded_len(n: usize, width: usize) -> usize {
    n * Strides::padded(width).row
}

/// Activations to read. `[n, width]`
#[derive(Clone, Copy, Debug)]
pub struct Activations<'a> {
    data: &'a [f32],
    n: usize,
    width: usize,
    strides: Strides,
}

impl<'a> Activations<'a> {
    /// Activations in a layout of the caller's.
    ///
    /// # Panics
    /// When `data` is too short.
    #[must_use]
    pub fn new(data: &'a [f32], n: usize, width: usize, strides: Strides) -> Self {
        let needed = strides.extent(n, width);
        assert!(data.len() >= needed, "activations need {needed} elements, got {}", data.len());
        Self { data, n, width, strides }
    }

    /// Activations in blocks.
    ///
    /// # Panics
    /// When `data` is too short.
    #[must_use]
    pub fn blocked(data: &'a [f32], n: usize, width: usize) -> Self {
        Self::new(data, n, width, Strides::blocked(n, width))
    }

    /// Examples.
    #[must_use]
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Columns.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Distances.
    #[must_use]
    pub const fn strides(&self) -> Strides {
        self.strides
    }

    /// Pieces of at most [`PANEL`] columns: the first column, and the rows of all examples.
    pub fn blocks(self) -> impl Iterator<Item = (usize, impl Iterator<Item = &'a [f32]>)> {
        (0..self.width).step_by(PANEL).map(move |first| (first, self.block(first)))
    }

    /// The piece of [`Self::blocks`] that begins with column `first`: the rows of all examples.
    pub fn block(self, first: usize) -> impl Iterator<Item = &'a [f32]> {
        let width = width_at(self.width, first);
        let start = (first / PANEL * self.strides.block).min(self.data.len());
        let rows = self.data[start..].chunks(self.strides.row).take(self.n);
        rows.map(move |row| &row[..width])
    }

    /// [`Self::block`] where it is whole and its rows follow each other.
    #[inline]
    #[must_use]
    pub fn whole_block(self, first: usize) -> Option<&'a [[f32; PANEL]]> {
        let is_whole = self.width - first >= PANEL && self.strides.row == PANEL;
        let start = (first / PANEL * self.strides.block).min(self.data.len());
        is_whole.then(|| &self.data[start..].as_chunks().0[..self.n])
    }

    /// [`Self::whole_block`] of this block and the next one.
    #[inline]
    #[must_use]
    pub fn whole_pair(self, first: usize) -> Option<[&'a [[f32; PANEL]]; 2]> {
        if self.width - first < 2 * PANEL {
            return None;
        }
        Some([self.whole_block(first)?, self.whole_block(first + PANEL)?])
    }

    /// Some of the examples.
    #[must_use]
    pub fn examples(self, range: Range<usize>) -> Self {
        let data = &self.data[(range.start * self.strides.row).min(self.data.len())..];
        Self::new(data, range.len(), self.width, self.strides)
    }

    /// Copies example `i` out. `out: [width]`
    pub fn copy_row(&self, i: usize, out: &mut [f32]) {
        let start = i * self.strides.row;
        for (block, out) in out[..self.width].chunks_mut(PANEL).enumerate() {
            let at = start + block * self.strides.block;
            out.copy_from_slice(&self.data[at..at + out.len()]);
        }
    }

    /// The first `len` elements of a block of example `i`.
    pub(super) fn block_of(&self, i: usize, block: usize, len: usize) -> &'a [f32] {
        &self.data[i * self.strides.row + block * self.strides.block..][..len]
    }

    /// Adds example `i` to `sum` `[up to width]`, as many columns as it has.
    pub fn add_row(&self, i: usize, sum: &mut [f32]) {
        let start = i * self.strides.row;
        for (block, sum) in sum.chunks_mut(PANEL).enumerate() {
            let row = &self.data[start + block * self.strides.block..];
            sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
    }

    /// Some of the columns, from a multiple of [`PANEL`] on.
    ///
    /// # Panics
    /// When they begin elsewhere, or there are fewer.
    #[must_use]
    pub fn columns(self, range: Range<usize>) -> Self {
        assert!(range.start.is_multiple_of(PANEL) && range.end <= self.width, "whole blocks");
        let first = range.start / PANEL * self.strides.block;
        let data = &self.data[first.min(self.data.len())..];
        Self::new(data, self.n, range.len(), self.strides)
    }

    /// Copies all out, block after block, without gaps. `out: [n * width]`
    pub fn pack(self, out: &mut [f32]) {
        let mut rest = out;
        for row in self.blocks().flat_map(|(_, rows)| rows) {
            let (here, after) = rest.split_at_mut(row.len());
            here.copy_from_slice(row);
            rest = after;
        }
    }

    /// Copies a column out. `out: [n]` or longer
    pub fn copy_column(&self, column: usize, out: &mut [f32]) {
        let from = self.column(column);
        out.iter_mut().zip(from).for_each(|(out, x)| *out = *x);
    }

    /// Adds a column to `sum`. `sum: [n]` or longer
    pub fn add_column(&self, column: usize, sum: &mut [f32]) {
        let from = self.column(column);
        sum.iter_mut().zip(from).for_each(|(sum, x)| *sum += x);
    }

    fn column(&self, column: usize) -> impl Iterator<Item = &'a f32> {
        let start = column / PANEL * self.strides.block + column % PANEL;
        self.data.get(start..).unwrap_or(&[]).iter().step_by(self.strides.row).take(self.n)
    }

    pub(super) const fn as_ptr(&self) -> *const f32 {
        self.data.as_ptr()
    }
}

/// Activations to write. `[n, width]`
#[derive(Debug)]
pub struct ActivationsMut<'a> {
    data: &'a mut [f32],
    n: usize,
    width: usize,
    strides: Strides,
}

impl<'a> ActivationsMut<'a> {
    /// Activations in a layout of the caller's.
    ///
    /// # Panics
    /// When `data` is too short.
    #[must_use]
    pub fn new(data: &'a mut [f32], n: usize, width: usize, strides: Strides) -> Self {
        let needed = strides.extent(n, width);
        assert!(data.len() >= needed, "activations need {needed} elements, got {}", data.len());
        Self { data, n, width, strides }
    }

    /// Activations in blocks.
    ///
    /// # Panics
    /// When `data` is too short.
    #[must_use]
    pub fn blocked(data: &'a mut [f32], n: usize, width: usize) -> Self {
        Self::new(data, n, width, Strides::blocked(n, width))
    }

    /// The first `len` elements of a block of example `i`.
    pub(super) fn block_of(&mut self, i: usize, block: usize, len: usize) -> &mut [f32] {
        &mut self.data[i * self.strides.row + block * self.strides.block..][..len]
    }

    /// To read them.
    #[must_use]
    pub const fn view(&self) -> Activations<'_> {
        Activations { data: self.data, n: self.n, width: self.width, strides: self.strides }
    }

    /// As [`Activations::block`].
    pub fn block_mut(&mut self, first: usize) -> impl Iterator<Item = &mut [f32]> {
        let width = width_at(self.width, first);
        let start = (first / PANEL * self.strides.block).min(self.data.len());
        let rows = self.data[start..].chunks_mut(self.strides.row).take(self.n);
        rows.map(move |row| &mut row[..width])
    }

    /// As [`Activations::whole_block`].
    #[inline]
    #[must_use]
    pub fn whole_block_mut(&mut self, first: usize) -> Option<&mut [[f32; PANEL]]> {
        let is_whole = self.width - first >= PANEL && self.strides.row == PANEL;
        let start = (first / PANEL * self.strides.block).min(self.data.len());
        is_whole.then(|| &mut self.data[start..].as_chunks_mut().0[..self.n])
    }

    /// [`Self::whole_block_mut`] of this block and the next one.
    #[inline]
    #[must_use]
    pub fn whole_pair_mut(&mut self, first: usize) -> Option<[&mut [[f32; PANEL]]; 2]> {
        let is_whole = self.width - first >= 2 * PANEL && self.strides.row == PANEL;
        let (start, n) = (first / PANEL * self.strides.block, self.n);
        (is_whole && n > 0).then(|| {
            let (low, high) = self.data[start..].split_at_mut(self.strides.block);
            [low, high].map(|block| &mut block.as_chunks_mut().0[..n])
        })
    }

    /// The columns of example `i` from `first`, a multiple of [`PANEL`], to the end of that block,
    /// and those of the next block; empty where there is none.
    #[inline]
    pub fn row_pair_mut(&mut self, i: usize, first: usize) -> (&mut [f32], &mut [f32]) {
        let start = first / PANEL * self.strides.block + i * self.strides.row;
        let rest = &mut self.data[start..];
        let (own, next) = (width_at(self.width, first), self.width.saturating_sub(first + PANEL));
        if next == 0 {
            // Nothing says where a next block would be.
            return (&mut rest[..own], &mut []);
        }
        let (low, high) = rest.split_at_mut(self.strides.block);
        (&mut low[..own], &mut high[..next.min(PANEL)])
    }

    /// Some of the examples.
    #[must_use]
    pub fn examples(&mut self, range: Range<usize>) -> ActivationsMut<'_> {
        let first = (range.start * self.strides.row).min(self.data.len());
        ActivationsMut::new(&mut self.data[first..], range.len(), self.width, self.strides)
    }

    /// Where the pieces of [`Activations::blocks`] begin.
    pub fn firsts(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.width).step_by(PANEL)
    }

    /// As [`Activations::columns`].
    ///
    /// # Panics
    /// When they begin elsewhere, or there are fewer.
    #[must_use]
    pub fn columns(&mut self, range: Range<usize>) -> ActivationsMut<'_> {
        assert!(range.start.is_multiple_of(PANEL) && range.end <= self.width, "whole blocks");
        let first = range.start / PANEL * self.strides.block;
        let first = first.min(self.data.len());
        ActivationsMut::new(&mut self.data[first..], self.n, range.len(), self.strides)
    }

    /// Writes what [`Activations::pack`] has copied. `values: [n * width]`
    pub fn unpack(&mut self, values: &[f32]) {
        let mut rest = values;
        for first in self.firsts() {
            for row in self.block_mut(first) {
                let (here, after) = rest.split_at(row.len());
                row.copy_from_slice(here);
                rest = after;
            }
        }
    }

    /// Writes example `i`. `values: [width]`
    pub fn set_row(&mut self, i: usize, values: &[f32]) {
        let start = i * self.strides.row;
        for (block, values) in values[..self.width].chunks(PANEL).enumerate() {
            let at = start + block * self.strides.block;
            self.data[at..at + values.len()].copy_from_slice(values);
        }
    }

    pub(super) const fn as_mut_ptr(&mut self) -> *mut f32 {
        self.data.as_mut_ptr()
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    #[test]
    fn panels_are_a_permutation_without_gaps() {
        for (outputs, inputs) in [(1, 1), (1, 5), (7, 3), (32, 4), (33, 2), (100, 13)] {
            let mut seen = vec![false; outputs * inputs];
            for output in 0..outputs {
                for input in 0..inputs {
                    let at = panel_index(outputs, inputs, output, input);
                    assert!(!seen[at], "{outputs} x {inputs}: two elements at {at}");
                    seen[at] = true;
                }
            }
        }
        assert_eq!(panel_index(64, 10, 33, 2), 32 * 10 + 2 * 32 + 1);
    }

    #[test]
    fn a_view_fits_its_buffer_exactly_once() {
        for (n, width) in [(0, 5), (1, 1), (3, 32), (5, 33), (40, 100)] {
            let mut data = vec![0.0; blocked_len(n, width)];
            let mut view = ActivationsMut::blocked(&mut data, n, width);
            for i in 0..n {
                let row: std::vec::Vec<f32> = (0..width).map(|f| (i * width + f) as f32).collect();
                view.set_row(i, &row);
            }
            let mut count = 0;
            for (first, rows) in view.view().blocks() {
                for (i, row) in rows.enumerate() {
                    for (f, x) in row.iter().enumerate() {
                        assert_eq!(*x, (i * width + first + f) as f32);
                        count += 1;
                    }
                }
            }
            assert_eq!(count, n * width);
        }
    }

    #[test]
    #[should_panic(expected = "activations need 65 elements, got 64")]
    fn a_short_buffer_is_refused() {
        let _ = Activations::new(&[0.0; 64], 2, 33, Strides::row_major(32));
    }

    #[test]
    #[should_panic(expected = "blocks 0 apart overlap")]
    fn blocks_must_not_overlap() {
        let _ = ActivationsMut::new(&mut [0.0; 64], 1, 33, Strides { row: 33, block: 0 });
    }

    #[test]
    #[should_panic(expected = "rows 4 apart overlap")]
    fn rows_must_not_overlap() {
        let _ = ActivationsMut::new(&mut [0.0; 64], 2, 5, Strides::row_major(4));
    }

    #[test]
    #[should_panic(expected = "elements, got 64")]
    fn distances_beyond_memory_are_refused() {
        let strides = Strides { row: usize::MAX / 2, block: PANEL };
        let _ = Activations::new(&[0.0; 64], 4, 5, strides);
    }
}
