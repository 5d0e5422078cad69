//! When training began, or began again: what the loss of a rank has cost is known by that.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

/// When a trainer made its first step, since the last time it was forgotten.
#[derive(Debug, Default)]
pub struct FirstStep(AtomicU64);

impl FirstStep {
    /// A step has been made.
    pub fn made(&self) {
        if self.0.load(Relaxed) == 0 {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            // Of several workers the first.
            let _ = self.0.compare_exchange(0, now.as_secs_f64().to_bits(), Relaxed, Relaxed);
        }
    }

    /// Seconds since 1970; `None` before it.
    #[must_use]
    pub fn get(&self) -> Option<f64> {
        Some(f64::from_bits(self.0.load(Relaxed))).filter(|seconds| *seconds > 0.0)
    }

    /// The next step is the first.
    pub fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}
