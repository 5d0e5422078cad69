//! The parts of f32s, in the order of `thirds/mod.rs`.

use core::ops::Range;

use super::super::isa::{InPlace, Isa, Kernel, Source, run_halves};
use super::super::layout::{Activations, PANEL, place, width_at};
use super::super::tile::load;
use super::{DEPTH, PLANE, SIDE, STEP, Thirds, thirds_len};

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

/// Some rows of a step of a left operand, of `columns` elements that are `stride` apart.
///
/// # Safety
/// `from` is good for reading them, from its first row on.
#[inline(always)]
pub(super) unsafe fn split_rows<I: Isa>(
    isa: I,
    rows: Range<usize>,
    columns: usize,
    from: (impl Source, usize),
    step: &mut [f32; STEP],
) {
    assert!(rows.end <= PANEL, "rows of a step");
    // SAFETY: the caller's promise.
    unsafe {
        // What a whole row is, the compiler is to know.
        match columns {
            DEPTH => rows_of_step(isa, rows, DEPTH, from, step.as_mut_ptr()),
            columns => rows_of_step(isa, rows, columns, from, step.as_mut_ptr()),
        }
    }
}

/// [`split_rows`].
///
/// # Safety
/// As there; `step` is good for writing one.
#[inline(always)]
unsafe fn rows_of_step<I: Isa>(
    isa: I,
    rows: Range<usize>,
    columns: usize,
    (from, stride): (impl Source, usize),
    step: *mut f32,
) {
    for row in rows {
        for at in (0..DEPTH).step_by(2 * I::LANES) {
            let part = |at: usize| match columns.saturating_sub(at).min(I::LANES) {
                0 => isa.zero(),
                // SAFETY: the caller's promise.
                count => unsafe { load(isa, from.advance(row * stride + at), count) },
            };
            let (low, high) = (isa.thirds(part(at)), isa.thirds(part(at + I::LANES)));
            for (plane, (low, high)) in low.into_iter().zip(high).enumerate() {
                let to = step.wrapping_add(plane * PLANE + row * SIDE + at / 2);
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
        let (steps, _) = self.to.as_chunks_mut();
        let len = n.div_ceil(DEPTH);
        for first in (0..width).step_by(PANEL) {
            let columns = width_at(width, first);
            let steps = &mut steps[first / PANEL * len..][..len];
            for (start, step) in (0..n).step_by(DEPTH).zip(steps) {
                let from = InPlace(self.x.as_ptr().wrapping_add(place(strides, start, first)));
                let size = (DEPTH.min(n - start), columns);
                // SAFETY: these columns of some examples.
                unsafe { split_pairs(isa, 0..SIDE, size, (from, strides.row), step) }
            }
        }
    }
}

/// Some pairs of rows of a step of a right operand, which has `rows` rows of `width` elements that
/// are `stride` apart.
///
/// # Safety
/// `from` is good for reading them.
#[inline(always)]
pub(super) unsafe fn split_pairs<I: Isa>(
    isa: I,
    pairs: Range<usize>,
    size: (usize, usize),
    from: (impl Source, usize),
    step: &mut [f32; STEP],
) {
    assert!(pairs.end <= SIDE && size.1 <= PANEL, "pairs of a step");
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            (DEPTH, PANEL) => pairs_of_step(isa, pairs, (DEPTH, PANEL), from, step.as_mut_ptr()),
            size => pairs_of_step(isa, pairs, size, from, step.as_mut_ptr()),
        }
    }
}

/// [`split_pairs`].
///
/// # Safety
/// As there; `step` is good for writing one.
#[inline(always)]
unsafe fn pairs_of_step<I: Isa>(
    isa: I,
    pairs: Range<usize>,
    (rows, width): (usize, usize),
    (from, stride): (impl Source, usize),
    step: *mut f32,
) {
    for pair in pairs {
        let row = 2 * pair;
        for at in (0..width).step_by(I::LANES) {
            let count = I::LANES.min(width - at);
            let part = |row: usize| match row < rows {
                // SAFETY: the caller's promise.
                true => unsafe { load(isa, from.advance(row * stride + at), count) },
                false => isa.zero(),
            };
            let (lower, upper) = (isa.thirds(part(row)), isa.thirds(part(row + 1)));
            let place = at / SIDE * (PLANE / 2) + pair * SIDE + at % SIDE;
            for (plane, (lower, upper)) in lower.into_iter().zip(upper).enumerate() {
                let to = step.wrapping_add(plane * PLANE + place);
                // SAFETY: as many words of the row.
                unsafe { isa.store(to, isa.pair_upper(lower, upper)) }
            }
        }
    }
}
