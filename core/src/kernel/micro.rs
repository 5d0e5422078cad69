//! The micro-kernel: one tile of C in registers, for every instruction set.
//!
//! `MR` rows by `NV` vectors of sums stay in registers; one step of the depth adds the outer product of
//! a column of the A panel and a row of the B panel. The loop is written once over [`Vector`]. Written
//! over arrays instead, the compiler vectorises the wrong dimension, thirty times slower.

/// A register of floats, of one instruction set.
///
/// # Safety
/// The methods may only run where the instruction set is supported; that is what their `unsafe`
/// means. Loads and stores are through slices of exactly [`Self::LANES`] elements or more.
pub(super) trait Vector: Copy {
    /// Floats in a register.
    const LANES: usize;
    /// All zeros.
    unsafe fn zero() -> Self;
    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self;
    /// The first lanes of `from`.
    unsafe fn load(from: &[f32]) -> Self;
    /// Writes the first lanes of `to`.
    unsafe fn store(self, to: &mut [f32]);
    /// `a * b + self`, rounded once if the instruction set can.
    unsafe fn multiply_add(self, a: Self, b: Self) -> Self;
    /// `self + other`
    unsafe fn add(self, other: Self) -> Self;
}

/// Sums over the depth of a panel of A `[depth, MR]` and a panel of B `[depth, NV * LANES]`.
///
/// # Safety
/// The instruction set of `V` is supported.
#[inline(always)]
pub(super) unsafe fn tile<V: Vector, const MR: usize, const NV: usize>(
    a: &[f32],
    b: &[f32],
) -> [[V; NV]; MR] {
    // SAFETY: the caller's promise, for all calls of `V` below.
    unsafe {
        let mut sums = [[V::zero(); NV]; MR];
        let (a, _) = a.as_chunks::<MR>();
        for (a, b) in a.iter().zip(b.chunks_exact(NV * V::LANES)) {
            let mut row = [V::zero(); NV];
            for (j, row) in row.iter_mut().enumerate() {
                *row = V::load(&b[j * V::LANES..(j + 1) * V::LANES]);
            }
            for i in 0..MR {
                let x = V::splat(a[i]);
                for j in 0..NV {
                    sums[i][j] = sums[i][j].multiply_add(x, row[j]);
                }
            }
        }
        sums
    }
}

/// Four floats without any instruction set in particular.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; 4]);

impl Vector for Plain {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; 4])
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; 4])
    }

    #[inline(always)]
    unsafe fn load(from: &[f32]) -> Self {
        Self([from[0], from[1], from[2], from[3]])
    }

    #[inline(always)]
    unsafe fn store(self, to: &mut [f32]) {
        to[..4].copy_from_slice(&self.0);
    }

    /// Rounds twice: the fused operation is a slow library call where it is no instruction.
    #[inline(always)]
    unsafe fn multiply_add(self, a: Self, b: Self) -> Self {
        Self(core::array::from_fn(|lane| a.0[lane] * b.0[lane] + self.0[lane]))
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(core::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m256, __m512, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps,
        _mm256_setzero_ps, _mm256_storeu_ps, _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
        _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
    };

    use super::Vector;

    /// A [`Vector`] of a register type: its lanes and its instructions.
    macro_rules! vector {
        ($name:ident, $register:ty, $lanes:literal, $zero:ident, $splat:ident, $load:ident,
         $store:ident, $multiply_add:ident, $add:ident) => {
            #[derive(Clone, Copy)]
            pub(in super::super) struct $name($register);

            impl Vector for $name {
                const LANES: usize = $lanes;

                #[inline(always)]
                unsafe fn zero() -> Self {
                    // SAFETY: the caller's promise: the instruction set is supported.
                    Self(unsafe { $zero() })
                }

                #[inline(always)]
                unsafe fn splat(x: f32) -> Self {
                    // SAFETY: as for `zero`.
                    Self(unsafe { $splat(x) })
                }

                #[inline(always)]
                unsafe fn load(from: &[f32]) -> Self {
                    let from = &from[..$lanes];
                    // SAFETY: as for `zero`; `from` is as long as the register.
                    Self(unsafe { $load(from.as_ptr()) })
                }

                #[inline(always)]
                unsafe fn store(self, to: &mut [f32]) {
                    let to = &mut to[..$lanes];
                    // SAFETY: as for `zero`; `to` is as long as the register.
                    unsafe { $store(to.as_mut_ptr(), self.0) }
                }

                #[inline(always)]
                unsafe fn multiply_add(self, a: Self, b: Self) -> Self {
                    // SAFETY: as for `zero`.
                    Self(unsafe { $multiply_add(a.0, b.0, self.0) })
                }

                #[inline(always)]
                unsafe fn add(self, other: Self) -> Self {
                    // SAFETY: as for `zero`.
                    Self(unsafe { $add(self.0, other.0) })
                }
            }
        };
    }

    vector!(
        Avx2,
        __m256,
        8,
        _mm256_setzero_ps,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps
    );
    vector!(
        Avx512,
        __m512,
        16,
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps
    );
}
