//! Sums that no order of adding changes, so that figures do not depend on how rows are dealt to
//! ranks and threads.
//!
//! Fixed point: every term is cut to a multiple of 2^-64 and added as an integer. Terms of log
//! losses and weights lie far inside the range; a sum that would pass 2^63 stays there.

/// A sum in steps of 2^-64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExactSum(i128);

/// 2^64: scaling by it is exact.
const STEPS: f64 = 18_446_744_073_709_551_616.0;

impl ExactSum {
    /// Adds a finite term.
    #[expect(clippy::cast_possible_truncation, reason = "cut to a multiple of the step, as meant")]
    pub const fn add(&mut self, term: f64) {
        self.0 = self.0.saturating_add((term * STEPS) as i128);
    }

    /// Joins two sums.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The sum, rounded once.
    #[must_use]
    pub const fn value(self) -> f64 {
        self.0 as f64 / STEPS
    }

    /// The sum of whole numbers that are not negative.
    #[must_use]
    pub const fn whole(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// As it travels: low word, high word.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "splitting a word in two")]
    pub const fn to_words(self) -> [u64; 2] {
        let bits = self.0.cast_unsigned();
        [bits as u64, (bits >> 64) as u64]
    }

    /// As it came.
    #[must_use]
    pub fn from_words([low, high]: [u64; 2]) -> Self {
        Self((u128::from(high) << 64 | u128::from(low)).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_changes_nothing() {
        let terms: Vec<f64> = (1..1000).map(|i| 1e9f64.powf((f64::from(i) * 0.7).sin())).collect();
        let sum = |terms: &mut dyn Iterator<Item = &f64>| {
            let mut sum = ExactSum::default();
            terms.for_each(|term| sum.add(*term));
            sum
        };
        let whole = sum(&mut terms.iter());
        assert_eq!(sum(&mut terms.iter().rev()), whole);
        let (left, right) = terms.split_at(333);
        let joined = sum(&mut left.iter()).plus(sum(&mut right.iter()));
        assert_eq!(joined, whole);
        assert_eq!(ExactSum::from_words(whole.to_words()), whole);
        let naive: f64 = terms.iter().sum();
        assert!((whole.value() / naive - 1.0).abs() < 1e-12);
        // The sum by floating point does depend on the order, or this test shows nothing.
        assert!(naive.to_bits() != terms.iter().rev().sum::<f64>().to_bits());
    }

    #[test]
    fn negative_terms_travel() {
        let mut sum = ExactSum::default();
        sum.add(-2.5);
        assert!((ExactSum::from_words(sum.to_words()).value() + 2.5).abs() < f64::EPSILON);
    }
}
