//! Progressive validation: every example is scored by the model as it stands, and then learnt from.
//!
//! A. Blum, A. Kalai, J. Langford, "Beating the hold-out: bounds for k-fold and progressive
//! cross-validation", COLT 1999; for clicks on ads, H. B. McMahan et al., "Ad click prediction: a
//! view from the trenches", KDD 2013, section 5. The scores are those of the training step, so a
//! pass gives its figures without another one: with dropout, and with batch norm's statistics of
//! the batch, where the model has them.
//!
//! A pass has no end of examples, so scores are not kept but counted, in bins of their order keys:
//! 128 for each doubling of a logit's size. In a bin all pairs are ties, and so the AUC is within
//! the share of pairs in one bin, halved, of the exact one. All else is exact.
//!
//! Invariant: counts and sums are integers, so they depend on no order: not on workers, not on
//! ranks.

use umbra_core::batch::Batch;
use umbra_core::metrics::{AucPart, LossSums, order_key};

use crate::comm::Comm;
use crate::comm::reduce::combine;
use crate::comm::watch::Lost;
use crate::score::exact::ExactSum;
use crate::score::figures::{BIN_SHIFT, BINS, Figures};

/// Scores before learning, counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progressive {
    examples: u64,
    /// Loss, weight, label, prediction.
    sums: [ExactSum; 4],
    /// Weight of the positives and of the negatives by bin, ascending. `[BINS]`
    bins: Vec<[ExactSum; 2]>,
}

impl Default for Progressive {
    fn default() -> Self {
        let bins = vec![[ExactSum::default(); 2]; BINS];
        Self { examples: 0, sums: [ExactSum::default(); 4], bins }
    }
}

impl Progressive {
    /// Counts the examples of a batch by the `logits` they had before they were learnt from. `[n]`
    pub fn add(&mut self, batch: &Batch<'_>, logits: &[f32]) {
        self.examples += logits.len() as u64;
        for (i, (logit, label)) in logits.iter().zip(batch.label).enumerate() {
            let weight = batch.weight.get(i).copied().unwrap_or(1.0);
            let mut one = LossSums::default();
            one.add(*logit, *label, weight);
            let terms = [one.loss, one.weight, one.label, one.prediction];
            self.sums.iter_mut().zip(terms).for_each(|(sum, term)| sum.add(term));
            let [positive, negative] = &mut self.bins[(order_key(*logit) >> BIN_SHIFT) as usize];
            positive.add(one.label);
            negative.add(one.weight - one.label);
        }
    }

    /// How many examples were counted.
    #[must_use]
    pub const fn examples(&self) -> u64 {
        self.examples
    }

    /// Adds what `other` has counted.
    pub fn join(&mut self, other: &Self) {
        self.examples += other.examples;
        let own = self.sums.iter_mut().chain(self.bins.as_flattened_mut());
        let others = other.sums.iter().chain(other.bins.as_flattened());
        own.zip(others).for_each(|(own, other)| *own = own.plus(*other));
    }

    /// Counts nothing any more.
    pub fn clear(&mut self) {
        self.examples = 0;
        self.sums.fill(ExactSum::default());
        self.bins.fill([ExactSum::default(); 2]);
    }

    /// Becomes what all ranks have counted together. *Collective over `comm`.*
    ///
    /// # Errors
    /// When not all ranks come in time.
    pub fn over_ranks(&mut self, comm: &Comm) -> Result<(), Lost> {
        let mut examples = ExactSum::default();
        examples.add(self.examples as f64);
        let all = self.sums.iter().chain(self.bins.as_flattened()).chain([&examples]);
        let mut words: Vec<[u64; 2]> = all.map(|sum| sum.to_words()).collect();
        let add = |to: &mut [[u64; 2]], from: &[[u64; 2]]| {
            for (to, from) in to.iter_mut().zip(from) {
                *to = ExactSum::from_words(*to).plus(ExactSum::from_words(*from)).to_words();
            }
        };
        combine(comm, &mut words, add, "figures of progressive validation")?;
        let own = self.sums.iter_mut().chain(self.bins.as_flattened_mut()).chain([&mut examples]);
        own.zip(words).for_each(|(own, words)| *own = ExactSum::from_words(words));
        self.examples = examples.whole();
        Ok(())
    }

    /// The figures so far.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let [loss, weight, label, prediction] = self.sums.map(ExactSum::value);
        let sums = LossSums { loss, weight, label, prediction };
        let part = |[positive, negative]: &[ExactSum; 2]| {
            let (positive, negative) = (positive.value(), negative.value());
            AucPart { positive, negative, area: 0.5 * positive * negative }
        };
        let area = self.bins.iter().map(part).fold(AucPart::default(), AucPart::merge);
        Figures {
            examples: self.examples,
            auc: area.auc(),
            logloss: sums.log_loss(),
            normalized_entropy: sums.normalized_entropy(),
            calibration: sums.calibration(),
            gauc: None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use umbra_core::batch::Jagged;
    use umbra_core::metrics::Scored;
    use umbra_core::rng::{Purpose, Stream};

    use super::*;

    /// Logits, labels and weights of clicks that logits have something to do with.
    fn clicks(count: u64) -> [Vec<f32>; 3] {
        let random = Stream::new(7, Purpose::Test(3));
        let logit = |i| 2.0 * (random.uniform(i) + random.uniform(count + i)) - 3.0;
        let clicked = |i| random.uniform(2 * count + i) < 1.0 / (1.0 + (-logit(i)).exp());
        let label = |i| if clicked(i) { 1.0 } else { 0.0 };
        let weight = |i| 0.1 + random.uniform(3 * count + i);
        [
            (0..count).map(logit).collect(),
            (0..count).map(label).collect(),
            (0..count).map(weight).collect(),
        ]
    }

    fn counted(logits: &[f32], label: &[f32], weight: &[f32]) -> Progressive {
        let mut counted = Progressive::default();
        let bags = Jagged { values: &[], offsets: &[0], weights: &[] };
        counted.add(&Batch { label, weight, dense: &[], bags, row: &[] }, logits);
        counted
    }

    #[test]
    fn figures_are_those_of_the_exact_metrics_but_for_ties_in_a_bin() {
        let [logits, label, weight] = clicks(50_000);
        let figures = counted(&logits, &label, &weight).figures();
        let mut sums = LossSums::default();
        let mut scored: Vec<Scored> = vec![];
        for ((score, label), weight) in logits.iter().zip(&label).zip(&weight) {
            sums.add(*score, *label, *weight);
            scored.push(Scored { score: *score, label: *label, weight: *weight });
        }
        let close = |a: Option<f64>, b: Option<f64>, by: f64| (a.unwrap() - b.unwrap()).abs() < by;
        assert_eq!(figures.examples, 50_000);
        assert!(close(figures.logloss, sums.log_loss(), 1e-12));
        assert!(close(figures.normalized_entropy, sums.normalized_entropy(), 1e-12));
        assert!(close(figures.calibration, sums.calibration(), 1e-12));
        let exact = AucPart::of(&mut scored).unwrap().auc();
        assert!(close(figures.auc, exact, 2e-5), "{figures:?}, exact {exact:?}");
    }

    #[test]
    fn parts_join_to_the_whole_in_any_order() {
        let [logits, label, weight] = clicks(3_000);
        let whole = counted(&logits, &label, &weight);
        let part = |range: core::ops::Range<usize>| {
            counted(&logits[range.clone()], &label[range.clone()], &weight[range])
        };
        let (mut forward, mut backward) = (part(0..1_000), part(1_000..3_000));
        let first = forward.clone();
        forward.join(&backward);
        backward.join(&first);
        assert!(forward == whole && backward == whole);
        backward.clear();
        assert_eq!(backward.figures(), Progressive::default().figures());
    }
}
