//! Operands of which a tile is made while the one before it is multiplied: the vector units have
//! little else to do beside matrices. A step is made in parts of about a hundred instructions, few
//! enough that products behind them are not kept from starting.

use core::sync::atomic::AtomicU32;

use super::super::isa::{InPlace, Isa, Source};
use super::super::layout::{Activations, LINE, PANEL, place, width_at};
use super::super::prefetch::prefetch_at;
use super::super::transpose::transpose_part;
use super::split::{split_pairs, split_rows};
use super::{DEPTH, SIDE, STEP, Thirds};

/// An operand, tile by tile.
#[cfg_attr(
    not(any(target_arch = "x86_64", test)),
    expect(dead_code, reason = "of matrices in registers")
)]
pub(in super::super) trait Make {
    /// Parts of a step: none of one that is made already.
    const PARTS: usize;

    /// Rows of A, or columns of B, and elements of the sum.
    fn size(&self) -> (usize, usize);

    /// Makes a part; those of a step in their order.
    ///
    /// # Safety
    /// There is such a tile, and it has such a step.
    unsafe fn part<I: Isa>(&mut self, isa: I, at: Part, to: &mut [f32; STEP]);
}

/// A part of a step of a tile.
#[derive(Clone, Copy)]
pub(in super::super) struct Part {
    /// The row or column that the tile begins with.
    pub(in super::super) first: usize,
    pub(in super::super) step: usize,
    pub(in super::super) part: usize,
}

/// One that is there.
impl Make for Thirds<'_> {
    const PARTS: usize = 0;

    #[inline(always)]
    fn size(&self) -> (usize, usize) {
        (self.count, self.depth)
    }

    #[inline(always)]
    unsafe fn part<I: Isa>(&mut self, _: I, _: Part, _: &mut [f32; STEP]) {}
}

/// Pairs of rows of a part.
const PAIRS: usize = 2;
/// Parts of a step whose rows stand as they are needed.
const SPLITS: usize = SIDE / PAIRS;
/// Parts of a step that is transposed first: a square of registers each.
const QUARTERS: usize = 4;
/// Rows of the next step that each of them asks for.
const ROWS_OF_QUARTER: usize = PANEL / QUARTERS;

/// Asks for a row of W that the next step will need: it is far away, and not always behind the row
/// before.
#[inline(always)]
fn ask(row: *const f32) {
    prefetch_at(row);
    prefetch_at(row.wrapping_add(LINE));
}

/// The panels of W: B of `depth` inputs and `count` outputs.
pub(in super::super) struct Panels<'a> {
    pub(in super::super) weight: &'a [AtomicU32],
    pub(in super::super) depth: usize,
    pub(in super::super) count: usize,
}

impl Make for Panels<'_> {
    const PARTS: usize = SPLITS;

    #[inline(always)]
    fn size(&self) -> (usize, usize) {
        (self.count, self.depth)
    }

    #[inline(always)]
    unsafe fn part<I: Isa>(&mut self, isa: I, at: Part, to: &mut [f32; STEP]) {
        let Part { first, step, part } = at;
        let (width, start) = (width_at(self.count, first), step * DEPTH);
        let rows = DEPTH.min(self.depth - start);
        let from = self.weight[first * self.depth + start * width..][..rows * width].as_ptr();
        let pairs = part * PAIRS..(part + 1) * PAIRS;
        for row in 2 * pairs.start..2 * pairs.end {
            ask(from.wrapping_add((DEPTH + row) * width).cast());
        }
        // SAFETY: as many rows of the panel.
        unsafe { split_pairs(isa, pairs, (rows, width), (from, width), to) }
    }
}

/// A step's elements, the other way round.
#[repr(C, align(64))]
struct Square([f32; DEPTH * PANEL]);

impl Square {
    const NEW: Self = Self([0.0; DEPTH * PANEL]);
}

/// The panels of Wᵀ: B of `depth` outputs and `count` inputs.
pub(in super::super) struct TransposedPanels<'a> {
    weight: &'a [AtomicU32],
    depth: usize,
    count: usize,
    square: Square,
}

impl<'a> TransposedPanels<'a> {
    pub(in super::super) const fn new(weight: &'a [AtomicU32], depth: usize, count: usize) -> Self {
        Self { weight, depth, count, square: Square::NEW }
    }
}

impl Make for TransposedPanels<'_> {
    const PARTS: usize = QUARTERS + SPLITS;

    #[inline(always)]
    fn size(&self) -> (usize, usize) {
        (self.count, self.depth)
    }

    #[inline(always)]
    unsafe fn part<I: Isa>(&mut self, isa: I, at: Part, to: &mut [f32; STEP]) {
        let Part { first, step, part } = at;
        let (outputs, inputs) = (width_at(self.depth, step * DEPTH), width_at(self.count, first));
        let from = &self.weight[step * DEPTH * self.count + first * outputs..][..inputs * outputs];
        if part < QUARTERS {
            for row in part * ROWS_OF_QUARTER..(part + 1) * ROWS_OF_QUARTER {
                let row = DEPTH * self.count + row * outputs;
                ask(from.as_ptr().wrapping_add(row).cast());
            }
            let size = (inputs, outputs);
            // SAFETY: a step's rows of W's panel.
            unsafe { turn(isa, part, size, (from.as_ptr(), outputs), &mut self.square) }
        } else {
            let first = (part - QUARTERS) * PAIRS;
            let rows = (InPlace(self.square.0.as_ptr()), PANEL);
            // SAFETY: as many rows of the square, all of which were written.
            unsafe { split_pairs(isa, first..first + PAIRS, (outputs, inputs), rows, to) }
        }
    }
}

/// X as rows of A whose sums are over columns.
pub(in super::super) struct Rows<'a>(pub(in super::super) Activations<'a>);

impl Make for Rows<'_> {
    const PARTS: usize = SPLITS;

    #[inline(always)]
    fn size(&self) -> (usize, usize) {
        (self.0.n(), self.0.width())
    }

    #[inline(always)]
    unsafe fn part<I: Isa>(&mut self, isa: I, at: Part, to: &mut [f32; STEP]) {
        let Part { first, step, part } = at;
        let (count, strides) = (PANEL.min(self.0.n() - first), self.0.strides());
        let columns = width_at(self.0.width(), step * DEPTH);
        let rows = (part * ROWS).min(count)..((part + 1) * ROWS).min(count);
        let from = InPlace(self.0.as_ptr().wrapping_add(place(strides, first, step * DEPTH)));
        // SAFETY: the rows' columns of a block.
        unsafe { split_rows(isa, rows, columns, (from, strides.row), to) }
    }
}

/// Rows of a part.
const ROWS: usize = PANEL / SPLITS;

/// Columns of X as rows of A whose sums are over examples.
pub(in super::super) struct Columns<'a> {
    x: Activations<'a>,
    square: Square,
}

impl<'a> Columns<'a> {
    pub(in super::super) const fn new(x: Activations<'a>) -> Self {
        Self { x, square: Square::NEW }
    }
}

impl Make for Columns<'_> {
    const PARTS: usize = QUARTERS + SPLITS;

    #[inline(always)]
    fn size(&self) -> (usize, usize) {
        (self.x.width(), self.x.n())
    }

    #[inline(always)]
    unsafe fn part<I: Isa>(&mut self, isa: I, at: Part, to: &mut [f32; STEP]) {
        let Part { first, step, part } = at;
        let (columns, start) = (width_at(self.x.width(), first), step * DEPTH);
        let examples = DEPTH.min(self.x.n() - start);
        if part < QUARTERS {
            let from = self.x.as_ptr().wrapping_add(place(self.x.strides(), start, first));
            let (size, from) = ((examples, columns), (InPlace(from), self.x.strides().row));
            // SAFETY: the columns of a block of some examples.
            unsafe { turn(isa, part, size, from, &mut self.square) }
        } else {
            let row = (part - QUARTERS) * ROWS;
            let rows = row.min(columns)..(row + ROWS).min(columns);
            let from = (InPlace(self.square.0.as_ptr()), DEPTH);
            // SAFETY: as many rows of the square, which were written.
            unsafe { split_rows(isa, rows, examples, from, to) }
        }
    }
}

/// Transposes a quarter of `rows` × `columns` ≤ [`DEPTH`] × [`PANEL`] elements, `stride` apart.
///
/// # Safety
/// `from` is good for reading them.
#[inline(always)]
unsafe fn turn<I: Isa>(
    isa: I,
    quarter: usize,
    (rows, columns): (usize, usize),
    (from, stride): (impl Source, usize),
    to: &mut Square,
) {
    let (row, column) = (quarter / 2 * SIDE, quarter % 2 * SIDE);
    let size = (SIDE.min(rows.saturating_sub(row)), SIDE.min(columns.saturating_sub(column)));
    let from = from.advance(row * stride + column);
    let to = to.0[column * DEPTH + row..].as_mut_ptr();
    // SAFETY: the caller's promise; as many of the square.
    unsafe { transpose_part(isa, size, (from, stride), (to, DEPTH)) }
}

/// Makes all of an operand, on any instruction set.
#[cfg(test)]
pub(in super::super) struct MakeAll<'t, M> {
    pub(in super::super) make: M,
    pub(in super::super) to: &'t mut [f32],
}

#[cfg(test)]
impl<M: Make> super::super::isa::Kernel for MakeAll<'_, M> {
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        let (steps, _) = self.to.as_chunks_mut();
        let (count, depth) = self.make.size();
        let tiles = steps.chunks_mut(depth.div_ceil(DEPTH));
        for (first, tile) in (0..count).step_by(PANEL).zip(tiles) {
            for (step, to) in tile.iter_mut().enumerate() {
                for part in 0..M::PARTS {
                    // SAFETY: the tile's steps.
                    unsafe { self.make.part(isa, Part { first, step, part }, to) }
                }
            }
        }
    }
}
