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
use super::linear::{Linear, Operands};
use super::norm::{Norm, Normalized, Reduce, Scaled};
use super::replica::Update;
use super::split::{Boundary, Crossing, Exchange, PartOf, is_worth_it};
use crate::kernel::{Activations, ActivationsMut, Mask, Precision, blocked_len};

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
    /// First pass of a step: the weights are those of all its passes.
    pub fresh: bool,
    /// Sum over workers.
    pub reduce: &'a mut Reduce<'a>,
}

/// Scratch of one pass.
pub struct Scratch<'a> {
    /// What the products of a step need of the matrices, from its first pass to its last.
    /// `[prepared_len]`
    pub prepared: &'a mut [f32],
    /// Operands in bf16. `[operands_len(n)]`
    pub operands: &'a mut [f32],
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

    /// Makes products of training steps `precision`, of all layers that are wide enough.
    pub fn set_precision(&mut self, precision: Precision) {
        for layer in &mut self.layers[..self.count] {
            layer.linear.set_precision(precision);
        }
    }

    /// f32s that a step makes of the matrices.
    #[must_use]
    pub fn prepared_len(&self) -> usize {
        self.layers().iter().map(|layer| layer.own().prepared_len()).sum()
    }

    /// f32s of scratch for operands in bf16 of `n` examples.
    #[must_use]
    pub fn operands_len(&self, n: usize) -> usize {
        self.layers().iter().map(|layer| layer.own().scratch_len(n)).max().unwrap_or(0)
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
        let mut prepared = &mut *scratch.prepared;
        for layer in self.layers() {
            let (width, own) = (layer.linear.outputs, layer.own());
            let (here, after) = rest.split_at_mut(layer.stored_len(n));
            let (operand, here) = here.split_at_mut(own.kept_len(n));
            let (normalized, y) = here.split_at_mut(here.len() - blocked_len(n, width));
            let (kept_here, kept_after) = kept.split_at_mut(layer.norm.map_or(0, |n| n.kept_len()));
            let mut output = ActivationsMut::blocked(&mut *y, n, width);
            let mut forward = |relu, y: &mut ActivationsMut<'_>| match &training {
                None => own.forward(parameters, x, relu, y),
                Some(training) => {
                    let (of_layer, after) =
                        core::mem::take(&mut prepared).split_at_mut(own.prepared_len());
                    prepared = after;
                    if training.fresh {
                        own.round(parameters, of_layer);
                    }
                    let memory = (&mut *operand, &mut *scratch.operands);
                    own.forward_in_training(parameters, of_layer, x, relu, y, memory);
                }
            };
            match &layer.norm {
                None => forward(layer.relu, &mut output.columns(layer.columns())),
                Some(norm) => {
                    let mut normalized = ActivationsMut::blocked(normalized, n, width);
                    forward(false, &mut normalized);
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
        let mut prepared_end = self.prepared_len();
        for (number, layer) in self.layers().iter().enumerate().rev() {
            let start = end - layer.stored_len(n);
            let own = layer.own();
            let (operand, here) = stored.activations[start..end].split_at(own.kept_len(n));
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
            let prepared_start = prepared_end - own.prepared_len();
            let prepared = &mut scratch.prepared[prepared_start..prepared_end];
            let wants_d_x = below.is_some() || d_x.is_some();
            let fresh = out.fresh.then_some(stored.parameters);
            let transposed = own.transposed(fresh, out.update.is_none(), prepared);
            let of = own.operands((x, d_y), wants_d_x, operand, scratch.operands);
            match (below, &mut d_x) {
                (Some(below), _) => {
                    let mask = below.relu.then(|| below.mask(x));
                    let d_x = &mut ActivationsMut::blocked(&mut *other, n, inputs);
                    own.data_gradient(of, transposed, mask, d_x);
                    if let (true, Some(at)) = (layer.is_split(), &below.boundary) {
                        let d = ActivationsMut::blocked(&mut *other, n, inputs);
                        (out.exchange)(Crossing::Gradient { at, y: x, d });
                    }
                }
                (None, Some(d_x)) => own.data_gradient(of, transposed, None, d_x),
                (None, None) => {}
            }
            layer.gradient(of, out.fresh, out.update, out.parameters);
            core::mem::swap(&mut d, &mut other);
            (end, prepared_end) = (start, prepared_start);
        }
    }
}

impl Layer {
    /// f32s stored of `n` examples: the input in bf16, x̂ of a norm, the output, those there are.
    fn stored_len(&self, n: usize) -> usize {
        let outputs = blocked_len(n, self.linear.outputs);
        self.own().kept_len(n) + outputs * if self.norm.is_some() { 2 } else { 1 }
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
        let Linear { inputs, matrix, bias, precision, .. } = self.linear;
        let Range { start, end } = self.columns();
        Linear {
            inputs,
            outputs: end - start,
            matrix: matrix + start * inputs,
            bias: bias.map(|bias| bias + start),
            precision,
        }
    }

    /// The gradient of ReLU and dropout, given their output.
    fn mask<'a>(&self, y: Activations<'a>) -> Mask<'a> {
        Mask { y, scale: dropout::kept_scale(self.dropout) }
    }

    /// d_W and d_b, and the update of all parameters of the layer.
    fn gradient(
        &self,
        of: Operands<'_>,
        fresh: bool,
        update: Option<Update<'_>>,
        d_parameters: &mut [f32],
    ) {
        self.own().gradient(of, fresh, update, d_parameters);
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
