//! The gradients of a linear layer's parameters.
//!
//! Shapes: X `[n, inputs]`, d_Y `[n, outputs]`, d_W `[outputs, inputs]` in panels, d_b `[outputs]`.
//!
//! - [`weight_gradient`]: d_W = d_Yᵀ·X, added up over tiles of examples
//! - [`weight_update`]: the same as far as the update of W by it
//! - [`bias_gradient`]: d_b, the column sums of d_Y

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::isa::{InPlace, Isa, Kernel, run, run_halves, run_tiles};
use super::layout::{Activations, PANEL, place, width_at};
use super::operand::{Halves, Operand, Whole};
use super::simd::{Simd, selected};
use super::thirds::{GradientOfThirds, Thirds, UpdateOfThirds};
use super::tile::{Epilogue, Left, Right, Sum, even, load, store, tile};
use super::update::{Apply, Elements, Rule};

/// X `[n, inputs]` and d_Y `[n, outputs]`, whose product is over examples.
#[derive(Clone, Copy, Debug)]
pub enum Factors<'a> {
    /// As they are.
    Whole(Activations<'a>, Activations<'a>),
    /// In words of neighbouring examples ([`super::round_activations`]).
    Halves(Activations<'a>, Activations<'a>),
    /// X as it is, d_Y of [`super::split_examples`]; at most 256 examples.
    Thirds(Activations<'a>, Thirds<'a>),
}

impl<'a> Factors<'a> {
    /// Examples, or words of two.
    const fn n(&self) -> usize {
        match self {
            Self::Whole(x, _) | Self::Halves(x, _) | Self::Thirds(x, _) => x.n(),
        }
    }

    /// The last block of the sum, and those before it, if there are any.
    fn last_block(self) -> (Option<Self>, Self) {
        let last = (self.n() - 1) / EXAMPLES * EXAMPLES;
        let cut = |x: Activations<'a>| (x.examples(0..last), x.examples(last..x.n()));
        match self {
            Self::Whole(x, d_y) if last > 0 => {
                let ((x, last_x), (d_y, last_d_y)) = (cut(x), cut(d_y));
                (Some(Self::Whole(x, d_y)), Self::Whole(last_x, last_d_y))
            }
            Self::Halves(x, d_y) if last > 0 => {
                let ((x, last_x), (d_y, last_d_y)) = (cut(x), cut(d_y));
                (Some(Self::Halves(x, d_y)), Self::Halves(last_x, last_d_y))
            }
            _ => (None, self),
        }
    }

    fn check(&self, d_weight: usize) {
        let ((n, inputs), (d_n, outputs)) = match self {
            Self::Whole(x, d_y) | Self::Halves(x, d_y) => {
                ((x.n(), x.width()), (d_y.n(), d_y.width()))
            }
            Self::Thirds(x, d_y) => {
                assert!(x.n() <= EXAMPLES_AT_MOST, "{} examples of thirds at once", x.n());
                ((x.n(), x.width()), (d_y.depth(), d_y.count()))
            }
        };
        assert_eq!(n, d_n, "examples of X and of d_Y");
        assert_eq!(d_weight, inputs * outputs, "length of d_W");
    }
}

/// d_W = d_Yᵀ·X, or d_W += d_Yᵀ·X unless `fresh`. `d_weight`: panels of `[outputs, inputs]`
///
/// # Panics
/// When shapes do not fit together, or there are more examples of thirds than go together.
pub fn weight_gradient(of: Factors<'_>, fresh: bool, d_weight: &mut [f32]) {
    of.check(d_weight.len());
    if of.n() == 0 && fresh {
        d_weight.fill(0.0);
    }
    match of {
        Factors::Whole(x, d_y) => run(WeightGradient { operand: Whole, x, d_y, fresh, d_weight }),
        Factors::Halves(x, d_y) => {
            run_halves(WeightGradient { operand: Halves, x, d_y, fresh, d_weight });
        }
        Factors::Thirds(x, d_y) => run_tiles(GradientOfThirds { x, d_y, fresh, d_weight }),
    }
}

/// Completes the gradient of [`weight_gradient`] with these examples, of which there is at least
/// one, and updates the parameters by it, where its last sums are made. What `d_weight` holds then
/// is not the gradient.
///
/// # Panics
/// When shapes do not fit together, or there are no examples.
pub(crate) fn weight_update(
    of: Factors<'_>,
    fresh: bool,
    d_weight: &mut [f32],
    rule: &impl Rule,
    weight: Elements<'_>,
) {
    of.check(d_weight.len());
    assert!(of.n() > 0, "an update needs examples");
    assert_eq!(weight.len(), d_weight.len(), "length of W");
    let (first, last) = of.last_block();
    if let Some(first) = first {
        weight_gradient(first, fresh, d_weight);
    }
    let before = (!fresh || first.is_some()).then_some(&*d_weight);
    match last {
        Factors::Whole(x, d_y) => {
            run(WeightUpdate { operand: Whole, x, d_y, before, rule, weight });
        }
        Factors::Halves(x, d_y) => {
            run_halves(WeightUpdate { operand: Halves, x, d_y, before, rule, weight });
        }
        Factors::Thirds(x, d_y) => run_tiles(UpdateOfThirds { x, d_y, before, rule, weight }),
    }
}

/// Examples whose bias gradients are summed at once: the error of a sum over thousands stays that
/// of tens.
const SUMMED: usize = 64;

/// d_b = column sums of d_Y, or added to d_b unless `fresh`. `d_bias: [outputs]`
///
/// # Panics
/// When the width is not the bias's.
pub fn bias_gradient(d_y: Activations<'_>, fresh: bool, d_bias: &mut [f32]) {
    assert_eq!(d_bias.len(), d_y.width(), "length of d_b");
    if fresh {
        d_bias.fill(0.0);
    }
    run(BiasGradient { d_y, d_bias });
}

/// Examples of a block of the sum over examples, or words of two: a block's columns of X and d_Y
/// stay in the first cache level.
pub(crate) const EXAMPLES: usize = 128;

/// Examples that go through the products of a layer together in training. Where these are several
/// times as fast (`amx/mod.rs`), a matrix from the third cache level is to serve as many more.
pub(crate) fn examples_at_once() -> usize {
    if selected() == Simd::Amx { EXAMPLES_AT_MOST } else { EXAMPLES }
}

/// [`examples_at_once`], of the instruction set where they are most.
pub(crate) const EXAMPLES_AT_MOST: usize = 2 * EXAMPLES;

pub(super) struct WeightGradient<'a, O> {
    pub(super) operand: O,
    pub(super) x: Activations<'a>,
    pub(super) d_y: Activations<'a>,
    pub(super) fresh: bool,
    pub(super) d_weight: &'a mut [f32],
}

impl<O: Operand> Kernel for WeightGradient<'_, O> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let to = self.d_weight.as_mut_ptr();
        let n = self.x.n();
        for start in (0..n).step_by(EXAMPLES) {
            let examples = start..n.min(start + EXAMPLES);
            let add = !self.fresh || start > 0;
            let (x, d_y) = (self.x.examples(examples.clone()), self.d_y.examples(examples));
            let epilogue = |at, _, row| Sum { add, to: to.wrapping_add(at), row };
            // SAFETY: d_W has the shape of the product, as [`Factors::check`] saw.
            unsafe { outer((isa, self.operand), x, d_y, epilogue) }
        }
    }
}

pub(super) struct WeightUpdate<'a, R, O> {
    pub(super) operand: O,
    pub(super) x: Activations<'a>,
    pub(super) d_y: Activations<'a>,
    /// The gradient so far.
    pub(super) before: Option<&'a [f32]>,
    pub(super) rule: &'a R,
    pub(super) weight: Elements<'a>,
}

impl<R: Rule, O: Operand> Kernel for WeightUpdate<'_, R, O> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let epilogue = |at, len, row| {
            let before = self.before.map(|before| before.as_ptr().wrapping_add(at));
            Apply::new(*self.rule, self.weight.part(at, len), before, row)
        };
        // SAFETY: W and the gradient so far have the shape of the product, as `weight_update` saw.
        unsafe { outer((isa, self.operand), self.x, self.d_y, epilogue) }
    }
}

/// The product d_Yᵀ·X, tile by tile in panels; `epilogue(at, len, row)` makes that of the
/// tile whose elements lie in `at..at + len` with rows `row` apart.
///
/// # Safety
/// The epilogues fit their tiles.
#[inline(always)]
unsafe fn outer<I: Isa, O: Operand, E: Epilogue>(
    (isa, operand): (I, O),
    x: Activations<'_>,
    d_y: Activations<'_>,
    epilogue: impl Fn(usize, usize, usize) -> E,
) {
    #[cfg(target_arch = "x86_64")]
    if I::TILES && O::HALVES {
        // SAFETY: the set says so; the rest is the caller's promise.
        return unsafe { amx::halves::outer(isa, x, d_y, epilogue) };
    }
    let (inputs, outputs) = (x.width(), d_y.width());
    let (xs, ys) = (x.strides(), d_y.strides());
    if outputs == 1 {
        // One row of inputs rather than one column: vectors full of them.
        let a = Left {
            first: d_y.as_ptr(),
            row: 0,
            step: ys.row,
            along_rows: false,
            run: x.n(),
            block: 0,
        };
        for first in (0..inputs).step_by(PANEL) {
            let width = width_at(inputs, first);
            for at in (0..width).step_by(2 * I::LANES) {
                let columns = (width - at).min(2 * I::LANES);
                let from = x.as_ptr().wrapping_add(place(xs, 0, first + at));
                let b = Right { first: InPlace(from), stride: xs.row, ahead: () };
                let epilogue = epilogue(first + at, columns, columns);
                // SAFETY: as below.
                unsafe { tile((isa, operand), (1, columns), (x.n(), None), a, b, &epilogue) }
            }
        }
        return;
    }
    for first in (0..outputs).step_by(PANEL) {
        let width = width_at(outputs, first);
        for at in (0..width).step_by(2 * I::LANES) {
            let columns = (width - at).min(2 * I::LANES);
            let from = d_y.as_ptr().wrapping_add(place(ys, 0, first + at));
            let b = Right { first: InPlace(from), stride: ys.row, ahead: () };
            for block in (0..inputs).step_by(PANEL) {
                for (input, rows) in even(width_at(inputs, block), I::ROWS) {
                    let input = block + input;
                    let a = Left {
                        first: x.as_ptr().wrapping_add(place(xs, 0, input)),
                        row: 1,
                        step: xs.row,
                        along_rows: false,
                        run: x.n(),
                        block: 0,
                    };
                    let epilogue = epilogue(
                        first * inputs + input * width + at,
                        (rows - 1) * width + columns,
                        width,
                    );
                    // SAFETY: both views hold these columns; the rest is the caller's promise.
                    unsafe { tile((isa, operand), (rows, columns), (x.n(), None), a, b, &epilogue) }
                }
            }
        }
    }
}

pub(super) struct BiasGradient<'a> {
    pub(super) d_y: Activations<'a>,
    pub(super) d_bias: &'a mut [f32],
}

impl Kernel for BiasGradient<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (n, width, strides) = (self.d_y.n(), self.d_y.width(), self.d_y.strides());
        for first in (0..width).step_by(PANEL) {
            let block = width_at(width, first);
            for at in (0..block).step_by(2 * I::LANES) {
                let left = block - at;
                let counts = [I::LANES.min(left), I::LANES.min(left.saturating_sub(I::LANES))];
                let from = self.d_y.as_ptr().wrapping_add(place(strides, 0, first + at));
                let to = self.d_bias[first + at..].as_mut_ptr();
                // SAFETY: as many columns of every example, and elements of d_b.
                unsafe { sum_columns(isa, (from, strides.row, n), counts, to) }
            }
        }
    }
}

/// Adds to `to` the sums of columns of `n` rows, `stride` elements apart, of two vectors with
/// `counts` columns: the sum of one alone would wait for itself from row to row.
///
/// # Safety
/// `from` is good for reading them, and `to` for writing.
#[inline(always)]
unsafe fn sum_columns<I: Isa>(
    isa: I,
    (from, stride, n): (*const f32, usize, usize),
    counts: [usize; 2],
    to: *mut f32,
) {
    let mut totals = [isa.zero(); 2];
    // SAFETY: the caller's promise.
    unsafe {
        for (j, total) in totals.iter_mut().enumerate() {
            *total = load(isa, to.cast_const().wrapping_add(j * I::LANES), counts[j]);
        }
        for start in (0..n).step_by(SUMMED) {
            let mut sums = [isa.zero(); 2];
            for i in start..n.min(start + SUMMED) {
                let row = from.wrapping_add(i * stride);
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = isa.add(*sum, load(isa, row.wrapping_add(j * I::LANES), counts[j]));
                }
            }
            for (total, sum) in totals.iter_mut().zip(sums) {
                *total = isa.add(*total, sum);
            }
        }
        for (j, total) in totals.into_iter().enumerate() {
            store(isa, to.wrapping_add(j * I::LANES), counts[j], total);
        }
    }
}
