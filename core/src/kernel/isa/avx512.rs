//! AVX-512: sixteen lanes, thirty-two registers, masks.

use core::arch::asm;
use core::arch::x86_64::{
    __m256i, __m512, __m512bh, __m512i, __mmask16, _CMP_NLE_UQ, _CMP_NLT_UQ, _CMP_UNORD_Q,
    _mm_setzero_ps, _mm512_abs_ps, _mm512_add_epi32, _mm512_add_ps, _mm512_and_si512,
    _mm512_castpd_ps, _mm512_castps_pd, _mm512_castps_si512, _mm512_castsi256_si512,
    _mm512_castsi512_ps, _mm512_castsi512_si256, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi16,
    _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh, _mm512_div_ps, _mm512_dpbf16_ps,
    _mm512_extracti64x4_epi64, _mm512_fmadd_ps, _mm512_inserti64x4, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mask_mov_epi32, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
    _mm512_maskz_mov_ps, _mm512_mul_ps, _mm512_or_si512, _mm512_permutex2var_epi16,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_slli_epi32,
    _mm512_sqrt_ps, _mm512_srli_epi32, _mm512_storeu_ps, _mm512_sub_ps, _mm512_unpackhi_pd,
    _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};
use core::sync::atomic::AtomicU32;

use super::x86::{one_instruction, shared_memory};
use super::{FLUSHED_BELOW, HALF_OF_A_BF16, HALVES_FLUSHED_BELOW, Isa, QUIET, Source, UPPER_HALF};

/// Proof that the machine has AVX-512 F; `HALVES`: and BW and BF16; `TILES`: and AMX's for bf16,
/// which the process may use.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx512<const HALVES: bool, const TILES: bool>(());

impl<const HALVES: bool, const TILES: bool> Avx512<HALVES, TILES> {
    /// # Safety
    /// The machine has AVX-512 F; if `HALVES`, BW and BF16; if `TILES`, AMX's for bf16, and the
    /// process may use them.
    pub(in super::super) const unsafe fn assume() -> Self {
        Self(())
    }

    /// The first `count` lanes.
    #[inline(always)]
    fn mask(self, count: usize) -> __mmask16 {
        #[expect(clippy::cast_possible_truncation, reason = "the lower 16 bits are wanted")]
        let mask = ((1u32 << count.min(16)) - 1) as __mmask16;
        mask
    }
}

impl<const HALVES: bool, const TILES: bool> Avx512<HALVES, TILES> {
    /// Kept where it is not as small as [`Isa::round`] says.
    #[inline(always)]
    fn large(self, x: __m512) -> __m512 {
        // SAFETY: holding `self` proves that the machine has the instructions, here and below.
        unsafe {
            let least = self.splat(HALVES_FLUSHED_BELOW);
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(_mm512_abs_ps(x), least), x)
        }
    }

    /// Words of halves.
    #[inline(always)]
    fn words(self, lower: __m256i, upper: __m256i) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let upper = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(upper));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_cvtepu16_epi32(lower), upper))
        }
    }

    /// The lower and the upper halves of words, as f32s.
    #[inline(always)]
    fn halves(self, words: __m512) -> [__m512; 2] {
        // SAFETY: as above.
        unsafe {
            let words = _mm512_castps_si512(words);
            let upper = _mm512_and_si512(words, _mm512_set1_epi32(!0xffff));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), _mm512_castsi512_ps(upper)]
        }
    }

    /// The bf16s of [`Isa::round`].
    #[inline(always)]
    fn upper_half(self, x: __m512) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let kept = _mm512_castps_si512(self.large(x));
            let upper = _mm512_srli_epi32::<16>(kept);
            let even = _mm512_and_si512(upper, _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(kept, up));
            let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, quiet))
        }
    }
}

impl<const HALVES: bool, const TILES: bool> Isa for Avx512<HALVES, TILES> {
    type Vector = __m512;
    const LANES: usize = 16;
    /// 14 × 32: 28 sums and 2 vectors in 32 registers; the broadcast is part of the instruction.
    const ROWS: usize = 14;
    const TILES: bool = TILES;
    const FUSES: bool = true;

    one_instruction!(
        __m512,
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_add_ps,
        _mm512_mul_ps,
        _mm512_sub_ps,
        _mm512_div_ps,
        _mm512_sqrt_ps,
        _mm512_fmadd_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps
    );

    #[inline(always)]
    fn relu(self, x: __m512) -> __m512 {
        // SAFETY: holding `self` proves that the machine has the instructions, here and below.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_setzero_ps()), x) }
    }

    #[inline(always)]
    fn where_positive(self, y: __m512, x: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLE_UQ>(y, _mm512_setzero_ps()), x) }
    }

    #[inline(always)]
    fn flush(self, x: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let kept =
                _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(_mm512_abs_ps(x), self.splat(FLUSHED_BELOW));
            _mm512_maskz_mov_ps(kept, x)
        }
    }

    #[inline(always)]
    fn has_nan(self, x: __m512) -> bool {
        // SAFETY: as above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x) != 0 }
    }

    #[inline(always)]
    fn round(self, low: __m512, high: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe {
            if HALVES {
                return round_halves(self.large(low), self.large(high));
            }
            let low = _mm512_castsi256_si512(self.upper_half(low));
            _mm512_castsi512_ps(_mm512_inserti64x4::<1>(low, self.upper_half(high)))
        }
    }

    #[inline(always)]
    fn pair(self, a: __m512, b: __m512) -> [__m512; 2] {
        // SAFETY: as above.
        unsafe {
            if HALVES {
                return pair_halves(a, b);
            }
            let (a, b) = (_mm512_castps_si512(a), _mm512_castps_si512(b));
            [
                self.words(_mm512_castsi512_si256(a), _mm512_castsi512_si256(b)),
                self.words(_mm512_extracti64x4_epi64::<1>(a), _mm512_extracti64x4_epi64::<1>(b)),
            ]
        }
    }

    /// Numbers that are none make some in what is left of them, so nothing is asked.
    #[inline(always)]
    fn thirds(self, x: __m512) -> [__m512; 3] {
        // SAFETY: as above.
        let nearest = |x: __m512| unsafe {
            let half = _mm512_set1_epi32(HALF_OF_A_BF16.cast_signed());
            let sum = _mm512_add_epi32(_mm512_castps_si512(x), half);
            let upper = _mm512_set1_epi32(UPPER_HALF.cast_signed());
            _mm512_castsi512_ps(_mm512_and_si512(sum, upper))
        };
        let first = nearest(x);
        let rest = self.sub(x, first);
        let second = nearest(rest);
        [first, second, self.sub(rest, second)]
    }

    #[inline(always)]
    fn upper_halves(self, low: __m512, high: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe {
            if HALVES {
                return upper_halves(low, high);
            }
            let of = |x| _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(x)));
            let low = _mm512_castsi256_si512(of(low));
            _mm512_castsi512_ps(_mm512_inserti64x4::<1>(low, of(high)))
        }
    }

    #[inline(always)]
    fn pair_upper(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let upper = _mm512_set1_epi32(UPPER_HALF.cast_signed());
            let upper = _mm512_and_si512(_mm512_castps_si512(b), upper);
            let lower = _mm512_srli_epi32::<16>(_mm512_castps_si512(a));
            _mm512_castsi512_ps(_mm512_or_si512(lower, upper))
        }
    }

    #[inline(always)]
    fn dot_halves(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe {
            if HALVES && !TILES {
                return dot_halves(a, b, c);
            }
            let ([lower_a, upper_a], [lower_b, upper_b]) = (self.halves(a), self.halves(b));
            _mm512_fmadd_ps(lower_a, lower_b, _mm512_fmadd_ps(upper_a, upper_b, c))
        }
    }

    #[inline(always)]
    unsafe fn load_part(self, from: *const f32, count: usize) -> __m512 {
        // SAFETY: and the caller has promised the place; masked lanes are not touched.
        unsafe { _mm512_maskz_loadu_ps(self.mask(count), from) }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize, x: __m512) {
        // SAFETY: as above.
        unsafe { _mm512_mask_storeu_ps(to, self.mask(count), x) }
    }

    #[inline(always)]
    unsafe fn load_halves(self, from: *const AtomicU32) -> __m512 {
        // SAFETY: as above.
        unsafe { shifted_up(load_halves(from)) }
    }

    #[inline(always)]
    unsafe fn load_halves_part(self, from: *const AtomicU32, count: usize) -> __m512 {
        // SAFETY: as above.
        unsafe { shifted_up(load_halves_part(from, self.mask(count))) }
    }

    #[inline(always)]
    unsafe fn store_halves(self, to: *const AtomicU32, x: __m512) {
        // SAFETY: as above.
        unsafe {
            let halves = _mm512_srli_epi32::<16>(_mm512_castps_si512(x));
            store_halves(to, _mm512_cvtepi32_epi16(halves));
        }
    }

    #[inline(always)]
    fn round_by(self, x: __m512, noise: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let (bits, noise) = (_mm512_castps_si512(x), _mm512_castps_si512(noise));
            let sum = _mm512_add_epi32(bits, noise);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(QUIET.cast_signed()));
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            let upper = _mm512_set1_epi32(UPPER_HALF.cast_signed());
            _mm512_castsi512_ps(_mm512_and_si512(_mm512_mask_mov_epi32(sum, is_nan, quiet), upper))
        }
    }

    /// A store of nothing waits in the store buffer until this core may write the line. No prefetch
    /// brings that about for a line that the core has read: measured, `prefetchw` leaves it shared.
    #[inline(always)]
    unsafe fn claim(self, at: *const AtomicU32) {
        // SAFETY: as above.
        unsafe { store_nothing(at) }
    }

    /// Lanes of two registers are added, then of four within the 128-bit quarters, then quarters.
    #[inline(always)]
    unsafe fn sum_lanes(self, from: *const f32) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let (mut pairs, mut quads) = ([self.zero(); 8], [self.zero(); 4]);
            for (i, pair) in pairs.iter_mut().enumerate() {
                let (a, b) = (self.load(from.add(32 * i)), self.load(from.add(32 * i + 16)));
                *pair = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            }
            for (i, quad) in quads.iter_mut().enumerate() {
                let (a, b) = (_mm512_castps_pd(pairs[2 * i]), _mm512_castps_pd(pairs[2 * i + 1]));
                let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
                *quad = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
            }
            let mut halves = [self.zero(); 2];
            for (i, half) in halves.iter_mut().enumerate() {
                let (a, b) = (quads[2 * i], quads[2 * i + 1]);
                let even = _mm512_shuffle_f32x4::<0x88>(a, b);
                *half = _mm512_add_ps(even, _mm512_shuffle_f32x4::<0xdd>(a, b));
            }
            let [a, b] = halves;
            let even = _mm512_shuffle_f32x4::<0x88>(a, b);
            _mm512_add_ps(even, _mm512_shuffle_f32x4::<0xdd>(a, b))
        }
    }

    /// Pairs, then quads of rows within the 128-bit quarters, then the quarters.
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
            let (mut r, mut pairs, mut quads) =
                ([self.zero(); 16], [self.zero(); 16], [self.zero(); 16]);
            for (i, r) in r.iter_mut().enumerate() {
                *r = from.advance(i * from_stride).load(self);
            }
            for (i, pair) in pairs.iter_mut().enumerate() {
                let (a, b) = (r[i / 2 * 2], r[i / 2 * 2 + 1]);
                *pair =
                    if i % 2 == 0 { _mm512_unpacklo_ps(a, b) } else { _mm512_unpackhi_ps(a, b) };
            }
            // quads[4 q + c]: column c of rows 4 q … 4 q + 3, in every quarter p column c + 4 p.
            for (i, quad) in quads.iter_mut().enumerate() {
                let (q, c) = (i / 4, i % 4);
                let a = _mm512_castps_pd(pairs[4 * q + c / 2]);
                let b = _mm512_castps_pd(pairs[4 * q + 2 + c / 2]);
                *quad = _mm512_castpd_ps(if c % 2 == 0 {
                    _mm512_unpacklo_pd(a, b)
                } else {
                    _mm512_unpackhi_pd(a, b)
                });
            }
            for c in 0..4 {
                // Quarters 0 and 2 of two quads each, quarters 1 and 3 of two quads each.
                let even = [
                    _mm512_shuffle_f32x4::<0x88>(quads[c], quads[4 + c]),
                    _mm512_shuffle_f32x4::<0x88>(quads[8 + c], quads[12 + c]),
                ];
                let odd = [
                    _mm512_shuffle_f32x4::<0xdd>(quads[c], quads[4 + c]),
                    _mm512_shuffle_f32x4::<0xdd>(quads[8 + c], quads[12 + c]),
                ];
                for (p, x) in [
                    (0, _mm512_shuffle_f32x4::<0x88>(even[0], even[1])),
                    (1, _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1])),
                    (2, _mm512_shuffle_f32x4::<0xdd>(even[0], even[1])),
                    (3, _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1])),
                ] {
                    self.store(to.add((c + 4 * p) * to_stride), x);
                }
            }
        }
    }
}

/// One instruction.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn round_halves(low: __m512, high: __m512) -> __m512 {
    // SAFETY: both are 512 bits, of which any are valid.
    unsafe { core::mem::transmute(_mm512_cvtne2ps_pbh(high, low)) }
}

/// Halves of `a` have numbers up to 31, those of `b` from 32 on: 0, 32, 1, 33 and so on.
const PAIRS: [[u32; 16]; 2] = {
    let (mut pairs, mut at, mut word) = ([[0; 16]; 2], 0, 32 << 16);
    while at < 32 {
        pairs[at / 16][at % 16] = word;
        (at, word) = (at + 1, word + 0x1_0001);
    }
    pairs
};

/// The upper halves of thirty-two lanes: 1, 3, 5 and so on.
const UPPER: [u32; 16] = {
    let (mut upper, mut at, mut word) = ([0; 16], 0, 1 | 3 << 16);
    while at < 16 {
        upper[at] = word;
        (at, word) = (at + 1, word + 0x4_0004);
    }
    upper
};

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn upper_halves(low: __m512, high: __m512) -> __m512 {
    let (low, high) = (_mm512_castps_si512(low), _mm512_castps_si512(high));
    // SAFETY: sixteen words are read.
    let upper = unsafe { _mm512_loadu_si512(UPPER.as_ptr().cast()) };
    _mm512_castsi512_ps(_mm512_permutex2var_epi16(low, upper, high))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pair_halves(a: __m512, b: __m512) -> [__m512; 2] {
    let (a, b) = (_mm512_castps_si512(a), _mm512_castps_si512(b));
    // SAFETY: sixteen words are read.
    let [first, second] = unsafe {
        [_mm512_loadu_si512(PAIRS[0].as_ptr().cast()), _mm512_loadu_si512(PAIRS[1].as_ptr().cast())]
    };
    [
        _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, first, b)),
        _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, second, b)),
    ]
}

/// One instruction.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn dot_halves(a: __m512, b: __m512, c: __m512) -> __m512 {
    // SAFETY: as above.
    let (a, b): (__m512bh, __m512bh) = unsafe { core::mem::transmute((a, b)) };
    _mm512_dpbf16_ps(c, a, b)
}

/// Lanes 16 bits up.
#[inline]
#[target_feature(enable = "avx512f")]
fn shifted_up(lanes: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(lanes))
}

/// Sixteen halves, one to a lane.
///
/// # Safety
/// The machine has the feature, and `from` is good for reading eight words.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_halves(from: *const AtomicU32) -> __m512i {
    let x;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("vpmovzxwd {x}, ymmword ptr [{from}]", x = lateout(zmm_reg) x, from = in(reg) from,
            options(nostack, preserves_flags, readonly));
    }
    x
}

/// The halves of the mask.
///
/// # Safety
/// The machine has the feature, and `from` is good for reading their words.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_halves_part(from: *const AtomicU32, mask: __mmask16) -> __m512i {
    let x;
    // SAFETY: the caller's promise; halves outside the mask are not touched.
    unsafe {
        asm!("vpmovzxwd {x}{{{mask}}}{{z}}, ymmword ptr [{from}]", x = lateout(zmm_reg) x,
            mask = in(kreg) mask, from = in(reg) from,
            options(nostack, preserves_flags, readonly));
    }
    x
}

/// # Safety
/// The machine has the feature, and `to` is good for writing eight words.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_halves(to: *const AtomicU32, x: __m256i) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("vmovups [{to}], {x}", x = in(ymm_reg) x, to = in(reg) to,
            options(nostack, preserves_flags));
    }
}

/// A store whose only lane is outside its mask.
///
/// # Safety
/// The machine has the feature, and `to` is good for writing.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_nothing(to: *const AtomicU32) {
    // SAFETY: the caller's promise; memory stays as it is.
    unsafe {
        asm!("vmovss [{to}]{{{mask}}}, {x}", to = in(reg) to, mask = in(kreg) 0 as __mmask16,
            x = in(xmm_reg) _mm_setzero_ps(), options(nostack, preserves_flags));
    }
}

shared_memory!(
    "avx512f",
    __m512 in zmm_reg,
    __mmask16 in kreg,
    "vmovups {x}{{{mask}}}{{z}}, [{from}]",
    "vmovups [{to}]{{{mask}}}, {x}"
);
