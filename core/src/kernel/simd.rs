//! The instruction set of the kernels: what there is, what the machine has, what is used.

use core::fmt;
use core::str::FromStr;
use core::sync::atomic::{AtomicU8, Ordering};

/// Instruction set of the matrix kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Simd {
    /// What needs no asking: SSE2 on x86-64, arrays of four elsewhere. No fused multiply-add, and
    /// the same bits everywhere.
    Plain = 1,
    /// 256-bit vectors with fused multiply-add.
    Avx2 = 2,
    /// 512-bit vectors.
    Avx512 = 3,
    /// Those, and registers of 16 × 16 words that are multiplied as matrices of bf16s, in linear
    /// layers' products in training: of bf16s, and of f32s as sums of three. Their sums are rounded
    /// in an order of their own (`amx/mod.rs`). All else has the bits of [`Self::Avx512`]. Only on
    /// Linux and with feature `std`: a process has to ask the system for them.
    Amx = 4,
    /// The vectors of every aarch64 processor: 128 bits, with fused multiply-add.
    Neon = 5,
}

impl Simd {
    /// Every set; of those of a processor the best last.
    pub const ALL: [Self; 5] = [Self::Plain, Self::Avx2, Self::Avx512, Self::Amx, Self::Neon];

    /// Its name: `plain`, `avx2`, `avx512`, `amx` or `neon`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        NAMES[self as usize - 1]
    }

    /// The best set this machine has. Without feature `std` the machine cannot be asked, and the
    /// target features given to the compiler decide.
    #[must_use]
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|set| set.is_supported()).unwrap_or(Self::Plain)
    }

    /// Whether this machine can run the set.
    #[must_use]
    pub fn is_supported(self) -> bool {
        match self {
            Self::Plain => true,
            Self::Avx2 => has_avx2(),
            Self::Avx512 => has_avx512(),
            Self::Amx => has_amx(),
            Self::Neon => cfg!(all(
                target_arch = "aarch64",
                target_feature = "neon",
                target_endian = "little"
            )),
        }
    }
}

/// Names of [`Simd::ALL`].
pub const NAMES: [&str; 5] = ["plain", "avx2", "avx512", "amx", "neon"];

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Simd {
    type Err = UnknownSimd;

    fn from_str(name: &str) -> Result<Self, UnknownSimd> {
        Self::ALL.into_iter().find(|set| set.name() == name).ok_or(UnknownSimd)
    }
}

/// No set has the name that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownSimd;

impl fmt::Display for UnknownSimd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [plain, avx2, avx512, amx, neon] = NAMES;
        write!(f, "an instruction set is one of {plain}, {avx2}, {avx512}, {amx}, {neon}")
    }
}

impl core::error::Error for UnknownSimd {}

#[cfg(all(target_arch = "x86_64", feature = "std"))]
fn has_avx2() -> bool {
    std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma")
}

#[cfg(all(target_arch = "x86_64", feature = "std"))]
fn has_avx512() -> bool {
    has_avx2() && std::is_x86_feature_detected!("avx512f")
}

/// Whether the set in use is at its fastest with bf16s multiplied by instructions of their own,
/// which are used then. Elsewhere they are f32s in the registers, and gain nothing.
#[must_use]
pub fn multiplies_halves() -> bool {
    match selected() {
        Simd::Amx => true,
        Simd::Avx512 => has_fast_halves(),
        _ => false,
    }
}

/// Whether the set in use is at its fastest with f32s split into three bf16s (`thirds/mod.rs`).
#[must_use]
pub fn multiplies_thirds() -> bool {
    selected() == Simd::Amx
}

/// Keeps an answer: a virtual machine leaves the processor at each CPUID, and every product asks.
fn kept(answer: &AtomicU8, ask: impl Fn() -> bool) -> bool {
    match answer.load(Ordering::Relaxed) {
        0 => {
            let is_so = ask();
            answer.store(1 + u8::from(is_so), Ordering::Relaxed);
            is_so
        }
        kept => kept == 2,
    }
}

/// Whether VDPBF16PS is there, and faster than multiply-adds of f32s.
pub(super) fn has_fast_halves() -> bool {
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    kept(&ANSWER, || has_halves() && !has_slow_halves())
}

/// Whether this process may use AMX's instructions for bf16, beside those of AVX-512.
#[cfg(all(target_arch = "x86_64", target_os = "linux", feature = "std"))]
fn has_amx() -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    kept(&ANSWER, || {
        // AMX-BF16 and AMX-TILE.
        let has_tiles = || {
            __cpuid(0).eax >= 7
                && __cpuid_count(7, 0).edx & (1 << 22 | 1 << 24) == 1 << 22 | 1 << 24
        };
        has_halves() && has_tiles() && may_use_tiles()
    })
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", feature = "std")))]
const fn has_amx() -> bool {
    false
}

/// Asks Linux to keep this process's tile registers, eight kilobytes a thread that uses them, which
/// it does for those that have asked; all threads may use them then.
/// <https://docs.kernel.org/arch/x86/xstate.html>
#[cfg(all(target_arch = "x86_64", target_os = "linux", feature = "std"))]
fn may_use_tiles() -> bool {
    use core::ffi::c_long;
    const ARCH_PRCTL: c_long = 158;
    const ARCH_REQ_XCOMP_PERM: c_long = 0x1023;
    const XFEATURE_XTILE_DATA: c_long = 18;
    unsafe extern "C" {
        // Of the C library that std links.
        fn syscall(number: c_long, ...) -> c_long;
    }
    // SAFETY: no memory is touched; a kernel without it returns an error.
    unsafe { syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) == 0 }
}

/// Whether this machine has instructions that multiply bf16s, however slow.
pub(super) fn has_halves() -> bool {
    has_avx512() && has_avx512_bf16()
}

/// Whether VDPBF16PS is slower here than multiply-adds of f32s that give the same bits: on Intel's
/// cores with AMX, which leave products of bf16s to that ([`Simd::Amx`]). Measured on family 6,
/// model 207: 1 G a second where there are 4.8 G multiply-adds, and a step of a DLRM 1.18 times as
/// long. AVX512-FP16 came with the same cores and is seen where a virtual machine hides AMX.
#[cfg(target_arch = "x86_64")]
fn has_slow_halves() -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    let vendor = __cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    let intel = name == [*b"Genu", *b"ineI", *b"ntel"];
    intel && vendor.eax >= 7 && __cpuid_count(7, 0).edx >> 23 & 1 == 1
}

#[cfg(not(target_arch = "x86_64"))]
const fn has_slow_halves() -> bool {
    false
}

#[cfg(all(target_arch = "x86_64", feature = "std"))]
fn has_avx512_bf16() -> bool {
    std::is_x86_feature_detected!("avx512bf16") && std::is_x86_feature_detected!("avx512bw")
}

#[cfg(not(all(target_arch = "x86_64", feature = "std")))]
const fn has_avx512_bf16() -> bool {
    cfg!(all(target_feature = "avx512bf16", target_feature = "avx512bw"))
}

#[cfg(not(all(target_arch = "x86_64", feature = "std")))]
const fn has_avx2() -> bool {
    cfg!(all(target_feature = "avx2", target_feature = "fma"))
}

#[cfg(not(all(target_arch = "x86_64", feature = "std")))]
const fn has_avx512() -> bool {
    has_avx2() && cfg!(target_feature = "avx512f")
}

/// The machine lacks an instruction set that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedSimd {
    /// What was asked for.
    pub expected: Simd,
    /// The best this machine has.
    pub got: Simd,
}

impl fmt::Display for UnsupportedSimd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this machine cannot run {}: its best is {}", self.expected, self.got)
    }
}

impl core::error::Error for UnsupportedSimd {}

/// The set in use, 0 until the first call that needs it. Only supported sets are ever stored.
static SELECTED: AtomicU8 = AtomicU8::new(0);

/// Makes the whole process use `simd`. For comparisons: without it the set that [`selected`] tells
/// is used.
///
/// # Errors
/// When this machine cannot run the set; nothing changes then.
pub fn select(simd: Simd) -> Result<(), UnsupportedSimd> {
    if !simd.is_supported() {
        return Err(UnsupportedSimd { expected: simd, got: Simd::detect() });
    }
    SELECTED.store(simd as u8, Ordering::Relaxed);
    Ok(())
}

/// The set in use: the one of [`select`], else the one that the environment variable `UMBRA_SIMD`
/// names (with feature `std`, and if the machine has it: a program that wants to refuse another
/// looks first), else the best.
#[must_use]
pub fn selected() -> Simd {
    match SELECTED.load(Ordering::Relaxed) {
        1 => Simd::Plain,
        2 => Simd::Avx2,
        3 => Simd::Avx512,
        4 => Simd::Amx,
        5 => Simd::Neon,
        _ => {
            let simd = requested().unwrap_or_else(Simd::detect);
            SELECTED.store(simd as u8, Ordering::Relaxed);
            simd
        }
    }
}

#[cfg(feature = "std")]
fn requested() -> Option<Simd> {
    std::env::var("UMBRA_SIMD").ok()?.parse().ok().filter(|set: &Simd| set.is_supported())
}

#[cfg(not(feature = "std"))]
const fn requested() -> Option<Simd> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests may run meanwhile: they hold for every set.
    #[test]
    fn the_selected_set_is_used_and_an_unsupported_one_refused() {
        for simd in Simd::ALL {
            let result = select(simd);
            if simd.is_supported() {
                assert_eq!((result, selected()), (Ok(()), simd));
            } else {
                assert_eq!(result, Err(UnsupportedSimd { expected: simd, got: Simd::detect() }));
                assert_ne!(selected(), simd);
            }
            assert_eq!(simd.name().parse(), Ok(simd));
        }
    }

    #[test]
    fn a_name_that_no_set_has_is_refused() {
        assert_eq!("AVX".parse::<Simd>(), Err(UnknownSimd));
    }
}
