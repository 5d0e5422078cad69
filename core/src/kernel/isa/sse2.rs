//! SSE2: four lanes, sixteen registers, on every x86-64 processor. A multiplication and an addition
//! instead of a fused one, as `plain.rs` has them: the same bits.

use core::arch::asm;
use core::arch::x86_64::{
    __m128, __m128i, _mm_add_epi32, _mm_add_ps, _mm_and_ps, _mm_and_si128, _mm_andnot_ps,
    _mm_andnot_si128, _mm_castps_si128, _mm_castsi128_ps, _mm_cmple_ps, _mm_cmplt_ps,
    _mm_cmpunord_ps, _mm_div_ps, _mm_loadu_ps, _mm_movehl_ps, _mm_movelh_ps, _mm_movemask_ps,
    _mm_mul_ps, _mm_or_si128, _mm_packs_epi32, _mm_set1_epi32, _mm_set1_ps, _mm_setr_ps,
    _mm_setzero_ps, _mm_setzero_si128, _mm_slli_epi32, _mm_sqrt_ps, _mm_srai_epi32, _mm_srli_epi32,
    _mm_storeu_ps, _mm_sub_ps, _mm_unpackhi_epi16, _mm_unpackhi_ps, _mm_unpacklo_epi16,
    _mm_unpacklo_ps,
};
use core::sync::atomic::AtomicU32;

use super::x86::one_instruction;
use super::{FLUSHED_BELOW, HALVES_FLUSHED_BELOW, Isa, QUIET, Source, UPPER_HALF, parts};

/// The vectors of x86-64.
#[derive(Clone, Copy)]
pub(in super::super) struct Sse2(());

impl Sse2 {
    /// It is part of the architecture.
    pub(in super::super) const fn new() -> Self {
        Self(())
    }

    /// There are no masks: the functions below take the number of lanes.
    #[inline(always)]
    const fn mask(self, count: usize) -> usize {
        count
    }

    /// The lower and the upper halves of words, as f32s.
    #[inline(always)]
    fn halves(self, words: __m128) -> [__m128; 2] {
        // SAFETY: every x86-64 processor has the instructions, here and below.
        unsafe {
            let upper = _mm_castsi128_ps(_mm_set1_epi32(UPPER_HALF.cast_signed()));
            let lower = _mm_slli_epi32::<16>(_mm_castps_si128(words));
            [_mm_castsi128_ps(lower), _mm_and_ps(words, upper)]
        }
    }

    /// The bf16s of [`Isa::round`], in the lower halves of words, their signs in the upper ones.
    #[inline(always)]
    fn upper_half(self, x: __m128) -> __m128i {
        // SAFETY: as above.
        unsafe {
            let size = _mm_andnot_ps(self.splat(-0.0), x);
            let small = _mm_cmplt_ps(size, self.splat(HALVES_FLUSHED_BELOW));
            let kept = _mm_castps_si128(_mm_andnot_ps(small, x));
            let even = _mm_and_si128(_mm_srli_epi32::<16>(kept), _mm_set1_epi32(1));
            let up = _mm_add_epi32(even, _mm_set1_epi32(0x7fff));
            let rounded = _mm_add_epi32(kept, up);
            let quiet = _mm_or_si128(kept, _mm_set1_epi32(QUIET.cast_signed()));
            let is_nan = _mm_castps_si128(_mm_cmpunord_ps(x, x));
            let chosen =
                _mm_or_si128(_mm_and_si128(is_nan, quiet), _mm_andnot_si128(is_nan, rounded));
            _mm_srai_epi32::<16>(chosen)
        }
    }

    /// The lanes in memory.
    #[inline(always)]
    fn lanes(self, x: __m128) -> [f32; 4] {
        let mut lanes = [0.0; 4];
        // SAFETY: four words.
        unsafe { _mm_storeu_ps(lanes.as_mut_ptr(), x) }
        lanes
    }
}

impl Isa for Sse2 {
    type Vector = __m128;
    const LANES: usize = 4;
    /// 6 × 8: 12 sums, 2 vectors, 1 broadcast and 1 product in 16 registers.
    const ROWS: usize = 6;

    one_instruction!(
        __m128,
        _mm_setzero_ps,
        _mm_set1_ps,
        _mm_add_ps,
        _mm_mul_ps,
        _mm_sub_ps,
        _mm_div_ps,
        _mm_sqrt_ps,
        multiply_add,
        _mm_loadu_ps,
        _mm_storeu_ps
    );

    #[inline(always)]
    fn relu(self, x: __m128) -> __m128 {
        // SAFETY: as above.
        unsafe { _mm_andnot_ps(_mm_cmplt_ps(x, _mm_setzero_ps()), x) }
    }

    #[inline(always)]
    fn where_positive(self, y: __m128, x: __m128) -> __m128 {
        // SAFETY: as above.
        unsafe { _mm_andnot_ps(_mm_cmple_ps(y, _mm_setzero_ps()), x) }
    }

    #[inline(always)]
    fn flush(self, x: __m128) -> __m128 {
        // SAFETY: as above.
        unsafe {
            let size = _mm_andnot_ps(self.splat(-0.0), x);
            _mm_andnot_ps(_mm_cmplt_ps(size, self.splat(FLUSHED_BELOW)), x)
        }
    }

    #[inline(always)]
    fn has_nan(self, x: __m128) -> bool {
        // SAFETY: as above.
        unsafe { _mm_movemask_ps(_mm_cmpunord_ps(x, x)) != 0 }
    }

    #[inline(always)]
    fn round(self, low: __m128, high: __m128) -> __m128 {
        // SAFETY: as above.
        unsafe { _mm_castsi128_ps(_mm_packs_epi32(self.upper_half(low), self.upper_half(high))) }
    }

    #[inline(always)]
    fn pair(self, a: __m128, b: __m128) -> [__m128; 2] {
        // SAFETY: as above.
        unsafe {
            let (a, b) = (_mm_castps_si128(a), _mm_castps_si128(b));
            [_mm_castsi128_ps(_mm_unpacklo_epi16(a, b)), _mm_castsi128_ps(_mm_unpackhi_epi16(a, b))]
        }
    }

    #[inline(always)]
    fn dot_halves(self, a: __m128, b: __m128, c: __m128) -> __m128 {
        let ([lower_a, upper_a], [lower_b, upper_b]) = (self.halves(a), self.halves(b));
        self.multiply_add(lower_a, lower_b, self.multiply_add(upper_a, upper_b, c))
    }

    #[inline(always)]
    unsafe fn load_part(self, from: *const f32, count: usize) -> __m128 {
        // SAFETY: the caller's promise, here and below.
        unsafe { of_lanes(parts::load(from, count)) }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize, x: __m128) {
        // SAFETY: as above.
        unsafe { parts::store(to, count, self.lanes(x)) }
    }

    #[inline(always)]
    unsafe fn load_halves(self, from: *const AtomicU32) -> __m128 {
        let words;
        // SAFETY: the caller's promise: two words.
        unsafe {
            asm!("movq {words}, [{from}]", words = lateout(xmm_reg) words, from = in(reg) from,
                options(nostack, preserves_flags, readonly));
            _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), words))
        }
    }

    #[inline(always)]
    unsafe fn load_halves_part(self, from: *const AtomicU32, count: usize) -> __m128 {
        // SAFETY: as above.
        of_lanes(unsafe { parts::load_halves(from, count) })
    }

    #[inline(always)]
    unsafe fn store_halves(self, to: *const AtomicU32, x: __m128) {
        // SAFETY: as above.
        unsafe {
            let halves = _mm_srai_epi32::<16>(_mm_castps_si128(x));
            let words = _mm_packs_epi32(halves, halves);
            asm!("movq [{to}], {words}", words = in(xmm_reg) words, to = in(reg) to,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn round_by(self, x: __m128, noise: __m128) -> __m128 {
        // SAFETY: as above.
        unsafe {
            let bits = _mm_castps_si128(x);
            let sum = _mm_add_epi32(bits, _mm_castps_si128(noise));
            let quiet = _mm_or_si128(bits, _mm_set1_epi32(QUIET.cast_signed()));
            let is_nan = _mm_castps_si128(_mm_cmpunord_ps(x, x));
            let chosen = _mm_or_si128(_mm_and_si128(is_nan, quiet), _mm_andnot_si128(is_nan, sum));
            let upper = _mm_castsi128_ps(_mm_set1_epi32(UPPER_HALF.cast_signed()));
            _mm_and_ps(_mm_castsi128_ps(chosen), upper)
        }
    }

    #[inline(always)]
    unsafe fn claim(self, _at: *const AtomicU32) {}

    /// Pairs of rows, then pairs of those.
    #[inline(always)]
    unsafe fn transpose(
        self,
        from: impl Source,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        // SAFETY: as above.
        unsafe {
            let (a, b) = (from.load(self), from.advance(from_stride).load(self));
            let from = from.advance(2 * from_stride);
            let (c, d) = (from.load(self), from.advance(from_stride).load(self));
            // Columns 0 and 1, and columns 2 and 3, of two rows each.
            let (upper, lower) = (_mm_unpacklo_ps(a, b), _mm_unpacklo_ps(c, d));
            self.store(to, _mm_movelh_ps(upper, lower));
            self.store(to.add(to_stride), _mm_movehl_ps(lower, upper));
            let (upper, lower) = (_mm_unpackhi_ps(a, b), _mm_unpackhi_ps(c, d));
            self.store(to.add(2 * to_stride), _mm_movelh_ps(upper, lower));
            self.store(to.add(3 * to_stride), _mm_movehl_ps(lower, upper));
        }
    }
}

/// Rounds twice.
///
/// # Safety
/// The machine has the instructions.
#[inline(always)]
unsafe fn multiply_add(a: __m128, b: __m128, c: __m128) -> __m128 {
    // SAFETY: as above.
    unsafe { _mm_add_ps(_mm_mul_ps(a, b), c) }
}

#[inline(always)]
fn of_lanes([a, b, c, d]: [f32; 4]) -> __m128 {
    // SAFETY: as above.
    unsafe { _mm_setr_ps(a, b, c, d) }
}

/// The vector `BYTES` behind `from`.
///
/// # Safety
/// It is good for reading.
#[inline(always)]
unsafe fn load_shared<const BYTES: usize>(from: *const AtomicU32) -> __m128 {
    let x;
    // SAFETY: the caller's promise, here and below.
    unsafe {
        asm!("movups {x}, [{from} + {bytes}]", x = lateout(xmm_reg) x, from = in(reg) from,
            bytes = const BYTES, options(nostack, preserves_flags, readonly));
    }
    x
}

/// # Safety
/// `from` is good for reading `count` words.
#[inline(always)]
unsafe fn load_shared_part(from: *const AtomicU32, count: usize) -> __m128 {
    // SAFETY: as above.
    of_lanes(unsafe { parts::load(from, count) })
}

/// # Safety
/// `to` is good for writing a vector.
#[inline(always)]
unsafe fn store_shared(to: *const AtomicU32, x: __m128) {
    // SAFETY: as above.
    unsafe {
        asm!("movups [{to}], {x}", x = in(xmm_reg) x, to = in(reg) to,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// `to` is good for writing `count` words.
#[inline(always)]
unsafe fn store_shared_part(to: *const AtomicU32, count: usize, x: __m128) {
    // SAFETY: as above.
    unsafe { parts::store_shared(to, count, Sse2::new().lanes(x)) }
}
