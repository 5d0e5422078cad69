//! What old gradients weigh.
//!
//! arXiv 2205.11048 decays gradients by f(t, k) of the token and the global step. The hard cut is
//! the paper's form, as implemented here; its tolerance is not known.

/// The weight of a gradient by its staleness, k − t.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// 1 always.
    None,
    /// 1 up to the tolerance ι, then 0.
    Hard {
        /// Aggregates.
        tolerance: u64,
    },
    /// ρ to the power of the staleness.
    Power {
        /// Above 0, at most 1.
        rho: f32,
    },
}

impl Decay {
    /// 1 for a gradient that is not stale, and for one whose data is ahead of its step.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a weight is a number like any gradient")]
    pub fn weight(self, staleness: i64) -> f32 {
        let late = staleness.max(0) as u64;
        match self {
            Self::None => 1.0,
            Self::Hard { tolerance } if late <= tolerance => 1.0,
            Self::Hard { .. } => 0.0,
            Self::Power { rho } => libm::pow(f64::from(rho), late as f64) as f32,
        }
    }
}
