//! AVX2 with FMA: eight lanes, sixteen registers.

use core::arch::asm;
use core::arch::x86_64::{
    __m128i, __m256, __m256i, _CMP_LE_OQ, _CMP_LT_OQ, _CMP_UNORD_Q, _mm256_add_epi32,
    _mm256_add_ps, _mm256_and_ps, _mm256_and_si256, _mm256_andnot_ps, _mm256_blendv_epi8,
    _mm256_castps_si256, _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cmp_ps,
    _mm256_cmpgt_epi32, _mm256_cvtepu16_epi32, _mm256_div_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_maskload_ps, _mm256_maskstore_ps, _mm256_movemask_ps, _mm256_mul_ps, _mm256_or_si256,
    _mm256_packus_epi32, _mm256_permute2f128_ps, _mm256_permute4x64_epi64, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setr_epi32, _mm256_setzero_ps, _mm256_shuffle_ps, _mm256_slli_epi32,
    _mm256_sqrt_ps, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_sub_ps, _mm256_unpackhi_epi16,
    _mm256_unpackhi_ps, _mm256_unpacklo_epi16, _mm256_unpacklo_ps,
};
use core::sync::atomic::AtomicU32;

use super::x86::{one_instruction, shared_memory};
use super::{FLUSHED_BELOW, HALVES_FLUSHED_BELOW, Isa, QUIET, Source, UPPER_HALF};

/// Proof that the machine has AVX2 and FMA.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The machine has AVX2 and FMA.
    pub(in super::super) const unsafe fn assume() -> Self {
        Self(())
    }

    /// All ones in the first `count` lanes.
    #[inline(always)]
    fn mask(self, count: usize) -> __m256i {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            reason = "at most 8"
        )]
        let count = count as i32;
        // SAFETY: holding `self` proves that the machine has the instructions, here and below.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane)
        }
    }
}

impl Avx2 {
    /// The lower and the upper halves of words, as f32s.
    #[inline(always)]
    fn halves(self, words: __m256) -> [__m256; 2] {
        // SAFETY: as above.
        unsafe {
            let upper = _mm256_castsi256_ps(_mm256_set1_epi32(!0xffff));
            let lower = _mm256_slli_epi32::<16>(_mm256_castps_si256(words));
            [_mm256_castsi256_ps(lower), _mm256_and_ps(words, upper)]
        }
    }

    /// The bf16s of [`Isa::round`], in the lower halves of words.
    #[inline(always)]
    fn upper_half(self, x: __m256) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let size = _mm256_andnot_ps(self.splat(-0.0), x);
            let small = _mm256_cmp_ps::<_CMP_LT_OQ>(size, self.splat(HALVES_FLUSHED_BELOW));
            let kept = _mm256_castps_si256(_mm256_andnot_ps(small, x));
            let upper = _mm256_srli_epi32::<16>(kept);
            let even = _mm256_and_si256(upper, _mm256_set1_epi32(1));
            let up = _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(kept, up));
            let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
            let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            _mm256_blendv_epi8(rounded, quiet, is_nan)
        }
    }
}

impl Isa for Avx2 {
    type Vector = __m256;
    const LANES: usize = 8;
    /// 6 × 16: 12 sums, 2 vectors and 1 broadcast in 16 registers.
    const ROWS: usize = 6;
    const FUSES: bool = true;
    const STEPS: usize = 4;
    const DEPTH: usize = 128;
    const ONE_BY_ONE: bool = true;

    one_instruction!(
        __m256,
        _mm256_setzero_ps,
        _mm256_set1_ps,
        _mm256_add_ps,
        _mm256_mul_ps,
        _mm256_sub_ps,
        _mm256_div_ps,
        _mm256_sqrt_ps,
        _mm256_fmadd_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps
    );

    #[inline(always)]
    fn relu(self, x: __m256) -> __m256 {
        // SAFETY: holding `self` proves that the machine has the instructions, here and below.
        unsafe { _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_setzero_ps()), x) }
    }

    #[inline(always)]
    fn where_positive(self, y: __m256, x: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(y, _mm256_setzero_ps()), x) }
    }

    #[inline(always)]
    fn flush(self, x: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let size = _mm256_andnot_ps(self.splat(-0.0), x);
            _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(size, self.splat(FLUSHED_BELOW)), x)
        }
    }

    #[inline(always)]
    fn has_nan(self, x: __m256) -> bool {
        // SAFETY: as above.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x)) != 0 }
    }

    #[inline(always)]
    fn round(self, low: __m256, high: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let packed = _mm256_packus_epi32(self.upper_half(low), self.upper_half(high));
            // Quarters of low, high, low, high.
            _mm256_castsi256_ps(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed))
        }
    }

    #[inline(always)]
    fn pair(self, a: __m256, b: __m256) -> [__m256; 2] {
        // SAFETY: as above.
        unsafe {
            let (a, b) = (_mm256_castps_si256(a), _mm256_castps_si256(b));
            let low = _mm256_castsi256_ps(_mm256_unpacklo_epi16(a, b));
            let high = _mm256_castsi256_ps(_mm256_unpackhi_epi16(a, b));
            [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)]
        }
    }

    #[inline(always)]
    fn dot_halves(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let ([lower_a, upper_a], [lower_b, upper_b]) = (self.halves(a), self.halves(b));
            _mm256_fmadd_ps(lower_a, lower_b, _mm256_fmadd_ps(upper_a, upper_b, c))
        }
    }

    #[inline(always)]
    unsafe fn load_part(self, from: *const f32, count: usize) -> __m256 {
        // SAFETY: and the caller has promised the place.
        unsafe { _mm256_maskload_ps(from, self.mask(count)) }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize, x: __m256) {
        // SAFETY: as above.
        unsafe { _mm256_maskstore_ps(to, self.mask(count), x) }
    }

    #[inline(always)]
    unsafe fn load_halves(self, from: *const AtomicU32) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(load_halves(from))) }
    }

    #[inline(always)]
    unsafe fn load_halves_part(self, from: *const AtomicU32, count: usize) -> __m256 {
        // SAFETY: as above; an odd number of halves has one more beside it.
        unsafe {
            let words = _mm256_castsi256_si128(self.mask(count.div_ceil(2)));
            let halves = _mm256_cvtepu16_epi32(load_words(from, words));
            let kept = _mm256_and_si256(halves, self.mask(count));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(kept))
        }
    }

    #[inline(always)]
    unsafe fn store_halves(self, to: *const AtomicU32, x: __m256) {
        // SAFETY: as above.
        unsafe {
            let halves = _mm256_srli_epi32::<16>(_mm256_castps_si256(x));
            let packed = _mm256_packus_epi32(halves, halves);
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            store_halves(to, _mm256_castsi256_si128(packed));
        }
    }

    #[inline(always)]
    fn round_by(self, x: __m256, noise: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let (bits, noise) = (_mm256_castps_si256(x), _mm256_castps_si256(noise));
            let sum = _mm256_add_epi32(bits, noise);
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(QUIET.cast_signed()));
            let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            let upper = _mm256_set1_epi32(UPPER_HALF.cast_signed());
            let rounded = _mm256_and_si256(_mm256_blendv_epi8(sum, quiet, is_nan), upper);
            _mm256_castsi256_ps(rounded)
        }
    }

    #[inline(always)]
    unsafe fn claim(self, _at: *const AtomicU32) {}

    #[inline(always)]
    unsafe fn add_steps<const MR: usize, const NV: usize>(
        self,
        count: usize,
        x: (*const f32, usize),
        (b, stride): (impl Source, usize),
        line: (*const f32, usize),
        sums: &mut [[__m256; NV]; MR],
    ) {
        // SAFETY: as above; and the caller has promised the places.
        unsafe { add_steps(count, x, (b.address(), stride), line, sums) }
    }

    /// Lanes of two registers are added, then of four within the 128-bit halves, then the halves.
    #[inline(always)]
    unsafe fn sum_lanes(self, from: *const f32) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let (mut pairs, mut quads) = ([self.zero(); 4], [self.zero(); 2]);
            for (i, pair) in pairs.iter_mut().enumerate() {
                let (a, b) = (self.load(from.add(16 * i)), self.load(from.add(16 * i + 8)));
                *pair = self.add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            }
            for (i, quad) in quads.iter_mut().enumerate() {
                let (a, b) = (pairs[2 * i], pairs[2 * i + 1]);
                let low = _mm256_shuffle_ps::<0x44>(a, b);
                *quad = self.add(low, _mm256_shuffle_ps::<0xee>(a, b));
            }
            let low = _mm256_permute2f128_ps::<0x20>(quads[0], quads[1]);
            self.add(low, _mm256_permute2f128_ps::<0x31>(quads[0], quads[1]))
        }
    }

    /// Pairs, then quads of rows within the 128-bit halves, then the halves.
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
                ([self.zero(); 8], [self.zero(); 8], [self.zero(); 8]);
            for (i, r) in r.iter_mut().enumerate() {
                *r = from.advance(i * from_stride).load(self);
            }
            for (i, pair) in pairs.iter_mut().enumerate() {
                let (a, b) = (r[i / 2 * 2], r[i / 2 * 2 + 1]);
                *pair =
                    if i % 2 == 0 { _mm256_unpacklo_ps(a, b) } else { _mm256_unpackhi_ps(a, b) };
            }
            // quads[4 h + c]: column c (and c + 4 in the upper half) of rows 4 h … 4 h + 3.
            for (i, quad) in quads.iter_mut().enumerate() {
                let (h, c) = (i / 4, i % 4);
                let (a, b) = (pairs[4 * h + c / 2], pairs[4 * h + 2 + c / 2]);
                *quad = if c % 2 == 0 {
                    _mm256_shuffle_ps::<0x44>(a, b)
                } else {
                    _mm256_shuffle_ps::<0xee>(a, b)
                };
            }
            for c in 0..4 {
                let (a, b) = (quads[c], quads[4 + c]);
                self.store(to.add(c * to_stride), _mm256_permute2f128_ps::<0x20>(a, b));
                self.store(to.add((c + 4) * to_stride), _mm256_permute2f128_ps::<0x31>(a, b));
            }
        }
    }
}

/// The instructions of a step whose numbers are `$step` bytes behind those of the first of four:
/// that of each row, which is for two sums, at `$x`.
macro_rules! step {
    ($step:literal: $($first:ident $second:ident $x:literal),*) => {
        concat!(
            "vmovups {v}, [{b}]\n",
            "vmovups {w}, [{b} + 32]\n",
            "add {b}, {stride}\n",
            $(
                "vbroadcastss {x}, dword ptr [", $x, " + ", $step, "]\n",
                "vfmadd231ps {", stringify!($first), "}, {v}, {x}\n",
                "vfmadd231ps {", stringify!($second), "}, {w}, {x}\n",
            )*
        )
    };
}

/// Repeats four steps of a tile, for [`Isa::add_steps`]. The first row of A is at `p`, the fourth
/// at `q`, and every other one or two rows behind one of them: left to itself the compiler, short
/// of registers for numbers, computes each address or reads its distance from memory, which takes
/// half as many instructions as the steps themselves; and around single steps in assembly it put
/// twenty to the eighty of four.
macro_rules! repeat {
    ($sums:ident, $count:ident, ($p:ident, $row:ident), ($b:ident, $stride:ident),
     ($line:ident, $apart:ident); $($i:literal $first:ident $second:ident $x:literal),*) => {{
        $(let [mut $first, mut $second] = [$sums[$i][0], $sums[$i][1]];)*
        asm!(
            "2:",
            "prefetcht0 [{line}]",
            "add {line}, {apart}",
            step!("0": $($first $second $x),*),
            step!("4": $($first $second $x),*),
            step!("8": $($first $second $x),*),
            step!("12": $($first $second $x),*),
            "add {p}, 16",
            "add {q}, 16",
            "dec {count}",
            "jnz 2b",
            v = out(ymm_reg) _, w = out(ymm_reg) _, x = out(ymm_reg) _,
            p = inout(reg) $p => _, q = inout(reg) $p.wrapping_add(3 * $row) => _,
            row = in(reg) size_of::<f32>() * $row,
            b = inout(reg) $b => _, stride = in(reg) size_of::<f32>() * $stride,
            line = inout(reg) $line => _, apart = in(reg) size_of::<f32>() * $apart,
            count = inout(reg) $count => _,
            $($first = inout(ymm_reg) $first, $second = inout(ymm_reg) $second,)*
            options(nostack, readonly)
        );
        $([$sums[$i][0], $sums[$i][1]] = [$first, $second];)*
    }};
}

/// [`Isa::add_steps`].
///
/// # Safety
/// The machine has the features; the rest as there.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_steps<const MR: usize, const NV: usize>(
    count: usize,
    (x, row): (*const f32, usize),
    (b, stride): (*const f32, usize),
    (line, apart): (*const f32, usize),
    sums: &mut [[__m256; NV]; MR],
) {
    if count == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match MR {
            4 => repeat!(
                sums, count, (x, row), (b, stride), (line, apart);
                0 a0 b0 "{p}", 1 a1 b1 "{p} + {row}", 2 a2 b2 "{p} + 2*{row}", 3 a3 b3 "{q}"
            ),
            5 => repeat!(
                sums, count, (x, row), (b, stride), (line, apart);
                0 a0 b0 "{p}", 1 a1 b1 "{p} + {row}", 2 a2 b2 "{p} + 2*{row}",
                3 a3 b3 "{q}", 4 a4 b4 "{q} + {row}"
            ),
            6 => repeat!(
                sums, count, (x, row), (b, stride), (line, apart);
                0 a0 b0 "{p}", 1 a1 b1 "{p} + {row}", 2 a2 b2 "{p} + 2*{row}",
                3 a3 b3 "{q}", 4 a4 b4 "{q} + {row}", 5 a5 b5 "{q} + 2*{row}"
            ),
            _ => unreachable!("a large tile of {MR} rows"),
        }
    }
}

/// Eight halves, one to a lane.
///
/// # Safety
/// The machine has the feature, and `from` is good for reading four words.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_halves(from: *const AtomicU32) -> __m256i {
    let x;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("vpmovzxwd {x}, xmmword ptr [{from}]", x = lateout(ymm_reg) x, from = in(reg) from,
            options(nostack, preserves_flags, readonly));
    }
    x
}

/// The words of the mask.
///
/// # Safety
/// The machine has the feature, and `from` is good for reading them.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_words(from: *const AtomicU32, mask: __m128i) -> __m128i {
    let x;
    // SAFETY: the caller's promise; words outside the mask are not touched.
    unsafe {
        asm!("vpmaskmovd {x}, {mask}, [{from}]", x = lateout(xmm_reg) x, mask = in(xmm_reg) mask,
            from = in(reg) from, options(nostack, preserves_flags, readonly));
    }
    x
}

/// # Safety
/// The machine has the feature, and `to` is good for writing four words.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_halves(to: *const AtomicU32, x: __m128i) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("vmovups [{to}], {x}", x = in(xmm_reg) x, to = in(reg) to,
            options(nostack, preserves_flags));
    }
}

shared_memory!(
    "avx2,fma",
    __m256 in ymm_reg,
    __m256i in ymm_reg,
    "vmaskmovps {x}, {mask}, [{from}]",
    "vmaskmovps [{to}], {mask}, {x}"
);
