//! Operands of products in bf16, from f32s: both forms of activations (`operand.rs`), and the
//! panels of W and Wᵀ.

use core::sync::atomic::AtomicU32;

use super::isa::{InPlace, Isa, Kernel, Plain, Source, run_halves};
use super::layout::{Activations, ActivationsMut, PANEL, Square, place, width_at};
use super::tile::{ask, load, store};
use super::transpose::transpose_part;

/// Both forms of X `[n, width]`: `columns`, where they are wanted, `[n, width / 2]` words of
/// neighbouring columns; `examples`, `[n / 2, width]` words of neighbouring examples. Halves of an
/// odd number are rounded up.
///
/// # Panics
/// When shapes do not fit together.
pub fn round_activations(
    x: Activations<'_>,
    columns: Option<&mut ActivationsMut<'_>>,
    examples: &mut ActivationsMut<'_>,
) {
    let (n, width) = (x.n(), x.width());
    if let Some(columns) = &columns {
        let to = columns.view();
        assert_eq!((to.n(), to.width()), (n, width.div_ceil(2)), "words of columns");
    }
    let to = examples.view();
    assert_eq!((to.n(), to.width()), (n.div_ceil(2), width), "words of examples");
    run_halves(RoundActivations { x, columns, examples });
}

/// Words of the panels of W `[outputs, inputs]` in bf16, neighbouring inputs in a word.
#[must_use]
pub const fn half_panels_len(outputs: usize, inputs: usize) -> usize {
    outputs * inputs.div_ceil(2)
}

/// The panels of W `[outputs, inputs]` in bf16, and those of Wᵀ `[inputs, outputs]`.
///
/// # Panics
/// When lengths differ.
pub fn round_weight(
    weight: &[AtomicU32],
    (outputs, inputs): (usize, usize),
    panels: &mut [f32],
    transposed: &mut [f32],
) {
    assert_eq!(weight.len(), outputs * inputs, "length of W");
    assert_eq!(panels.len(), half_panels_len(outputs, inputs), "length of W in bf16");
    assert_eq!(transposed.len(), half_panels_len(inputs, outputs), "length of Wᵀ in bf16");
    run_halves(RoundWeight { weight, outputs, inputs, panels, transposed });
}

pub(super) struct RoundActivations<'a, 'c, 'e> {
    pub(super) x: Activations<'a>,
    pub(super) columns: Option<&'a mut ActivationsMut<'c>>,
    pub(super) examples: &'a mut ActivationsMut<'e>,
}

impl Kernel for RoundActivations<'_, '_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (n, width) = (self.x.n(), self.x.width());
        let (from, from_strides) = (self.x.as_ptr(), self.x.strides());
        let (pairs_strides, pairs) = (self.examples.view().strides(), self.examples.as_mut_ptr());
        let columns = self.columns.map(|it| (it.view().strides(), it.as_mut_ptr()));
        for first in (0..width).step_by(PANEL) {
            let block = width_at(width, first);
            for i in (0..n).step_by(2) {
                for at in (0..block).step_by(2 * I::LANES) {
                    let count = (block - at).min(2 * I::LANES);
                    let column = first + at;
                    let upper = from.wrapping_add(place(from_strides, i, column));
                    let lower = (i + 1 < n).then(|| upper.wrapping_add(from_strides.row));
                    // SAFETY: `count` columns of two examples, or one.
                    let (a, b) = unsafe { round_rows(isa, upper, lower, count) };
                    if let Some((strides, to)) = columns {
                        for (i, words) in [(i, a), (i + 1, b)].into_iter().take(n - i) {
                            let to = to.wrapping_add(place(strides, i, column / 2));
                            // SAFETY: as many halves of the same example.
                            unsafe { store(isa, to, count.div_ceil(2), words) }
                        }
                    }
                    let to = pairs.wrapping_add(place(pairs_strides, i / 2, column));
                    // SAFETY: as many columns of two examples.
                    unsafe { store_pairs(isa, to, count, (a, b)) }
                }
            }
        }
    }
}

pub(super) struct RoundWeight<'a> {
    pub(super) weight: &'a [AtomicU32],
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) panels: &'a mut [f32],
    pub(super) transposed: &'a mut [f32],
}

/// Squares until those are written whose lines are asked for: a square of Wᵀ is one line each of
/// many rows, which no processor finds out by itself. What is read is one behind the other, and
/// asking for it too takes longer than it gains.
const AHEAD: usize = 2;

/// Elements up to which nothing is asked for: what a matrix is rounded to is near then. In a
/// program made for it, on a Zen 4 core, those of MLPerf's DLRM one after another took .75 to .96
/// of the time by asking, and one of 512 × 256 alone 1.26 times as long.
const MANY: usize = 1 << 18;

impl Kernel for RoundWeight<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { outputs, inputs, .. } = self;
        let (half_inputs, half_outputs) = (inputs.div_ceil(2), outputs.div_ceil(2));
        let (from, panels) = (self.weight.as_ptr(), self.panels.as_mut_ptr());
        let transposed = self.transposed.as_mut_ptr();
        // Words of neighbouring outputs of as many inputs: a square to be transposed.
        let mut square = Square::ZEROS;
        let square = &mut square.0;
        for first in (0..outputs).step_by(PANEL) {
            let width = width_at(outputs, first);
            for input in (0..inputs).step_by(I::LANES) {
                let down = I::LANES.min(inputs - input);
                let block = input / PANEL * PANEL;
                let block_width = width_at(inputs, block);
                if outputs * inputs > MANY && input + AHEAD * I::LANES < inputs {
                    let input = input + AHEAD * I::LANES;
                    let to = panels.wrapping_add(first * half_inputs + input / 2 * width);
                    ask(to, down / 2 * width);
                    let (block, across) = (input / PANEL * PANEL, width.div_ceil(2));
                    let (to, row) = (block * half_outputs, width_at(inputs, block));
                    let to = transposed.wrapping_add(to + first / 2 * row + input - block);
                    (0..across).for_each(|i| ask(to.wrapping_add(i * row), down));
                }
                for at in (0..width).step_by(2 * I::LANES) {
                    let count = (width - at).min(2 * I::LANES);
                    let across = count.div_ceil(2);
                    for i in (input..input + down).step_by(2) {
                        let upper = from.wrapping_add(first * inputs + i * width + at);
                        let lower = (i + 1 < inputs).then(|| upper.wrapping_add(width));
                        // SAFETY: `count` outputs of two inputs, or one, in a panel.
                        let (a, b) = unsafe { round_rows(isa, upper, lower, count) };
                        let to = panels.wrapping_add(first * half_inputs + i / 2 * width + at);
                        let words = [a, b].into_iter().zip(i - input..down);
                        // SAFETY: as many words of two inputs; rows of the square.
                        unsafe {
                            store_pairs(isa, to, count, (a, b));
                            for (words, row) in words {
                                isa.store(square[row * I::LANES..].as_mut_ptr(), words);
                            }
                        }
                    }
                    let to = (first + at) / 2 * block_width + input - block;
                    let to = transposed.wrapping_add(block * half_outputs + to);
                    let from = (InPlace(square.as_ptr()), I::LANES);
                    // SAFETY: what there is of a square, in a panel of Wᵀ.
                    unsafe { transpose_part(isa, (down, across), from, (to, block_width)) }
                }
            }
        }
    }
}

/// Words of neighbours of private f32s, rounded where they are read.
#[derive(Clone, Copy)]
pub(super) struct Rounded(pub(super) *const f32);

impl Source for Rounded {
    #[inline(always)]
    fn advance(self, elements: usize) -> Self {
        Self(self.0.wrapping_add(2 * elements))
    }

    #[inline(always)]
    fn address(self) -> *const f32 {
        self.0
    }

    #[inline(always)]
    unsafe fn get(self) -> f32 {
        // SAFETY: the caller's promise, here and below: both elements of a word.
        unsafe { round_row(Plain::new(), self.0, 2)[0] }
    }

    #[inline(always)]
    unsafe fn load<I: Isa>(self, isa: I) -> I::Vector {
        // SAFETY: as above.
        unsafe { round_row(isa, self.0, 2 * I::LANES) }
    }

    #[inline(always)]
    unsafe fn load_part<I: Isa>(self, isa: I, count: usize) -> I::Vector {
        // SAFETY: as above.
        unsafe { round_row(isa, self.0, 2 * count) }
    }
}

/// [`round_row`] of two rows; zeros for one that is not there.
///
/// # Safety
/// They are good for reading `count` elements.
#[inline(always)]
pub(super) unsafe fn round_rows<I: Isa, S: Source>(
    isa: I,
    upper: S,
    lower: Option<S>,
    count: usize,
) -> (I::Vector, I::Vector) {
    // SAFETY: the caller's promise.
    unsafe {
        let a = round_row(isa, upper, count);
        match lower {
            Some(lower) => (a, round_row(isa, lower, count)),
            None => (a, isa.zero()),
        }
    }
}

/// `count` ≤ 2 · `LANES` elements in bf16, zeros behind them.
///
/// # Safety
/// `from` is good for reading them.
#[inline(always)]
pub(super) unsafe fn round_row<I: Isa>(isa: I, from: impl Source, count: usize) -> I::Vector {
    // SAFETY: the caller's promise.
    unsafe {
        let low = load(isa, from, count.min(I::LANES));
        if count <= I::LANES {
            return isa.round(low, isa.zero());
        }
        isa.round(low, load(isa, from.advance(I::LANES), count - I::LANES))
    }
}

/// Writes the words of `count` ≤ 2 · `LANES` halves of `a` and `b`.
///
/// # Safety
/// `to` is good for writing them.
#[inline(always)]
pub(super) unsafe fn store_pairs<I: Isa>(
    isa: I,
    to: *mut f32,
    count: usize,
    (a, b): (I::Vector, I::Vector),
) {
    let [low, high] = isa.pair(a, b);
    // SAFETY: the caller's promise.
    unsafe {
        store(isa, to, count.min(I::LANES), low);
        if count > I::LANES {
            store(isa, to.add(I::LANES), count - I::LANES, high);
        }
    }
}
