//! DeepFM, FM and LR: sums of orders.
//!
//! logit = bias + first order + second order + deep, of which LR has the first two terms, FM
//! (Rendle, ICDM 2010, equation 1) the first three and DeepFM (Guo et al., IJCAI 2017, equations 1
//! to 4) all.
//!
//! First order: column 0 of the pooled rows, and w_j x_j. Vectors V: the other columns of the
//! pooled rows, and v_j x_j for dense feature j, `[n, S + D, d]`; the second order sums their
//! pairwise dot products, and the deep MLP has them all as its input.

use core::sync::atomic::AtomicU32;

use super::ModelConfig;
use super::first_order::FirstOrder;
use super::plan::{Layout, ModelError};
use super::space::Space;
use super::step::{BackwardPass, ForwardPass, Tile};
use super::tensor::{FACTORS, Part, Parts, Tensor};
use super::tower::Tower;
use crate::dense::interaction::Vectors;
use crate::dense::mlp::Mlp;
use crate::dense::replica::element;
use crate::kernel::{Activations, ActivationsMut, Strides, second_order, second_order_backward};
use crate::sparse::bag::Pooled;

/// Shapes and offsets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Factorization {
    dense_features: usize,
    fields: usize,
    first: FirstOrder,
    /// V; of no width in LR.
    vectors: Vectors,
    /// Offset of the factor vectors of the dense features. `[D, d]`
    factors: usize,
    /// Without layers in FM and LR.
    deep: Mlp,
}

/// Buffers of a tile of n examples.
pub(super) struct Buffers<'a> {
    deep: Tower<'a>,
    /// V `[n, F, d]`
    vectors: &'a mut [f32],
    /// Its gradient. `[n, F, d]`
    d_vectors: &'a mut [f32],
}

impl Factorization {
    pub(super) fn lr(
        config: &ModelConfig<'_>,
        layout: &mut Layout<'_>,
    ) -> Result<Self, ModelError> {
        layout.check_features(1)?;
        Ok(Self::plan(config, Vectors::default(), Mlp::default(), layout))
    }

    pub(super) fn fm(
        config: &ModelConfig<'_>,
        layout: &mut Layout<'_>,
    ) -> Result<Self, ModelError> {
        layout.check_features(1)?;
        layout.check_embedding()?;
        Ok(Self::plan(config, Self::all_vectors(config), Mlp::default(), layout))
    }

    pub(super) fn deep_fm(
        config: &ModelConfig<'_>,
        layout: &mut Layout<'_>,
    ) -> Result<Self, ModelError> {
        layout.check_features(1)?;
        layout.check_embedding()?;
        let vectors = Self::all_vectors(config);
        // No bias on the last layer: the model has one for the whole sum.
        let deep = layout.top(vectors.len(), false)?;
        Ok(Self::plan(config, vectors, deep, layout))
    }

    const fn all_vectors(config: &ModelConfig<'_>) -> Vectors {
        Vectors { vectors: config.fields + config.dense_features, width: config.embedding_dim }
    }

    /// Behind the matrices of `deep`, so that those start on cache lines.
    fn plan(
        config: &ModelConfig<'_>,
        vectors: Vectors,
        deep: Mlp,
        layout: &mut Layout<'_>,
    ) -> Self {
        let (dense_features, fields) = (config.dense_features, config.fields);
        let first = FirstOrder::plan(dense_features, layout);
        let factors = layout.parameter(dense_features * vectors.width);
        Self { dense_features, fields, first, vectors, factors, deep }
    }

    pub(super) const fn row_width(&self) -> usize {
        1 + self.vectors.width
    }

    pub(super) fn parts(&self) -> Parts<'_> {
        let [bias, weight] = self.first.parts();
        let shape = [self.dense_features, self.vectors.width];
        let factors = Tensor::plain("dense", "vectors", shape, self.factors, FACTORS);
        [Some(Part::Chain("deep", &self.deep)), bias, weight, factors.map(Part::Plain)]
    }

    pub(super) const fn chains_mut(&mut self) -> [Option<&mut Mlp>; 2] {
        [Some(&mut self.deep), None]
    }

    pub(super) fn buffers<'a>(&self, n: usize, space: &mut Space<'a>) -> Buffers<'a> {
        let prepared = space.single(self.deep.prepared_len());
        Buffers {
            deep: Tower::new(&self.deep, n, prepared, space),
            vectors: space.single(n * self.vectors.len()),
            d_vectors: space.single(n * self.vectors.len()),
        }
    }

    /// Where the pooled vectors stand in V.
    fn pooled(&self) -> Pooled {
        Pooled { columns: 1..self.row_width(), stride: self.vectors.len(), at: 0 }
    }

    /// The input of DeepFM's MLP: all vectors of an example in a row.
    fn deep_input<'a>(&self, vectors: &'a [f32], n: usize) -> Activations<'a> {
        let width = self.vectors.len();
        Activations::new(vectors, n, width, Strides::row_major(width))
    }

    pub(super) fn forward(
        &self,
        tile: &Tile<'_>,
        mut pass: ForwardPass<'_, '_>,
        buffers: Buffers<'_>,
    ) {
        let Buffers { deep, vectors, .. } = buffers;
        let parameters = pass.replica.parameters;
        self.first.forward(parameters, tile, pass.logits);
        if self.vectors.is_empty() {
            return;
        }
        pass.gather.forward(tile, parameters, &self.pooled(), vectors);
        self.dense_vectors(parameters, tile, vectors);
        let len = tile.n * self.vectors.len();
        second_order(self.vectors.width, &vectors[..len], pass.logits);
        if !self.deep.is_empty() {
            deep.forward(&self.deep, self.deep_input(vectors, tile.n), &mut pass);
        }
    }

    /// Writes v_j x_j behind the pooled vectors of every example.
    fn dense_vectors(&self, parameters: &[AtomicU32], tile: &Tile<'_>, vectors: &mut [f32]) {
        let (features, d) = (self.dense_features, self.vectors.width);
        if features == 0 {
            return;
        }
        let factors = &parameters[self.factors..self.factors + features * d];
        let examples = vectors.chunks_exact_mut(self.vectors.len());
        for (vectors, x) in examples.zip(tile.dense.chunks_exact(features)) {
            let to = vectors[self.fields * d..].chunks_exact_mut(d);
            for ((to, factor), x) in to.zip(factors.chunks_exact(d)).zip(x) {
                to.iter_mut().zip(factor).for_each(|(to, v)| *to = element(v) * x);
            }
        }
    }

    pub(super) fn backward(
        &self,
        tile: &Tile<'_>,
        mut pass: BackwardPass<'_>,
        buffers: Buffers<'_>,
    ) {
        self.first.backward(tile, &mut pass);
        if self.vectors.is_empty() {
            return;
        }
        let Buffers { deep, vectors, d_vectors } = buffers;
        let (n, width) = (tile.n, self.vectors.len());
        if self.deep.is_empty() {
            d_vectors.fill(0.0);
        } else {
            let d_x = ActivationsMut::new(&mut *d_vectors, n, width, Strides::row_major(width));
            deep.backward(&self.deep, self.deep_input(vectors, n), d_x, &mut pass);
        }
        let (v, d_v) = (&vectors[..n * width], &mut d_vectors[..n * width]);
        second_order_backward(self.vectors.width, v, pass.d_logits, d_v);
        self.dense_vectors_backward(tile, d_vectors, &mut pass);
        let out = (pass.d_parameters, pass.fresh, pass.update);
        pass.gather.backward(tile, (d_vectors, &self.pooled()), pass.d_rows, out);
    }

    fn dense_vectors_backward(
        &self,
        tile: &Tile<'_>,
        d_vectors: &[f32],
        pass: &mut BackwardPass<'_>,
    ) {
        let (features, d) = (self.dense_features, self.vectors.width);
        if features == 0 {
            return;
        }
        let d_factors = &mut pass.d_parameters[self.factors..self.factors + features * d];
        if pass.fresh {
            d_factors.fill(0.0);
        }
        let examples = d_vectors.chunks_exact(self.vectors.len());
        for (d_vectors, x) in examples.zip(tile.dense.chunks_exact(features)) {
            let from = d_vectors[self.fields * d..].chunks_exact(d);
            for ((to, from), x) in d_factors.chunks_exact_mut(d).zip(from).zip(x) {
                to.iter_mut().zip(from).for_each(|(to, g)| *to += g * x);
            }
        }
        if let Some(update) = pass.update {
            update.apply(self.factors, d_factors);
        }
    }
}
