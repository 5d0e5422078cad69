//! Pairwise dot products of a few short vectors, example by example, forward and back.
//!
//! Shapes: T `[F, d]` holds the vectors of an example, Z its pairs (i, j) with j < i, row by row:
//! z_ij = t_i · t_j. Both directions are products of the micro-kernel: the lower triangle of T·Tᵀ,
//! and d_T = S·T with S the symmetric matrix of d_Z with a diagonal of zeros.

use super::isa::{InPlace, Isa, Kernel, run};
use super::layout::{Activations, ActivationsMut, PANEL, width_at};
use super::linear::Sum;
use super::tile::{Epilogue, Left, Right, copy, even, store, tile};
use super::transpose::transpose_part;

/// Most lanes of an instruction set: what [`dot`] reads behind the last example, less one.
const LANES_MAX: usize = 16;

/// Shape of the vectors that interact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DotShape {
    /// F
    pub vectors: usize,
    /// d
    pub width: usize,
    /// Copies of the first vector's elements in front of the pairs: d or 0.
    pub lead: usize,
}

impl DotShape {
    /// Pairs.
    #[must_use]
    pub const fn pairs(&self) -> usize {
        self.vectors * self.vectors.saturating_sub(1) / 2
    }

    /// Columns of the output: the first vector, then the pairs.
    #[must_use]
    pub const fn columns(&self) -> usize {
        self.lead + self.pairs()
    }

    /// f32s of a buffer of T for `n` examples: one transposes whole squares, of which the last ends
    /// behind the last example. The values there do not matter.
    #[must_use]
    pub const fn vectors_len(&self, n: usize) -> usize {
        (n * self.vectors + LANES_MAX - 1) * self.width
    }

    /// f32s of scratch of both directions.
    #[must_use]
    pub const fn scratch_len(&self) -> usize {
        let side = self.side();
        let square = side * side + LANES_MAX * LANES_MAX;
        let panels = side.next_multiple_of(PANEL) * self.width;
        self.row_len() + if square > panels { square } else { panels }
    }

    /// The columns in whole vectors, and one vector more: what is written of a row may end behind
    /// its pairs.
    const fn row_len(&self) -> usize {
        self.columns().next_multiple_of(LANES_MAX) + LANES_MAX
    }

    /// F in whole vectors of every instruction set.
    const fn side(&self) -> usize {
        self.vectors.next_multiple_of(LANES_MAX)
    }

    fn check(&self, t: &[f32], out: Activations<'_>, scratch: &[f32]) {
        assert!(t.len() >= self.vectors_len(out.n()), "length of the vectors");
        assert_eq!(out.width(), self.columns(), "columns of the pairs");
        assert!(scratch.len() >= self.scratch_len(), "length of the scratch");
        assert!(self.lead == 0 || self.lead == self.width, "columns in front of the pairs");
    }
}

/// Writes the first vector (if `shape.lead`) and the pairs of every example. `t`: `[n, F, d]` in a
/// buffer of [`DotShape::vectors_len`]
///
/// # Panics
/// When shapes do not fit together.
pub fn dot(shape: DotShape, t: &[f32], out: &mut ActivationsMut<'_>, scratch: &mut [f32]) {
    shape.check(t, out.view(), scratch);
    run(Dot { shape, t, out, scratch });
}

/// Gradient of [`dot`], given that of its output: writes `d_t` `[n, F, d]`.
///
/// # Panics
/// When shapes do not fit together.
pub fn dot_backward(
    shape: DotShape,
    t: &[f32],
    d_out: Activations<'_>,
    d_t: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check(t, d_out, scratch);
    assert!(d_t.len() >= d_out.n() * shape.vectors * shape.width, "length of the gradient");
    run(DotBackward { shape, t, d_out, d_t, scratch });
}

/// Place of pair (i, 0).
const fn triangle(i: usize) -> usize {
    i * i.saturating_sub(1) / 2
}

struct Dot<'a, 'o> {
    shape: DotShape,
    t: &'a [f32],
    out: &'a mut ActivationsMut<'o>,
    scratch: &'a mut [f32],
}

impl Kernel for Dot<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let DotShape { vectors, width, lead, .. } = self.shape;
        let (row, panels) = self.scratch.split_at_mut(self.shape.row_len());
        let side = self.shape.side();
        for i in 0..self.out.view().n() {
            let t = self.t[i * vectors * width..].as_ptr();
            // Panels of T as a matrix [F, d], each as wide as whole vectors are.
            for first in (0..side).step_by(PANEL) {
                let across = width_at(side, first);
                for f in (0..across).step_by(I::LANES).take_while(|f| first + f < vectors) {
                    for d in (0..width).step_by(I::LANES) {
                        let from = t.wrapping_add((first + f) * width + d);
                        let to = panels[first * width + d * across + f..].as_mut_ptr();
                        let square = (I::LANES, I::LANES.min(width - d));
                        // SAFETY: up to LANES - 1 rows behind the vectors are in the buffer, as
                        // `check` saw, and the panels have room for them.
                        unsafe { transpose_part(isa, square, (from, width), (to, across)) }
                    }
                }
            }
            // The first vector has no pair.
            for (at, rows) in even(vectors.saturating_sub(1), I::ROWS) {
                let at = at + 1;
                let a = Left {
                    first: t.wrapping_add(at * width),
                    row: width,
                    step: 1,
                    run: width,
                    block: 0,
                };
                // Columns beyond the last row's pairs are left out.
                let columns = (at + rows - 1).next_multiple_of(I::LANES);
                for first in (0..columns).step_by(2 * I::LANES) {
                    let panel = first / PANEL * PANEL;
                    let from = panels[panel * width + first % PANEL..].as_ptr();
                    let b = Right { first: InPlace(from), stride: width_at(side, panel) };
                    let z = row[lead..].as_mut_ptr();
                    let exact = columns > 2 * I::LANES;
                    let pairs = Triangle { z, row: at, column: first, exact };
                    let size = (rows, (columns - first).min(2 * I::LANES));
                    // SAFETY: rows of T, columns of the panels written above; the epilogue writes
                    // no more of a row than its pairs.
                    unsafe { tile(isa, size, width, a, b, &pairs) }
                }
            }
            // SAFETY: both have `lead` elements.
            unsafe { copy(isa, (t, row.as_mut_ptr()), lead) }
            for (block, row) in row[..self.shape.columns()].chunks(PANEL).enumerate() {
                let to = self.out.block_of(i, block, row.len()).as_mut_ptr();
                // SAFETY: both have as many elements.
                unsafe { copy(isa, (row.as_ptr(), to), row.len()) }
            }
        }
    }
}

/// The pairs of a tile's rows. Where a tile has all columns of its rows, a vector may reach over
/// the end of its row: rows are written in increasing order, so what stands there is overwritten by
/// the next row, or is behind the last. Exact stores cost ten times as much on processors whose
/// masked stores are slow.
struct Triangle {
    z: *mut f32,
    row: usize,
    column: usize,
    /// Other tiles have more columns of these rows.
    exact: bool,
}

impl Epilogue for Triangle {
    #[inline(always)]
    unsafe fn put<I: Isa>(&self, isa: I, row: usize, column: usize, _: usize, sum: I::Vector) {
        let (row, column) = (self.row + row, self.column + column);
        if column < row {
            let to = self.z.wrapping_add(triangle(row) + column);
            let count = if self.exact { I::LANES.min(row - column) } else { I::LANES };
            // SAFETY: the row has a pair here, and `row_len` leaves room for a vector behind the
            // last.
            unsafe { store(isa, to, count, sum) }
        }
    }
}

struct DotBackward<'a> {
    shape: DotShape,
    t: &'a [f32],
    d_out: Activations<'a>,
    d_t: &'a mut [f32],
    scratch: &'a mut [f32],
}

impl Kernel for DotBackward<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let DotShape { vectors, width, lead, .. } = self.shape;
        let (row, square) = self.scratch.split_at_mut(self.shape.row_len());
        let side = self.shape.side();
        for i in 0..self.d_out.n() {
            for (block, row) in row[..self.shape.columns()].chunks_mut(PANEL).enumerate() {
                let from = self.d_out.block_of(i, block, row.len()).as_ptr();
                // SAFETY: both have as many elements.
                unsafe { copy(isa, (from, row.as_mut_ptr()), row.len()) }
            }
            symmetric(isa, vectors, side, &row[lead..], square);
            let t = self.t[i * vectors * width..].as_ptr();
            let d_t = self.d_t[i * vectors * width..].as_mut_ptr();
            for (at, rows) in even(vectors, I::ROWS) {
                let first = square[at * side..].as_ptr();
                let a = Left { first, row: side, step: 1, run: vectors, block: 0 };
                for d in (0..width).step_by(2 * I::LANES) {
                    let b = Right { first: InPlace(t.wrapping_add(d)), stride: width };
                    let to = d_t.wrapping_add(at * width + d);
                    let size = (rows, (width - d).min(2 * I::LANES));
                    let sum = Sum { add: false, to, row: width };
                    // SAFETY: rows of the square and of T, both of this example, and of d_T.
                    unsafe { tile(isa, size, vectors, a, b, &sum) }
                }
            }
        }
    }
}

/// Writes S, `[vectors, side]` of a square of `side`, from its lower triangle, with zeros on the
/// diagonal.
#[inline(always)]
fn symmetric<I: Isa>(isa: I, vectors: usize, side: usize, triangle: &[f32], square: &mut [f32]) {
    let (square, block) = square.split_at_mut(side * side);
    let mut rest = triangle;
    for i in 0..vectors {
        let (row, after) = rest.split_at(i);
        rest = after;
        for j in (0..side).step_by(I::LANES) {
            let count = i.saturating_sub(j).min(I::LANES);
            let from = row.as_ptr().wrapping_add(j);
            // SAFETY: `count` elements of the row from j on, none if it ends before; a square's
            // row.
            unsafe {
                let x = if count > 0 { isa.load_part(from, count) } else { isa.zero() };
                isa.store(square[i * side + j..i * side + j + I::LANES].as_mut_ptr(), x);
            }
        }
    }
    // Rows behind the last vector hold anything; their mirror images are never read.
    let (square, block) = (square.as_mut_ptr(), block.as_mut_ptr());
    for i in (0..vectors).step_by(I::LANES) {
        // SAFETY: squares of LANES within the side; those at (i, j) and (j, i) are apart, and
        // `block` has room for one.
        unsafe {
            for j in (0..i).step_by(I::LANES) {
                let from = square.add(i * side + j).cast_const();
                isa.transpose(from, side, square.add(j * side + i), side);
            }
            isa.transpose(square.add(i * side + i).cast_const(), side, block, I::LANES);
            for row in 0..I::LANES {
                let to = square.add((i + row) * side + i);
                isa.store(to, isa.add(isa.load(to), isa.load(block.add(row * I::LANES))));
            }
        }
    }
}
