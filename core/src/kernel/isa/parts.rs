//! Parts of vectors of four, word by word: for sets without masks.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{Source, UPPER_HALF};

/// The first `count` ≤ 4 elements, zeros behind them.
///
/// # Safety
/// `from` is good for reading them.
#[inline(always)]
pub(super) unsafe fn load(from: impl Source, count: usize) -> [f32; 4] {
    let mut lanes = [0.0; 4];
    // Not a loop: the lanes stay in registers.
    // SAFETY: the caller's promise; what is behind them is not touched.
    unsafe {
        if count > 0 {
            lanes[0] = from.get();
        }
        if count > 1 {
            lanes[1] = from.advance(1).get();
        }
        if count > 2 {
            lanes[2] = from.advance(2).get();
        }
        if count > 3 {
            lanes[3] = from.advance(3).get();
        }
    }
    lanes
}

/// The first `count` ≤ 4 of bf16s that stand two to a word, zeros behind them.
///
/// # Safety
/// `from` is good for reading their words.
#[inline(always)]
pub(super) unsafe fn load_halves(from: *const AtomicU32, count: usize) -> [f32; 4] {
    let mut lanes = [0.0; 4];
    for (lane, x) in lanes.iter_mut().enumerate().take(count) {
        // SAFETY: the caller's promise.
        let word = unsafe { &*from.add(lane / 2) }.load(Relaxed);
        let half = if lane % 2 == 0 { word << 16 } else { word & UPPER_HALF };
        *x = f32::from_bits(half);
    }
    lanes
}

/// Writes the first `count` ≤ 4 lanes.
///
/// # Safety
/// `to` is good for writing them.
#[inline(always)]
pub(super) unsafe fn store(to: *mut f32, count: usize, lanes: [f32; 4]) {
    for (lane, x) in lanes.into_iter().enumerate().take(count) {
        // SAFETY: the caller's promise.
        unsafe { *to.add(lane) = x }
    }
}

/// [`store`] to shared memory.
///
/// # Safety
/// `to` is good for writing them.
#[inline(always)]
pub(super) unsafe fn store_shared(to: *const AtomicU32, count: usize, lanes: [f32; 4]) {
    for (lane, x) in lanes.into_iter().enumerate().take(count) {
        // SAFETY: the caller's promise.
        unsafe { &*to.add(lane) }.store(x.to_bits(), Relaxed);
    }
}
