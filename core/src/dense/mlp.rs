//! Chains of layers: linear → batch norm → ReLU → dropout, the last three optional.
//!
//! Shapes: n examples; a layer's parameter matrix W is `[outputs, inputs]` as in PyTorch, Y = X·Wᵀ + b.
//! A layer with batch norm has no bias: the norm's shift takes its place.
//!
//! What backward needs is stored by forward: the output of every layer and x̂ of every norm. Dropout
//! and ReLU need nothing more: a unit passes gradient exactly where its output is above 0.

use super::dropout::{self, StepKey};
use super::norm::{Norm, Normalized, Reduce};
use crate::kernel::{Matrix, MatrixMut, gemm, workspace_len};

/// Most layers in one chain.
pub const MAX_LAYERS: usize = 16;

/// Examples whose bias gradients are summed at once.
const SUMMED: usize = 64;

/// One layer: shapes and offsets into the parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Layer {
    /// Width of the input.
    pub inputs: usize,
    /// Width of the output.
    pub outputs: usize,
    /// Offset of W.
    pub matrix: usize,
    /// Offset of b `[outputs]`.
    pub bias: Option<usize>,
    /// Batch norm of the linear output.
    pub norm: Option<Norm>,
    /// Cut below at 0.
    pub relu: bool,
    /// Probability of dropping an output in training; only after a ReLU.
    pub dropout: f32,
    /// Number of the layer's dropout stream, distinct in a model.
    pub stream: u32,
}

/// A chain of layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mlp {
    layers: [Layer; MAX_LAYERS],
    count: usize,
}

/// The numbers of a model.
#[derive(Clone, Copy, Debug)]
pub struct Replica<'a> {
    /// Trainable. `[parameters_len]`
    pub parameters: &'a [f32],
    /// Running statistics of batch norms.
    pub statistics: &'a [f32],
}

/// What forward needs beside the numbers when it trains.
pub struct Training<'a> {
    /// Key of the dropout masks.
    pub key: StepKey,
    /// Dataset row of every example. `[n]`
    pub rows: &'a [u64],
    /// Out: mean and unbiased variance of the global batch.
    pub statistics: &'a mut [f32],
    /// Sum over workers.
    pub reduce: &'a mut Reduce<'a>,
}

/// Scratch of one pass.
pub struct Scratch<'a> {
    /// f64s kept from forward to backward. `[kept_len]`
    pub kept: &'a mut [f64],
    /// f64 scratch. `[sums_len]`
    pub sums: &'a mut [f64],
    /// f32 scratch of the products. `[product_len]`
    pub product: &'a mut [f32],
}

/// What backward reads: the inputs of the forward pass and what it stored.
#[derive(Clone, Copy)]
pub struct Stored<'a> {
    /// Parameters of the model.
    pub parameters: &'a [f32],
    /// Input of the chain. `[n, inputs]`
    pub x: &'a [f32],
    /// As forward left it. `[n * stored_len]`
    pub activations: &'a [f32],
}

/// Where backward writes.
pub struct Backward<'a> {
    /// Gradient of the parameters of the model.
    pub parameters: &'a mut [f32],
    /// Set the gradients instead of adding to them. A chain with norms always sets those of the norms.
    pub fresh: bool,
    /// Gradient of the output on entry, scratch afterwards. `[n * widest]`
    pub d: &'a mut [f32],
    /// Scratch as large as `d`.
    pub other: &'a mut [f32],
    /// Sum over workers.
    pub reduce: &'a mut Reduce<'a>,
}

impl Mlp {
    /// Appends a layer; `None` when the chain is full.
    #[must_use]
    pub fn push(&mut self, layer: Layer) -> Option<()> {
        *self.layers.get_mut(self.count)? = layer;
        self.count += 1;
        Some(())
    }

    /// The layers, first to last.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers[..self.count]
    }

    /// Without layers the chain is the identity and is not to be run.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// f32s stored per example.
    #[must_use]
    pub fn stored_len(&self) -> usize {
        self.layers().iter().map(Layer::stored_len).sum()
    }

    /// Widest input or output.
    #[must_use]
    pub fn widest(&self) -> usize {
        self.layers().iter().map(|layer| layer.inputs.max(layer.outputs)).max().unwrap_or(0)
    }

    /// f64s kept from forward to backward.
    #[must_use]
    pub fn kept_len(&self) -> usize {
        self.norms().map(|norm| norm.kept_len()).sum()
    }

    /// f64s of scratch.
    #[must_use]
    pub fn sums_len(&self) -> usize {
        self.norms().map(|norm| norm.sums_len()).max().unwrap_or(0)
    }

    /// f32s of scratch for the products of `n` examples.
    #[must_use]
    pub fn product_len(&self, n: usize) -> usize {
        let of = |layer: &Layer| {
            let (o, i) = (layer.outputs, layer.inputs);
            workspace_len(n, o, i).max(workspace_len(n, i, o)).max(workspace_len(o, i, n))
        };
        self.layers().iter().map(of).max().unwrap_or(0)
    }

    fn norms(&self) -> impl Iterator<Item = &Norm> {
        self.layers().iter().filter_map(|layer| layer.norm.as_ref())
    }

    /// The output within what forward stored. `[n, outputs]`
    #[must_use]
    pub fn output<'a>(&self, n: usize, stored: &'a [f32]) -> &'a [f32] {
        let outputs = self.layers().last().map_or(0, |layer| layer.outputs);
        let end = n * self.stored_len();
        &stored[end - n * outputs..end]
    }

    /// Runs `x` `[n, inputs]` through the chain; `stored: [n * stored_len]` is written. Without `training` it is an evaluation: running statistics,
    /// no dropout.
    pub fn forward(
        &self,
        replica: Replica<'_>,
        n: usize,
        x: &[f32],
        mut training: Option<&mut Training<'_>>,
        stored: &mut [f32],
        scratch: &mut Scratch<'_>,
    ) {
        let Replica { parameters, statistics } = replica;
        let (mut x, mut rest, mut kept) = (x, stored, &mut *scratch.kept);
        for layer in self.layers() {
            let (here, after) = rest.split_at_mut(n * layer.stored_len());
            let (normalized, y) = here.split_at_mut(here.len() - n * layer.outputs);
            let (kept_here, kept_after) = kept.split_at_mut(layer.norm.map_or(0, |n| n.kept_len()));
            let linear = if layer.norm.is_some() { &mut *normalized } else { &mut *y };
            layer.linear(parameters, n, x, linear, scratch.product);
            match (&layer.norm, &mut training) {
                (None, _) if layer.relu => relu(y),
                (None, _) => {}
                (Some(norm), None) => {
                    norm.normalize_running(normalized, statistics, kept_here, scratch.sums);
                }
                (Some(norm), Some(training)) => norm.normalize_batch(
                    normalized,
                    statistics,
                    training.statistics,
                    training.reduce,
                    kept_here,
                    scratch.sums,
                ),
            }
            if let Some(norm) = &layer.norm {
                norm.scale_and_shift(parameters, normalized, layer.relu, y);
            }
            if let Some(training) = training.as_ref().filter(|_| layer.dropout > 0.0) {
                let (key, rows) = (training.key, training.rows);
                dropout::drop_units(key, layer.stream, layer.dropout, rows, layer.outputs, y);
            }
            (x, rest, kept) = (y, after, kept_after);
        }
    }

    /// Gradients of the parameters and, if asked for, of the input `[n, inputs]`.
    pub fn backward(
        &self,
        n: usize,
        stored: Stored<'_>,
        out: Backward<'_>,
        mut d_x: Option<&mut [f32]>,
        scratch: &mut Scratch<'_>,
    ) {
        let (mut d, mut other) = (out.d, out.other);
        let (mut end, mut kept_end) = (n * self.stored_len(), self.kept_len());
        for (number, layer) in self.layers().iter().enumerate().rev() {
            let start = end - n * layer.stored_len();
            let here = &stored.activations[start..end];
            let (normalized, y) = here.split_at(here.len() - n * layer.outputs);
            let x = match number.checked_sub(1) {
                None => stored.x,
                Some(below) => &stored.activations[start - n * self.layers[below].outputs..start],
            };
            let d_y = &mut d[..n * layer.outputs];
            if layer.relu {
                mask(y, dropout::kept_scale(layer.dropout), d_y);
            }
            if let Some(norm) = &layer.norm {
                let kept_start = kept_end - norm.kept_len();
                norm.backward(
                    stored.parameters,
                    Normalized { values: normalized, kept: &scratch.kept[kept_start..kept_end] },
                    scratch.sums,
                    out.reduce,
                    d_y,
                    out.parameters,
                );
                kept_end = kept_start;
            }
            let target = (out.fresh, &mut *out.parameters);
            layer.gradient(n, x, d_y, target, other, scratch.product);
            let below = match number {
                0 => d_x.as_deref_mut(),
                _ => Some(&mut other[..n * layer.inputs]),
            };
            if let Some(below) = below {
                layer.data_gradient(stored.parameters, n, d_y, below, scratch.product);
            }
            core::mem::swap(&mut d, &mut other);
            end = start;
        }
    }
}

impl Layer {
    /// f32s stored per example: x̂ of a norm, then the output.
    const fn stored_len(&self) -> usize {
        self.outputs * if self.norm.is_some() { 2 } else { 1 }
    }

    fn w<'a>(&self, parameters: &'a [f32]) -> Matrix<'a> {
        let all = &parameters[self.matrix..self.matrix + self.outputs * self.inputs];
        Matrix::new(all, self.outputs, self.inputs)
    }

    /// Y = X·Wᵀ + b
    fn linear(&self, parameters: &[f32], n: usize, x: &[f32], y: &mut [f32], product: &mut [f32]) {
        if let Some(bias) = self.bias {
            let bias = &parameters[bias..bias + self.outputs];
            y.chunks_exact_mut(self.outputs).for_each(|y| y.copy_from_slice(bias));
        }
        let x = Matrix::new(x, n, self.inputs);
        let y = &mut MatrixMut::new(y, n, self.outputs);
        gemm(x, self.w(parameters).t(), self.bias.is_some(), y, product);
    }

    /// d_W = d_Yᵀ·X, d_b = column sums of d_Y; `scratch: [outputs]` unless n is 0
    fn gradient(
        &self,
        n: usize,
        x: &[f32],
        d_y: &[f32],
        out: (bool, &mut [f32]),
        scratch: &mut [f32],
        product: &mut [f32],
    ) {
        let (fresh, d_parameters) = out;
        if let Some(bias) = self.bias {
            let d_bias = &mut d_parameters[bias..bias + self.outputs];
            if fresh {
                d_bias.fill(0.0);
            }
            // In blocks, so that the error of a sum over thousands of examples stays that of tens.
            for d_y in d_y.chunks(SUMMED * self.outputs) {
                let block = &mut scratch[..self.outputs];
                block.fill(0.0);
                for d_y in d_y.chunks_exact(self.outputs) {
                    block.iter_mut().zip(d_y).for_each(|(sum, d)| *sum += d);
                }
                d_bias.iter_mut().zip(&*block).for_each(|(sum, d)| *sum += d);
            }
        }
        let d_w = &mut d_parameters[self.matrix..self.matrix + self.outputs * self.inputs];
        let d_w = &mut MatrixMut::new(d_w, self.outputs, self.inputs);
        let d_y = Matrix::new(d_y, n, self.outputs).t();
        gemm(d_y, Matrix::new(x, n, self.inputs), !fresh, d_w, product);
    }

    /// d_X = d_Y·W
    fn data_gradient(
        &self,
        parameters: &[f32],
        n: usize,
        d_y: &[f32],
        d_x: &mut [f32],
        product: &mut [f32],
    ) {
        let d_y = Matrix::new(d_y, n, self.outputs);
        gemm(d_y, self.w(parameters), false, &mut MatrixMut::new(d_x, n, self.inputs), product);
    }
}

/// max(y, 0); a NaN stays a NaN, so that a diverged step shows.
fn relu(y: &mut [f32]) {
    y.iter_mut().for_each(|y| *y = if *y < 0.0 { 0.0 } else { *y });
}

/// Gradient of ReLU and dropout together: passes, scaled, where the output is above 0.
fn mask(y: &[f32], scale: f32, d: &mut [f32]) {
    d.iter_mut().zip(y).for_each(|(d, y)| *d = if *y <= 0.0 { 0.0 } else { *d * scale });
}
