//! Chains of layers: linear → batch norm → ReLU → dropout, the last three optional.
//!
//! Activations stand in blocks (`kernel/layout.rs`). A layer with batch norm has no bias: the
//! norm's shift takes its place.
//!
//! What backward needs is stored by forward: the output of every layer and x̂ of every norm.
//! Dropout and ReLU need nothing more: a unit passes gradient exactly where its output is above 0.

use core::ops::Range;
use core::sync::atomic::AtomicU32;

use super::dropout::{self, StepKey};
use super::linear::Linear;
use super::norm::{Norm, Normalized, Reduce, Scaled};
use super::replica::Update;
use super::split::{Boundary, Crossing, Exchange, PartOf, is_worth_it};
use crate::kernel::{Activations, ActivationsMut, Mask, blocked_len, data_gradient};

/// Most layers in one chain.
pub const MAX_LAYERS: usize = 16;

/// One layer: shapes and offsets into the parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Layer {
    /// Its linear part.
    pub linear: Linear,
    /// Batch norm of the linear output.
    pub norm: Option<Norm>,
    /// Cut below at 0.
    pub relu: bool,
    /// Probability of dropping an output in training; only after a ReLU.
    pub dropout: f32,
    /// Number of the layer's dropout stream, distinct in a model.
    pub stream: u32,
    /// Its output crosses from part to part of the model.
    pub boundary: Option<Boundary>,
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
    pub parameters: &'a [AtomicU32],
    /// Running statistics of batch norms.
    pub statistics: &'a [AtomicU32],
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
}

/// What backward reads: the inputs of the forward pass and what it stored.
#[derive(Clone, Copy)]
pub struct Stored<'a> {
    /// Parameters of the model.
    pub parameters: &'a [AtomicU32],
    /// Transposed matrices of the step. `[transposed_len]`
    pub transposed: &'a [f32],
    /// Input of the chain. `[n, inputs]`
    pub x: Activations<'a>,
    /// As forward left it. `[stored_len(n)]`
    pub activations: &'a [f32],
}

/// Where backward writes.
pub struct Backward<'a> {
    /// Gradient of the parameters of the model.
    pub parameters: &'a mut [f32],
    /// Set the gradients instead of adding to them. A chain with norms always sets those of the
    /// norms.
    pub fresh: bool,
    /// Gradient of the output on entry, in blocks; scratch afterwards. `[gradient_len(n)]`
    pub d: &'a mut [f32],
    /// Scratch as large as `d`.
    pub other: &'a mut [f32],
    /// These examples complete the gradients: update the parameters with them.
    pub update: Option<Update<'a>>,
    /// Sum over workers.
    pub reduce: &'a mut Reduce<'a>,
    /// Between the parts of a model.
    pub exchange: &'a mut Exchange<'a>,
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

    /// Deals layers to the parts of a model: those between the first and the last that are wide
    /// enough, a ReLU's, and without batch norm. The first is not dealt: its input passes no
    /// threshold, and the gradient of that would cross as it is. Boundaries are numbered from
    /// `numbers` on.
    pub fn split(&mut self, of: PartOf, numbers: &mut usize) {
        let last = self.count.saturating_sub(1);
        let is_dealt = |number: usize, layer: &Layer| {
            let fits = layer.relu && layer.norm.is_none();
            (1..last).contains(&number) && fits && is_worth_it(layer.linear.outputs, of.parts)
        };
        for number in 0..last {
            let split = is_dealt(number, &self.layers[number]);
            if split || is_dealt(number + 1, &self.layers[number + 1]) {
                let width = self.layers[number].linear.outputs;
                let boundary = Boundary { number: *numbers, width, of, split };
                self.layers[number].boundary = Some(boundary);
                *numbers += 1;
            }
        }
    }

    /// Without layers the chain is the identity and is not to be run.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// f32s stored of `n` examples.
    #[must_use]
    pub fn stored_len(&self, n: usize) -> usize {
        self.layers().iter().map(|layer| layer.stored_len(n)).sum()
    }

    /// f32s of a gradient on its way back through the layers, for `n` examples.
    #[must_use]
    pub fn gradient_len(&self, n: usize) -> usize {
        let widths =
            self.layers().iter().map(|layer| layer.linear.inputs.max(layer.linear.outputs));
        blocked_len(n, widths.max().unwrap_or(0))
    }

    /// f32s of the transposed matrices.
    #[must_use]
    pub fn transposed_len(&self) -> usize {
        self.layers().iter().map(|layer| layer.own().matrix_len()).sum()
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

    fn norms(&self) -> impl Iterator<Item = &Norm> {
        self.layers().iter().filter_map(|layer| layer.norm.as_ref())
    }

    /// The output within what forward stored. `[n, outputs]`
    #[must_use]
    pub fn output<'a>(&self, n: usize, stored: &'a [f32]) -> Activations<'a> {
        let outputs = self.layers().last().map_or(0, |layer| layer.linear.outputs);
        let end = self.stored_len(n);
        Activations::blocked(&stored[end - blocked_len(n, outputs)..end], n, outputs)
    }

    /// Transposes the matrices that [`Self::backward`] needs: all, or all but the first layer's if
    /// the gradient of the input is not asked for. `transposed: [transposed_len]`
    pub fn transpose(&self, parameters: &[AtomicU32], d_x: bool, transposed: &mut [f32]) {
        let mut rest = transposed;
        for (number, layer) in self.layers().iter().enumerate() {
            let (here, after) = rest.split_at_mut(layer.own().matrix_len());
            if d_x || number > 0 {
                layer.own().transpose(parameters, here);
            }
            rest = after;
        }
    }

    /// Runs `x` `[n, inputs]` through the chain; `stored: [stored_len(n)]` is written. Without
    /// `training` it is an evaluation: running statistics, no dropout.
    pub fn forward(
        &self,
        replica: Replica<'_>,
        x: Activations<'_>,
        mut training: Option<&mut Training<'_>>,
        exchange: &mut Exchange<'_>,
        stored: &mut [f32],
        scratch: &mut Scratch<'_>,
    ) {
        let Replica { parameters, statistics } = replica;
        let (n, mut x, mut rest, mut kept) = (x.n(), x, stored, &mut *scratch.kept);
        for layer in self.layers() {
            let width = layer.linear.outputs;
            let (here, after) = rest.split_at_mut(layer.stored_len(n));
            let (normalized, y) = here.split_at_mut(here.len() - blocked_len(n, width));
            let (kept_here, kept_after) = kept.split_at_mut(layer.norm.map_or(0, |n| n.kept_len()));
            let mut output = ActivationsMut::blocked(&mut *y, n, width);
            match &layer.norm {
                None => {
                    let mut output = output.columns(layer.columns());
                    layer.own().forward(parameters, x, layer.relu, &mut output);
                }
                Some(norm) => {
                    let mut normalized = ActivationsMut::blocked(normalized, n, width);
                    layer.linear.forward(parameters, x, false, &mut normalized);
                    let y = Scaled { parameters, relu: layer.relu, y: &mut output };
                    match &mut training {
                        None => norm.forward_running(
                            &mut normalized,
                            y,
                            statistics,
                            kept_here,
                            scratch.sums,
                        ),
                        Some(training) => norm.forward_batch(
                            &mut normalized,
                            y,
                            (statistics, training.statistics),
                            training.reduce,
                            kept_here,
                            scratch.sums,
                        ),
                    }
                }
            }
            if let Some(training) = training.as_ref().filter(|_| layer.dropout > 0.0) {
                let (key, rows) = (training.key, training.rows);
                dropout::drop_units(key, layer.stream, layer.dropout, rows, &mut output);
            }
            if let Some(at) = &layer.boundary {
                exchange(Crossing::Outputs { at, y: output });
            }
            (x, rest, kept) = (Activations::blocked(y, n, width), after, kept_after);
        }
    }

    /// Gradients of the parameters and, if asked for, of the input.
    ///
    /// The gradient that comes in is that of the last layer's output; the mask of its ReLU, if it
    /// has one, is applied here.
    pub fn backward(
        &self,
        stored: Stored<'_>,
        out: Backward<'_>,
        mut d_x: Option<ActivationsMut<'_>>,
        scratch: &mut Scratch<'_>,
    ) {
        let n = stored.x.n();
        let (mut d, mut other) = (out.d, out.other);
        let (mut end, mut kept_end) = (self.stored_len(n), self.kept_len());
        let mut transposed_end = self.transposed_len();
        for (number, layer) in self.layers().iter().enumerate().rev() {
            let start = end - layer.stored_len(n);
            let here = &stored.activations[start..end];
            let Linear { inputs, outputs, .. } = layer.linear;
            let (normalized, y) = here.split_at(here.len() - blocked_len(n, outputs));
            let below = number.checked_sub(1).map(|below| &self.layers[below]);
            let x = below.map_or(stored.x, |_| {
                let len = blocked_len(n, inputs);
                Activations::blocked(&stored.activations[start - len..start], n, inputs)
            });
            let mut d_y = ActivationsMut::blocked(&mut *d, n, outputs);
            if layer.relu && number + 1 == self.count {
                let y = Activations::blocked(y, n, outputs);
                mask_rows(layer.mask(y), &mut d_y);
            }
            if let Some(norm) = &layer.norm {
                let kept_start = kept_end - norm.kept_len();
                let values = Activations::blocked(normalized, n, outputs);
                norm.backward(
                    stored.parameters,
                    Normalized { values, kept: &scratch.kept[kept_start..kept_end] },
                    scratch.sums,
                    out.reduce,
                    &mut d_y,
                    out.parameters,
                );
                kept_end = kept_start;
            }
            let d_y = d_y.view();
            let d_y = d_y.columns(layer.columns());
            let transposed_start = transposed_end - layer.own().matrix_len();
            let transposed = &stored.transposed[transposed_start..transposed_end];
            match (below, &mut d_x) {
                (Some(below), _) => {
                    let mask = below.relu.then(|| below.mask(x));
                    let d_x = &mut ActivationsMut::blocked(&mut *other, n, inputs);
                    data_gradient(d_y, transposed, mask, d_x);
                    if let (true, Some(at)) = (layer.is_split(), &below.boundary) {
                        let d = ActivationsMut::blocked(&mut *other, n, inputs);
                        (out.exchange)(Crossing::Gradient { at, y: x, d });
                    }
                }
                (None, Some(d_x)) => data_gradient(d_y, transposed, None, d_x),
                (None, None) => {}
            }
            layer.gradient(x, d_y, out.fresh, out.update, out.parameters);
            core::mem::swap(&mut d, &mut other);
            (end, transposed_end) = (start, transposed_start);
        }
    }
}

impl Layer {
    /// f32s stored of `n` examples: x̂ of a norm, then the output.
    const fn stored_len(&self, n: usize) -> usize {
        blocked_len(n, self.linear.outputs) * if self.norm.is_some() { 2 } else { 1 }
    }

    /// Whether this part computes but a part of it.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.boundary.is_some_and(|boundary| boundary.split)
    }

    /// The outputs that this part computes.
    fn columns(&self) -> Range<usize> {
        self.boundary.map_or(0..self.linear.outputs, |boundary| boundary.own())
    }

    /// What this part computes of the linear part.
    #[must_use]
    pub fn own(&self) -> Linear {
        let Linear { inputs, matrix, bias, .. } = self.linear;
        let Range { start, end } = self.columns();
        Linear {
            inputs,
            outputs: end - start,
            matrix: matrix + start * inputs,
            bias: bias.map(|bias| bias + start),
        }
    }

    /// The gradient of ReLU and dropout, given their output.
    fn mask<'a>(&self, y: Activations<'a>) -> Mask<'a> {
        Mask { y, scale: dropout::kept_scale(self.dropout) }
    }

    /// d_W and d_b, and the update of all parameters of the layer.
    fn gradient(
        &self,
        x: Activations<'_>,
        d_y: Activations<'_>,
        fresh: bool,
        update: Option<Update<'_>>,
        d_parameters: &mut [f32],
    ) {
        self.own().gradient(x, d_y, fresh, update, d_parameters);
        let (Some(update), Some(norm)) = (update, self.norm) else { return };
        for at in [norm.scale, norm.shift] {
            update.apply(at, &d_parameters[at..at + norm.units]);
        }
    }
}

/// Gradient of a ReLU that no product follows.
fn mask_rows(mask: Mask<'_>, d: &mut ActivationsMut<'_>) {
    for (first, y) in mask.y.blocks() {
        for (d, y) in d.block_mut(first).zip(y) {
            d.iter_mut()
                .zip(y)
                .for_each(|(d, y)| *d = if *y <= 0.0 { 0.0 } else { *d * mask.scale });
        }
    }
}
