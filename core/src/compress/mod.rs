//! Communicating only what matters: DCT, dynamic communication thresholding.
//!
//! V. Gupta et al., "Training recommender systems at scale: communication-efficient model and data
//! parallelism", KDD 2021, arXiv 2010.08899. What is sent passes a hard threshold, which is found
//! anew only now and then. Of gradients what does not pass is kept and added to the next (error
//! feedback), so in sum everything is sent.
//!
//! - `threshold.rs`: which threshold keeps a share of the elements, and when it is found anew
//! - `mask.rs`: which elements pass
//! - `activations.rs`: pooled vectors, what of them is sent, and which gradients come back
//! - `residual.rs`: a gradient, what of it is sent, and what is kept for the next
//! - `code.rs`: elements as bytes: which they are, and their values
//! - `crossing.rs`: activations between layers of a model that is split, and their gradients
//! - `positions.rs`: values at the positions of a mask
//! - `half.rs`: values of 16 bits
//!
//! Invariants: nothing here allocates; a vector has at most `u32::MAX` elements. A number that is
//! not finite always passes, so that whoever receives it can refuse it, and never stays in a
//! residual.

pub mod activations;

mod code;
mod crossing;
mod half;
mod mask;
mod positions;
mod residual;
mod threshold;

pub use code::{Malformed, Values, add, code, len_max, len_of, read_mask, visit};
pub use crossing::{Finding, hold, pass};
pub use half::{from_half, from_quarter, to_half, to_quarter};
pub use mask::{Mask, mask_len};
pub use positions::{gather, scatter};
pub use residual::{Kept, Residual};
pub use threshold::{Counts, Keep, Threshold, tau_of};

/// How a gradient or activations are coded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coding {
    /// How much of it is sent.
    pub keep: Keep,
    /// What values are sent as.
    pub values: Values,
}

impl Coding {
    /// All elements, as they are.
    pub const ALL: Self = Self { keep: Keep { share: 1.0, refresh_every: 1 }, values: Values::F32 };

    /// All elements are sent, as they are.
    #[must_use]
    pub fn is_all(self) -> bool {
        self.keep.share >= 1.0 && self.values == Values::F32
    }
}
