//! The loops that decide how fast a step is, and the only `unsafe` of this crate.
//!
//! From the outside in:
//! - `linear.rs`: the products of a linear layer, forward and back; `dot.rs`: pairwise dot products
//! - `tile.rs`: the micro-kernel under all of them
//! - `update.rs`: optimizer updates, in a pass or as the end of a weight gradient
//! - `isa/`: registers of an instruction set, the traits kernels are generic over
//! - `layout.rs`: panels of parameters, blocks of activations; `words.rs`: memory shared by workers
//! - `peak.rs`: what the core could do at best
//!
//! [`Simd`] is the instruction set, chosen once for the process. The same source is compiled once
//! per set. Sets with a fused multiply-add round once where [`Simd::Plain`] rounds twice, so bits
//! differ between sets, never within one: a row of a product depends on its row of the left operand,
//! the right operand and the set alone, not on its place among the rows or on their number.
#![allow(unsafe_code)]

mod dot;
pub(crate) mod isa;
mod layout;
mod linear;
mod peak;
mod tile;
pub(crate) mod update;
pub(crate) mod words;

pub use dot::{DotShape, dot, dot_backward};
pub(crate) use isa::vectorized;
pub use layout::{Activations, ActivationsMut, PANEL, Strides, blocked_len, panel_index};
pub(crate) use linear::weight_update;
pub use linear::{Mask, bias_gradient, data_gradient, forward, transpose, weight_gradient};
pub use peak::peak_burst;
pub use words::shared;

use core::fmt;
use core::sync::atomic::{AtomicU8, Ordering};

/// Instruction set of the matrix kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Simd {
    /// What the compiler assumes without being told: SSE2 on x86-64. No fused multiply-add.
    Plain = 1,
    /// 256-bit vectors with fused multiply-add.
    Avx2 = 2,
    /// 512-bit vectors.
    Avx512 = 3,
}

impl Simd {
    /// Every set, best last.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Avx2, Self::Avx512];

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
        }
    }
}

#[cfg(all(target_arch = "x86_64", feature = "std"))]
fn has_avx2() -> bool {
    std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma")
}

#[cfg(all(target_arch = "x86_64", feature = "std"))]
fn has_avx512() -> bool {
    has_avx2() && std::is_x86_feature_detected!("avx512f")
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
        write!(f, "this machine cannot run {:?}: its best is {:?}", self.expected, self.got)
    }
}

impl core::error::Error for UnsupportedSimd {}

/// The set in use, 0 until the first call that needs it. Only supported sets are ever stored.
static SELECTED: AtomicU8 = AtomicU8::new(0);

/// Makes the whole process use `simd`. For tests and comparisons: without it the best set is used.
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

/// The set in use.
#[must_use]
pub fn selected() -> Simd {
    match SELECTED.load(Ordering::Relaxed) {
        1 => Simd::Plain,
        2 => Simd::Avx2,
        3 => Simd::Avx512,
        _ => {
            let simd = Simd::detect();
            SELECTED.store(simd as u8, Ordering::Relaxed);
            simd
        }
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "small test data")]
mod tests;

#[cfg(test)]
mod selection {
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
        }
    }
}
