//! Instruction sets as values: whoever holds an [`Isa`] may use its registers.
//!
//! Kernels are written once, generic over `I: Isa`, and compiled once per set by [`run`]: the
//! functions of this trait are inlined into a function that has the set's features. Fused
//! multiply-adds appear only where a kernel asks for them, so loops without them give the same bits
//! on every set.
//!
//! Two kinds of memory hold f32s. *Private* memory is plain `f32`. *Shared* memory is the Hogwild
//! replica and the embedding rows, `AtomicU32`; a vector of it is read and written by one `asm!`
//! instruction where the set has one, which stands for that many relaxed loads or stores: an
//! aligned 4-byte word inside such an access is never torn. [`Plain`] uses the relaxed atomics
//! themselves and is what the others are checked against.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
mod neon;
#[cfg(any(target_feature = "sse2", target_feature = "neon"))]
mod parts;
mod plain;
mod source;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod sse2;
#[cfg(target_arch = "x86_64")]
mod x86;

use core::sync::atomic::AtomicU32;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
pub(super) use neon::Neon;
pub(crate) use plain::Plain;
pub(crate) use source::{InPlace, Source};
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(super) use sse2::Sse2;

use super::layout::Square;
use super::prefetch::prefetch_at;
#[cfg(target_arch = "x86_64")]
use super::simd::has_fast_halves;
use super::simd::{Simd, selected};

/// What an update leaves of smaller numbers is 0. Numbers below 1.2e-38 (denormal) take several
/// times as long on every processor; this much above them, products with rates and shares are not
/// denormal either.
pub(crate) const FLUSHED_BELOW: f32 = 1e-30;

/// Smaller numbers are 0 as bf16 operands of a product. No sum of products of larger ones has bits
/// below 2^-126, so no sum is ever denormal: processors that multiply bf16 take denormal numbers
/// for 0, others do not, and with this they all compute the same.
pub(crate) const HALVES_FLUSHED_BELOW: f32 = 1.0 / (1u64 << 56) as f32;

/// Half of the distance of two bf16s, in the bits of an f32.
const HALF_OF_A_BF16: u32 = 0x8000;
/// The bit that makes a NaN of bf16, whatever its others.
const QUIET: u32 = 0x0040_0000;
/// The bits of an f32 that a bf16 has.
const UPPER_HALF: u32 = 0xffff_0000;

/// An instruction set. Making one asserts that the machine has it; that is all the safety of the
/// arithmetic below needs. Functions that take pointers say what the pointers must be good for.
pub(crate) trait Isa: Copy {
    /// A register of `LANES` f32s.
    type Vector: Copy;
    /// f32s of a register.
    const LANES: usize;
    /// Most rows of a tile of two vectors per row: its sums, two vectors and one broadcast fit the
    /// registers.
    const ROWS: usize;
    /// Steps of a large tile of f32s that are written out one behind the other, where what counts
    /// them and computes addresses would take longer than sums: a set with vectors half as long has
    /// half as much to do in a step.
    const STEPS: usize = 1;
    /// Columns of activations that go through tiles before the others do, in whole blocks: that
    /// much of a panel stays in the first cache level, for a set with so few rows in a tile that
    /// it would wait for panels from the second.
    const DEPTH: usize = usize::MAX;
    /// The rows of bags are asked for one by one while others are read. Measured with rows of 64
    /// numbers: in bursts (`prefetch.rs`) reading them took 1.25 times as long on a Zen 3 core,
    /// whose set is AVX2, and .87 of the time on a Zen 4 core.
    const ONE_BY_ONE: bool = false;
    /// Linear layers multiply halves by the instructions of `amx/mod.rs`.
    const TILES: bool = false;
    /// `f64::mul_add` is one instruction; elsewhere a function of the C library.
    #[cfg_attr(not(feature = "std"), expect(dead_code, reason = "core has no f64::mul_add"))]
    const FUSES: bool = false;

    /// All zeros.
    fn zero(self) -> Self::Vector;
    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::Vector;
    /// `a + b`
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b`
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a - b`
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a / b`
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The correctly rounded root.
    fn sqrt(self, x: Self::Vector) -> Self::Vector;
    /// `a * b + c`, rounded once if the set can.
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// 0 where `x < 0`, else `x`: a NaN stays a NaN.
    fn relu(self, x: Self::Vector) -> Self::Vector;
    /// 0 where `y <= 0`, else `x`.
    fn where_positive(self, y: Self::Vector, x: Self::Vector) -> Self::Vector;
    /// 0 where |x| < [`FLUSHED_BELOW`], else `x`: a NaN stays a NaN.
    fn flush(self, x: Self::Vector) -> Self::Vector;
    /// Whether a lane is a NaN.
    fn has_nan(self, x: Self::Vector) -> bool;

    /// The lanes of `low`, then those of `high`, each rounded to the nearest bf16, the even one of
    /// two: two to a word, the first in the lower half. 0 where |x| < [`HALVES_FLUSHED_BELOW`]; a
    /// NaN stays a NaN.
    fn round(self, low: Self::Vector, high: Self::Vector) -> Self::Vector;
    /// Words of the halves of `a`, in the lower half, and of `b` at the same places: the words of
    /// the first `LANES` halves, then those of the others.
    fn pair(self, a: Self::Vector, b: Self::Vector) -> [Self::Vector; 2];
    /// Three bf16s, as f32s, whose sum is `x`: the nearest to it, the nearest to what is left, and
    /// the rest (`thirds/mod.rs`).
    #[inline(always)]
    fn thirds(self, x: Self::Vector) -> [Self::Vector; 3] {
        let half = self.splat(f32::from_bits(HALF_OF_A_BF16));
        let first = self.round_by(x, half);
        let rest = self.sub(x, first);
        let second = self.round_by(rest, half);
        [first, second, self.sub(rest, second)]
    }
    /// The upper halves of the lanes of `low`, then of those of `high`: two to a word, the first in
    /// the lower half.
    #[inline(always)]
    fn upper_halves(self, low: Self::Vector, high: Self::Vector) -> Self::Vector {
        let words = [const { AtomicU32::new(0) }; 16];
        // SAFETY: no set has more lanes, and half as many words are those of one vector.
        unsafe {
            self.store_halves(words.as_ptr(), low);
            self.store_halves(words[Self::LANES / 2..].as_ptr(), high);
            self.load_shared(words.as_ptr())
        }
    }
    /// Words of the upper halves of the lanes of `a`, in the lower half, and of `b`.
    #[inline(always)]
    fn pair_upper(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        let halves = |x| self.upper_halves(x, self.zero());
        self.pair(halves(a), halves(b))[0]
    }
    /// `c` plus the product of the upper halves of every word, rounded, plus that of the lower
    /// halves, rounded. The products are exact.
    fn dot_halves(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// The private f32 at `from` in every lane.
    ///
    /// # Safety
    /// `from` is good for reading it.
    #[inline(always)]
    unsafe fn load_splat(self, from: *const f32) -> Self::Vector {
        // SAFETY: the caller's promise.
        self.splat(unsafe { *from })
    }
    /// Adds to `sums` what `count` times [`Isa::STEPS`] steps of a tile add: of each step, the
    /// outer product of the numbers at `x + step`, `row` apart, and of `NV` vectors at `b`, from
    /// step to step `stride` apart. Each time it asks for a cache line, `apart` behind the last.
    ///
    /// # Safety
    /// Numbers and vectors are good for reading.
    #[inline(always)]
    unsafe fn add_steps<const MR: usize, const NV: usize>(
        self,
        count: usize,
        (x, row): (*const f32, usize),
        (b, stride): (impl Source, usize),
        (line, apart): (*const f32, usize),
        sums: &mut [[Self::Vector; NV]; MR],
    ) {
        for step in 0..count * Self::STEPS {
            if step.is_multiple_of(Self::STEPS) {
                prefetch_at(line.wrapping_add(step / Self::STEPS * apart));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                for (j, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let x = self.load_splat(x.add(i * row + step));
                        let b = b.advance(step * stride + j * Self::LANES).load(self);
                        *sum = self.multiply_add(x, b, *sum);
                    }
                }
            }
        }
    }
    /// Reads `LANES` private f32s.
    ///
    /// # Safety
    /// `from` is good for reading them.
    unsafe fn load(self, from: *const f32) -> Self::Vector;
    /// Reads `count` ≤ `LANES` private f32s, zeros behind them.
    ///
    /// # Safety
    /// `from` is good for reading them.
    unsafe fn load_part(self, from: *const f32, count: usize) -> Self::Vector;
    /// Reads `LANES` private f32s as shared ones are read: by one instruction, where the set has
    /// one, that the compiler leaves where it stands.
    ///
    /// # Safety
    /// `from` is good for reading them.
    unsafe fn load_in_place(self, from: *const f32) -> Self::Vector;
    /// Reads the `LANES` behind those so.
    ///
    /// # Safety
    /// `from` is good for reading twice as many.
    #[inline(always)]
    unsafe fn load_in_place_next(self, from: *const f32) -> Self::Vector {
        // SAFETY: the caller's promise.
        unsafe { self.load_in_place(from.add(Self::LANES)) }
    }
    /// Reads `count` ≤ `LANES` private f32s so, zeros behind them.
    ///
    /// # Safety
    /// `from` is good for reading them.
    unsafe fn load_in_place_part(self, from: *const f32, count: usize) -> Self::Vector;
    /// Reads `LANES` shared f32s.
    ///
    /// # Safety
    /// `from` is good for reading them.
    unsafe fn load_shared(self, from: *const AtomicU32) -> Self::Vector;
    /// Reads the `LANES` behind those: the distance is part of the instruction, where the set has
    /// one.
    ///
    /// # Safety
    /// `from` is good for reading twice as many.
    #[inline(always)]
    unsafe fn load_shared_next(self, from: *const AtomicU32) -> Self::Vector {
        // SAFETY: the caller's promise.
        unsafe { self.load_shared(from.add(Self::LANES)) }
    }
    /// Reads `count` ≤ `LANES` shared f32s, zeros behind them.
    ///
    /// # Safety
    /// `from` is good for reading them.
    unsafe fn load_shared_part(self, from: *const AtomicU32, count: usize) -> Self::Vector;
    /// Writes `LANES` private f32s.
    ///
    /// # Safety
    /// `to` is good for writing them.
    unsafe fn store(self, to: *mut f32, x: Self::Vector);
    /// Writes `count` ≤ `LANES` private f32s.
    ///
    /// # Safety
    /// `to` is good for writing them.
    unsafe fn store_part(self, to: *mut f32, count: usize, x: Self::Vector);
    /// Writes `LANES` shared f32s.
    ///
    /// # Safety
    /// `to` is good for writing them.
    unsafe fn store_shared(self, to: *const AtomicU32, x: Self::Vector);
    /// Writes `count` ≤ `LANES` shared f32s.
    ///
    /// # Safety
    /// `to` is good for writing them.
    unsafe fn store_shared_part(self, to: *const AtomicU32, count: usize, x: Self::Vector);
    /// Reads `LANES` shared bf16s, two to a word, the first in the lower half, as f32s.
    ///
    /// # Safety
    /// `from` is good for reading their words.
    unsafe fn load_halves(self, from: *const AtomicU32) -> Self::Vector;
    /// Reads `count` ≤ `LANES` shared bf16s so, zeros behind them.
    ///
    /// # Safety
    /// `from` is good for reading their words.
    unsafe fn load_halves_part(self, from: *const AtomicU32, count: usize) -> Self::Vector;
    /// Writes the upper halves of all lanes as shared bf16s.
    ///
    /// # Safety
    /// `to` is good for writing their words.
    unsafe fn store_halves(self, to: *const AtomicU32, x: Self::Vector);
    /// The bits of `x` plus those of `noise`, below 2^16, and of the sum the upper half: `x`
    /// rounded to one of the two bf16s around it, the nearer one more often. A bf16 stays itself,
    /// and a NaN stays a NaN.
    fn round_by(self, x: Self::Vector, noise: Self::Vector) -> Self::Vector;
    /// Begins to take the cache line of `at` from other cores, so that writing to it need not wait
    /// for them. Nothing on sets that have no instruction for it.
    ///
    /// # Safety
    /// `at` is good for writing.
    unsafe fn claim(self, at: *const AtomicU32);

    /// Of `LANES` registers one behind the other, the sum of the lanes of each: of the first in the
    /// first lane, and so on. A sum does not depend on the others, or on its place.
    ///
    /// # Safety
    /// `from` is good for reading them.
    #[inline(always)]
    unsafe fn sum_lanes(self, from: *const f32) -> Self::Vector {
        let mut square = Square::ZEROS;
        let lanes = square.0.as_mut_ptr();
        // SAFETY: no set has more lanes than the square.
        unsafe {
            self.transpose(from, Self::LANES, lanes, Self::LANES);
            let mut sum = self.load(lanes);
            for lane in 1..Self::LANES {
                sum = self.add(sum, self.load(lanes.add(lane * Self::LANES)));
            }
            sum
        }
    }

    /// Transposes a square of `LANES` × `LANES`: `to[j * to_stride + i] = from[i * from_stride +
    /// j]`.
    ///
    /// # Safety
    /// `from` is good for reading its rows and `to` for writing its own.
    unsafe fn transpose(
        self,
        from: impl Source,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    );
}

/// A kernel: a function generic over the instruction set, with its arguments.
pub(crate) trait Kernel {
    /// Runs it. `#[inline(always)]` in every implementation, so that the set's features reach it.
    fn run<I: Isa>(self, isa: I);
}

/// Runs a kernel with the selected instruction set.
#[inline]
pub(crate) fn run(kernel: impl Kernel) {
    // SAFETY: a set is only ever selected after `is_supported` found its features.
    unsafe { dispatch(selected(), kernel) }
}

/// As [`run`], for a kernel that multiplies halves or makes them: with the instructions for that,
/// where they are the fastest.
#[inline]
pub(crate) fn run_halves(kernel: impl Kernel) {
    #[cfg(target_arch = "x86_64")]
    match selected() {
        // SAFETY: a set is only ever selected after `is_supported` found its features.
        Simd::Amx => return unsafe { run_amx(kernel) },
        // SAFETY: the machine has both.
        Simd::Avx512 if has_fast_halves() => return unsafe { run_avx512_bf16(kernel) },
        _ => {}
    }
    run(kernel);
}

/// Runs a kernel that multiplies by the instructions of `amx/mod.rs`.
///
/// # Panics
/// When this process may not use them.
#[inline]
pub(crate) fn run_tiles(kernel: impl Kernel) {
    assert!(Simd::Amx.is_supported(), "no matrices in registers");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: just checked.
    unsafe {
        run_amx(kernel);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = kernel;
}

/// As [`run_halves`] with the instructions of AVX-512, whatever set is selected and however slow
/// they are: for tests.
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) fn run_halves_on_avx512(kernel: impl Kernel) {
    assert!(super::simd::has_halves());
    // SAFETY: just checked.
    unsafe { run_avx512_bf16(kernel) }
}

/// Runs a kernel with the given instruction set: for tests, since `select` is one for the process.
#[cfg(test)]
pub(crate) fn run_on(simd: Simd, kernel: impl Kernel) {
    assert!(simd.is_supported(), "{simd} is not supported");
    // SAFETY: just checked.
    unsafe { dispatch(simd, kernel) }
}

/// Runs a kernel with the given instruction set.
///
/// # Safety
/// The machine has it.
#[inline]
unsafe fn dispatch(simd: Simd, kernel: impl Kernel) {
    match simd {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        Simd::Avx512 | Simd::Amx => unsafe { run_avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Simd::Avx2 => unsafe { run_avx2(kernel) },
        #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
        Simd::Neon => kernel.run(Neon::new()),
        // Miri knows no assembly, kernels of operating systems may have no vectors.
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(miri)))]
        _ => kernel.run(Sse2::new()),
        #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(miri))))]
        _ => kernel.run(Plain::new()),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
fn run_avx512(kernel: impl Kernel) {
    // SAFETY: this function has the features.
    kernel.run(unsafe { Avx512::<false, false>::assume() });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,avx2,fma")]
fn run_avx512_bf16(kernel: impl Kernel) {
    // SAFETY: this function has the features.
    kernel.run(unsafe { Avx512::<true, false>::assume() });
}

/// # Safety
/// The process may use AMX's instructions for bf16, which the machine has.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,avx2,fma")]
unsafe fn run_amx(kernel: impl Kernel) {
    // SAFETY: this function has the features of vectors, and the caller has promised the others.
    unsafe {
        kernel.run(Avx512::<true, true>::assume());
        super::amx::release();
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2(kernel: impl Kernel) {
    // SAFETY: this function has the features.
    kernel.run(unsafe { Avx2::assume() });
}
