//! Binary cross entropy of a logit, fused with the sigmoid.
//!
//! With p = sigmoid(z) the loss −y ln p − (1−y) ln(1−p) equals max(z, 0) − z·y + ln(1 + e^−|z|) and
//! its derivative in z is p − y: finite for every finite z, with no clipping of p. The identity
//! holds for soft labels 0 ≤ y ≤ 1 too.

use crate::float;

/// Loss of one example in nats.
#[must_use]
pub fn cross_entropy(logit: f32, label: f32) -> f64 {
    let (z, y) = (f64::from(logit), f64::from(label));
    z.max(0.0) - z * y + float::ln_1p_f64(float::exp_f64(-z.abs()))
}

/// Derivative of [`cross_entropy`] with respect to the logit: p − y, by way of the smaller of p and
/// 1 − p, so that a confident right answer keeps all digits of its small gradient.
#[must_use]
pub fn cross_entropy_gradient(logit: f32, label: f32) -> f32 {
    let smaller = float::sigmoid(-logit.abs());
    if logit >= 0.0 { (1.0 - label) - smaller } else { smaller - label }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_definition_where_the_definition_is_exact() {
        for z in [-5.0f32, -1.0, 0.0, 0.25, 3.0] {
            for y in [0.0f32, 0.3, 1.0] {
                let p = 1.0 / (1.0 + float::exp_f64(-f64::from(z)));
                let y64 = f64::from(y);
                let expected = -y64 * float::ln_f64(p) - (1.0 - y64) * float::ln_f64(1.0 - p);
                assert!((cross_entropy(z, y) - expected).abs() < 1e-12, "logit {z} label {y}");
            }
        }
    }

    #[test]
    fn stays_finite_at_the_ends() {
        assert_eq!(cross_entropy(f32::MAX, 1.0), 0.0);
        assert_eq!(cross_entropy(f32::MAX, 0.0), f64::from(f32::MAX));
        assert_eq!(cross_entropy(f32::MIN, 0.0), 0.0);
        assert_eq!(cross_entropy_gradient(f32::MAX, 0.0), 1.0);
        assert_eq!(cross_entropy_gradient(f32::MIN, 0.0), 0.0);
        // Where 1 - p rounds to 0 in f32 the loss is still the logit.
        assert_eq!(cross_entropy(60.0, 0.0), 60.0);
    }
}
