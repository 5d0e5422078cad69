//! AUC inside groups, averaged over groups by their weight.
//!
//! H. Zhu et al., "Optimized Cost per Click in Taobao Display Advertising", KDD 2017
//! (arXiv 1703.02091), the section on evaluation: the area under the curve of every user,
//! averaged with the user's impressions as weights. It asks what a ranking asks (which of *this*
//! user's items?), and an offset per user does not move it.
//!
//! A group of one class has no AUC and is left out of both sums.
//! Invariant: groups are disjoint between parts. Whoever merges parts has first brought all
//! examples of a group to one place.

use super::auc::{AucPart, MetricError, Scored};

/// A prediction and the group it belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grouped {
    /// Key of the group, such as a user.
    pub group: u64,
    /// The prediction.
    pub scored: Scored,
}

/// Sums over groups of both classes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GaucPart {
    /// Sum over groups of weight times AUC.
    pub weighted_auc: f64,
    /// Sum over groups of weight.
    pub weight: f64,
}

impl GaucPart {
    /// Sums over the groups of `examples`, sorting them in place by group and score.
    ///
    /// # Errors
    /// [`MetricError`] names the first example that cannot be counted; the order is then as given.
    pub fn of(examples: &mut [Grouped]) -> Result<Self, MetricError> {
        for (index, example) in examples.iter().enumerate() {
            example.scored.check(index)?;
        }
        examples
            .sort_unstable_by(|a, b| a.group.cmp(&b.group).then_with(|| a.scored.cmp(&b.scored)));
        let mut sums = Self::default();
        for group in examples.chunk_by(|a, b| a.group == b.group) {
            let part = AucPart::of_sorted(group.iter().map(|example| example.scored));
            if let Some(auc) = part.auc() {
                let weight = part.positive + part.negative;
                sums.weighted_auc += weight * auc;
                sums.weight += weight;
            }
        }
        Ok(sums)
    }

    /// Joins two parts that have no group in common.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            weighted_auc: self.weighted_auc + other.weighted_auc,
            weight: self.weight + other.weight,
        }
    }

    /// The average, 0 to 1; `None` when no group has both classes.
    #[must_use]
    pub fn gauc(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.weighted_auc / self.weight)
    }
}
