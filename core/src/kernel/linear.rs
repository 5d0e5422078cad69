//! The products of a linear layer, forward and back.
//!
//! Shapes: X `[n, inputs]`, Y `[n, outputs]`, W `[outputs, inputs]` in panels, b `[outputs]`.
//!
//! - [`forward`]: Y = X·Wᵀ + b, then ReLU
//! - `transpose.rs`: the panels of Wᵀ, once a step
//! - [`data_gradient`]: d_X = d_Y·W, then the mask of the ReLU below
//! - `weight.rs`: the gradients of W and b
//!
//! Rows of examples are cut evenly into tiles. A panel of W is multiplied with up to [`EXAMPLES`]
//! of them while the next one comes near: W passes by once, from wherever it is. Over the depth it
//! is cut only where the set's tiles are too low for panels from the second cache level
//! ([`Isa::DEPTH`]).

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::isa::{InPlace, Isa, Kernel, Source, run, run_halves};
use super::layout::{Activations, ActivationsMut, PANEL, place, width_at};
use super::operand::{Halves, Operand, Precision, Whole};
use super::prefetch::prefetch_at;
use super::tile::{Epilogue, Left, Lines, Right, Sum, even, load, put_each, store, tile};
use super::transpose::transpose_panel;
use super::update::sum_of_lanes;
use super::weight::{EXAMPLES, EXAMPLES_AT_MOST};

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

/// The panels of Wᵀ `[inputs, outputs]`.
#[derive(Debug)]
pub enum Transposed<'a> {
    /// They are there: of [`super::transpose`], or a product before; in bf16 of
    /// [`super::round_weight`].
    Made(&'a [f32]),
    /// To be made of those of W, each just before it is multiplied; in f32.
    Fresh {
        /// W `[outputs, inputs]`
        weight: &'a [AtomicU32],
        /// Wᵀ `[inputs, outputs]`, which is written.
        panels: &'a mut [f32],
        /// They will be multiplied again. Otherwise each is written where the first was, into
        /// lines that are near.
        again: bool,
    },
}

impl Transposed<'_> {
    const fn panels(&self) -> &[f32] {
        match self {
            Self::Made(panels) => panels,
            Self::Fresh { panels, .. } => panels,
        }
    }
}

/// d_X = d_Y·W; where `mask` is given, times its scale where its activations are above 0 and 0
/// elsewhere. In bf16 `d_y` is words of neighbouring columns, and `transposed` is there.
///
/// # Panics
/// When shapes do not fit together.
pub fn data_gradient(
    precision: Precision,
    d_y: Activations<'_>,
    transposed: Transposed<'_>,
    mask: Option<Mask<'_>>,
    d_x: &mut ActivationsMut<'_>,
) {
    check_forward(d_y, transposed.panels().len(), d_x);
    if let Transposed::Fresh { weight, panels, .. } = &transposed {
        assert_eq!(weight.len(), panels.len(), "length of W");
    }
    check_mask(mask, d_x);
    let made = matches!(transposed, Transposed::Made(_));
    assert!(made || precision == Precision::F32, "panels in bf16 are made before");
    match precision {
        Precision::F32 => run(DataGradient { operand: Whole, d_y, transposed, mask, d_x }),
        Precision::Bf16 => run_halves(DataGradient { operand: Halves, d_y, transposed, mask, d_x }),
    }
}

/// Gradient of ReLU, and of dropout behind it: passes, scaled, where the output is above 0.
#[derive(Clone, Copy, Debug)]
pub struct Mask<'a> {
    /// The output of the activation.
    pub y: Activations<'a>,
    /// Factor on what passes.
    pub scale: f32,
}

fn check_forward(x: Activations<'_>, weight: usize, y: &ActivationsMut<'_>) {
    let y = y.view();
    assert_eq!(x.n(), y.n(), "examples of X and of Y");
    assert_eq!(weight, x.width() * y.width(), "length of W");
}

/// A mask has the shape of what it is laid on, and its layout.
pub(super) fn check_mask(mask: Option<Mask<'_>>, d_x: &ActivationsMut<'_>) {
    if let Some(Mask { y, .. }) = mask {
        let (mine, its) = (d_x.view(), y);
        assert_eq!((mine.n(), mine.width()), (its.n(), its.width()), "shape of the mask");
        assert_eq!(mine.strides(), its.strides(), "layout of the mask");
    }
}

/// The tile's rows of activations, as the left operand of a product over their columns, from the
/// first column of a block on.
#[inline(always)]
fn rows_of(x: Activations<'_>, row: usize, column: usize) -> Left {
    let strides = x.strides();
    Left {
        first: x.as_ptr().wrapping_add(place(strides, row, column)),
        row: strides.row,
        step: 1,
        along_rows: true,
        run: PANEL,
        block: strides.block,
    }
}

/// `C[n, width] = A[n, depth] · panel[width, depth]ᵀ`, tile by tile; `epilogue(row, column)` makes
/// that of the tile at (row, column). Meanwhile `ahead` comes near.
///
/// Sums of one part of the depth wait for the next in C, `(to, apart)`: where it starts, and how
/// far apart its rows are. They are the same sums.
///
/// # Safety
/// `panel` is good for reading `width * depth` elements, C for writing, and the epilogues fit their
/// tiles.
#[inline(always)]
unsafe fn product<I: Isa, O: Operand, E: Epilogue>(
    (isa, operand): (I, O),
    a: Activations<'_>,
    (panel, width): (impl Source, usize),
    ahead: Lines,
    (to, apart): (*mut f32, usize),
    epilogue: impl Fn(usize, usize) -> E,
) {
    let depth = a.width();
    #[cfg(target_arch = "x86_64")]
    if I::TILES && O::HALVES {
        let (rows, epilogue) = (|row| rows_of(a, row, 0), |row| epilogue(row, 0));
        let panel = (panel.address(), width);
        // SAFETY: the set says so; the rest is the caller's promise.
        return unsafe { amx::halves::product(isa, (a.n(), depth), rows, panel, epilogue) };
    }
    const { assert!(I::DEPTH == usize::MAX || I::DEPTH.is_multiple_of(PANEL), "whole blocks") }
    let mut done = 0;
    if const { I::DEPTH < usize::MAX } {
        while depth - done > I::DEPTH {
            let sum = |row, column| Sum {
                add: false,
                to: to.wrapping_add(row * apart + column),
                row: apart,
            };
            let steps = done..done + I::DEPTH;
            // SAFETY: the caller's promise.
            unsafe { add_part((isa, operand), a, (panel, width), ahead, steps, (to, apart), sum) }
            done += I::DEPTH;
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        add_part((isa, operand), a, (panel, width), ahead, done..depth, (to, apart), epilogue)
    }
}

/// Takes some steps of the depth of a [`product`], the first of them that of a block, after those
/// before.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn add_part<I: Isa, O: Operand, E: Epilogue>(
    (isa, operand): (I, O),
    a: Activations<'_>,
    (panel, width): (impl Source, usize),
    ahead: Lines,
    steps: Range<usize>,
    (to, apart): (*mut f32, usize),
    epilogue: impl Fn(usize, usize) -> E,
) {
    let done = steps.start;
    let (panel, ahead) = (panel.advance(done * width), ahead.from(done / PANEL));
    let tiles = a.n().div_ceil(I::ROWS);
    for (number, (row, rows)) in even(a.n(), I::ROWS).enumerate() {
        for at in (0..width).step_by(2 * I::LANES) {
            let first = panel.advance(at);
            let b = Right { first, stride: width, ahead: ahead.of_tile(number, tiles) };
            let size = (rows, (width - at).min(2 * I::LANES));
            let before = to.wrapping_add(row * apart + at).cast_const();
            let of = (steps.len(), (done > 0).then_some((before, apart)));
            let (a, epilogue) = (rows_of(a, row, done), epilogue(row, at));
            // SAFETY: rows of A by construction of the view; the rest is the caller's promise.
            unsafe { tile((isa, operand), size, of, a, b, &epilogue) }
        }
    }
}

/// So many examples at a time, and which is the first: what a panel is multiplied with stays in the
/// second cache level.
fn tiles(a: Activations<'_>, most: usize) -> impl Iterator<Item = (usize, Activations<'_>)> {
    let starts = (0..a.n()).step_by(most);
    starts.map(move |start| (start, a.examples(start..a.n().min(start + most))))
}

/// Examples that a panel is multiplied with.
const fn examples_of_a_panel<I: Isa, O: Operand>() -> usize {
    let by_matrices = I::TILES && O::HALVES;
    if by_matrices { EXAMPLES_AT_MOST } else { EXAMPLES }
}

/// The panel behind one of `depth` rows: W has them one after another.
#[inline(always)]
fn behind(panel: impl Source, width: usize, depth: usize) -> Lines {
    Lines::new(panel.advance(width * depth).address(), PANEL * PANEL)
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
        let (depth, to) = (self.x.width(), self.y.as_mut_ptr());
        for (start, x) in tiles(self.x, examples_of_a_panel::<I, O>()) {
            for first in (0..columns).step_by(PANEL) {
                let width = width_at(columns, first);
                let panel = self.panels.advance(first * depth);
                let ahead = behind(panel, width, depth);
                let epilogue = |row: usize, column: usize| Affine {
                    bias: self.bias.map(|bias| bias.as_ptr().wrapping_add(first + column)),
                    relu: self.relu,
                    to: to.wrapping_add(place(strides, start + row, first + column)),
                    row: strides.row,
                };
                let to = (to.wrapping_add(place(strides, start, first)), strides.row);
                // SAFETY: `check_forward` compared the shapes.
                unsafe { product((isa, self.operand), x, (panel, width), ahead, to, epilogue) }
            }
        }
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

#[derive(Clone, Copy)]
pub(super) struct Affine {
    pub(super) bias: Option<*const AtomicU32>,
    pub(super) relu: bool,
    pub(super) to: *mut f32,
    pub(super) row: usize,
}

impl Epilogue for Affine {
    /// Of a batch that has to pass as a whole, what is written has gone far.
    #[inline(always)]
    unsafe fn claim<I: Isa>(&self, _: I, row: usize, column: usize) {
        prefetch_at(self.to.wrapping_add(row * self.row + column));
    }

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

    /// What there is to do is asked once: asked for every vector, the compiler makes a loop of it,
    /// and the sums go through memory.
    #[inline(always)]
    unsafe fn put_tile<I: Isa, const MR: usize, const NV: usize>(
        &self,
        isa: I,
        row: usize,
        part: usize,
        sums: [[I::Vector; NV]; MR],
    ) {
        let each = |bias, relu| Self { bias, relu, ..*self };
        // SAFETY: the caller's promise.
        unsafe {
            match (self.bias, self.relu) {
                (None, false) => put_each(&each(None, false), isa, row, part, sums),
                (None, true) => put_each(&each(None, true), isa, row, part, sums),
                (Some(bias), false) => put_each(&each(Some(bias), false), isa, row, part, sums),
                (Some(bias), true) => put_each(&each(Some(bias), true), isa, row, part, sums),
            }
        }
    }
}

pub(super) struct DataGradient<'a, 'x, O> {
    pub(super) operand: O,
    pub(super) d_y: Activations<'a>,
    pub(super) transposed: Transposed<'a>,
    pub(super) mask: Option<Mask<'a>>,
    pub(super) d_x: &'a mut ActivationsMut<'x>,
}

impl<O: Operand> Kernel for DataGradient<'_, '_, O> {
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        let (columns, strides) = (self.d_x.view().width(), self.d_x.view().strides());
        let (depth, to) = (self.d_y.width(), self.d_x.as_mut_ptr());
        let one = self.d_y.n() <= EXAMPLES;
        for (start, d_y) in tiles(self.d_y, examples_of_a_panel::<I, O>()) {
            for first in (0..columns).step_by(PANEL) {
                let width = width_at(columns, first);
                let (panel, ahead) = match &mut self.transposed {
                    Transposed::Fresh { weight, panels, again } if start == 0 => {
                        let again = *again || !one;
                        let panel = panels[if again { first * depth } else { 0 }..].as_mut_ptr();
                        // SAFETY: W has as many elements, as `data_gradient` saw.
                        unsafe { transpose_panel(isa, weight, (depth, columns), first, panel) }
                        // What the next panel is made of.
                        let at = weight.as_ptr().wrapping_add((first + width) * PANEL).address();
                        (InPlace(panel), Lines::new(at, columns * PANEL))
                    }
                    made => {
                        let panel = InPlace(made.panels()[first * depth..].as_ptr());
                        (panel, behind(panel, width, depth))
                    }
                };
                let epilogue = |row: usize, column: usize| {
                    let at = place(strides, start + row, first + column);
                    Masked {
                        mask: self.mask.map(|mask| (mask.y.as_ptr().wrapping_add(at), mask.scale)),
                        to: to.wrapping_add(at),
                        row: strides.row,
                    }
                };
                let to = (to.wrapping_add(place(strides, start, first)), strides.row);
                // SAFETY: `data_gradient` compared the shapes, and the mask's layout with that of
                // d_X.
                unsafe { product((isa, self.operand), d_y, (panel, width), ahead, to, epilogue) }
            }
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Masked {
    pub(super) mask: Option<(*const f32, f32)>,
    pub(super) to: *mut f32,
    pub(super) row: usize,
}

impl Epilogue for Masked {
    /// The mask was written in the forward pass, and has gone far since.
    #[inline(always)]
    unsafe fn claim<I: Isa>(&self, _: I, row: usize, column: usize) {
        let at = row * self.row + column;
        prefetch_at(self.to.wrapping_add(at));
        if let Some((y, _)) = self.mask {
            prefetch_at(y.wrapping_add(at));
        }
    }

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

    /// As of [`Affine`]; 1 is the scale without dropout, and nothing to multiply with.
    #[inline(always)]
    unsafe fn put_tile<I: Isa, const MR: usize, const NV: usize>(
        &self,
        isa: I,
        row: usize,
        part: usize,
        sums: [[I::Vector; NV]; MR],
    ) {
        let each = |mask| Self { mask, ..*self };
        // SAFETY: the caller's promise.
        unsafe {
            match self.mask {
                None => put_each(&each(None), isa, row, part, sums),
                Some((y, 1.0)) => put_each(&each(Some((y, 1.0))), isa, row, part, sums),
                Some((y, scale)) => put_each(&each(Some((y, scale))), isa, row, part, sums),
            }
        }
    }
}
