//! The gradient of pairwise dot products (`dot.rs`): d_T = S·T.
//!
//! S is the symmetric matrix of an example's d_Z with a diagonal of zeros. Vectors of whole
//! registers are taken example by example: the gradient of a pair is read once and multiplied by
//! both of its vectors. Of narrower ones, as forward, lanes are examples: gradients of pairs and
//! vectors are transposed to lie by examples, and sums back. All others, and those in bf16, are
//! multiplied by the micro-kernel, example by example; in bf16 S and T are rounded to words of two
//! columns and of two vectors (`operand.rs`). A sum runs over vectors in one lane, in increasing
//! order, each way.

use super::dot::{DotShape, LANES_MAX, SIDE, triangle, turn_back};
use super::isa::{InPlace, Isa, Kernel, run, run_halves};
use super::layout::{Activations, PANEL, Square, place};
use super::operand::{Halves, Operand, Precision, Whole};
use super::round::{round_row, round_rows, store_pairs};
use super::tile::{Left, Right, Sum, copy, even, load, store, tile};

/// Gradient of [`super::dot`], given that of its output: writes `d_t` `[n, F, d]`.
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
        let width = self.shape.width;
        if !O::HALVES && width.is_multiple_of(I::LANES) {
            self.by_pairs(isa);
        } else if O::HALVES || width > I::LANES {
            self.by_tiles(isa);
        } else {
            self.by_lanes(isa);
        }
    }
}

impl<O: Operand> DotBackward<'_, O> {
    /// The gradient of a pair, read once, times some elements of both of its vectors.
    #[inline(always)]
    fn by_pairs<I: Isa>(self, isa: I) {
        let DotShape { vectors, width, lead, .. } = self.shape;
        let (len, row) = (vectors * width, &mut self.scratch[..self.shape.columns()]);
        for i in 0..self.d_out.n() {
            copy_row(isa, self.d_out, i, row);
            let (t, d_t) = (&self.t[i * len..][..len], &mut self.d_t[i * len..][..len]);
            for d in (0..width).step_by(2 * I::LANES) {
                let (s, t, d_t) = (&row[lead..], t[d..].as_ptr(), d_t[d..].as_mut_ptr());
                // SAFETY: registers of the vectors of an example, with all gradients of its pairs.
                unsafe {
                    if width - d >= 2 * I::LANES {
                        Strip::<I, 2> { isa, width, t, d_t }.sum(s, vectors);
                    } else {
                        Strip::<I, 1> { isa, width, t, d_t }.sum(s, vectors);
                    }
                }
            }
        }
    }

    /// S·T by the micro-kernel, example by example.
    #[inline(always)]
    fn by_tiles<I: Isa>(self, isa: I) {
        let DotShape { vectors, width, lead, .. } = self.shape;
        let side = self.shape.side();
        let (row, scratch) = self.scratch.split_at_mut(self.shape.row_len());
        let (square, scratch) = scratch.split_at_mut(side * side + LANES_MAX * LANES_MAX);
        let (of_square, of_t) = scratch.split_at_mut(side * side);
        for i in 0..self.d_out.n() {
            copy_row(isa, self.d_out, i, &mut row[..self.shape.columns()]);
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
                let a =
                    Left { first, row: row_of_s, step: 1, along_rows: true, run: depth, block: 0 };
                for d in (0..width).step_by(2 * I::LANES) {
                    let first = InPlace(t.wrapping_add(d));
                    let b = Right { first, stride: width, ahead: () };
                    let to = d_t.wrapping_add(at * width + d);
                    let size = (rows, (width - d).min(2 * I::LANES));
                    let sum = Sum { add: false, to, row: width };
                    // SAFETY: rows of the square and of T, both of this example, and of d_T.
                    unsafe { tile((isa, self.operand), size, (depth, None), a, b, &sum) }
                }
            }
        }
    }

    /// As many examples as there are lanes at a time, which lie in them, of vectors that are
    /// narrower.
    #[inline(always)]
    fn by_lanes<I: Isa>(self, isa: I) {
        let (shape, n, d_out) = (self.shape, self.d_out.n(), self.d_out);
        let DotShape { vectors, width, .. } = shape;
        let (len, square) = (vectors * width, I::LANES * I::LANES);
        let (pairs, scratch) = self.scratch.split_at_mut((shape.pairs() + I::LANES) * I::LANES);
        let words = &mut scratch[..vectors * square];
        let mut sums = [const { Square::ZEROS }; SIDE];
        for start in (0..n).step_by(I::LANES) {
            let examples = I::LANES.min(n - start);
            let t = self.t[start * len..].as_ptr();
            let d_t = self.d_t[start * len..].as_mut_ptr();
            // SAFETY: `check` compared the shapes.
            unsafe { gather(isa, (shape, d_out), (start, examples), pairs) }
            for (f, words) in words.chunks_exact_mut(square).enumerate() {
                let from = t.wrapping_add(f * width);
                // SAFETY: what is behind an example's vectors or behind the last example is in the
                // buffer, as `check` saw.
                unsafe { isa.transpose(from, len, words.as_mut_ptr(), I::LANES) }
            }
            for i in (0..vectors).step_by(SIDE) {
                for step in (0..width).step_by(STEPS) {
                    add_vectors::<I, O>(isa, (pairs, words), (vectors, i), step, &mut sums);
                }
                for (f, sums) in (i..vectors).zip(&sums) {
                    let to = d_t.wrapping_add(f * width);
                    // SAFETY: a vector of the examples that there are.
                    unsafe { turn_back(isa, sums.0.as_ptr(), (examples, width), (to, len)) }
                }
            }
        }
    }
}

/// Copies the columns of example `i`.
#[inline(always)]
fn copy_row<I: Isa>(isa: I, of: Activations<'_>, i: usize, row: &mut [f32]) {
    for (block, row) in row.chunks_mut(PANEL).enumerate() {
        let from = of.block_of(i, block, row.len()).as_ptr();
        // SAFETY: both have as many elements.
        unsafe { copy(isa, (from, row.as_mut_ptr()), row.len()) }
    }
}

/// `V` registers of each vector of an example, and their gradients.
#[derive(Clone, Copy)]
struct Strip<I, const V: usize> {
    isa: I,
    /// From vector to vector.
    width: usize,
    t: *const f32,
    d_t: *mut f32,
}

impl<I: Isa, const V: usize> Strip<I, V> {
    /// Sets the gradients of all vectors. `s`: of their pairs
    ///
    /// # Safety
    /// There are so many vectors.
    #[inline(always)]
    unsafe fn sum(self, s: &[f32], vectors: usize) {
        assert!(s.len() >= triangle(vectors), "gradients of pairs");
        let whole = vectors - vectors % SIDE;
        // SAFETY: the caller's promise.
        unsafe {
            for i in (0..whole).step_by(SIDE) {
                self.add_pairs::<SIDE>(s.as_ptr(), i);
            }
            for i in whole..vectors {
                self.add_pairs::<1>(s.as_ptr(), i);
            }
        }
    }

    /// What pairs of the `R` vectors from `i` on with those before them and with each other add:
    /// sets the gradients of these, and adds to those of the vectors before.
    ///
    /// # Safety
    /// There are such vectors, and `s` is good for reading the gradients of their pairs.
    #[inline(always)]
    unsafe fn add_pairs<const R: usize>(self, s: *const f32, i: usize) {
        let Self { isa, t, d_t, .. } = self;
        let mut own = [[isa.zero(); V]; R];
        let mut total = own;
        // SAFETY: the caller's promise.
        unsafe {
            for (row, own) in own.iter_mut().enumerate() {
                *own = self.load(t, i + row);
            }
            for k in 0..i {
                let (other, mut sum) = (self.load(t, k), self.load(d_t, k));
                for (row, (own, total)) in own.iter().zip(&mut total).enumerate() {
                    let s = isa.load_splat(s.add(triangle(i + row) + k));
                    for v in 0..V {
                        total[v] = isa.multiply_add(s, other[v], total[v]);
                        sum[v] = isa.multiply_add(s, own[v], sum[v]);
                    }
                }
                self.store(k, &sum);
            }
            // A vector has no pair with itself.
            for (k, own) in own.iter().enumerate() {
                for (row, total) in total.iter_mut().enumerate() {
                    if row != k {
                        let pair = triangle(i + row.max(k)) + i + row.min(k);
                        let s = isa.load_splat(s.add(pair));
                        for v in 0..V {
                            total[v] = isa.multiply_add(s, own[v], total[v]);
                        }
                    }
                }
            }
            for (row, total) in total.iter().enumerate() {
                self.store(i + row, total);
            }
        }
    }

    /// The registers of vector `i`.
    ///
    /// # Safety
    /// There is such a vector.
    #[inline(always)]
    unsafe fn load(self, of: *const f32, i: usize) -> [I::Vector; V] {
        let mut registers = [self.isa.zero(); V];
        for (v, register) in registers.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *register = unsafe { self.isa.load(of.add(i * self.width + v * I::LANES)) };
        }
        registers
    }

    /// Writes the gradients of vector `i`.
    ///
    /// # Safety
    /// There is such a vector.
    #[inline(always)]
    unsafe fn store(self, i: usize, registers: &[I::Vector; V]) {
        for (v, register) in registers.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.isa.store(self.d_t.add(i * self.width + v * I::LANES), *register) }
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

/// Writes the gradients of pairs by examples, `[pairs, LANES]`, of whose last ones there are as
/// many as fill a square: `scatter` of `dot.rs` the other way.
///
/// # Safety
/// The output has these examples and columns.
#[inline(always)]
unsafe fn gather<I: Isa>(
    isa: I,
    (shape, d_out): (DotShape, Activations<'_>),
    (start, examples): (usize, usize),
    pairs: &mut [f32],
) {
    let strides = d_out.strides();
    let mut square = Square::ZEROS;
    let square = &mut square.0;
    let mut pair = 0;
    while pair < shape.pairs() {
        let column = shape.lead + pair;
        let count = (I::LANES - column % I::LANES).min(shape.pairs() - pair);
        let from = d_out.as_ptr().wrapping_add(place(strides, start, column));
        let to = pairs[pair * I::LANES..][..I::LANES * I::LANES].as_mut_ptr();
        // SAFETY: the caller's promise; rows of the square.
        unsafe {
            if (examples, count) == (I::LANES, I::LANES) {
                isa.transpose(from, strides.row, to, I::LANES);
            } else {
                for (i, row) in square.chunks_exact_mut(I::LANES).enumerate().take(examples) {
                    let from = from.wrapping_add(i * strides.row);
                    isa.store(row.as_mut_ptr(), load(isa, from, count));
                }
                isa.transpose(square.as_ptr(), I::LANES, to, I::LANES);
            }
        }
        pair += count;
    }
}

/// Elements of [`SIDE`] vectors whose gradients are summed at once.
const STEPS: usize = 4;

/// Sums the gradients of the [`STEPS`] elements from `step` on of [`SIDE`] vectors from `i` on, by
/// examples. `s: [pairs, LANES]`, `words: [vectors, LANES, LANES]`, elements by examples; `sums`:
/// of each vector `[LANES, LANES]`, of those behind the last one anything
#[inline(always)]
fn add_vectors<I: Isa, O: Operand>(
    isa: I,
    (s, words): (&[f32], &[f32]),
    (vectors, i): (usize, usize),
    step: usize,
    sums: &mut [Square; SIDE],
) {
    assert!(words.len() >= vectors * I::LANES * I::LANES, "elements of vectors");
    assert!(s.len() >= (triangle(vectors) + I::LANES) * I::LANES, "gradients of pairs");
    assert!(step + STEPS <= I::LANES, "elements of a square");
    let (s, words) = (s.as_ptr(), words.as_ptr());
    // Behind the last vector it is taken again.
    let rows = [i, (i + 1).min(vectors - 1), (i + 2).min(vectors - 1)];
    let starts = rows.map(triangle);
    let mut total = [[isa.zero(); STEPS]; SIDE];
    // SAFETY: of squares and of pairs that there are, or that `s` has room for behind the last.
    unsafe {
        for k in 0..i {
            let t = elements(isa, words, k, step);
            for (start, total) in starts.iter().zip(&mut total) {
                add_terms::<I, O>(isa, s, start + k, &t, total);
            }
        }
        // A vector has no pair with itself: which is known without a branch.
        for own in 0..SIDE {
            if i + own < vectors {
                let t = elements(isa, words, i + own, step);
                for (row, total) in total.iter_mut().enumerate() {
                    if row != own {
                        let pair = starts[row.max(own)] + i + row.min(own);
                        add_terms::<I, O>(isa, s, pair, &t, total);
                    }
                }
            }
        }
        for k in i + SIDE..vectors {
            let t = elements(isa, words, k, step);
            for (row, total) in total.iter_mut().enumerate() {
                add_terms::<I, O>(isa, s, triangle(k) + i + row, &t, total);
            }
        }
    }
    for (sums, total) in sums.iter_mut().zip(total) {
        let sums = sums.0[step * I::LANES..].chunks_exact_mut(I::LANES);
        for (to, total) in sums.zip(total) {
            // SAFETY: a vector's length.
            unsafe { isa.store(to.as_mut_ptr(), total) }
        }
    }
}

/// The [`STEPS`] words from `step` on of square `k`.
///
/// # Safety
/// There are so many.
#[inline(always)]
unsafe fn elements<I: Isa>(isa: I, words: *const f32, k: usize, step: usize) -> [I::Vector; STEPS] {
    let mut t = [isa.zero(); STEPS];
    for (e, t) in t.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *t = unsafe { isa.load(words.add((k * I::LANES + step + e) * I::LANES)) };
    }
    t
}

/// Adds the terms that the gradient of a pair and `t` make.
///
/// # Safety
/// There is such a gradient.
#[inline(always)]
unsafe fn add_terms<I: Isa, O: Operand>(
    isa: I,
    s: *const f32,
    pair: usize,
    t: &[I::Vector; STEPS],
    total: &mut [I::Vector; STEPS],
) {
    // SAFETY: the caller's promise.
    let s = unsafe { isa.load(s.add(pair * I::LANES)) };
    for (total, t) in total.iter_mut().zip(t) {
        *total = O::add(isa, s, *t, *total);
    }
}
