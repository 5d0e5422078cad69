//! DeepFM, FM and LR: sums of orders.
//!
//! logit = bias + first order + second order + deep, of which LR has the first two terms, FM
//! (Rendle, ICDM 2010, equation 1) the first three and DeepFM (Guo et al., IJCAI 2017, equations 1
//! to 4) all.
//!
//! First order: column 0 of the pooled rows, and w_j x_j. Vectors V: the other columns of the pooled
//! rows, and v_j x_j for dense feature j, `[n, S + D, d]`; the second order sums their pairwise dot
//! products, and the deep MLP has them all as its input.

use core::sync::atomic::AtomicU32;

use super::buffers::Buffers;
use super::step::{BackwardPass, Tile};
use super::{Direct, Model, ModelKind};
use crate::dense::mlp::{Backward, Replica, Scratch, Stored, Training};
use crate::dense::replica::element;
use crate::kernel::{Activations, ActivationsMut, Strides};
use crate::sparse::bag::Pooled;

impl Model {
    /// Where the pooled vectors stand in V.
    fn factors(&self) -> Pooled {
        Pooled { columns: 1..1 + self.vectors.width, stride: self.vectors.len(), at: 0 }
    }

    pub(super) fn factorization_forward(
        &self,
        replica: Replica<'_>,
        tile: &Tile<'_>,
        training: Option<&mut Training<'_>>,
        buffers: &mut Buffers<'_>,
    ) {
        let Some(direct) = self.direct else { return };
        let Buffers { vectors, top, logits, sums, interaction, .. } = buffers;
        let (n, parameters) = (tile.n, replica.parameters);
        self.first_order(parameters, direct, tile, logits);
        if self.kind == ModelKind::Lr {
            return;
        }
        tile.bags.pool(n, tile.rows, &self.factors(), vectors);
        self.dense_vectors(parameters, direct, tile, vectors);
        self.vectors.second_order(vectors, logits, interaction);
        if self.kind == ModelKind::DeepFm {
            let scratch = &mut Scratch { kept: buffers.top_kept, sums };
            self.top.forward(replica, self.deep_input(vectors, n), training, top, scratch);
            self.top.output(n, top).add_column(0, logits);
        }
    }

    /// The input of DeepFM's MLP: all vectors of an example in a row.
    fn deep_input<'a>(&self, vectors: &'a [f32], n: usize) -> Activations<'a> {
        let width = self.vectors.len();
        Activations::new(vectors, n, width, Strides::row_major(width))
    }

    /// logits = bias + first order
    fn first_order(
        &self,
        parameters: &[AtomicU32],
        direct: Direct,
        tile: &Tile<'_>,
        logits: &mut [f32],
    ) {
        let features = self.dense_features;
        let weight = &parameters[direct.weight..direct.weight + features];
        let bias = element(&parameters[direct.bias]);
        for (i, logit) in logits.iter_mut().enumerate() {
            let x = &tile.dense[i * features..(i + 1) * features];
            let dense: f32 = x.iter().zip(weight).map(|(x, w)| x * element(w)).sum();
            *logit = bias + dense + tile.bags.pool_column(i, tile.rows, 0);
        }
    }

    /// Writes v_j x_j behind the pooled vectors of every example.
    fn dense_vectors(
        &self,
        parameters: &[AtomicU32],
        direct: Direct,
        tile: &Tile<'_>,
        vectors: &mut [f32],
    ) {
        let (features, d) = (self.dense_features, self.vectors.width);
        if features == 0 {
            return;
        }
        let factors = &parameters[direct.vectors..direct.vectors + features * d];
        let examples = vectors.chunks_exact_mut(self.vectors.len());
        for (vectors, x) in examples.zip(tile.dense.chunks_exact(features)) {
            let to = vectors[self.fields * d..].chunks_exact_mut(d);
            for ((to, factor), x) in to.zip(factors.chunks_exact(d)).zip(x) {
                to.iter_mut().zip(factor).for_each(|(to, v)| *to = element(v) * x);
            }
        }
    }

    pub(super) fn factorization_backward(
        &self,
        tile: &Tile<'_>,
        mut pass: BackwardPass<'_>,
        buffers: &mut Buffers<'_>,
    ) {
        let Some(direct) = self.direct else { return };
        // These three stand together, from the bias on.
        let end = direct.vectors + self.dense_features * self.vectors.width;
        if pass.fresh {
            pass.d_parameters[direct.bias..end].fill(0.0);
        }
        self.first_order_backward(direct, tile, buffers.d_logits, pass.d_parameters, pass.d_rows);
        if self.kind != ModelKind::Lr {
            self.vectors_backward(direct, tile, &mut pass, buffers);
        }
        if let Some(update) = pass.update {
            update.apply(direct.bias, &pass.d_parameters[direct.bias..end]);
        }
    }

    /// Second order, and what is deep.
    fn vectors_backward(
        &self,
        direct: Direct,
        tile: &Tile<'_>,
        pass: &mut BackwardPass<'_>,
        buffers: &mut Buffers<'_>,
    ) {
        let Buffers { vectors, d_vectors, d_logits, sums, interaction, .. } = buffers;
        let [d, other] = &mut buffers.d;
        let n = tile.n;
        if self.kind == ModelKind::DeepFm {
            d[..n].copy_from_slice(d_logits);
            let stored = Stored {
                parameters: pass.parameters,
                transposed: buffers.top_transposed,
                x: self.deep_input(vectors, n),
                activations: buffers.top,
            };
            let out = Backward {
                parameters: &mut *pass.d_parameters,
                fresh: pass.fresh,
                d,
                other,
                update: pass.update,
                reduce: &mut *pass.reduce,
            };
            let scratch = &mut Scratch { kept: buffers.top_kept, sums };
            let width = self.vectors.len();
            let d_x = ActivationsMut::new(d_vectors, n, width, Strides::row_major(width));
            self.top.backward(stored, out, Some(d_x), scratch);
        } else {
            d_vectors.fill(0.0);
        }
        self.vectors.second_order_backward(vectors, d_logits, d_vectors, interaction);
        tile.bags.pool_backward(n, d_vectors, &self.factors(), pass.d_rows);
        self.dense_vectors_backward(direct, tile, d_vectors, pass.d_parameters);
    }

    fn first_order_backward(
        &self,
        direct: Direct,
        tile: &Tile<'_>,
        d_logits: &[f32],
        d_parameters: &mut [f32],
        d_rows: &mut [f32],
    ) {
        let features = self.dense_features;
        for (i, &g) in d_logits.iter().enumerate() {
            d_parameters[direct.bias] += g;
            let d_weight = &mut d_parameters[direct.weight..direct.weight + features];
            let x = &tile.dense[i * features..(i + 1) * features];
            d_weight.iter_mut().zip(x).for_each(|(d, x)| *d += g * x);
            tile.bags.pool_column_backward(i, g, 0, d_rows);
        }
    }

    fn dense_vectors_backward(
        &self,
        direct: Direct,
        tile: &Tile<'_>,
        d_vectors: &[f32],
        d_parameters: &mut [f32],
    ) {
        let (features, d) = (self.dense_features, self.vectors.width);
        if features == 0 {
            return;
        }
        let d_factors = &mut d_parameters[direct.vectors..direct.vectors + features * d];
        let examples = d_vectors.chunks_exact(self.vectors.len());
        for (d_vectors, x) in examples.zip(tile.dense.chunks_exact(features)) {
            let from = d_vectors[self.fields * d..].chunks_exact(d);
            for ((to, from), x) in d_factors.chunks_exact_mut(d).zip(from).zip(x) {
                to.iter_mut().zip(from).for_each(|(to, g)| *to += g * x);
            }
        }
    }
}
