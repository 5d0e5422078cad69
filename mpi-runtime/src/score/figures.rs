//! Metrics over all ranks, exact.
//!
//! AUC needs every pair of a positive and a negative example: the scores are split into ranges, one
//! per rank, by a histogram of their order keys; each rank counts the pairs within its range and
//! the parts merge in order (`AucPart::merge`). Grouped AUC brings each group together on one rank.
//! Sums are exact (`exact.rs`). What comes out equals a one-process computation, on every rank,
//! whoever has which rows.

use umbra_core::metrics::{AucPart, GaucPart, Grouped, LossSums, MetricError, Scored, order_key};
use umbra_core::sync::reduction::add;

use crate::comm::Comm;
use crate::comm::reduce::combine;
use crate::comm::watch::Lost;
use crate::score::deal::deal;
use crate::score::exact::ExactSum;

/// Scored examples of one worker, or of several.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// Logits, labels, weights.
    pub scored: Vec<Scored>,
    /// Group of every example; empty when the dataset has none.
    pub group: Vec<u64>,
    /// Row number of every example in its dataset.
    pub row: Vec<u64>,
}

/// Figures of a model on a dataset; `None` where a figure is not defined.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Examples scored, over all ranks.
    pub examples: u64,
    /// Area under the ROC curve; not defined with one class only.
    pub auc: Option<f64>,
    /// Weighted mean of the cross entropy, natural logarithm.
    pub logloss: Option<f64>,
    /// Log loss over the entropy of the base rate.
    pub normalized_entropy: Option<f64>,
    /// Mean prediction over mean label.
    pub calibration: Option<f64>,
    /// AUC within groups, weighted by their examples.
    pub gauc: Option<f64>,
}

/// Why there are no figures.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FiguresError {
    /// Scores that have none; on all ranks.
    #[error(transparent)]
    Metric(#[from] MetricError),
    /// Ranks that did not come.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl Scores {
    /// Appends another worker's scores.
    pub fn append(&mut self, mut other: Self) {
        self.scored.append(&mut other.scored);
        self.group.append(&mut other.group);
        self.row.append(&mut other.row);
    }

    /// The figures over the scores of all ranks, equal on all of them. *Collective over `comm`.*
    ///
    /// # Errors
    /// When some score is not finite, as happens when training has diverged; on all ranks. When not
    /// all ranks come in time.
    pub fn figures(mut self, comm: &Comm) -> Result<Figures, FiguresError> {
        let mut counts = [self.scored.len() as u64, u64::from(!self.group.is_empty())];
        combine(comm, &mut counts, add, WHAT)?;
        let [examples, grouped] = counts;
        let bad = self.scored.iter().position(|example| !example.score.is_finite());
        // Of several ranks the first speaks: rank and index are compared as one number.
        let of_rank = (comm.rank() as u128) << 64;
        let mut bad = [bad.map_or(u128::MAX, |index| of_rank | index as u128)];
        combine(comm, &mut bad, |to, from| to[0] = to[0].min(from[0]), WHAT)?;
        if bad[0] != u128::MAX {
            let index = bad[0] & u128::from(u64::MAX);
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            return Err(MetricError::Score { index }.into());
        }
        let gauc = if grouped == 0 { None } else { self.gauc(comm)? };
        let sums = self.loss_sums(comm)?;
        Ok(Figures {
            examples,
            auc: self.auc(comm)?.auc(),
            logloss: sums.log_loss(),
            normalized_entropy: sums.normalized_entropy(),
            calibration: sums.calibration(),
            gauc,
        })
    }

    fn loss_sums(&self, comm: &Comm) -> Result<LossSums, Lost> {
        let mut sums = [ExactSum::default(); 4];
        for Scored { score, label, weight } in &self.scored {
            let mut one = LossSums::default();
            one.add(*score, *label, *weight);
            let terms = [one.loss, one.weight, one.label, one.prediction];
            sums.iter_mut().zip(terms).for_each(|(sum, term)| sum.add(term));
        }
        let [loss, weight, label, prediction] = add_ranks(comm, sums)?;
        Ok(LossSums { loss, weight, label, prediction })
    }

    fn auc(&mut self, comm: &Comm) -> Result<AucPart, FiguresError> {
        if comm.size() == 1 {
            return Ok(AucPart::of(&mut self.scored)?);
        }
        let ends = range_ends(comm, &self.scored)?;
        let rank_of = |example: &Scored| {
            let bin = (order_key(example.score) >> BIN_SHIFT) as usize;
            ends.partition_point(|end| *end <= bin)
        };
        let words = |x: &Scored| (rank_of(x), [x.score, x.label, x.weight]);
        let received = deal(comm, self.scored.iter().map(words), "scores of an evaluation")?;
        let mut own: Vec<Scored> = received
            .as_chunks()
            .0
            .iter()
            .map(|[score, label, weight]| Scored { score: *score, label: *label, weight: *weight })
            .collect();
        drop(received);
        let part = AucPart::of(&mut own)?;
        // Three numbers per rank, merged in the order of ranges.
        let mut parts = vec![[0.0; 3]; comm.size()];
        let own = [part.positive, part.negative, part.area];
        comm.all_gather(&own, parts.as_flattened_mut(), WHAT)?;
        let part = |[positive, negative, area]: [f64; 3]| AucPart { positive, negative, area };
        Ok(parts.into_iter().map(part).fold(AucPart::default(), AucPart::merge))
    }

    fn gauc(&self, comm: &Comm) -> Result<Option<f64>, FiguresError> {
        let words = |(group, example): (&u64, &Scored)| {
            let words = [example.score, example.label, example.weight].map(f32::to_bits);
            let label = u64::from(words[1]) << 32 | u64::from(words[2]);
            let rank = usize::try_from(group % comm.size() as u64).unwrap_or(0);
            (rank, [*group, u64::from(words[0]), label])
        };
        let items = self.group.iter().zip(&self.scored).map(words);
        let received = deal(comm, items, "groups of an evaluation")?;
        let number = |word: u64| f32::from_bits(u32::try_from(word).unwrap_or(u32::MAX));
        let mut own: Vec<Grouped> = received
            .as_chunks()
            .0
            .iter()
            .map(|[group, score, label]| {
                let (label, weight) = (number(label >> 32), number(label & u64::from(u32::MAX)));
                Grouped { group: *group, scored: Scored { score: number(*score), label, weight } }
            })
            .collect();
        drop(received);
        own.sort_unstable_by_key(|example| example.group);
        let mut sums = [ExactSum::default(); 2];
        for group in own.chunk_by_mut(|a, b| a.group == b.group) {
            let part = GaucPart::of(group)?;
            sums[0].add(part.weighted_auc);
            sums[1].add(part.weight);
        }
        let [weighted_auc, weight] = add_ranks(comm, sums)?;
        Ok(GaucPart { weighted_auc, weight }.gauc())
    }
}

/// Bins of the histogram of order keys: their upper 16 bits.
pub(super) const BIN_SHIFT: u32 = 16;
pub(super) const BINS: usize = 1 << (32 - BIN_SHIFT);

/// What waits say they are waiting for.
const WHAT: &str = "figures of an evaluation";

/// Last bin + 1 of every rank's range but the last, so that ranges hold about equal counts.
fn range_ends(comm: &Comm, scored: &[Scored]) -> Result<Vec<usize>, Lost> {
    let mut histogram = vec![0u64; BINS];
    for example in scored {
        histogram[(order_key(example.score) >> BIN_SHIFT) as usize] += 1;
    }
    combine(comm, &mut histogram, add, WHAT)?;
    let total: u64 = histogram.iter().sum();
    let (mut ends, mut seen) = (vec![], 0);
    for (bin, count) in histogram.iter().enumerate() {
        seen += count;
        while ends.len() + 1 < comm.size()
            && seen * comm.size() as u64 >= total * (ends.len() as u64 + 1)
        {
            ends.push(bin + 1);
        }
    }
    Ok(ends)
}

/// Sums over all ranks. *Collective.*
fn add_ranks<const N: usize>(comm: &Comm, sums: [ExactSum; N]) -> Result<[f64; N], Lost> {
    let mut words = sums.map(ExactSum::to_words);
    let add = |to: &mut [[u64; 2]], from: &[[u64; 2]]| {
        for (to, from) in to.iter_mut().zip(from) {
            *to = ExactSum::from_words(*to).plus(ExactSum::from_words(*from)).to_words();
        }
    };
    combine(comm, &mut words, add, WHAT)?;
    Ok(words.map(|words| ExactSum::from_words(words).value()))
}
