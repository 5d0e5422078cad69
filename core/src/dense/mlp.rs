//! Chains of layers: linear → batch norm → ReLU → dropout, the last three optional.
//!
//! Activations stand in blocks (`kernel/layout.rs`). A layer with batch norm has no bias: the
//! norm's shift takes its place.
//!
//! What backward needs is stored by forward: the output of every layer, and that of its linear part
//! if a norm follows. Dropout and ReLU need nothing more: a unit passes gradient exactly where its
//! output is above 0.
//!
//! Examples are walked a tile at a time (`tiles.rs`), all of them through a layer before the next.

use core::ops::Range;
use core::sync::atomic::AtomicU32;

use super::dropout::{self, StepKey};
use super::linear::Linear;
use super::norm::{Norm, Reduce};
use super::replica::Update;
use super::split::{Boundary, Crossing, Exchange, PartOf, is_worth_it};
use super::tiles::{Normalized, Output, Place, tiles};
use crate::kernel::{Activations, ActivationsMut, EXAMPLES_AT_MOST, Mask, Precision, blocked_len};

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

    /// Multiplies f32s as they are, on every processor.
    pub fn set_whole(&mut self) {
        self.layers[..self.count].iter_mut().for_each(|layer| layer.linear.set_whole());
    }

    /// Examples that go through a layer together.
    fn examples_at_once(&self) -> usize {
        let lengths = self.layers().iter().map(|layer| layer.linear.examples_at_once());
        lengths.max().unwrap_or(1)
    }

    /// f32s that a step makes of the matrices.
    #[must_use]
    pub fn prepared_len(&self) -> usize {
        self.layers().iter().map(|layer| layer.own().prepared_len()).sum()
    }

    /// f32s of scratch for operands of `n` examples, in bf16 or as thirds: of those that go through
    /// a layer together.
    #[must_use]
    pub fn operands_len(&self, n: usize) -> usize {
        let n = n.min(EXAMPLES_AT_MOST);
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
        2 * self.most_sums()
    }

    fn most_sums(&self) -> usize {
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
        let (n, mut rest, mut kept) = (x.n(), stored, &mut *scratch.kept);
        let mut prepared = &mut *scratch.prepared;
        let mut below: Option<Output<'_>> = None;
        for (number, layer) in self.layers().iter().enumerate() {
            let (width, own) = (layer.linear.outputs, layer.own());
            let (here, after) = rest.split_at_mut(layer.stored_len(n));
            let (operand, here) = here.split_at_mut(own.kept_len(n));
            let (linear, y) = here.split_at_mut(here.len() - blocked_len(n, width));
            let (kept_here, kept_after) = kept.split_at_mut(layer.norm.map_or(0, |n| n.kept_len()));
            let (of_layer, prepared_after) = match &training {
                None => (&mut [][..], &mut [][..]),
                Some(_) => core::mem::take(&mut prepared).split_at_mut(own.prepared_len()),
            };
            if training.as_ref().is_some_and(|training| training.fresh) {
                own.round(parameters, of_layer);
            }
            let mut y = ActivationsMut::blocked(y, n, width);
            let mut linear = layer.norm.map(|_| ActivationsMut::blocked(linear, n, width));
            let sums = &mut *scratch.sums;
            sums.fill(0.0);
            for (examples, _) in tiles((n, self.examples_at_once()), number) {
                let x = below.as_mut().map_or(x, |below| {
                    below.finish(parameters, training.as_deref(), examples.clone());
                    below.y.view()
                });
                let (relu, mut to) = match &mut linear {
                    Some(linear) => (false, linear.columns(0..width)),
                    None => (layer.relu, y.columns(layer.columns())),
                };
                if training.is_some() {
                    let memory = (&mut *operand, &mut *scratch.operands);
                    let on = (x, examples.clone());
                    own.forward_in_training(parameters, of_layer, on, relu, &mut to, memory);
                } else {
                    let (x, mut to) = (x.examples(examples.clone()), to.examples(examples.clone()));
                    own.forward(parameters, x, relu, &mut to);
                }
                if let (Some(norm), Some(linear), true) = (&layer.norm, &linear, training.is_some())
                {
                    norm.add(linear.view().examples(examples), sums);
                }
            }
            if let Some(norm) = &layer.norm {
                match &mut training {
                    None => norm.close_running(statistics, kept_here),
                    Some(training) => {
                        let statistics = (statistics, &mut *training.statistics);
                        norm.close(sums, statistics, training.reduce, kept_here);
                    }
                }
            }
            let mut output = Output { layer, linear, kept: kept_here, y, finished: false };
            if let Some(at) = &layer.boundary {
                output.finish(parameters, training.as_deref(), 0..n);
                output.finished = true;
                exchange(Crossing::Outputs { at, y: output.y.columns(0..width) });
            }
            below = Some(output);
            (rest, kept, prepared) = (after, kept_after, prepared_after);
        }
        if let Some(mut last) = below {
            for (examples, _) in tiles((n, self.examples_at_once()), self.count) {
                last.finish(parameters, training.as_deref(), examples);
            }
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
        let (mut sums, mut sums_below) = scratch.sums.split_at_mut(self.most_sums());
        // Whether the sums of the layer's norm are there.
        let mut summed = false;
        for (number, layer) in self.layers().iter().enumerate().rev() {
            let start = end - layer.stored_len(n);
            let own = layer.own();
            let (operand, here) = stored.activations[start..end].split_at(own.kept_len(n));
            let Linear { inputs, outputs, .. } = layer.linear;
            let (linear, y) = here.split_at(here.len() - blocked_len(n, outputs));
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
            let norm = layer.norm.map(|norm| {
                let kept = &scratch.kept[kept_end - norm.kept_len()..kept_end];
                Normalized { norm, linear: Activations::blocked(linear, n, outputs), kept }
            });
            if let Some(of) = &norm {
                if !summed {
                    sums.fill(0.0);
                    of.add_products(d_y.view(), 0..n, sums);
                }
                of.norm.close_products(of.kept, sums, out.reduce, out.parameters);
                kept_end -= of.kept.len();
            }
            let norm_below = below.and_then(|below| below.norm).map(|norm| {
                let kept = &scratch.kept[kept_end - norm.kept_len()..kept_end];
                let end = start - blocked_len(n, inputs);
                let linear = &stored.activations[end - blocked_len(n, inputs)..end];
                Normalized { norm, linear: Activations::blocked(linear, n, inputs), kept }
            });
            sums_below.fill(0.0);
            let prepared_start = prepared_end - own.prepared_len();
            let prepared = &mut scratch.prepared[prepared_start..prepared_end];
            let wants_d_x = below.is_some() || d_x.is_some();
            for (examples, Place { first, last }) in tiles((n, self.examples_at_once()), number) {
                let mut d_y = d_y.examples(examples.clone());
                if let Some(of) = &norm {
                    of.apply_gradient(stored.parameters, examples.clone(), sums, &mut d_y);
                }
                let d_y = d_y.view().columns(layer.columns());
                let again = out.update.is_none() || !last;
                let when = (out.fresh && first, again);
                let transposed = own.transposed(stored.parameters, n, when, prepared);
                let on = (x, examples.clone());
                let mut of = own.operands(on, d_y, wants_d_x, operand, scratch.operands);
                match (below, &mut d_x) {
                    (Some(below), _) => {
                        let mask = below.relu.then(|| below.mask(x.examples(examples.clone())));
                        let mut d_x = ActivationsMut::blocked(&mut *other, n, inputs);
                        let mut d_x = d_x.examples(examples.clone());
                        own.data_gradient(&mut of, transposed, mask, &mut d_x);
                        if let (Some(below), false) = (&norm_below, layer.is_split()) {
                            below.add_products(d_x.view(), examples, sums_below);
                        }
                    }
                    (None, Some(d_x)) => {
                        own.data_gradient(&mut of, transposed, None, &mut d_x.examples(examples));
                    }
                    (None, None) => {}
                }
                let update = out.update.filter(|_| last);
                own.gradient(of, out.fresh && first, update, out.parameters);
            }
            if let (Some(update), Some(Normalized { norm, .. })) = (out.update, norm) {
                for at in [norm.scale, norm.shift] {
                    update.apply(at, &out.parameters[at..at + norm.units]);
                }
            }
            if let (true, Some(below)) = (layer.is_split(), below)
                && let Some(at) = &below.boundary
            {
                let d = ActivationsMut::blocked(&mut *other, n, inputs);
                (out.exchange)(Crossing::Gradient { at, y: x, d });
            }
            summed = !layer.is_split();
            core::mem::swap(&mut d, &mut other);
            core::mem::swap(&mut sums, &mut sums_below);
            (end, prepared_end) = (start, prepared_start);
        }
    }
}

impl Layer {
    /// f32s stored of `n` examples: the input in bf16, the linear part of a norm, the output, those
    /// there are.
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
        let Range { start, end } = self.columns();
        self.linear.part(start..end)
    }

    /// The gradient of ReLU and dropout, given their output.
    fn mask<'a>(&self, y: Activations<'a>) -> Mask<'a> {
        Mask { y, scale: dropout::kept_scale(self.dropout) }
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
