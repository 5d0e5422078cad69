//! NEON (Advanced SIMD): four lanes, thirty-two registers, on every aarch64 processor.
//!
//! The target has the instructions whenever this is compiled: that is what makes their use safe.
//! Shared memory is read and written by LD1 and ST1, an access per element to the architecture, and
//! an aligned 4-byte one is never torn. Parts of vectors, for which there are no masks, are
//! read and written word by word.

use core::arch::aarch64::{
    float32x4_t, uint16x4_t, uint32x4_t, vabsq_f32, vaddq_f32, vaddq_u32, vandq_u32, vbicq_u32,
    vbslq_u32, vceqq_f32, vclezq_f32, vcltq_f32, vcltzq_f32, vcombine_u16, vdivq_f32,
    vdupq_laneq_f32, vdupq_n_f32, vdupq_n_u32, vfmaq_f32, vld1q_f32, vminvq_u32, vmovl_u16,
    vmovn_u32, vmulq_f32, vorrq_u32, vreinterpretq_f32_f64, vreinterpretq_f32_u16,
    vreinterpretq_f32_u32, vreinterpretq_f64_f32, vreinterpretq_u16_f32, vreinterpretq_u32_f32,
    vshlq_n_u32, vshrn_n_u32, vshrq_n_u32, vsqrtq_f32, vst1q_f32, vsubq_f32, vtrn1q_f32,
    vtrn1q_f64, vtrn2q_f32, vtrn2q_f64, vzip1q_u16, vzip2q_u16,
};
use core::arch::asm;
use core::sync::atomic::AtomicU32;

use super::{FLUSHED_BELOW, HALVES_FLUSHED_BELOW, Isa, QUIET, Source, UPPER_HALF, parts};

/// The vectors of aarch64.
#[derive(Clone, Copy)]
pub(in super::super) struct Neon(());

impl Neon {
    /// Every machine that runs what this is compiled into has it.
    pub(in super::super) const fn new() -> Self {
        Self(())
    }

    /// `x` with 0 in the lanes of the mask.
    #[inline(always)]
    fn without(self, mask: uint32x4_t, x: float32x4_t) -> float32x4_t {
        // SAFETY: the target has the instructions, here and below.
        unsafe { vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), mask)) }
    }

    /// The lower and the upper halves of words, as f32s.
    #[inline(always)]
    fn halves(self, words: float32x4_t) -> [float32x4_t; 2] {
        // SAFETY: as above.
        unsafe {
            let words = vreinterpretq_u32_f32(words);
            let upper = vandq_u32(words, vdupq_n_u32(UPPER_HALF));
            [vreinterpretq_f32_u32(vshlq_n_u32::<16>(words)), vreinterpretq_f32_u32(upper)]
        }
    }

    /// The bf16s of [`Isa::round`], in the lower halves of words.
    #[inline(always)]
    fn upper_half(self, x: float32x4_t) -> uint32x4_t {
        // SAFETY: as above.
        unsafe {
            let small = vcltq_f32(vabsq_f32(x), vdupq_n_f32(HALVES_FLUSHED_BELOW));
            let kept = vreinterpretq_u32_f32(self.without(small, x));
            let upper = vshrq_n_u32::<16>(kept);
            let even = vandq_u32(upper, vdupq_n_u32(1));
            let up = vaddq_u32(even, vdupq_n_u32(0x7fff));
            let rounded = vshrq_n_u32::<16>(vaddq_u32(kept, up));
            let quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
            vbslq_u32(vceqq_f32(x, x), rounded, quiet)
        }
    }

    /// The lanes in memory.
    #[inline(always)]
    fn lanes(self, x: float32x4_t) -> [f32; 4] {
        let mut lanes = [0.0; 4];
        // SAFETY: four words.
        unsafe { vst1q_f32(lanes.as_mut_ptr(), x) }
        lanes
    }
}

impl Isa for Neon {
    type Vector = float32x4_t;
    const LANES: usize = 4;
    /// 12 × 8: 24 sums and 2 vectors in 32 registers; of the others every one holds a factor on its
    /// way. With 14 rows the compiler spills.
    const ROWS: usize = 12;
    const FUSES: bool = true;

    #[inline(always)]
    fn zero(self) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vdupq_n_f32(0.0) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vsubq_f32(a, b) }
    }

    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vdivq_f32(a, b) }
    }

    #[inline(always)]
    fn sqrt(self, x: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vsqrtq_f32(x) }
    }

    #[inline(always)]
    fn multiply_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    fn relu(self, x: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { self.without(vcltzq_f32(x), x) }
    }

    #[inline(always)]
    fn where_positive(self, y: float32x4_t, x: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { self.without(vclezq_f32(y), x) }
    }

    #[inline(always)]
    fn flush(self, x: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { self.without(vcltq_f32(vabsq_f32(x), vdupq_n_f32(FLUSHED_BELOW)), x) }
    }

    #[inline(always)]
    fn has_nan(self, x: float32x4_t) -> bool {
        // SAFETY: as above.
        unsafe { vminvq_u32(vceqq_f32(x, x)) == 0 }
    }

    #[inline(always)]
    fn round(self, low: float32x4_t, high: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe {
            let (low, high) = (vmovn_u32(self.upper_half(low)), vmovn_u32(self.upper_half(high)));
            vreinterpretq_f32_u16(vcombine_u16(low, high))
        }
    }

    #[inline(always)]
    fn pair(self, a: float32x4_t, b: float32x4_t) -> [float32x4_t; 2] {
        // SAFETY: as above.
        unsafe {
            let (a, b) = (vreinterpretq_u16_f32(a), vreinterpretq_u16_f32(b));
            [vreinterpretq_f32_u16(vzip1q_u16(a, b)), vreinterpretq_f32_u16(vzip2q_u16(a, b))]
        }
    }

    /// As f32s: BFDOT rounds otherwise than the instruction of x86, and not every processor has it.
    #[inline(always)]
    fn dot_halves(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe {
            let ([lower_a, upper_a], [lower_b, upper_b]) = (self.halves(a), self.halves(b));
            vfmaq_f32(vfmaq_f32(c, upper_a, upper_b), lower_a, lower_b)
        }
    }

    /// A load of one lane, which multiplications then take their factor from. LD1R, which the
    /// compiler would make of it, occupies an arithmetic pipe of most processors besides.
    #[inline(always)]
    unsafe fn load_splat(self, from: *const f32) -> float32x4_t {
        let x: float32x4_t;
        // SAFETY: the caller's promise.
        unsafe {
            asm!("ldr {x:s}, [{from}]", x = lateout(vreg) x, from = in(reg) from,
                options(nostack, preserves_flags, readonly, pure));
        }
        // SAFETY: as above.
        unsafe { vdupq_laneq_f32::<0>(x) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> float32x4_t {
        // SAFETY: the caller's promise, here and below.
        unsafe { vld1q_f32(from) }
    }

    #[inline(always)]
    unsafe fn load_part(self, from: *const f32, count: usize) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vld1q_f32(parts::load(from, count).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn load_in_place(self, from: *const f32) -> float32x4_t {
        // SAFETY: as above.
        unsafe { self.load_shared(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_in_place_part(self, from: *const f32, count: usize) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vld1q_f32(parts::load(from, count).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn load_shared(self, from: *const AtomicU32) -> float32x4_t {
        let x;
        // SAFETY: as above.
        unsafe {
            asm!("ld1 {{{x:v}.4s}}, [{from}]", x = lateout(vreg) x, from = in(reg) from,
                options(nostack, preserves_flags, readonly));
        }
        x
    }

    #[inline(always)]
    unsafe fn load_shared_part(self, from: *const AtomicU32, count: usize) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vld1q_f32(parts::load(from, count).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: float32x4_t) {
        // SAFETY: as above.
        unsafe { vst1q_f32(to, x) }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize, x: float32x4_t) {
        // SAFETY: as above.
        unsafe { parts::store(to, count, self.lanes(x)) }
    }

    #[inline(always)]
    unsafe fn store_shared(self, to: *const AtomicU32, x: float32x4_t) {
        // SAFETY: as above.
        unsafe {
            asm!("st1 {{{x:v}.4s}}, [{to}]", x = in(vreg) x, to = in(reg) to,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store_shared_part(self, to: *const AtomicU32, count: usize, x: float32x4_t) {
        // SAFETY: as above.
        unsafe { parts::store_shared(to, count, self.lanes(x)) }
    }

    #[inline(always)]
    unsafe fn load_halves(self, from: *const AtomicU32) -> float32x4_t {
        let words: uint16x4_t;
        // SAFETY: the caller's promise: two words.
        unsafe {
            asm!("ld1 {{{words:v}.2s}}, [{from}]", words = lateout(vreg) words, from = in(reg) from,
                options(nostack, preserves_flags, readonly));
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(words)))
        }
    }

    #[inline(always)]
    unsafe fn load_halves_part(self, from: *const AtomicU32, count: usize) -> float32x4_t {
        // SAFETY: as above.
        unsafe {
            let lanes = parts::load_halves(from, count);
            vld1q_f32(lanes.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store_halves(self, to: *const AtomicU32, x: float32x4_t) {
        // SAFETY: as above.
        unsafe {
            let words = vshrn_n_u32::<16>(vreinterpretq_u32_f32(x));
            asm!("st1 {{{words:v}.2s}}, [{to}]", words = in(vreg) words, to = in(reg) to,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn round_by(self, x: float32x4_t, noise: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe {
            let bits = vreinterpretq_u32_f32(x);
            let sum = vaddq_u32(bits, vreinterpretq_u32_f32(noise));
            let quiet = vorrq_u32(bits, vdupq_n_u32(QUIET));
            let chosen = vbslq_u32(vceqq_f32(x, x), sum, quiet);
            vreinterpretq_f32_u32(vandq_u32(chosen, vdupq_n_u32(UPPER_HALF)))
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
            let [a, b, c, d] = [
                from.load(self),
                from.advance(from_stride).load(self),
                from.advance(2 * from_stride).load(self),
                from.advance(3 * from_stride).load(self),
            ];
            // Columns 0 and 2, and columns 1 and 3, of two rows each.
            let upper_even = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
            let lower_even = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
            let upper_odd = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
            let lower_odd = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
            for (column, x) in [
                (0, vtrn1q_f64(upper_even, lower_even)),
                (1, vtrn1q_f64(upper_odd, lower_odd)),
                (2, vtrn2q_f64(upper_even, lower_even)),
                (3, vtrn2q_f64(upper_odd, lower_odd)),
            ] {
                self.store(to.add(column * to_stride), vreinterpretq_f32_f64(x));
            }
        }
    }
}
