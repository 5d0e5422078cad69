//! The panels of a transposed matrix, square by square in registers.

use core::sync::atomic::AtomicU32;

use super::isa::{Isa, Kernel, Source, run};
use super::layout::{PANEL, width_at};

/// The panels of Wᵀ `[inputs, outputs]` from those of W `[outputs, inputs]`.
///
/// # Panics
/// When lengths differ.
pub fn transpose(weight: &[AtomicU32], outputs: usize, inputs: usize, transposed: &mut [f32]) {
    assert_eq!(weight.len(), outputs * inputs, "length of W");
    assert_eq!(transposed.len(), outputs * inputs, "length of Wᵀ");
    run(Transpose { weight, outputs, inputs, transposed });
}

pub(super) struct Transpose<'a> {
    pub(super) weight: &'a [AtomicU32],
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) transposed: &'a mut [f32],
}

impl Kernel for Transpose<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { weight, outputs, inputs, transposed } = self;
        for first in (0..inputs).step_by(PANEL) {
            let to = transposed[first * outputs..].as_mut_ptr();
            // SAFETY: `transpose` checked the lengths.
            unsafe { transpose_panel(isa, weight, (outputs, inputs), first, to) }
        }
    }
}

/// The panel of Wᵀ that starts at input `first`. `weight`: panels of `[outputs, inputs]`
///
/// # Safety
/// It has that many elements, and `to` is good for writing the panel.
#[inline(always)]
pub(super) unsafe fn transpose_panel<I: Isa>(
    isa: I,
    weight: &[AtomicU32],
    (outputs, inputs): (usize, usize),
    first: usize,
    to: *mut f32,
) {
    let panel = width_at(inputs, first);
    for block in (0..outputs).step_by(PANEL) {
        let width = width_at(outputs, block);
        let from = weight.as_ptr().wrapping_add(block * inputs + first * width);
        for input in (0..panel).step_by(I::LANES) {
            let down = I::LANES.min(panel - input);
            for output in (0..width).step_by(I::LANES) {
                let across = I::LANES.min(width - output);
                let from = from.wrapping_add(input * width + output);
                let to = to.wrapping_add((block + output) * panel + input);
                // SAFETY: a square, or what there is of it, of panels of both layouts.
                unsafe { transpose_part(isa, (down, across), (from, width), (to, panel)) }
            }
        }
    }
}

/// Transposes `rows` × `columns` ≤ a square: `to[j * to_stride + i] = from[i * from_stride + j]`.
///
/// # Safety
/// `from` is good for reading them, `to` for writing them.
#[inline(always)]
pub(super) unsafe fn transpose_part<I: Isa, S: Source>(
    isa: I,
    (rows, columns): (usize, usize),
    (from, from_stride): (S, usize),
    (to, to_stride): (*mut f32, usize),
) {
    // SAFETY: the caller's promise.
    unsafe {
        if rows == I::LANES && columns == I::LANES {
            return isa.transpose(from, from_stride, to, to_stride);
        }
        for i in 0..rows {
            for j in 0..columns {
                *to.add(j * to_stride + i) = from.advance(i * from_stride + j).get();
            }
        }
    }
}
