//! Log loss, normalized entropy and calibration, as sums that merge.
//!
//! X. He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014,
//! section 2: normalized entropy is the log loss over the entropy of the average click rate;
//! calibration is expected clicks over observed clicks. Natural logarithms.
//!
//! Invariant: every term is computed in f64 from the f32 logit, without a probability between, so
//! a logit of 100 costs 100 and not infinity.

use crate::float::{exp_f64, ln_1p_f64, ln_f64};

/// Weighted sums over examples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossSums {
    /// Σ weight · cross-entropy, in nats.
    pub loss: f64,
    /// Σ weight.
    pub weight: f64,
    /// Σ weight · label: observed clicks.
    pub label: f64,
    /// Σ weight · probability: expected clicks.
    pub prediction: f64,
}

impl LossSums {
    /// Adds one example. A logit that is not finite makes the sums so too: the model has diverged.
    #[inline]
    pub fn add(&mut self, logit: f32, label: f32, weight: f32) {
        let (logit, label, weight) = (f64::from(logit), f64::from(label), f64::from(weight));
        // -y ln p - (1-y) ln(1-p) with p = 1/(1+e^-z) is max(z,0) - z·y + ln(1 + e^-|z|).
        let e = exp_f64(-logit.abs());
        let probability = if logit >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
        self.loss += weight * (logit.max(0.0) - logit * label + ln_1p_f64(e));
        self.weight += weight;
        self.label += weight * label;
        self.prediction += weight * probability;
    }

    /// Joins the sums of two sets of examples.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            loss: self.loss + other.loss,
            weight: self.weight + other.weight,
            label: self.label + other.label,
            prediction: self.prediction + other.prediction,
        }
    }

    /// Mean cross-entropy in nats; `None` without examples.
    #[must_use]
    pub fn log_loss(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.loss / self.weight)
    }

    /// Log loss over that of always predicting the base rate: below 1 is better than knowing
    /// nothing. `None` when there is one class only.
    #[must_use]
    pub fn normalized_entropy(&self) -> Option<f64> {
        let rate = self.label / self.weight;
        let entropy = -(rate * ln_f64(rate) + (1.0 - rate) * ln_1p_f64(-rate));
        // Without examples, or with one class, the entropy is not a number.
        if entropy > 0.0 { self.log_loss().map(|loss| loss / entropy) } else { None }
    }

    /// Expected clicks over observed clicks; `None` when there were none.
    #[must_use]
    pub fn calibration(&self) -> Option<f64> {
        (self.label > 0.0).then(|| self.prediction / self.label)
    }
}
