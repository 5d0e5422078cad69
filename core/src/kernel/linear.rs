//! The three products of a linear layer, and what goes with them.
//!
//! Shapes: X `[n, inputs]`, Y `[n, outputs]`, W `[outputs, inputs]` in panels, b `[outputs]`.
//!
//! - [`forward`]: Y = X·Wᵀ + b, then ReLU
//! - `transpose.rs`: the panels of Wᵀ, once a step
//! - [`data_gradient`]: d_X = d_Y·W, then the mask of the ReLU below
//! - [`weight_gradient`]: d_W = d_Yᵀ·X, added up over tiles of examples
//! - [`bias_gradient`]: d_b, the column sums of d_Y
//!
//! Rows of examples are cut evenly into tiles; the tile's rows of X stay in the first cache level
//! while the panels of W pass by from the second. There is no blocking over the depth.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::isa::{InPlace, Isa, Kernel, Source, run, run_halves};
use super::layout::{Activations, ActivationsMut, PANEL, place, width_at};
use super::operand::{Halves, Operand, Precision, Whole};
use super::tile::{Epilogue, Left, Right, even, load, store, tile};
use super::update::{Apply, Elements, Rule, sum_of_lanes};

/// Y = X·Wᵀ + b, cut below at 0 if `relu`. `weight`: panels of `[outputs, inputs]`
///
/// # Panics
/// When shapes do not fit together.
pub fn forward(
    x: Activations<'_>,
    weight: &[AtomicU32],
    bias: Option<&[AtomicU32]>,
    relu: bool,
    y: &mut ActivationsMut<'_>,
) {
    check_forward(x, weight.len(), y);
    let outputs = y.view().width();
    assert!(bias.is_none_or(|bias| bias.len() == outputs), "length of the bias");
    if outputs == 1 {
        run(ForwardOne { x, weight, bias, relu, y });
    } else {
        run(Forward { operand: Whole, x, panels: weight.as_ptr(), bias, relu, y });
    }
}

/// [`forward`] of halves. `x`: words of neighbouring columns; `panels`: those of W in bf16
/// ([`super::round_weight`])
///
/// # Panics
/// When shapes do not fit together.
pub fn forward_halves(
    x: Activations<'_>,
    panels: &[f32],
    bias: Option<&[AtomicU32]>,
    relu: bool,
    y: &mut ActivationsMut<'_>,
) {
    check_forward(x, panels.len(), y);
    assert!(bias.is_none_or(|bias| bias.len() == y.view().width()), "length of the bias");
    let panels = InPlace(panels.as_ptr());
    run_halves(Forward { operand: Halves, x, panels, bias, relu, y });
}

/// d_X = d_Y·W; where `mask` is given, times its scale where its activations are above 0 and 0
/// elsewhere. `transposed`: panels of Wᵀ `[inputs, outputs]`, of [`super::transpose`]; in bf16 of
/// [`super::round_weight`], and `d_y` words of neighbouring columns
///
/// # Panics
/// When shapes do not fit together.
pub fn data_gradient(
    precision: Precision,
    d_y: Activations<'_>,
    transposed: &[f32],
    mask: Option<Mask<'_>>,
    d_x: &mut ActivationsMut<'_>,
) {
    check_forward(d_y, transposed.len(), d_x);
    if let Some(Mask { y, .. }) = mask {
        let (mine, its) = (d_x.view(), y);
        assert_eq!((mine.n(), mine.width()), (its.n(), its.width()), "shape of the mask");
        assert_eq!(mine.strides(), its.strides(), "layout of the mask");
    }
    match precision {
        Precision::F32 => run(DataGradient { operand: Whole, d_y, transposed, mask, d_x }),
        Precision::Bf16 => run_halves(DataGradient { operand: Halves, d_y, transposed, mask, d_x }),
    }
}

/// d_W = d_Yᵀ·X, or d_W += d_Yᵀ·X unless `fresh`. `d_weight`: panels of `[outputs, inputs]`; in
/// bf16 `x` and `d_y` are words of neighbouring examples
///
/// # Panics
/// When shapes do not fit together.
pub fn weight_gradient(
    precision: Precision,
    x: Activations<'_>,
    d_y: Activations<'_>,
    fresh: bool,
    d_weight: &mut [f32],
) {
    check_gradient(x, d_y, d_weight.len());
    if x.n() == 0 && fresh {
        d_weight.fill(0.0);
    }
    match precision {
        Precision::F32 => run(WeightGradient { operand: Whole, x, d_y, fresh, d_weight }),
        Precision::Bf16 => run_halves(WeightGradient { operand: Halves, x, d_y, fresh, d_weight }),
    }
}

/// Completes the gradient of [`weight_gradient`] with these examples, of which there is at least
/// one, and updates the parameters by it, where its last sums are made. What `d_weight` holds then
/// is not the gradient.
///
/// # Panics
/// When shapes do not fit together, or there are no examples.
pub(crate) fn weight_update(
    precision: Precision,
    x: Activations<'_>,
    d_y: Activations<'_>,
    fresh: bool,
    d_weight: &mut [f32],
    rule: &impl Rule,
    weight: Elements<'_>,
) {
    check_gradient(x, d_y, d_weight.len());
    assert!(x.n() > 0, "an update needs examples");
    assert_eq!(weight.len(), d_weight.len(), "length of W");
    let last = (x.n() - 1) / EXAMPLES * EXAMPLES;
    if last > 0 {
        let (x, d_y) = (x.examples(0..last), d_y.examples(0..last));
        weight_gradient(precision, x, d_y, fresh, d_weight);
    }
    let (x, d_y) = (x.examples(last..x.n()), d_y.examples(last..x.n()));
    let before = (!fresh || last > 0).then_some(&*d_weight);
    match precision {
        Precision::F32 => run(WeightUpdate { operand: Whole, x, d_y, before, rule, weight }),
        Precision::Bf16 => {
            run_halves(WeightUpdate { operand: Halves, x, d_y, before, rule, weight });
        }
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

/// Gradient of ReLU, and of dropout behind it: passes, scaled, where the output is above 0.
#[derive(Clone, Copy, Debug)]
pub struct Mask<'a> {
    /// The output of the activation.
    pub y: Activations<'a>,
    /// Factor on what passes.
    pub scale: f32,
}

fn check_gradient(x: Activations<'_>, d_y: Activations<'_>, d_weight: usize) {
    assert_eq!(x.n(), d_y.n(), "examples of X and of d_Y");
    assert_eq!(d_weight, x.width() * d_y.width(), "length of d_W");
}

fn check_forward(x: Activations<'_>, weight: usize, y: &ActivationsMut<'_>) {
    let y = y.view();
    assert_eq!(x.n(), y.n(), "examples of X and of Y");
    assert_eq!(weight, x.width() * y.width(), "length of W");
}

/// The tile's rows of activations, as the left operand of a product over their columns.
fn rows_of(x: Activations<'_>, first: usize) -> Left {
    let strides = x.strides();
    Left {
        first: x.as_ptr().wrapping_add(first * strides.row),
        row: strides.row,
        step: 1,
        run: PANEL,
        block: strides.block,
    }
}

/// `C[n, columns] = A[n, depth] · panels[columns, depth]ᵀ`, tile by tile; `epilogue(row, column)`
/// makes that of the tile at (row, column).
///
/// # Safety
/// `panels` is good for reading `columns * depth` elements, and the epilogues fit their tiles.
#[inline(always)]
unsafe fn product<I: Isa, O: Operand, E: Epilogue>(
    (isa, operand): (I, O),
    a: Activations<'_>,
    (panels, columns): (impl Source, usize),
    mut epilogue: impl FnMut(usize, usize) -> E,
) {
    let depth = a.width();
    for (row, rows) in even(a.n(), I::ROWS) {
        for first in (0..columns).step_by(PANEL) {
            let width = width_at(columns, first);
            for at in (0..width).step_by(2 * I::LANES) {
                let b = Right { first: panels.advance(first * depth + at), stride: width };
                let size = (rows, (width - at).min(2 * I::LANES));
                let epilogue = epilogue(row, first + at);
                // SAFETY: rows of A by construction of the view; the rest is the caller's promise.
                unsafe { tile((isa, operand), size, depth, rows_of(a, row), b, &epilogue) }
            }
        }
    }
}

pub(super) struct Forward<'a, 'y, O, S> {
    pub(super) operand: O,
    pub(super) x: Activations<'a>,
    pub(super) panels: S,
    pub(super) bias: Option<&'a [AtomicU32]>,
    pub(super) relu: bool,
    pub(super) y: &'a mut ActivationsMut<'y>,
}

impl<O: Operand, S: Source> Kernel for Forward<'_, '_, O, S> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (columns, strides) = (self.y.view().width(), self.y.view().strides());
        let to = self.y.as_mut_ptr();
        let epilogue = |row: usize, column: usize| Affine {
            bias: self.bias.map(|bias| bias.as_ptr().wrapping_add(column)),
            relu: self.relu,
            to: to.wrapping_add(place(strides, row, column)),
            row: strides.row,
        };
        // SAFETY: `check_forward` compared the shapes.
        unsafe { product((isa, self.operand), self.x, (self.panels, columns), epilogue) }
    }
}

/// [`Forward`] to one output: a dot product per example. In a tile it would have a vector's lane to
/// itself.
pub(super) struct ForwardOne<'a, 'y> {
    pub(super) x: Activations<'a>,
    pub(super) weight: &'a [AtomicU32],
    pub(super) bias: Option<&'a [AtomicU32]>,
    pub(super) relu: bool,
    pub(super) y: &'a mut ActivationsMut<'y>,
}

impl Kernel for ForwardOne<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let bias = self.bias.map(|bias| f32::from_bits(bias[0].load(Relaxed)));
        for i in 0..self.x.n() {
            // Two sums in turn: one alone would wait for itself.
            let (mut even, mut odd) = (isa.zero(), isa.zero());
            for (block, first) in (0..self.x.width()).step_by(PANEL).enumerate() {
                let x = self.x.block_of(i, block, width_at(self.x.width(), first));
                let weight = &self.weight[first..first + x.len()];
                for at in (0..x.len()).step_by(I::LANES) {
                    let count = I::LANES.min(x.len() - at);
                    // SAFETY: `count` elements of both from `at` on.
                    unsafe {
                        let x = load(isa, x.as_ptr().add(at), count);
                        let w = load(isa, weight.as_ptr().add(at), count);
                        (even, odd) = (odd, isa.multiply_add(x, w, even));
                    }
                }
            }
            let sum = sum_of_lanes(isa, isa.add(even, odd));
            let y = bias.map_or(sum, |bias| sum + bias);
            self.y.block_of(i, 0, 1)[0] = if self.relu && y < 0.0 { 0.0 } else { y };
        }
    }
}

struct Affine {
    bias: Option<*const AtomicU32>,
    relu: bool,
    to: *mut f32,
    row: usize,
}

impl Epilogue for Affine {
    #[inline(always)]
    unsafe fn put<I: Isa>(&self, isa: I, row: usize, column: usize, count: usize, sum: I::Vector) {
        // SAFETY: the caller's promise: the tile is inside Y, and so is its bias inside b.
        unsafe {
            let mut y = sum;
            if let Some(bias) = self.bias {
                y = isa.add(y, load(isa, bias.wrapping_add(column), count));
            }
            if self.relu {
                y = isa.relu(y);
            }
            store(isa, self.to.add(row * self.row + column), count, y);
        }
    }
}

pub(super) struct DataGradient<'a, 'x, O> {
    pub(super) operand: O,
    pub(super) d_y: Activations<'a>,
    pub(super) transposed: &'a [f32],
    pub(super) mask: Option<Mask<'a>>,
    pub(super) d_x: &'a mut ActivationsMut<'x>,
}

impl<O: Operand> Kernel for DataGradient<'_, '_, O> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (columns, strides) = (self.d_x.view().width(), self.d_x.view().strides());
        let to = self.d_x.as_mut_ptr();
        let epilogue = |row: usize, column: usize| {
            let at = place(strides, row, column);
            Masked {
                mask: self.mask.map(|mask| (mask.y.as_ptr().wrapping_add(at), mask.scale)),
                to: to.wrapping_add(at),
                row: strides.row,
            }
        };
        // SAFETY: `data_gradient` compared the shapes, and the mask's layout with that of d_X.
        unsafe {
            let panels = (InPlace(self.transposed.as_ptr()), columns);
            product((isa, self.operand), self.d_y, panels, epilogue);
        }
    }
}

struct Masked {
    mask: Option<(*const f32, f32)>,
    to: *mut f32,
    row: usize,
}

impl Epilogue for Masked {
    #[inline(always)]
    unsafe fn put<I: Isa>(&self, isa: I, row: usize, column: usize, count: usize, sum: I::Vector) {
        let at = row * self.row + column;
        // SAFETY: the caller's promise: the tile is inside d_X and the mask.
        unsafe {
            let mut d = sum;
            if let Some((y, scale)) = self.mask {
                let y = load(isa, y.wrapping_add(at), count);
                d = isa.where_positive(y, isa.mul(d, isa.splat(scale)));
            }
            store(isa, self.to.add(at), count, d);
        }
    }
}

/// Examples of a block of the sum over examples: a block's columns of X and d_Y stay in the first
/// cache level.
const EXAMPLES: usize = 128;

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
            // SAFETY: d_W has the shape of the product, as `check_gradient` saw.
            unsafe { outer((isa, self.operand), x, d_y, epilogue) }
        }
    }
}

struct WeightUpdate<'a, R, O> {
    operand: O,
    x: Activations<'a>,
    d_y: Activations<'a>,
    /// The gradient so far.
    before: Option<&'a [f32]>,
    rule: &'a R,
    weight: Elements<'a>,
}

impl<R: Rule, O: Operand> Kernel for WeightUpdate<'_, R, O> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let epilogue = |at, len, row| {
            let before = self.before.map(|before| before.as_ptr().wrapping_add(at));
            Apply::new(self.rule, self.weight.part(at, len), before, row)
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
    let (inputs, outputs) = (x.width(), d_y.width());
    let (xs, ys) = (x.strides(), d_y.strides());
    if outputs == 1 {
        // One row of inputs rather than one column: vectors full of them.
        let a = Left { first: d_y.as_ptr(), row: 0, step: ys.row, run: x.n(), block: 0 };
        for first in (0..inputs).step_by(PANEL) {
            let width = width_at(inputs, first);
            for at in (0..width).step_by(2 * I::LANES) {
                let columns = (width - at).min(2 * I::LANES);
                let from = x.as_ptr().wrapping_add(place(xs, 0, first + at));
                let b = Right { first: InPlace(from), stride: xs.row };
                let epilogue = epilogue(first + at, columns, columns);
                // SAFETY: as below.
                unsafe { tile((isa, operand), (1, columns), x.n(), a, b, &epilogue) }
            }
        }
        return;
    }
    for first in (0..outputs).step_by(PANEL) {
        let width = width_at(outputs, first);
        for at in (0..width).step_by(2 * I::LANES) {
            let columns = (width - at).min(2 * I::LANES);
            let from = d_y.as_ptr().wrapping_add(place(ys, 0, first + at));
            let b = Right { first: InPlace(from), stride: ys.row };
            for block in (0..inputs).step_by(PANEL) {
                for (input, rows) in even(width_at(inputs, block), I::ROWS) {
                    let input = block + input;
                    let a = Left {
                        first: x.as_ptr().wrapping_add(place(xs, 0, input)),
                        row: 1,
                        step: xs.row,
                        run: x.n(),
                        block: 0,
                    };
                    let epilogue = epilogue(
                        first * inputs + input * width + at,
                        (rows - 1) * width + columns,
                        width,
                    );
                    // SAFETY: both views hold these columns; the rest is the caller's promise.
                    unsafe { tile((isa, operand), (rows, columns), x.n(), a, b, &epilogue) }
                }
            }
        }
    }
}

/// Writes or adds a tile to rows `row` apart.
pub(super) struct Sum {
    pub(super) add: bool,
    pub(super) to: *mut f32,
    pub(super) row: usize,
}

impl Epilogue for Sum {
    #[inline(always)]
    unsafe fn put<I: Isa>(&self, isa: I, row: usize, column: usize, count: usize, sum: I::Vector) {
        // SAFETY: the caller's promise: the tile is inside the matrix.
        unsafe {
            let to = self.to.add(row * self.row + column);
            let sum = if self.add { isa.add(sum, load(isa, to.cast_const(), count)) } else { sum };
            store(isa, to, count, sum);
        }
    }
}

struct BiasGradient<'a> {
    d_y: Activations<'a>,
    d_bias: &'a mut [f32],
}

impl Kernel for BiasGradient<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (n, width, strides) = (self.d_y.n(), self.d_y.width(), self.d_y.strides());
        for first in (0..width).step_by(PANEL) {
            let block = width_at(width, first);
            for at in (0..block).step_by(I::LANES) {
                let count = I::LANES.min(block - at);
                let from = self.d_y.as_ptr().wrapping_add(place(strides, 0, first + at));
                let to = self.d_bias[first + at..].as_mut_ptr();
                // SAFETY: `count` columns of every example, and as many elements of d_b.
                unsafe {
                    let mut total = load(isa, to.cast_const(), count);
                    for start in (0..n).step_by(SUMMED) {
                        let mut sum = isa.zero();
                        for i in start..n.min(start + SUMMED) {
                            let from = from.wrapping_add(i * strides.row);
                            sum = isa.add(sum, load(isa, from, count));
                        }
                        total = isa.add(total, sum);
                    }
                    store(isa, to, count, total);
                }
            }
        }
    }
}
