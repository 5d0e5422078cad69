//! Exact area under the ROC curve, as a part that merges with other parts.
//!
//! J. A. Hanley, B. J. McNeil, "The meaning and use of the area under a receiver operating
//! characteristic (ROC) curve", Radiology 143 (1982): the area is the probability that a positive
//! scores above a negative, a tie counting one half.
//!
//! An example of label `y` and weight `w` counts as a positive of weight `w·y` and a negative of
//! weight `w·(1 - y)` at the same score, so labels between 0 and 1 need no rule of their own.
//!
//! Invariants: a part depends on the multiset of its examples, never on their order. Parts of
//! disjoint score ranges merge without loss, so a run whose ranks each own one range of
//! [`order_key`] has the value one process would compute.

use core::cmp::Ordering;
use core::fmt;

/// One prediction and what came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// Logit, or any other score that grows with the probability of a click.
    pub score: f32,
    /// Clicked (1), not clicked (0), or between.
    pub label: f32,
    /// How many examples this one stands for.
    pub weight: f32,
}

/// An example that no metric can count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricError {
    /// The score is not a number: the model has diverged, or read what was never written.
    Score {
        /// Place in the slice, as it was given.
        index: usize,
    },
    /// The label is not between 0 and 1.
    Label {
        /// Place in the slice, as it was given.
        index: usize,
        /// The label found there.
        got: f32,
    },
    /// The weight is negative or not finite.
    Weight {
        /// Place in the slice, as it was given.
        index: usize,
        /// The weight found there.
        got: f32,
    },
}

impl fmt::Display for MetricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Score { index } => {
                write!(f, "the score of example {index} is not a number: the model has diverged")
            }
            Self::Label { index, got } => {
                write!(f, "the label of example {index} is {got}; expected 0 to 1")
            }
            Self::Weight { index, got } => {
                write!(
                    f,
                    "the weight of example {index} is {got}; expected a finite number, 0 or above"
                )
            }
        }
    }
}

impl core::error::Error for MetricError {}

/// Pairs of a positive and a negative, counted over one range of scores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AucPart {
    /// Weight of the positives.
    pub positive: f64,
    /// Weight of the negatives.
    pub negative: f64,
    /// Weight of the pairs in the right order, ties one half: of at most `positive · negative`.
    pub area: f64,
}

impl AucPart {
    /// Counts `examples`, sorting them in place by score. No examples give the empty part.
    ///
    /// # Errors
    /// [`MetricError`] names the first example that cannot be counted; the order is then as given.
    pub fn of(examples: &mut [Scored]) -> Result<Self, MetricError> {
        for (index, example) in examples.iter().enumerate() {
            example.check(index)?;
        }
        examples.sort_unstable_by(Scored::cmp);
        Ok(Self::of_sorted(examples.iter().copied()))
    }

    /// Counts examples that were checked and come in order of score.
    pub(super) fn of_sorted(examples: impl Iterator<Item = Scored>) -> Self {
        let mut part = Self::default();
        let mut tied = Self::default();
        let mut key = None;
        for example in examples {
            let own_key = Some(order_key(example.score));
            if own_key != key {
                part = Self::merge(part, tied.tie());
                tied = Self::default();
                key = own_key;
            }
            let (label, weight) = (f64::from(example.label), f64::from(example.weight));
            tied.positive += weight * label;
            tied.negative += weight * (1.0 - label);
        }
        Self::merge(part, tied.tie())
    }

    /// Joins two parts of which every score in `below` is under every score in `above`.
    #[must_use]
    pub fn merge(below: Self, above: Self) -> Self {
        Self {
            positive: below.positive + above.positive,
            negative: below.negative + above.negative,
            area: below.area + above.area + below.negative * above.positive,
        }
    }

    /// Area under the curve, 0 to 1; `None` when one of the two classes is absent.
    #[must_use]
    pub fn auc(&self) -> Option<f64> {
        let pairs = self.positive * self.negative;
        (pairs > 0.0).then(|| self.area / pairs)
    }

    /// The same weights, all at one score.
    fn tie(self) -> Self {
        Self { area: 0.5 * self.positive * self.negative, ..self }
    }
}

impl Scored {
    /// Fails unless this example, number `index`, can be counted.
    pub(super) fn check(&self, index: usize) -> Result<(), MetricError> {
        if self.score.is_nan() {
            return Err(MetricError::Score { index });
        }
        if !(0.0..=1.0).contains(&self.label) {
            return Err(MetricError::Label { index, got: self.label });
        }
        if !(self.weight >= 0.0 && self.weight.is_finite()) {
            return Err(MetricError::Weight { index, got: self.weight });
        }
        Ok(())
    }

    /// By score; inside a tie by label and weight, so that sums have one order of rounding.
    pub(super) fn cmp(&self, other: &Self) -> Ordering {
        order_key(self.score)
            .cmp(&order_key(other.score))
            .then_with(|| self.label.total_cmp(&other.label))
            .then_with(|| self.weight.total_cmp(&other.weight))
    }
}

/// The place of `score` among all scores: `a < b` exactly when `order_key(a) < order_key(b)`, and
/// `a == b` exactly when the keys are equal (so -0 and 0 share one).
///
/// This is what ranks cut into ranges. A score that is not a number has a key of no meaning.
#[must_use]
pub fn order_key(score: f32) -> u32 {
    // -0 + 0 is 0; every other score is unchanged.
    let bits = (score + 0.0).to_bits();
    // IEEE 754 is sign and magnitude: negatives run backwards and lie below the positives.
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}
