//! The factor on both learning rates: 1, until evaluations stop improving.
//!
//! One value, shared by whoever computes with it and whoever reports it. In f32, since rates are.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::Arc;

/// A factor that all its clones share.
#[derive(Clone, Debug)]
pub struct RateFactor {
    /// Bits of an f32.
    bits: Arc<AtomicU32>,
}

impl Default for RateFactor {
    fn default() -> Self {
        Self { bits: Arc::new(AtomicU32::new(1f32.to_bits())) }
    }
}

impl RateFactor {
    /// The factor now.
    #[must_use]
    pub fn get(&self) -> f32 {
        f32::from_bits(self.bits.load(Relaxed))
    }

    /// Multiplies it by `factor`. Nobody else does meanwhile.
    pub fn scale(&self, factor: f32) {
        self.bits.store((self.get() * factor).to_bits(), Relaxed);
    }

    /// Makes it 1 again.
    pub fn reset(&self) {
        self.bits.store(1f32.to_bits(), Relaxed);
    }

    /// Where it is.
    #[must_use]
    pub fn words(&self) -> &[AtomicU32] {
        core::slice::from_ref(&*self.bits)
    }
}
