//! DLRM: Naumov et al., arXiv 1906.00091, figure 1.
//!
//! x = bottom(dense); T = [x; e_1 … e_S]; Z = all t_i · t_j with j < i; logit = top([x, Z]).
//! Without dense features there is no x: T holds the embeddings alone and the top's input is Z.

use core::ops::Range;

use super::ModelConfig;
use super::plan::{Layout, ModelError};
use super::space::Space;
use super::step::{BackwardPass, ForwardPass, Tile};
use super::strips::Gather;
use super::tensor::{Part, Parts};
use crate::dense::interaction::Vectors;
use crate::dense::mlp::{Backward, Mlp, Scratch, Stored};
use crate::kernel::{
    Activations, ActivationsMut, DotShape, Precision, Strides, blocked_len, dot, dot_backward,
};
use crate::sparse::bag::Pooled;

/// Shapes and offsets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dlrm {
    dense_features: usize,
    /// T
    vectors: Vectors,
    bottom: Mlp,
    top: Mlp,
    /// Of the dot products of a training step.
    precision: Precision,
}

/// Buffers of a tile of n examples.
pub(super) struct Buffers<'a> {
    /// What a step makes of the matrices of the bottom MLP.
    bottom_prepared: &'a mut [f32],
    /// What a step makes of those of the top MLP.
    top_prepared: &'a mut [f32],
    /// T `[n, F, d]`
    vectors: &'a mut [f32],
    /// Its gradient. `[n, F, d]`
    d_vectors: &'a mut [f32],
    /// What the bottom MLP stores.
    bottom: &'a mut [f32],
    /// Input of the top MLP, in blocks. `[n, inputs]`
    joined: &'a mut [f32],
    /// Its gradient, in blocks. `[n, inputs]`
    d_joined: &'a mut [f32],
    /// What the top MLP stores.
    top: &'a mut [f32],
    /// Gradients on their way back, two in turn.
    d: [&'a mut [f32]; 2],
    /// Scratch of the MLPs' products.
    operands: &'a mut [f32],
    /// Scratch of the interaction.
    interaction: &'a mut [f32],
    /// f64s that the bottom's norms keep.
    bottom_kept: &'a mut [f64],
    /// f64s that the top's norms keep.
    top_kept: &'a mut [f64],
    /// f64 scratch of the norms.
    sums: &'a mut [f64],
}

impl Dlrm {
    pub(super) fn plan(
        config: &ModelConfig<'_>,
        layout: &mut Layout<'_>,
    ) -> Result<Self, ModelError> {
        let ModelConfig { dense_features, fields, embedding_dim, .. } = *config;
        let has_bottom = dense_features > 0;
        // Without dense features there must at least be one pair of embeddings.
        layout.check_features(if has_bottom { 1 } else { 2 })?;
        layout.check_embedding()?;
        let mut bottom = Mlp::default();
        if has_bottom {
            let got = config.bottom.last().copied();
            if got != Some(embedding_dim) {
                return Err(ModelError::BottomOutput { expected: embedding_dim, got });
            }
            bottom = layout.bottom()?;
        }
        let vectors = Vectors { vectors: fields + usize::from(has_bottom), width: embedding_dim };
        let kept = if has_bottom { embedding_dim } else { 0 };
        let top = layout.top(kept + vectors.pairs(), true)?;
        Ok(Self { dense_features, vectors, bottom, top, precision: Precision::F32 })
    }

    pub(super) const fn row_width(&self) -> usize {
        self.vectors.width
    }

    pub(super) const fn parts(&self) -> Parts<'_> {
        [Some(Part::Chain("bottom", &self.bottom)), Some(Part::Chain("top", &self.top)), None, None]
    }

    pub(super) const fn chains_mut(&mut self) -> [Option<&mut Mlp>; 2] {
        [Some(&mut self.bottom), Some(&mut self.top)]
    }

    /// Makes the products of training steps `precision`.
    pub(super) fn set_precision(&mut self, precision: Precision) {
        self.precision = precision;
        self.bottom.set_precision(precision);
        self.top.set_precision(precision);
    }

    pub(super) fn buffers<'a>(&self, n: usize, space: &mut Space<'a>) -> Buffers<'a> {
        let (bottom, top) = (&self.bottom, &self.top);
        let vectors = self.dot().vectors_len(n);
        let joined = blocked_len(n, self.joined_width());
        let gradient = bottom.gradient_len(n).max(top.gradient_len(n));
        Buffers {
            bottom_prepared: space.single(bottom.prepared_len()),
            top_prepared: space.single(top.prepared_len()),
            vectors: space.single(vectors),
            d_vectors: space.single(vectors),
            bottom: space.single(bottom.stored_len(n)),
            joined: space.single(joined),
            d_joined: space.single(joined),
            top: space.single(top.stored_len(n)),
            d: [space.single(gradient), space.single(gradient)],
            operands: space.single(bottom.operands_len(n).max(top.operands_len(n))),
            interaction: space.single(self.dot().scratch_len()),
            bottom_kept: space.double(bottom.kept_len()),
            top_kept: space.double(top.kept_len()),
            sums: space.double(bottom.sums_len().max(top.sums_len())),
        }
    }

    /// x, if there is a bottom MLP, stands in front of the pairs.
    const fn dot(&self) -> DotShape {
        self.vectors.dot(!self.bottom.is_empty())
    }

    /// Width of the input of the top MLP.
    fn joined_width(&self) -> usize {
        self.dot().columns()
    }

    /// Elements of x: d, or 0 without a bottom MLP.
    const fn x_width(&self) -> usize {
        self.dot().lead
    }

    /// Where the embeddings stand in T.
    fn embeddings(&self) -> Pooled {
        Pooled { columns: 0..self.vectors.width, stride: self.vectors.len(), at: self.x_width() }
    }

    /// The examples whose vectors are pooled and multiplied before those of the next are, and back.
    /// All where tables are cut into strips, whose matrices are read once a tile.
    fn parts_of(
        &self,
        n: usize,
        gather: &Gather<'_>,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let few = if gather.strips.is_some() { n.max(1) } else { self.dot().examples_at_once() };
        (0..n).step_by(few).map(move |start| start..n.min(start + few))
    }

    /// The input of the bottom MLP.
    fn dense<'a>(&self, tile: &Tile<'a>) -> Activations<'a> {
        let features = self.dense_features;
        Activations::new(tile.dense, tile.n, features, Strides::row_major(features))
    }

    pub(super) fn forward(
        &self,
        tile: &Tile<'_>,
        mut pass: ForwardPass<'_, '_>,
        buffers: Buffers<'_>,
    ) {
        let Buffers { vectors, joined, bottom, top, operands, sums, .. } = buffers;
        let (n, x_width) = (tile.n, self.x_width());
        if x_width > 0 {
            let scratch = &mut Scratch {
                prepared: buffers.bottom_prepared,
                operands: &mut *operands,
                kept: buffers.bottom_kept,
                sums: &mut *sums,
            };
            let training = pass.training.as_deref_mut();
            let (x, exchange) = (self.dense(tile), &mut *pass.exchange);
            self.bottom.forward(pass.replica, x, training, exchange, bottom, scratch);
        }
        let mut joined = ActivationsMut::blocked(joined, n, self.joined_width());
        let precision = if pass.training.is_some() { self.precision } else { Precision::F32 };
        let parameters = pass.replica.parameters;
        for some in self.parts_of(n, &pass.gather) {
            let vectors = &mut vectors[some.start * self.vectors.len()..];
            if x_width > 0 {
                let x = self.bottom.output(n, bottom).examples(some.clone());
                let examples = vectors.chunks_exact_mut(self.vectors.len()).take(x.n());
                examples.enumerate().for_each(|(i, t)| x.copy_row(i, &mut t[..x_width]));
            }
            pass.gather.forward(&tile.part(some.clone()), parameters, &self.embeddings(), vectors);
            let joined = &mut joined.examples(some);
            dot(precision, self.dot(), vectors, joined, buffers.interaction);
        }
        let scratch = &mut Scratch {
            prepared: buffers.top_prepared,
            operands: &mut *operands,
            kept: buffers.top_kept,
            sums: &mut *sums,
        };
        let (replica, x) = (pass.replica, joined.view());
        self.top.forward(replica, x, pass.training, pass.exchange, top, scratch);
        self.top.output(n, top).copy_column(0, pass.logits);
    }

    pub(super) fn backward(&self, tile: &Tile<'_>, pass: BackwardPass<'_>, buffers: Buffers<'_>) {
        let Buffers { vectors, d_vectors, joined, d_joined, operands, sums, .. } = buffers;
        let [d, other] = buffers.d;
        let (n, x_width, width) = (tile.n, self.x_width(), self.joined_width());
        let BackwardPass { parameters, d_logits, d_parameters, fresh, update, .. } = pass;
        let (mut d_rows, mut gather) = (pass.d_rows, pass.gather);
        let (reduce, exchange) = (pass.reduce, pass.exchange);
        d[..n].copy_from_slice(d_logits);
        let stored = Stored {
            parameters,
            x: Activations::blocked(joined, n, width),
            activations: buffers.top,
        };
        let out = Backward {
            parameters: &mut *d_parameters,
            fresh,
            d: &mut *d,
            other: &mut *other,
            update,
            reduce: &mut *reduce,
            exchange: &mut *exchange,
        };
        let scratch = &mut Scratch {
            prepared: buffers.top_prepared,
            operands: &mut *operands,
            kept: buffers.top_kept,
            sums: &mut *sums,
        };
        let d_x = ActivationsMut::blocked(&mut *d_joined, n, width);
        self.top.backward(stored, out, Some(d_x), scratch);
        let d_joined = Activations::blocked(d_joined, n, width);
        let mut d_x = ActivationsMut::blocked(&mut *d, n, x_width);
        for some in self.parts_of(n, &gather) {
            let (first, last) = (some.start == 0, some.end == n);
            let vectors = &vectors[some.start * self.vectors.len()..];
            let d_joined = d_joined.examples(some.clone());
            let (precision, shape) = (self.precision, self.dot());
            dot_backward(precision, shape, vectors, d_joined, d_vectors, buffers.interaction);
            let of_vectors = (&*d_vectors, &self.embeddings());
            let of_parameters = (&mut *d_parameters, fresh && first, update.filter(|_| last));
            let part = &tile.part(some.clone());
            gather.again().backward(part, of_vectors, d_rows.again(), of_parameters);
            if x_width > 0 {
                // x reaches the loss twice: through the dot products and directly.
                let examples = d_vectors.chunks_exact_mut(self.vectors.len()).take(part.n);
                for (i, through) in examples.enumerate() {
                    let through = &mut through[..x_width];
                    d_joined.add_row(i, through);
                    d_x.set_row(some.start + i, through);
                }
            }
        }
        if x_width > 0 {
            let stored = Stored { parameters, x: self.dense(tile), activations: buffers.bottom };
            let parameters = d_parameters;
            let out = Backward { parameters, fresh, d, other, update, reduce, exchange };
            let scratch = &mut Scratch {
                prepared: buffers.bottom_prepared,
                operands: &mut *operands,
                kept: buffers.bottom_kept,
                sums: &mut *sums,
            };
            self.bottom.backward(stored, out, None, scratch);
        }
    }
}
