//! Zipf-distributed ranks by rejection-inversion.
//!
//! W. Hörmann, G. Derflinger, "Rejection-inversion to generate variates from monotone discrete
//! distributions", ACM Trans. Model. Comput. Simul. 6(3), 1996. P(k) is proportional to k^-s for
//! k in 1..=n. No table: a draw costs the same for ten ids and for ten million.

use umbra_core::float::{exp_f64, ln_f64};

/// Ranks `1..=n` with exponent `s > 1`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zipf {
    n: f64,
    /// 1 - s
    one_minus_s: f64,
    /// H(3/2) - h(1) and H(n + 1/2): the range that is inverted.
    low: f64,
    high: f64,
    /// k - x below this is accepted without evaluating H (section 3 of the paper).
    shortcut: f64,
}

impl Zipf {
    pub(super) fn new(n: u64, s: f64) -> Self {
        debug_assert!(n > 0 && s > 1.0, "n {n}, s {s}");
        let mut zipf =
            Self { n: n as f64, one_minus_s: 1.0 - s, low: 0.0, high: 0.0, shortcut: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(n as f64 + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// Takes uniform numbers from [0, 1) until one is accepted, mostly the first.
    pub(super) fn rank(&self, mut uniform: impl FnMut() -> f64) -> u64 {
        loop {
            let u = self.high + uniform() * (self.low - self.high);
            let x = self.inverse(u);
            let k = (x + 0.5).floor().clamp(1.0, self.n);
            if k - x <= self.shortcut || u >= self.integral(k + 0.5) - self.density(k) {
                #[expect(clippy::cast_possible_truncation, reason = "whole, from 1 to n")]
                #[expect(clippy::cast_sign_loss, reason = "whole, from 1 to n")]
                return k as u64;
            }
        }
    }

    /// h(x) = x^-s
    fn density(&self, x: f64) -> f64 {
        exp_f64((self.one_minus_s - 1.0) * ln_f64(x))
    }

    /// H(x) = (x^(1-s) - 1) / (1 - s), an antiderivative of h.
    fn integral(&self, x: f64) -> f64 {
        (exp_f64(self.one_minus_s * ln_f64(x)) - 1.0) / self.one_minus_s
    }

    /// The x with H(x) = y.
    fn inverse(&self, y: f64) -> f64 {
        exp_f64(ln_f64(1.0 + y * self.one_minus_s) / self.one_minus_s)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
mod tests {
    use umbra_core::rng::{Purpose, Stream};

    use super::*;

    #[test]
    fn frequencies_follow_the_law() {
        for (n, s) in [(1u64, 1.1), (2, 1.05), (10, 1.2), (1000, 1.1)] {
            let zipf = Zipf::new(n, s);
            let stream = Stream::new(5, Purpose::Test(0));
            let draws = 200_000u32;
            let mut counts = vec![0u32; n as usize];
            let mut index = 0;
            for _ in 0..draws {
                let rank = zipf.rank(|| {
                    index += 1;
                    stream.uniform_f64(index)
                });
                counts[rank as usize - 1] += 1;
            }
            let total: f64 = (1..=n).map(|k| (k as f64).powf(-s)).sum();
            // Chi-squared over ids expected 20 times or more; the rest in one cell.
            let (mut chi2, mut cells, mut rest) = (0.0, 0.0, (0.0, 0.0));
            for (k, &count) in (1..=n).zip(&counts) {
                let expected = f64::from(draws) * (k as f64).powf(-s) / total;
                if expected >= 20.0 {
                    chi2 += (f64::from(count) - expected).powi(2) / expected;
                    cells += 1.0;
                } else {
                    rest = (rest.0 + f64::from(count), rest.1 + expected);
                }
            }
            if rest.1 > 0.0 {
                chi2 += (rest.0 - rest.1).powi(2) / rest.1;
                cells += 1.0;
            }
            // Mean cells - 1, variance twice that: five standard deviations.
            let freedom: f64 = cells - 1.0;
            assert!(
                chi2 <= freedom + 5.0 * (2.0 * freedom).sqrt() + 1e-9,
                "n {n} s {s}: chi2 {chi2} with {freedom} degrees of freedom"
            );
        }
    }

    #[test]
    fn ranks_stay_in_range_at_the_ends() {
        let zipf = Zipf::new(10_131_227, 1.05);
        assert_eq!(zipf.rank(|| 1.0 - f64::EPSILON), 1);
        assert_eq!(zipf.rank(|| 0.0), 10_131_227);
    }
}
