//! Pairwise dot products of a few short vectors, example by example.
//!
//! Shapes: T `[F, d]` holds the vectors of an example, Z its pairs (i, j) with j < i, row by row:
//! z_ij = t_i · t_j. Each pair is multiplied once. The lanes of a register are as many examples,
//! and a sum runs over d in one lane, in increasing order; or, of f32s in long vectors, they are
//! elements of an example, and are added at the end of a sum. In bf16 T is rounded to words of two
//! elements of a vector (`operand.rs`). The gradient is in `dot_backward.rs`.

use super::isa::{Isa, Kernel, Source, run, run_halves};
use super::layout::{Activations, ActivationsMut, PANEL, Square, place};
use super::operand::{Halves, Operand, Precision, Whole};
use super::round::Rounded;
use super::tile::{copy, store};

/// Most lanes of an instruction set.
pub(super) const LANES_MAX: usize = 16;

/// Numbers that stay near: 256 KiB of them.
const NEAR: usize = 1 << 16;

/// Registers of a vector from which on lanes are its elements: to add lanes at the end of sums
/// takes as long as to transpose vectors before, or a tenth longer, and no lane is without an
/// example. Ten examples of 27 vectors of 128 took .63 of the time so, on an EPYC of family 25.
const LONG: usize = 8;

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

    /// f32s of a buffer of T for `n` examples: whole vectors of examples are read, and of the last
    /// one whole vectors of elements. The values there do not matter.
    #[must_use]
    pub const fn vectors_len(&self, n: usize) -> usize {
        n.next_multiple_of(LANES_MAX) * self.vectors * self.width + LANES_MAX
    }

    /// Examples that best go through it together, of many: their vectors stay in the second cache
    /// level while layers' matrices pass, and fill registers wherever lanes are examples.
    #[must_use]
    pub(crate) const fn examples_at_once(&self) -> usize {
        let few = NEAR / (LANES_MAX * self.vectors * self.width);
        if few > 0 { few * LANES_MAX } else { LANES_MAX }
    }

    /// f32s of scratch of both directions.
    #[must_use]
    pub const fn scratch_len(&self) -> usize {
        let side = self.side();
        // Forward: a square of every vector, a vector of every pair, a square behind the last;
        // backward: a row, the square, and both operands in bf16.
        let forward = (self.vectors + 1) * LANES_MAX * LANES_MAX + self.pairs() * LANES_MAX;
        let backward = self.row_len() + 2 * side * side + LANES_MAX * LANES_MAX + side * self.width;
        if forward > backward { forward } else { backward }
    }

    /// The precision of its products, where `precision` is asked for: words of halves are as many
    /// as fill vectors, or there are none.
    pub(super) const fn precision(&self, precision: Precision) -> Precision {
        if self.width.is_multiple_of(2 * LANES_MAX) { precision } else { Precision::F32 }
    }

    /// The columns in whole vectors, and one vector more: what is written of a row may end behind
    /// its pairs.
    pub(super) const fn row_len(&self) -> usize {
        self.columns().next_multiple_of(LANES_MAX) + LANES_MAX
    }

    /// F in whole vectors of every instruction set.
    pub(super) const fn side(&self) -> usize {
        self.vectors.next_multiple_of(LANES_MAX)
    }

    pub(super) fn check(&self, t: &[f32], out: Activations<'_>, scratch: &[f32]) {
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

/// Place of pair (i, 0).
pub(super) const fn triangle(i: usize) -> usize {
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
        let width = self.shape.width;
        if !O::HALVES && width.is_multiple_of(I::LANES) && width >= LONG * I::LANES {
            self.by_elements(isa);
        } else {
            self.by_lanes(isa);
        }
    }
}

impl<O: Operand> Dot<'_, '_, O> {
    /// As many examples as there are lanes at a time, which lie in them.
    #[inline(always)]
    fn by_lanes<I: Isa>(self, isa: I) {
        let DotShape { vectors, width, .. } = self.shape;
        let (len, depth) = (vectors * width, if O::HALVES { width / 2 } else { width });
        let (words, sums) = self.scratch.split_at_mut(vectors * I::LANES * I::LANES);
        let n = self.out.view().n();
        for start in (0..n).step_by(I::LANES) {
            let t = self.t[start * len..].as_ptr();
            for at in (0..depth).step_by(I::LANES) {
                // A vector of words of every vector of every example, of which there are as many.
                for (f, words) in words.chunks_exact_mut(I::LANES * I::LANES).enumerate() {
                    let (from, to) = (t.wrapping_add(f * width), words.as_mut_ptr());
                    // SAFETY: what is behind an example's vectors or behind the last example is in
                    // the buffer, as `check` saw.
                    unsafe {
                        if O::HALVES {
                            let from = Rounded(from).advance(at);
                            isa.transpose(from, len / 2, to, I::LANES);
                        } else {
                            isa.transpose(from.wrapping_add(at), len, to, I::LANES);
                        }
                    }
                }
                let steps = I::LANES.min(depth - at);
                let words = (&*words, I::LANES * I::LANES);
                add_products((isa, self.operand), words, (vectors, steps), at == 0, sums);
            }
            let examples = I::LANES.min(n - start);
            for example in start..start + examples {
                copy_first(isa, (self.shape, self.t), example, self.out);
            }
            // SAFETY: `check` compared the shapes; `sums` has a vector of every pair.
            unsafe { scatter(isa, (self.shape, sums), (start, examples), self.out) }
        }
    }

    /// Example by example; the elements of a register lie in lanes.
    #[inline(always)]
    fn by_elements<I: Isa>(self, isa: I) {
        let DotShape { vectors, width, lead, .. } = self.shape;
        let (pairs, len, strides) =
            (self.shape.pairs(), vectors * width, self.out.view().strides());
        let sums = self.scratch;
        for example in 0..self.out.view().n() {
            let t = (&self.t[example * len..][..len], width);
            add_products((isa, self.operand), t, (vectors, width / I::LANES), true, sums);
            copy_first(isa, (self.shape, self.t), example, self.out);
            for pair in (0..pairs).step_by(I::LANES) {
                // As `lead` is a multiple of LANES, they do not reach over the end of a block.
                let to = self.out.as_mut_ptr().wrapping_add(place(strides, example, lead + pair));
                // SAFETY: `check` compared the shapes; the scratch has a square of sums from every
                // pair on.
                unsafe {
                    let sum = isa.sum_lanes(sums[pair * I::LANES..].as_ptr());
                    store(isa, to, I::LANES.min(pairs - pair), sum);
                }
            }
        }
    }
}

/// Copies the first vector of an example, if `shape.lead`.
#[inline(always)]
fn copy_first<I: Isa>(
    isa: I,
    (shape, t): (DotShape, &[f32]),
    example: usize,
    out: &mut ActivationsMut<'_>,
) {
    let t = &t[example * shape.vectors * shape.width..][..shape.lead];
    for (block, t) in t.chunks(PANEL).enumerate() {
        let to = out.block_of(example, block, t.len());
        // SAFETY: both have as many elements.
        unsafe { copy(isa, (t.as_ptr(), to.as_mut_ptr()), t.len()) }
    }
}

/// Vectors whose products with as many others are summed at once: a sum and the operands of a step
/// fit the registers of every set, and the 27 vectors of 26 tables and a bottom MLP are cut evenly.
pub(super) const SIDE: usize = 3;

/// Sums, or adds to them, the products of words of all pairs of vectors. `words: [vectors,
/// stride]`, of which the first `steps` registers count; `sums: [pairs, LANES]`
#[inline(always)]
fn add_products<I: Isa, O: Operand>(
    ways: (I, O),
    (words, stride): (&[f32], usize),
    (vectors, steps): (usize, usize),
    fresh: bool,
    sums: &mut [f32],
) {
    assert!(words.len() == vectors * stride && steps * I::LANES <= stride, "words of vectors");
    assert!(sums.len() >= triangle(vectors) * I::LANES, "sums of pairs");
    let (words, sums) = ((words.as_ptr(), stride), sums.as_mut_ptr());
    for i in (0..vectors).step_by(SIDE) {
        for j in (0..i).step_by(SIDE) {
            // SAFETY: vectors before i, and those from i on that there are.
            unsafe { add_square::<I, O, false>(ways, (words, sums), (i, j), vectors, steps, fresh) }
        }
        // SAFETY: as above.
        unsafe { add_square::<I, O, true>(ways, (words, sums), (i, i), vectors, steps, fresh) }
    }
}

/// [`add_products`] of vectors from `i` on with those from `j` on, of which there are [`SIDE`]; on
/// the `DIAGONAL` each with those before it.
///
/// # Safety
/// `words` and `sums` are those of all vectors.
#[inline(always)]
unsafe fn add_square<I: Isa, O: Operand, const DIAGONAL: bool>(
    (isa, _): (I, O),
    ((words, stride), sums): ((*const f32, usize), *mut f32),
    (i, j): (usize, usize),
    vectors: usize,
    steps: usize,
    fresh: bool,
) {
    // Behind the last vector it is taken again, and its sums are not kept.
    let rows = [i, (i + 1).min(vectors - 1), (i + 2).min(vectors - 1)];
    let mut total = [[isa.zero(); SIDE]; SIDE];
    let (mut left, mut right) = ([isa.zero(); SIDE], [isa.zero(); SIDE]);
    // SAFETY: the caller's promise.
    unsafe {
        if !fresh {
            for (row, total) in total.iter_mut().enumerate() {
                let count = if DIAGONAL { row } else { SIDE };
                for (column, total) in total.iter_mut().enumerate().take(count) {
                    let pair = triangle(rows[row]) + (j + column).min(rows[row]);
                    *total = isa.load(sums.wrapping_add(pair * I::LANES));
                }
            }
        }
        for step in 0..steps {
            for (row, left) in rows.iter().zip(&mut left) {
                *left = isa.load(words.wrapping_add(row * stride + step * I::LANES));
            }
            for (column, right) in right.iter_mut().enumerate() {
                let place = (j + column) * stride + step * I::LANES;
                *right = if DIAGONAL { left[column] } else { isa.load(words.wrapping_add(place)) };
            }
            for (row, total) in total.iter_mut().enumerate() {
                let count = if DIAGONAL { row } else { SIDE };
                for (column, total) in total.iter_mut().enumerate().take(count) {
                    *total = O::add(isa, left[row], right[column], *total);
                }
            }
        }
        for (row, total) in total.iter().enumerate().take(vectors - i) {
            let count = if DIAGONAL { row } else { SIDE };
            for (column, total) in total.iter().enumerate().take(count) {
                let pair = triangle(i + row) + j + column;
                isa.store(sums.wrapping_add(pair * I::LANES), *total);
            }
        }
    }
}

/// Writes the pairs of examples, `sums: [pairs, LANES]`, behind the columns in front of them.
///
/// # Safety
/// The output has these examples and columns, and the scratch is that of the shape.
#[inline(always)]
unsafe fn scatter<I: Isa>(
    isa: I,
    (shape, sums): (DotShape, &[f32]),
    (start, examples): (usize, usize),
    out: &mut ActivationsMut<'_>,
) {
    let (strides, out) = (out.view().strides(), out.as_mut_ptr());
    let mut pair = 0;
    while pair < shape.pairs() {
        // Vectors of columns that do not reach over the end of a block.
        let column = shape.lead + pair;
        let count = (I::LANES - column % I::LANES).min(shape.pairs() - pair);
        let from = sums[pair * I::LANES..].as_ptr();
        let to = out.wrapping_add(place(strides, start, column));
        // SAFETY: the caller's promise; the scratch has a square of sums from every pair on.
        unsafe { turn_back(isa, from, (examples, count), (to, strides.row)) }
        pair += count;
    }
}

/// Writes sums by examples, `[LANES, LANES]`, as the elements of the examples, `stride` apart.
///
/// # Safety
/// `sums` is good for reading a square, `to` for writing those elements.
#[inline(always)]
pub(super) unsafe fn turn_back<I: Isa>(
    isa: I,
    sums: *const f32,
    (examples, elements): (usize, usize),
    (to, stride): (*mut f32, usize),
) {
    // SAFETY: the caller's promise.
    unsafe {
        if (examples, elements) == (I::LANES, I::LANES) {
            return isa.transpose(sums, I::LANES, to, stride);
        }
        let mut square = Square::ZEROS;
        let square = &mut square.0;
        isa.transpose(sums, I::LANES, square.as_mut_ptr(), I::LANES);
        for (i, row) in square.chunks_exact(I::LANES).enumerate().take(examples) {
            store(isa, to.add(i * stride), elements, isa.load(row.as_ptr()));
        }
    }
}
