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
        let Self { outputs, inputs, .. } = self;
        let (from, to) = (self.weight.as_ptr(), self.transposed.as_mut_ptr());
        for first in (0..outputs).step_by(PANEL) {
            let width = width_at(outputs, first);
            for input in (0..inputs).step_by(I::LANES) {
                let block = input / PANEL * PANEL;
                let block_width = width_at(inputs, block);
                let down = I::LANES.min(inputs - input);
                for output in (0..width).step_by(I::LANES) {
                    let across = I::LANES.min(width - output);
                    let from = from.wrapping_add(first * inputs + input * width + output);
                    let to = to.wrapping_add(
                        block * outputs + (first + output) * block_width + input - block,
                    );
                    // SAFETY: a square, or what there is of it, of panels of both layouts, whose
                    // lengths `transpose` checked.
                    unsafe {
                        transpose_part(isa, (down, across), (from, width), (to, block_width));
                    }
                }
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
