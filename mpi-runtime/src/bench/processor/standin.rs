//! Stands in for `umbra_core::kernel::peak_burst` until it is there.
#![allow(unsafe_code)]

use core::arch::x86_64::*;
use core::hint::black_box;
use umbra_core::kernel::{Simd, selected};

pub(super) fn peak_burst(iterations: u32) -> u64 {
    match selected() {
        // SAFETY: only supported sets are selected.
        Simd::Avx512 => unsafe { avx512(iterations) },
        // SAFETY: only supported sets are selected.
        Simd::Avx2 => unsafe { avx2(iterations) },
        _ => plain(iterations),
    }
}

#[target_feature(enable = "avx512f")]
fn avx512(iterations: u32) -> u64 {
    let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(1e-3)));
    let mut sums = [_mm512_set1_ps(black_box(1.0)); 16];
    for _ in 0..iterations {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, a, b);
        }
    }
    black_box(sums);
    u64::from(iterations) * 16 * 16 * 2
}

#[target_feature(enable = "avx2,fma")]
fn avx2(iterations: u32) -> u64 {
    let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(1e-3)));
    let mut sums = [_mm256_set1_ps(black_box(1.0)); 12];
    for _ in 0..iterations {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, a, b);
        }
    }
    black_box(sums);
    u64::from(iterations) * 12 * 8 * 2
}

fn plain(iterations: u32) -> u64 {
    let (a, b) = (black_box(0.999f32), black_box(1e-3f32));
    let mut sums = [black_box(1.0f32); 48];
    for _ in 0..iterations {
        for sum in &mut sums {
            *sum = *sum * a + b;
        }
    }
    black_box(sums);
    u64::from(iterations) * 48 * 2
}
