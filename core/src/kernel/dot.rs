//! Pairwise dot products of a few short vectors, example by example, forward and back.
//!
//! Shapes: T `[F, d]` holds the vectors of an example, Z its pairs (i, j) with j < i, row by row:
//! z_ij = t_i · t_j. Both directions are products of the micro-kernel: the lower triangle of T·Tᵀ,
//! and d_T = S·T with S the symmetric matrix of d_Z with a diagonal of zeros. In bf16 T and S are
//! rounded example by example, to words of two elements of a vector or of two vectors
//! (`operand.rs`).

use super::isa::{InPlace, Isa, Kernel, run, run_halves};
use super::layout::{Activations, ActivationsMut, PANEL, width_at};
use super::operand::{Halves, Operand, Precision, Whole};
use super::round::{round_row, round_rows, store_pairs};
use super::tile::{Epilogue, Left, Right, Sum, copy, even, store, tile};
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
        // Forward: T in bf16 and the panels; backward: the square, and both in bf16.
        let forward = side * self.width + side.next_multiple_of(PANEL) * self.width;
        let backward = 2 * side * side + LANES_MAX * LANES_MAX + side * self.width;
        self.row_len() + if forward > backward { forward } else { backward }
    }

    /// The precision of its products, where `precision` is asked for: words of halves are as many
    /// as fill vectors, or there are none.
    const fn precision(&self, precision: Precision) -> Precision {
        if self.width.is_multiple_of(2 * LANES_MAX) { precision } else { Precision::F32 }
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
pub fn dot(
    precision: Precision,
    shape: DotShape,
    t: &[f32],
    out: &mut ActivationsMut<'_>,
    scratch: &mut [f32],
) {
    shape.check(t, out.view(), scratch);
    match shape.precision(precision) {
        Precision::F32 => run(Dot { operand: Whole, shape, t, out, scratch }),
        Precision::Bf16 => run_halves(Dot { operand: Halves, shape, t, out, scratch }),
    }
}

/// Gradient of [`dot`], given that of its output: writes `d_t` `[n, F, d]`.
///
/// # Panics
/// When shapes do not fit together.
pub fn dot_backward(
    precision: Precision,
    shape: DotShape,
    t: &[f32],
    d_out: Activations<'_>,
    d_t: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check(t, d_out, scratch);
    assert!(d_t.len() >= d_out.n() * shape.vectors * shape.width, "length of the gradient");
    match shape.precision(precision) {
        Precision::F32 => run(DotBackward { operand: Whole, shape, t, d_out, d_t, scratch }),
        Precision::Bf16 => {
            run_halves(DotBackward { operand: Halves, shape, t, d_out, d_t, scratch });
        }
    }
}

/// Place of pair (i, 0).
const fn triangle(i: usize) -> usize {
    i * i.saturating_sub(1) / 2
}

pub(super) struct Dot<'a, 'o, O> {
    pub(super) operand: O,
    pub(super) shape: DotShape,
    pub(super) t: &'a [f32],
    pub(super) out: &'a mut ActivationsMut<'o>,
    pub(super) scratch: &'a mut [f32],
}

impl<O: Operand> Kernel for Dot<'_, '_, O> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let DotShape { vectors, lead, .. } = self.shape;
        let side = self.shape.side();
        let (row, scratch) = self.scratch.split_at_mut(self.shape.row_len());
        let (words, panels) = scratch.split_at_mut(side * self.shape.width);
        for i in 0..self.out.view().n() {
            let first = self.t[i * vectors * self.shape.width..].as_ptr();
            // T in words, `[F, width]`.
            let (t, width) = if O::HALVES {
                let width = self.shape.width / 2;
                for (f, words) in words.chunks_exact_mut(width).enumerate().take(vectors) {
                    let from = first.wrapping_add(f * self.shape.width);
                    for (at, words) in words.chunks_exact_mut(I::LANES).enumerate() {
                        let from = from.wrapping_add(at * 2 * I::LANES);
                        // SAFETY: two vectors of elements of T, one of words.
                        unsafe {
                            let halves = round_row(isa, from, 2 * I::LANES);
                            isa.store(words.as_mut_ptr(), halves);
                        }
                    }
                }
                (words.as_ptr(), width)
            } else {
                (first, self.shape.width)
            };
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
                    let stride = width_at(side, panel);
                    let b = Right { first: InPlace(from), stride, ahead: () };
                    let z = row[lead..].as_mut_ptr();
                    let exact = columns > 2 * I::LANES;
                    let pairs = Triangle { z, row: at, column: first, exact };
                    let size = (rows, (columns - first).min(2 * I::LANES));
                    // SAFETY: rows of T, columns of the panels written above; the epilogue writes
                    // no more of a row than its pairs.
                    unsafe { tile((isa, self.operand), size, width, a, b, &pairs) }
                }
            }
            // SAFETY: both have `lead` elements.
            unsafe { copy(isa, (first, row.as_mut_ptr()), lead) }
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

pub(super) struct DotBackward<'a, O> {
    pub(super) operand: O,
    pub(super) shape: DotShape,
    pub(super) t: &'a [f32],
    pub(super) d_out: Activations<'a>,
    pub(super) d_t: &'a mut [f32],
    pub(super) scratch: &'a mut [f32],
}

impl<O: Operand> Kernel for DotBackward<'_, O> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let DotShape { vectors, width, lead, .. } = self.shape;
        let side = self.shape.side();
        let (row, scratch) = self.scratch.split_at_mut(self.shape.row_len());
        let (square, scratch) = scratch.split_at_mut(side * side + LANES_MAX * LANES_MAX);
        let (of_square, of_t) = scratch.split_at_mut(side * side);
        for i in 0..self.d_out.n() {
            for (block, row) in row[..self.shape.columns()].chunks_mut(PANEL).enumerate() {
                let from = self.d_out.block_of(i, block, row.len()).as_ptr();
                // SAFETY: both have as many elements.
                unsafe { copy(isa, (from, row.as_mut_ptr()), row.len()) }
            }
            symmetric(isa, vectors, side, &row[lead..], square);
            let t = self.t[i * vectors * width..].as_ptr();
            let d_t = self.d_t[i * vectors * width..].as_mut_ptr();
            // S and T in words, `[F, depth]` and `[depth, d]`.
            let (s, row_of_s, t, depth) = if O::HALVES {
                // SAFETY: of this example; `of_t` and `of_square` have room for both.
                unsafe { halves_of(isa, (vectors, width, side), (square, t), (of_square, of_t)) }
                (of_square.as_ptr(), side / 2, of_t.as_ptr(), vectors.div_ceil(2))
            } else {
                (square.as_ptr(), side, t, vectors)
            };
            for (at, rows) in even(vectors, I::ROWS) {
                let first = s.wrapping_add(at * row_of_s);
                let a = Left { first, row: row_of_s, step: 1, run: depth, block: 0 };
                for d in (0..width).step_by(2 * I::LANES) {
                    let first = InPlace(t.wrapping_add(d));
                    let b = Right { first, stride: width, ahead: () };
                    let to = d_t.wrapping_add(at * width + d);
                    let size = (rows, (width - d).min(2 * I::LANES));
                    let sum = Sum { add: false, to, row: width };
                    // SAFETY: rows of the square and of T, both of this example, and of d_T.
                    unsafe { tile((isa, self.operand), size, depth, a, b, &sum) }
                }
            }
        }
    }
}

/// S and T of an example in bf16: words of two columns of S `[F, side / 2]`, words of two vectors
/// of T `[F / 2, d]`.
///
/// # Safety
/// `t` is good for reading `[F, d]`.
#[inline(always)]
unsafe fn halves_of<I: Isa>(
    isa: I,
    (vectors, width, side): (usize, usize, usize),
    (square, t): (&[f32], *const f32),
    (of_square, of_t): (&mut [f32], &mut [f32]),
) {
    for (i, words) in of_square.chunks_exact_mut(side / 2).enumerate().take(vectors) {
        for j in (0..vectors).step_by(2 * I::LANES) {
            let from = square[i * side + j..].as_ptr();
            // SAFETY: columns of a row of S; behind F they are set to 0.
            unsafe {
                let halves = round_row(isa, from, (vectors - j).min(2 * I::LANES));
                store(isa, words[j / 2..].as_mut_ptr(), I::LANES.min((side - j) / 2), halves);
            }
        }
    }
    for (pair, words) in of_t.chunks_exact_mut(width).enumerate().take(vectors.div_ceil(2)) {
        for at in (0..width).step_by(2 * I::LANES) {
            let upper = t.wrapping_add(2 * pair * width + at);
            let lower = (2 * pair + 1 < vectors).then(|| upper.wrapping_add(width));
            let count = (width - at).min(2 * I::LANES);
            // SAFETY: `count` elements of two vectors, or one, and as many words.
            unsafe {
                let (a, b) = round_rows(isa, upper, lower, count);
                store_pairs(isa, words[at..].as_mut_ptr(), count, (a, b));
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
