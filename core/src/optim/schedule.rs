//! Learning rate over steps: linear warm-up, a plateau, linear decay.
//!
//! The shape of the reference DLRM's `LRPolicyScheduler`, with a straight line for its polynomial
//! decay. Steps count from 0.

/// A learning rate over the steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Rate on the plateau.
    pub base: f32,
    /// Warm-up and decay.
    pub schedule: Schedule,
}

/// Factor on the base learning rate as a function of the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Steps of linear warm-up: step `t` has factor `(t + 1) / warmup_steps`; 0 for none.
    pub warmup_steps: u64,
    /// First step of the decay, or `None` for a constant rate.
    pub decay_start_step: Option<u64>,
    /// Steps the decay takes, at least 1.
    pub decay_steps: u64,
    /// Factor after the decay.
    pub final_factor: f32,
}

impl Schedule {
    /// The same rate at every step.
    pub const CONSTANT: Self =
        Self { warmup_steps: 0, decay_start_step: None, decay_steps: 1, final_factor: 1.0 };

    /// The factor at `step`.
    #[must_use]
    pub fn factor(&self, step: u64) -> f32 {
        if step < self.warmup_steps {
            return (step + 1) as f32 / self.warmup_steps as f32;
        }
        match self.decay_start_step {
            Some(start) if step >= start => {
                let done = ((step - start) as f32 / self.decay_steps.max(1) as f32).min(1.0);
                1.0 + done * (self.final_factor - 1.0)
            }
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warms_up_holds_and_decays() {
        let schedule = Schedule {
            warmup_steps: 4,
            decay_start_step: Some(10),
            decay_steps: 10,
            final_factor: 0.5,
        };
        let at = |step| schedule.factor(step);
        assert_eq!([at(0), at(1), at(3), at(4), at(10)], [0.25, 0.5, 1.0, 1.0, 1.0]);
        assert_eq!([at(15), at(20), at(1000)], [0.75, 0.5, 0.5]);
        assert_eq!(Schedule::CONSTANT.factor(u64::MAX), 1.0);
    }
}
