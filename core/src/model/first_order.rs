//! Logistic regression: all of LR, and the wide part of other models.
//!
//! logit = bias + Σ w_j x_j over the dense features + column 0 of the pooled rows of every field.

use core::sync::atomic::AtomicU32;

use super::plan::Layout;
use super::step::{BackwardPass, Tile};
use super::tensor::{Initial, Part, Tensor};
use crate::dense::replica::element;

/// Offsets of the parameters that are not in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FirstOrder {
    /// D
    dense_features: usize,
    /// `[1]`
    bias: usize,
    /// `[D]`
    weight: usize,
}

impl FirstOrder {
    pub(super) fn plan(dense_features: usize, layout: &mut Layout<'_>) -> Self {
        let (bias, weight) = (layout.parameter(1), layout.parameter(dense_features));
        Self { dense_features, bias, weight }
    }

    pub(super) fn parts(&self) -> [Option<Part<'static>>; 2] {
        let zero = Initial::Constant(0.0);
        [
            Tensor::plain("", "bias", [1, 1], self.bias, zero),
            Tensor::plain("dense", "weight", [1, self.dense_features], self.weight, zero),
        ]
        .map(|tensor| tensor.map(Part::Plain))
    }

    /// Writes the logits `[n]`.
    pub(super) fn forward(&self, parameters: &[AtomicU32], tile: &Tile<'_>, logits: &mut [f32]) {
        let features = self.dense_features;
        let weight = &parameters[self.weight..self.weight + features];
        let bias = element(&parameters[self.bias]);
        for (i, logit) in logits.iter_mut().enumerate() {
            let x = &tile.dense[i * features..(i + 1) * features];
            let dense: f32 = x.iter().zip(weight).map(|(x, w)| x * element(w)).sum();
            *logit = bias + dense + tile.bags.pool_column(i, tile.rows, 0);
        }
    }

    /// Gradients of the parameters and of column 0 of the rows.
    pub(super) fn backward(&self, tile: &Tile<'_>, pass: &mut BackwardPass<'_>) {
        let features = self.dense_features;
        let (bias, weight) = (self.bias, self.weight..self.weight + features);
        if pass.fresh {
            pass.d_parameters[bias] = 0.0;
            pass.d_parameters[weight.clone()].fill(0.0);
        }
        for (i, &g) in pass.d_logits.iter().enumerate() {
            pass.d_parameters[bias] += g;
            let x = &tile.dense[i * features..(i + 1) * features];
            let d_weight = &mut pass.d_parameters[weight.clone()];
            d_weight.iter_mut().zip(x).for_each(|(d, x)| *d += g * x);
            tile.bags.pool_column_backward(i, g, 0, &mut pass.d_rows);
        }
        if let Some(update) = pass.update {
            update.apply(bias, &pass.d_parameters[bias..=bias]);
            update.apply(weight.start, &pass.d_parameters[weight]);
        }
    }
}
