//! Metrics over all ranks, exact.
//!
//! AUC needs every pair of a positive and a negative example: the scores are split into ranges, one
//! per rank, by a histogram of their order keys; each rank counts the pairs within its range and
//! the parts merge in order (`AucPart::merge`). Grouped AUC brings each group together on one rank.
//! Sums are exact (`exact.rs`). What comes out equals a one-process computation, on every rank,
//! whoever has which rows.

use umbra_core::metrics::{AucPart, GaucPart, Grouped, LossSums, MetricError, Scored, order_key};

use crate::comm::Comm;
use crate::comm::watch::Lost;
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
        let examples: u64 =
            gather(comm, &[self.scored.len() as u64])?.iter().map(|rank| rank[0]).sum();
        let bad = self.scored.iter().position(|example| !example.score.is_finite());
        let nowhere = u64::MAX;
        let bad = gather(comm, &[bad.map_or(nowhere, |index| index as u64)])?
            .iter()
            .map(|rank| rank[0])
            .find(|index| *index != nowhere);
        if let Some(index) = bad {
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            return Err(MetricError::Score { index }.into());
        }
        let gauc = self.gauc(comm)?;
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
        let mut lists: Vec<Vec<f32>> = vec![vec![]; comm.size()];
        for example in &self.scored {
            let bin = (order_key(example.score) >> BIN_SHIFT) as usize;
            let rank = ends.partition_point(|end| *end <= bin);
            lists[rank].extend([example.score, example.label, example.weight]);
        }
        let lists: Vec<&[f32]> = lists.iter().map(Vec::as_slice).collect();
        let received = comm.exchange(&lists, "scores of an evaluation")?;
        let mut own: Vec<Scored> = received
            .iter()
            .flat_map(|list| list.chunks_exact(3))
            .map(|x| Scored { score: x[0], label: x[1], weight: x[2] })
            .collect();
        let part = AucPart::of(&mut own)?;
        let parts = gather(comm, &[part.positive, part.negative, part.area])?;
        let parts = parts.iter().map(|x| AucPart { positive: x[0], negative: x[1], area: x[2] });
        Ok(parts.fold(AucPart::default(), AucPart::merge))
    }

    fn gauc(&self, comm: &Comm) -> Result<Option<f64>, FiguresError> {
        let grouped = gather(comm, &[u64::from(!self.group.is_empty())])?;
        if grouped.iter().all(|rank| rank[0] == 0) {
            return Ok(None);
        }
        let mut lists: Vec<Vec<u64>> = vec![vec![]; comm.size()];
        for (group, example) in self.group.iter().zip(&self.scored) {
            let words = [example.score, example.label, example.weight].map(f32::to_bits);
            let label = u64::from(words[1]) << 32 | u64::from(words[2]);
            let rank = usize::try_from(group % comm.size() as u64).unwrap_or(0);
            lists[rank].extend([*group, u64::from(words[0]), label]);
        }
        let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
        let received = comm.exchange(&lists, "groups of an evaluation")?;
        let number = |word: u64| f32::from_bits(u32::try_from(word).unwrap_or(u32::MAX));
        let mut own: Vec<Grouped> = received
            .iter()
            .flat_map(|list| list.chunks_exact(3))
            .map(|x| {
                let (label, weight) = (number(x[2] >> 32), number(x[2] & u64::from(u32::MAX)));
                Grouped { group: x[0], scored: Scored { score: number(x[1]), label, weight } }
            })
            .collect();
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
const BIN_SHIFT: u32 = 16;

/// Last bin + 1 of every rank's range but the last, so that ranges hold about equal counts.
fn range_ends(comm: &Comm, scored: &[Scored]) -> Result<Vec<usize>, Lost> {
    let mut histogram = vec![0u64; 1 << (32 - BIN_SHIFT)];
    for example in scored {
        histogram[(order_key(example.score) >> BIN_SHIFT) as usize] += 1;
    }
    let all = gather(comm, &histogram)?;
    let total: u64 = all.iter().flatten().sum();
    let (mut ends, mut seen) = (vec![], 0);
    for bin in 0..histogram.len() {
        seen += all.iter().map(|rank| rank[bin]).sum::<u64>();
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
    let words = sums.map(ExactSum::to_words);
    let all = gather(comm, words.as_flattened())?;
    let mut totals = [ExactSum::default(); N];
    for rank in &all {
        for (total, words) in totals.iter_mut().zip(rank.as_chunks::<2>().0) {
            *total = total.plus(ExactSum::from_words(*words));
        }
    }
    Ok(totals.map(ExactSum::value))
}

/// Every rank's `values`, in rank order. *Collective; lengths equal on all ranks.*
fn gather<T: mpi::traits::Equivalence + Copy + Default>(
    comm: &Comm,
    values: &[T],
) -> Result<Vec<Vec<T>>, Lost> {
    let mut all = vec![T::default(); values.len() * comm.size()];
    comm.all_gather(values, &mut all, "figures of an evaluation")?;
    Ok(all.chunks_exact(values.len()).map(<[T]>::to_vec).collect())
}
