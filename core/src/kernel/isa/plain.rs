//! Four lanes without any instruction set in particular: the twin of the other sets, and the only
//! one on other processors, where the compiler turns it into what they have. On x86-64 it makes so
//! little of arrays (a quarter of the peak) that [`Simd::Plain`](super::Simd::Plain) is `sse2.rs`
//! there, with the bits of this.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{FLUSHED_BELOW, HALVES_FLUSHED_BELOW, Isa, QUIET, Source, UPPER_HALF};
use crate::float;

/// Four floats in an array.
#[derive(Clone, Copy)]
pub(crate) struct Plain(());

impl Plain {
    /// Every machine has it.
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

const LANES: usize = 4;

#[inline(always)]
fn lanes(f: impl FnMut(usize) -> f32) -> [f32; LANES] {
    core::array::from_fn(f)
}

/// The bf16 nearest to `x`, as [`Isa::round`] says it.
#[inline(always)]
const fn rounded(x: f32) -> u16 {
    let word = x.to_bits();
    if x.is_nan() {
        // What makes it not a number may stand in the lower half alone.
        return (word >> 16) as u16 | 0x40;
    }
    if x.abs() < HALVES_FLUSHED_BELOW {
        return 0;
    }
    ((word + 0x7fff + (word >> 16 & 1)) >> 16) as u16
}

/// A word of two halves.
#[inline(always)]
const fn word(lower: u16, upper: u16) -> f32 {
    f32::from_bits(lower as u32 | (upper as u32) << 16)
}

/// The lower and the upper half of a word.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "halves of a word")]
const fn halves(word: f32) -> [u16; 2] {
    [word.to_bits() as u16, (word.to_bits() >> 16) as u16]
}

#[inline(always)]
const fn f32_of(half: u16) -> f32 {
    f32::from_bits((half as u32) << 16)
}

impl Isa for Plain {
    type Vector = [f32; LANES];
    const LANES: usize = LANES;
    /// 4 × 8: 8 sums, 2 vectors and 1 broadcast in 16 registers.
    const ROWS: usize = 4;

    #[inline(always)]
    fn zero(self) -> Self::Vector {
        [0.0; LANES]
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::Vector {
        [x; LANES]
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane] - b[lane])
    }

    #[inline(always)]
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane] / b[lane])
    }

    #[inline(always)]
    fn sqrt(self, x: Self::Vector) -> Self::Vector {
        lanes(|lane| float::sqrt(x[lane]))
    }

    /// Rounds twice: the fused operation is a slow library call where it is no instruction.
    #[inline(always)]
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        lanes(|lane| a[lane] * b[lane] + c[lane])
    }

    #[inline(always)]
    fn relu(self, x: Self::Vector) -> Self::Vector {
        lanes(|lane| if x[lane] < 0.0 { 0.0 } else { x[lane] })
    }

    #[inline(always)]
    fn where_positive(self, y: Self::Vector, x: Self::Vector) -> Self::Vector {
        lanes(|lane| if y[lane] <= 0.0 { 0.0 } else { x[lane] })
    }

    #[inline(always)]
    fn flush(self, x: Self::Vector) -> Self::Vector {
        lanes(|lane| if x[lane].abs() < FLUSHED_BELOW { 0.0 } else { x[lane] })
    }

    #[inline(always)]
    fn has_nan(self, x: Self::Vector) -> bool {
        x.into_iter().any(f32::is_nan)
    }

    #[inline(always)]
    fn round(self, low: Self::Vector, high: Self::Vector) -> Self::Vector {
        let half = |at: usize| rounded(if at < LANES { low[at] } else { high[at - LANES] });
        lanes(|lane| word(half(2 * lane), half(2 * lane + 1)))
    }

    #[inline(always)]
    fn pair(self, a: Self::Vector, b: Self::Vector) -> [Self::Vector; 2] {
        let half = |x: Self::Vector, at: usize| halves(x[at / 2])[at % 2];
        [0, LANES].map(|first| lanes(|lane| word(half(a, first + lane), half(b, first + lane))))
    }

    #[inline(always)]
    fn dot_halves(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        lanes(|lane| {
            let ([a, upper_a], [b, upper_b]) = (halves(a[lane]), halves(b[lane]));
            c[lane] + f32_of(upper_a) * f32_of(upper_b) + f32_of(a) * f32_of(b)
        })
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::Vector {
        // SAFETY: the caller's promise, here and below.
        lanes(|lane| unsafe { *from.add(lane) })
    }

    #[inline(always)]
    unsafe fn load_part(self, from: *const f32, count: usize) -> Self::Vector {
        // SAFETY: as above.
        lanes(|lane| if lane < count { unsafe { *from.add(lane) } } else { 0.0 })
    }

    #[inline(always)]
    unsafe fn load_in_place(self, from: *const f32) -> Self::Vector {
        // SAFETY: as above.
        unsafe { self.load(from) }
    }

    #[inline(always)]
    unsafe fn load_in_place_part(self, from: *const f32, count: usize) -> Self::Vector {
        // SAFETY: as above.
        unsafe { self.load_part(from, count) }
    }

    #[inline(always)]
    unsafe fn load_shared(self, from: *const AtomicU32) -> Self::Vector {
        // SAFETY: as above.
        lanes(|lane| f32::from_bits(unsafe { &*from.add(lane) }.load(Relaxed)))
    }

    #[inline(always)]
    unsafe fn load_shared_part(self, from: *const AtomicU32, count: usize) -> Self::Vector {
        lanes(|lane| {
            if lane < count {
                // SAFETY: as above.
                f32::from_bits(unsafe { &*from.add(lane) }.load(Relaxed))
            } else {
                0.0
            }
        })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: Self::Vector) {
        // SAFETY: as above.
        unsafe { self.store_part(to, LANES, x) }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize, x: Self::Vector) {
        for (lane, x) in x.into_iter().enumerate().take(count) {
            // SAFETY: as above.
            unsafe { *to.add(lane) = x }
        }
    }

    #[inline(always)]
    unsafe fn store_shared(self, to: *const AtomicU32, x: Self::Vector) {
        // SAFETY: as above.
        unsafe { self.store_shared_part(to, LANES, x) }
    }

    #[inline(always)]
    unsafe fn store_shared_part(self, to: *const AtomicU32, count: usize, x: Self::Vector) {
        for (lane, x) in x.into_iter().enumerate().take(count) {
            // SAFETY: as above.
            unsafe { &*to.add(lane) }.store(x.to_bits(), Relaxed);
        }
    }

    #[inline(always)]
    unsafe fn load_halves(self, from: *const AtomicU32) -> Self::Vector {
        // SAFETY: as above.
        unsafe { self.load_halves_part(from, LANES) }
    }

    #[inline(always)]
    unsafe fn load_halves_part(self, from: *const AtomicU32, count: usize) -> Self::Vector {
        lanes(|lane| {
            if lane < count {
                // SAFETY: as above.
                let word = f32::from_bits(unsafe { &*from.add(lane / 2) }.load(Relaxed));
                f32_of(halves(word)[lane % 2])
            } else {
                0.0
            }
        })
    }

    #[inline(always)]
    unsafe fn store_halves(self, to: *const AtomicU32, x: Self::Vector) {
        let half = |lane: usize| halves(x[lane])[1];
        for at in 0..LANES / 2 {
            let word = word(half(2 * at), half(2 * at + 1));
            // SAFETY: as above.
            unsafe { &*to.add(at) }.store(word.to_bits(), Relaxed);
        }
    }

    #[inline(always)]
    fn round_by(self, x: Self::Vector, noise: Self::Vector) -> Self::Vector {
        lanes(|lane| {
            let (bits, noise) = (x[lane].to_bits(), noise[lane].to_bits());
            let sum = if x[lane].is_nan() { bits | QUIET } else { bits + noise };
            f32::from_bits(sum & UPPER_HALF)
        })
    }

    #[inline(always)]
    unsafe fn claim(self, _at: *const AtomicU32) {}

    #[inline(always)]
    unsafe fn transpose(
        self,
        from: impl Source,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        for i in 0..LANES {
            for j in 0..LANES {
                // SAFETY: as above.
                unsafe { *to.add(j * to_stride + i) = from.advance(i * from_stride + j).get() }
            }
        }
    }
}
