//! One training step, and evaluation.
//!
//! Examples do not see each other except in batch norm, so without it a batch goes through the
//! model forward and backward in tiles whose activations stay in the cache. With batch norm the
//! whole batch is one tile; of a part of a model too, so that little crosses often.
//!
//! Sums over workers, in this order, the same for every worker whatever its batch: the weights;
//! every norm forward, first layer first; every norm backward, last layer first.

use core::ops::Range;
use core::sync::atomic::AtomicU32;

use super::space::{Lent, Workspace};
use super::strips::Gather;
use super::{Model, StepKey};
use crate::batch::{Batch, Jagged};
use crate::dense::loss;
use crate::dense::mlp::{Replica, Training};
use crate::dense::norm::Reduce;
use crate::dense::replica::Update;
use crate::dense::split::Exchange;
use crate::kernel::{EXAMPLES, EXAMPLES_AT_MOST, Precision, examples_at_once};
use crate::sparse::TiledRows;
use crate::sparse::bag::{Bags, RowGradients};

/// Numbers of an example's rows from which on a tile is half as long: the vectors of more examples,
/// which are copied, multiplied and given gradients one after the other, would leave the second
/// cache level in between. Steps of models of little else, 26 vectors of 128 or of 64, were 1.4 and
/// 1.1 times as fast by that on a core with 2 MiB of it. Not where more examples go through a layer
/// together ([`examples_at_once`]) and it is those that take the time, or of bf16s. Nor where there
/// are far more parameters than numbers of a tile: a shorter one brings their gradients near as
/// often again. Steps with the MLPs of MLPerf's DLRM, 26 vectors of 128 and 2.4 million parameters,
/// were 1.2 times as fast in batches of 128 by whole tiles, those with half a million 1.03 times.
///
/// It is an eighth as long where parameters are no more than the numbers of such a tile: then no
/// matrix is waited for, and presumably the pages of its rows are still known when they are
/// updated. Steps that read and update rows themselves, 26 of 64, were 1.12
/// times as fast by tiles of 16 as of 32, on such a core. A twelfth where there are twice as many
/// numbers: such steps of 26 rows of 128 took .93 (SGD) and .96 (row-wise Adagrad) of the time by
/// tiles of 11 as by those of 16, .95 and .97 by those of 8; of 26 of 64, 1.05 and 1.11 (SGD).
const MANY_NUMBERS: usize = 1024;

/// A batch and the rows it names.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The examples.
    pub batch: Batch<'a>,
    /// Gathered distinct rows; none where tiles read them. `[U, row_width]` or `[0]`
    pub rows: &'a [f32],
    /// Index into `rows` for every value of the batch's bags; where tiles read them, its place.
    pub slot: &'a [u32],
    /// Where tables are cut into strips: the first of every field, and the end of the last.
    /// `[S + 1]` or `[0]`
    pub strips: &'a [u32],
    /// Each of `rows` is named by one value, so that no gradient is a sum over tiles: they may be
    /// named in any order then. Else those of a tile should come before those of the next, since
    /// gradients are set to 0 from the first row on, up to the last that was named.
    pub named_once: bool,
}

/// What a training step writes. Every element is overwritten.
pub struct Gradients<'a> {
    /// This worker's part of the gradient of the parameters; scratch if there is an `update`.
    /// `[parameters_len]`
    pub parameters: &'a mut [f32],
    /// Update every parameter of the replica as soon as its gradient is complete, instead of
    /// writing that: for a worker that does not share its batch with others. Without examples, or
    /// with all their weights 0, nothing is updated; nor when the loss is not finite, and then the
    /// gradient of rows is 0: a replica that was damaged can be replaced while workers go on.
    pub update: Option<Update<'a>>,
    /// This worker's part of the gradient of the gathered rows; where tiles read them, scratch.
    /// `[U, row_width]` or `[places, row_width]`
    pub rows: &'a mut [f32],
    /// Mean and unbiased variance of the global batch, in the order of the replica's statistics.
    /// The caller moves the running ones: r += momentum · (s − r). When the global batch has fewer
    /// than two examples these are the running ones themselves. `[replica_len - parameters_len]`
    pub statistics: &'a mut [f32],
    /// Logit of every example, before any update; empty when nobody wants them. `[n]` or `[0]`
    pub logits: &'a mut [f32],
}

/// Loss of this worker's batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepLoss {
    /// Sum of weight times cross entropy, in nats.
    pub loss_sum: f64,
    /// Sum of weights.
    pub weight_sum: f64,
}

/// Consecutive examples of a batch.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    /// Examples.
    pub(super) n: usize,
    /// `[n]`
    label: &'a [f32],
    /// `[n]` or `[0]`
    weight: &'a [f32],
    /// `[n, D]`
    pub(super) dense: &'a [f32],
    /// `[n]`
    row: &'a [u64],
    /// Bags, with their slots.
    pub(super) bags: Bags<'a>,
    /// `[U, row_width]`
    pub(super) rows: &'a [f32],
}

/// What a forward pass reads and writes beside its buffers.
pub(super) struct ForwardPass<'a, 't> {
    pub(super) replica: Replica<'a>,
    /// None in an evaluation.
    pub(super) training: Option<&'a mut Training<'t>>,
    pub(super) exchange: &'a mut Exchange<'t>,
    pub(super) gather: Gather<'a>,
    /// Out. `[n]`
    pub(super) logits: &'a mut [f32],
}

/// What a backward pass reads and writes beside its buffers.
pub(super) struct BackwardPass<'a> {
    pub(super) parameters: &'a [AtomicU32],
    /// `[n]`
    pub(super) d_logits: &'a [f32],
    pub(super) d_parameters: &'a mut [f32],
    pub(super) d_rows: RowGradients<'a>,
    /// First tile: transpose matrices, and set the gradients of parameters instead of adding to
    /// them. Matrices of f32s are transposed here and not before forward: their weights come from
    /// other cores while this one multiplies.
    pub(super) fresh: bool,
    /// Last tile: update the parameters.
    pub(super) update: Option<Update<'a>>,
    pub(super) reduce: &'a mut Reduce<'a>,
    pub(super) exchange: &'a mut Exchange<'a>,
    pub(super) gather: Gather<'a>,
}

impl Model {
    /// Scores examples: running statistics, no dropout. `replica: [replica_len]`, `logits: [n]`
    ///
    /// The logit of an example does not depend on the others or on its place.
    ///
    /// # Panics
    /// When a buffer does not have the length told, or the workspace is too short.
    pub fn forward(
        &self,
        replica: &[AtomicU32],
        input: &Input<'_>,
        workspace: &mut Workspace<'_>,
        logits: &mut [f32],
    ) {
        assert_eq!(self.part, None, "a part needs the others");
        self.forward_part(replica, input, &mut |_| {}, workspace, logits);
    }

    /// [`forward`](Self::forward) of a part of a model (`part.rs`): all parts score the same
    /// examples at the same time, and `exchange` carries between them what crosses.
    ///
    /// # Panics
    /// When a buffer does not have the length told, or the workspace is too short.
    pub fn forward_part(
        &self,
        replica: &[AtomicU32],
        input: &Input<'_>,
        exchange: &mut Exchange<'_>,
        workspace: &mut Workspace<'_>,
        logits: &mut [f32],
    ) {
        self.check(replica, input);
        let n = input.batch.len();
        assert_eq!(logits.len(), n, "logits for {n} examples");
        let length = self.tile_len(n, true).max(1);
        for (start, logits) in (0..n).step_by(length).zip(logits.chunks_mut(length)) {
            let tile = self.tile(input, start, logits.len());
            let mut lent = Lent::new(self, tile.n, workspace);
            let replica = self.parts(replica);
            let (exchange, gather) = (&mut *exchange, lent.gather.again());
            let pass = ForwardPass { replica, training: None, exchange, gather, logits };
            self.body.forward(&tile, pass, lent.memory.space());
        }
    }

    /// Loss and gradients of the weighted mean loss over the batch of all workers.
    ///
    /// `reduce` sums a vector over the workers that compute one global batch; each calls it equally
    /// often, with an empty local batch too. Gradients are scaled by the global sum of weights, so
    /// the sum of all workers' parts is the gradient of the mean; where that sum of weights is 0
    /// they are 0.
    ///
    /// # Panics
    /// When a buffer does not have the length told, or the workspace is too short.
    pub fn train_step(
        &self,
        replica: &[AtomicU32],
        input: &Input<'_>,
        step: StepKey,
        reduce: &mut dyn FnMut(&mut [f64]),
        workspace: &mut Workspace<'_>,
        out: &mut Gradients<'_>,
    ) -> StepLoss {
        assert_eq!(self.part, None, "a part needs the others");
        self.train_part(replica, input, step, (reduce, &mut |_| {}), workspace, out)
    }

    /// [`train_step`](Self::train_step) of a part of a model (`part.rs`): all parts make it at the
    /// same time with the same batch, and `exchange` carries between them what crosses. Gradients
    /// of parameters that this part does not compute are left as they are.
    ///
    /// # Panics
    /// When a buffer does not have the length told, or the workspace is too short.
    pub fn train_part(
        &self,
        replica: &[AtomicU32],
        input: &Input<'_>,
        step: StepKey,
        (reduce, exchange): (&mut Reduce<'_>, &mut Exchange<'_>),
        workspace: &mut Workspace<'_>,
        out: &mut Gradients<'_>,
    ) -> StepLoss {
        assert_eq!(out.rows.len(), input.rows.len(), "length of the gradient of rows");
        self.train_tiles(replica, input, step, (reduce, exchange, None), workspace, out)
    }

    /// [`train_step`](Self::train_step) with rows of a table at hand: each is read when the first
    /// tile comes that names it, and updated when the last has gone. No row is updated where the
    /// weights of all examples are 0, nor from the first tile on whose loss, or whose gradient of a
    /// row, is not finite.
    ///
    /// # Panics
    /// When a buffer does not have the length told, or the workspace is too short.
    pub fn train_on_table(
        &self,
        replica: &[AtomicU32],
        input: &Input<'_>,
        step: StepKey,
        (reduce, rows): (&mut Reduce<'_>, &mut TiledRows<'_>),
        workspace: &mut Workspace<'_>,
        out: &mut Gradients<'_>,
    ) -> StepLoss {
        assert_eq!(self.part, None, "a part needs the others");
        let (n, length) = (input.batch.len(), self.tile_len(input.batch.len(), false));
        assert_eq!(rows.plan.ends.len(), n.div_ceil(length.max(1)), "tiles");
        for len in [out.rows.len(), rows.copies.len()] {
            assert_eq!(len, rows.plan.places.len * self.row_width(), "places of rows");
        }
        self.train_tiles(replica, input, step, (reduce, &mut |_| {}, Some(rows)), workspace, out)
    }

    fn train_tiles(
        &self,
        replica: &[AtomicU32],
        input: &Input<'_>,
        step: StepKey,
        by: (&mut Reduce<'_>, &mut Exchange<'_>, Option<&mut TiledRows<'_>>),
        workspace: &mut Workspace<'_>,
        out: &mut Gradients<'_>,
    ) -> StepLoss {
        let (reduce, exchange, mut tiled) = by;
        self.check(replica, input);
        assert_eq!(out.parameters.len(), self.parameters_len, "length of the gradient");
        assert_eq!(out.statistics.len(), self.statistics_len, "length of the statistics");
        let batch = &input.batch;
        let n = batch.len();
        assert!(out.logits.is_empty() || out.logits.len() == n, "logits for {n} examples");
        let weight_sum = batch.weight_sum();
        let mut total = [weight_sum];
        reduce(&mut total);
        let scale = if total[0] > 0.0 { 1.0 / total[0] } else { 0.0 };

        // Of the gradients of rows so many are set.
        let mut set = if input.named_once { input.rows.len() / self.row_width().max(1) } else { 0 };
        if n == 0 {
            out.parameters.fill(0.0);
        }
        let length = self.tile_len(n, false);
        // An empty batch with norms still makes one pass, for its calls of `reduce`.
        let tiles = if self.statistics_len > 0 { 1 } else { n.div_ceil(length.max(1)) };
        let update = out.update.filter(|_| n > 0 && scale > 0.0);
        let by_tiles = tiled.is_some();
        if let Some(tiled) = &tiled {
            out.rows[tiled.plan.places.carried * self.row_width()..].fill(0.0);
        }
        let mut loss_sum = 0.0;
        let parameters = &replica[..self.parameters_len];
        for number in 0..tiles {
            let start = number * length;
            let (rows, own) = match tiled.as_deref_mut().filter(|_| n > 0) {
                Some(tiled) => tiled.read(number),
                None => (input.rows, usize::MAX),
            };
            let tile = self.tile(&Input { rows, ..*input }, start, length.min(n - start));
            let Lent { logits, d_logits, mut gather, mut memory } =
                Lent::new(self, tile.n, workspace);
            let training = &mut Training {
                key: step,
                rows: tile.row,
                statistics: out.statistics,
                fresh: number == 0,
                reduce: &mut *reduce,
            };
            let (replica, training) = (self.parts(replica), Some(training));
            let pass = ForwardPass {
                replica,
                training,
                exchange: &mut *exchange,
                gather: gather.again(),
                logits: &mut *logits,
            };
            self.body.forward(&tile, pass, memory.space());
            if let Some(out) = out.logits.get_mut(start..start + tile.n) {
                out.copy_from_slice(&logits[..tile.n]);
            }
            loss_sum += tile.loss(scale, logits, d_logits);
            if (update.is_some() || by_tiles) && !loss_sum.is_finite() {
                set = 0;
                break;
            }
            if input.named_once {
                for slot in tile.bags.named() {
                    let first = *slot as usize * self.row_width();
                    out.rows[first..first + self.row_width()].fill(0.0);
                }
            }
            let mut d_rows = RowGradients::new(out.rows, &mut set).before(own);
            let pass = BackwardPass {
                parameters,
                d_logits,
                d_parameters: out.parameters,
                d_rows: d_rows.again(),
                fresh: number == 0,
                update: update.filter(|_| number + 1 == tiles),
                reduce: &mut *reduce,
                exchange: &mut *exchange,
                gather: gather.again(),
            };
            self.body.backward(&tile, pass, memory.space());
            if let Some(tiled) = tiled.as_deref_mut().filter(|_| n > 0 && scale > 0.0) {
                d_rows.finish(self.row_width());
                tiled.update(number, out.rows);
                if number + 1 == tiles {
                    tiled.update_carried(out.rows);
                }
                set = 0;
            }
        }
        if !by_tiles {
            RowGradients::new(out.rows, &mut set).finish(self.row_width());
        }
        StepLoss { loss_sum, weight_sum }
    }

    fn parts<'a>(&self, replica: &'a [AtomicU32]) -> Replica<'a> {
        let (parameters, statistics) = replica.split_at(self.parameters_len);
        Replica { parameters, statistics }
    }

    /// Examples of a full tile of a batch of `n`.
    #[must_use]
    pub fn tile_len(&self, n: usize, evaluation: bool) -> usize {
        self.tile_of(n, evaluation, if evaluation { EXAMPLES } else { examples_at_once() })
    }

    /// The most that [`Self::tile_len`] is in training, whatever instruction set is selected.
    pub(super) fn tile_len_most(&self, n: usize) -> usize {
        self.tile_of(n, false, EXAMPLES_AT_MOST)
    }

    fn tile_of(&self, n: usize, evaluation: bool, at_once: usize) -> usize {
        let whole = self.statistics_len > 0 || self.part.is_some();
        if whole && !evaluation {
            return n;
        }
        let numbers = self.bags() * self.row_width();
        let dense = self.parameters_len > EXAMPLES / 8 * numbers;
        let by_matrices = at_once > EXAMPLES && (dense || self.precision == Precision::Bf16);
        n.min(match numbers > MANY_NUMBERS {
            _ if by_matrices => at_once,
            false => EXAMPLES,
            true if self.parameters_len > 4 * EXAMPLES * numbers => EXAMPLES,
            true if dense => EXAMPLES / 2,
            true if numbers > 2 * MANY_NUMBERS => EXAMPLES / 12,
            true => EXAMPLES / 8,
        })
    }

    fn tile<'a>(&self, input: &Input<'a>, start: usize, n: usize) -> Tile<'a> {
        let (batch, fields) = (&input.batch, self.bags());
        let weight = if batch.weight.is_empty() { &[] } else { &batch.weight[start..start + n] };
        let bags = Jagged {
            values: batch.bags.values,
            offsets: &batch.bags.offsets[start * fields..=(start + n) * fields],
            weights: batch.bags.weights,
        };
        let (pooling, row_width) = (self.pooling, self.row_width());
        Tile {
            n,
            label: &batch.label[start..start + n],
            weight,
            dense: &batch.dense[start * self.dense_features..(start + n) * self.dense_features],
            row: &batch.row[start..start + n],
            bags: Bags { bags, slot: input.slot, fields, firsts: input.strips, pooling, row_width },
            rows: input.rows,
        }
    }

    fn check(&self, replica: &[AtomicU32], input: &Input<'_>) {
        let batch = &input.batch;
        let n = batch.len();
        assert_eq!(replica.len(), self.replica_len(), "length of the replica");
        assert!(batch.weight.is_empty() || batch.weight.len() == n, "weights for {n} examples");
        assert_eq!(batch.dense.len(), n * self.dense_features, "dense features");
        assert_eq!(batch.row.len(), n, "row numbers for {n} examples");
        assert_eq!(batch.bags.offsets.len(), n * self.bags() + 1, "offsets of bags");
        let (fields, last) = (input.strips.len(), input.strips.last().map(|last| *last as usize));
        match self.strips {
            Some(_) => assert_eq!((fields, last), (self.fields + 1, Some(self.bags())), "strips"),
            None => assert_eq!(fields, 0, "strips"),
        }
        let values = batch.bags.values.len();
        assert_eq!(input.slot.len(), values, "one slot for every value");
        let weights = batch.bags.weights;
        assert!(weights.is_empty() || weights.len() == values, "weights for {values} values");
        assert!(input.rows.len().is_multiple_of(self.row_width()), "whole rows");
    }
}

impl<'a> Tile<'a> {
    /// Some of its examples.
    pub(super) fn part(&self, some: Range<usize>) -> Self {
        let of = |values: &'a [f32]| {
            let each = values.len() / self.n.max(1);
            &values[some.start * each..some.end * each]
        };
        Self {
            n: some.len(),
            label: of(self.label),
            weight: of(self.weight),
            dense: of(self.dense),
            row: &self.row[some.clone()],
            bags: self.bags.examples(some.clone()),
            rows: self.rows,
        }
    }

    /// Sum of weighted losses; writes the gradient of every logit, scaled.
    fn loss(&self, scale: f64, logits: &[f32], d_logits: &mut [f32]) -> f64 {
        let mut sum = 0.0;
        for i in 0..self.n {
            let weight = self.weight.get(i).map_or(1.0, |weight| f64::from(*weight));
            let (logit, label) = (logits[i], self.label[i]);
            sum += weight * loss::cross_entropy(logit, label);
            let gradient = f64::from(loss::cross_entropy_gradient(logit, label)) * weight * scale;
            d_logits[i] = rounded(gradient);
        }
        sum
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a gradient of f32 parameters")]
fn rounded(x: f64) -> f32 {
    x as f32
}
