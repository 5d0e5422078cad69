//! The parts of f32s, in the order of `thirds/mod.rs`.

use super::super::isa::{InPlace, Isa, Kernel, Source, run_halves};
use super::super::layout::{Activations, PANEL, place, width_at};
use super::super::tile::load;
use super::{DEPTH, PLANE, SIDE, STEP, Thirds, thirds_len};

/// X `[n, width]` as a left operand whose sums are over columns.
///
/// # Panics
/// When `to` is shorter than [`thirds_len`] says.
pub fn split_columns<'a>(x: Activations<'_>, to: &'a mut [f32]) -> Thirds<'a> {
    let (n, width) = (x.n(), x.width());
    let to = &mut to[..thirds_len(n, width)];
    run_halves(SplitColumns { x, to });
    Thirds::new(to, n, width)
}

/// X `[n, width]` as a right operand whose sums are over examples.
///
/// # Panics
/// When `to` is shorter than [`thirds_len`] says.
pub fn split_examples<'a>(x: Activations<'_>, to: &'a mut [f32]) -> Thirds<'a> {
    let (n, width) = (x.n(), x.width());
    let to = &mut to[..thirds_len(width, n)];
    run_halves(SplitExamples { x, to });
    Thirds::new(to, width, n)
}

pub(in super::super) struct SplitColumns<'a, 't> {
    pub(in super::super) x: Activations<'a>,
    pub(in super::super) to: &'t mut [f32],
}

impl Kernel for SplitColumns<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (n, width, strides) = (self.x.n(), self.x.width(), self.x.strides());
        let len = width.div_ceil(DEPTH) * STEP;
        for tile in (0..n).step_by(PANEL) {
            let rows = PANEL.min(n - tile);
            let steps = self.to[tile / PANEL * len..][..len].chunks_mut(STEP);
            for (first, step) in (0..width).step_by(DEPTH).zip(steps) {
                let from = InPlace(self.x.as_ptr().wrapping_add(place(strides, tile, first)));
                let size = (rows, width_at(width, first));
                // SAFETY: the rows' columns of the block.
                unsafe { split_rows(isa, size, (from, strides.row), step) }
            }
        }
    }
}

/// A step of a left operand, of rows of `columns` elements that are `stride` apart.
///
/// # Safety
/// `from` is good for reading them.
#[inline(always)]
pub(super) unsafe fn split_rows<I: Isa>(
    isa: I,
    (rows, columns): (usize, usize),
    (from, stride): (impl Source, usize),
    step: &mut [f32],
) {
    assert!(step.len() == STEP && rows <= PANEL, "a step");
    for row in 0..rows {
        for at in (0..DEPTH).step_by(2 * I::LANES) {
            let part = |at: usize| match columns.saturating_sub(at).min(I::LANES) {
                0 => isa.zero(),
                // SAFETY: the caller's promise.
                count => unsafe { load(isa, from.advance(row * stride + at), count) },
            };
            let (low, high) = (isa.thirds(part(at)), isa.thirds(part(at + I::LANES)));
            for (plane, (low, high)) in low.into_iter().zip(high).enumerate() {
                let to = step[plane * PLANE + row * SIDE + at / 2..].as_mut_ptr();
                // SAFETY: as many words of the row.
                unsafe { isa.store(to, isa.upper_halves(low, high)) }
            }
        }
    }
}

pub(in super::super) struct SplitExamples<'a, 't> {
    pub(in super::super) x: Activations<'a>,
    pub(in super::super) to: &'t mut [f32],
}

impl Kernel for SplitExamples<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (n, width, strides) = (self.x.n(), self.x.width(), self.x.strides());
        let len = n.div_ceil(DEPTH) * STEP;
        for first in (0..width).step_by(PANEL) {
            let from = InPlace(self.x.as_ptr().wrapping_add(place(strides, 0, first)));
            let tile = &mut self.to[first / PANEL * len..][..len];
            // SAFETY: these columns of all examples.
            unsafe { split_panel(isa, (n, width_at(width, first)), (from, strides.row), tile) }
        }
    }
}

/// A tile of a right operand, of `depth` rows of `width` elements that are `stride` apart.
///
/// # Safety
/// `from` is good for reading them.
#[inline(always)]
pub(super) unsafe fn split_panel<I: Isa>(
    isa: I,
    (depth, width): (usize, usize),
    (from, stride): (impl Source, usize),
    tile: &mut [f32],
) {
    assert!(tile.len() == depth.div_ceil(DEPTH) * STEP && width <= PANEL, "a tile");
    for (first, step) in (0..depth).step_by(DEPTH).zip(tile.chunks_exact_mut(STEP)) {
        for pair in 0..SIDE {
            let row = first + 2 * pair;
            for at in (0..width).step_by(I::LANES) {
                let count = I::LANES.min(width - at);
                let part = |row: usize| match row < depth {
                    // SAFETY: the caller's promise.
                    true => unsafe { load(isa, from.advance(row * stride + at), count) },
                    false => isa.zero(),
                };
                let (lower, upper) = (isa.thirds(part(row)), isa.thirds(part(row + 1)));
                let place = at / SIDE * (PLANE / 2) + pair * SIDE + at % SIDE;
                for (plane, (lower, upper)) in lower.into_iter().zip(upper).enumerate() {
                    let to = step[plane * PLANE + place..].as_mut_ptr();
                    // SAFETY: as many words of the row.
                    unsafe { isa.store(to, isa.pair_upper(lower, upper)) }
                }
            }
        }
    }
}
