//! A linear layer: Y = X·Wᵀ + b, with W `[outputs, inputs]` as in PyTorch.
//!
//! W stands in panels and X, Y where their owner put them (`kernel/layout.rs`). A layer holds
//! offsets into the parameters, never numbers.
//!
//! Its products may be of bf16s (`kernel/operand.rs`): W once a step, X and d_Y where they are
//! multiplied. Everything else is f32: W itself, sums, gradients, Y. Those of f32s are of thirds
//! (`kernel/thirds`) where the processor is faster with them, in training steps; evaluation
//! multiplies f32s as they are.

use core::ops::Range;
use core::sync::atomic::AtomicU32;

use super::replica::Update;
use crate::kernel::{
    Activations, ActivationsMut, EXAMPLES, Factors, Mask, PANEL, Precision, Transposed,
    bias_gradient, blocked_len, data_gradient, data_gradient_of_thirds, examples_at_once, forward,
    forward_halves, forward_of_thirds, half_panels_len, multiplies_thirds, round_activations,
    round_weight, split_examples, thirds_len, transpose, weight_gradient,
};

/// Layers narrower than this on either side stay f32: half their words would be empty, or their
/// vectors.
const NARROW: usize = 32;

/// With fewer examples splitting W takes longer than thirds gain: steps of the Kaggle DLRM in
/// batches of 48 were .91 to .94 times as fast, in batches of 64 1.01 to 1.15 times.
const FEW: usize = 64;

/// How the operands of a layer's products stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Form {
    /// f32s as they are.
    #[default]
    Whole,
    /// f32s as sums of three bf16s.
    Thirds,
    /// bf16s.
    Halves,
}

/// Shapes and offsets into the parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Linear {
    /// Width of the input.
    pub inputs: usize,
    /// Width of the output.
    pub outputs: usize,
    /// Offset of W, in panels.
    pub matrix: usize,
    /// Offset of b `[outputs]`.
    pub bias: Option<usize>,
    /// In a training step.
    form: Form,
}

/// d_Y, for the gradient of X.
enum Columns<'a> {
    Whole(Activations<'a>),
    /// In words of two columns.
    Halves(Activations<'a>),
    /// As it is, and scratch for its thirds.
    Thirds(&'a mut [f32]),
}

/// What a backward pass multiplies.
pub struct Operands<'a> {
    /// d_Y, for its sums over examples. `[n, outputs]`
    d_y: Activations<'a>,
    /// For the gradient of X.
    columns: Columns<'a>,
    /// For the gradient of W.
    examples: Factors<'a>,
}

impl Linear {
    /// Elements of W.
    #[must_use]
    pub const fn matrix_len(&self) -> usize {
        self.outputs * self.inputs
    }

    /// One whose products are of f32s as they are.
    #[must_use]
    pub const fn new(
        (outputs, inputs): (usize, usize),
        matrix: usize,
        bias: Option<usize>,
    ) -> Self {
        Self { inputs, outputs, matrix, bias, form: Form::Whole }
    }

    /// Makes its products `precision`, if it is wide enough, in the way that is the fastest with
    /// the instruction set that is selected now.
    pub fn set_precision(&mut self, precision: Precision) {
        let narrow = self.inputs < NARROW || self.outputs < NARROW;
        self.form = match precision {
            _ if narrow => Form::Whole,
            Precision::Bf16 => Form::Halves,
            Precision::F32 if multiplies_thirds() => Form::Thirds,
            Precision::F32 => Form::Whole,
        };
    }

    /// Multiplies f32s as they are, on every processor.
    pub(super) const fn set_whole(&mut self) {
        if matches!(self.form, Form::Thirds) {
            self.form = Form::Whole;
        }
    }

    /// Examples that go through it together.
    pub(super) fn examples_at_once(&self) -> usize {
        match self.form {
            Form::Whole => EXAMPLES,
            Form::Thirds | Form::Halves => examples_at_once(),
        }
    }

    /// Whether what it multiplies in a pass of `n` examples are f32s as thirds.
    #[must_use]
    pub const fn splits(&self, n: usize) -> bool {
        matches!(self.form_of(n), Form::Thirds)
    }

    /// Whether what it multiplies are bf16s.
    #[must_use]
    pub const fn rounds(&self) -> bool {
        matches!(self.form, Form::Halves)
    }

    /// How operands stand in the products of a pass of `n` examples.
    const fn form_of(&self, n: usize) -> Form {
        match self.form {
            Form::Thirds if n < FEW => Form::Whole,
            form => form,
        }
    }

    /// f32s that a step makes of W: Wᵀ, or W and Wᵀ in bf16, or thirds of two panels of W or
    /// Wᵀ.
    #[must_use]
    pub const fn prepared_len(&self) -> usize {
        match self.form {
            Form::Whole => self.matrix_len(),
            Form::Thirds => {
                let depth = larger(self.outputs, self.inputs);
                larger(self.matrix_len(), thirds_len(2 * PANEL, depth))
            }
            Form::Halves => {
                half_panels_len(self.outputs, self.inputs)
                    + half_panels_len(self.inputs, self.outputs)
            }
        }
    }

    /// f32s kept of X from forward to backward: none, or X in words of two of `n` examples.
    #[must_use]
    pub const fn kept_len(&self, n: usize) -> usize {
        match self.form {
            Form::Whole | Form::Thirds => 0,
            Form::Halves => blocked_len(n.div_ceil(2), self.inputs),
        }
    }

    /// f32s of scratch of a pass: none, or X for sums over columns, or d_Y for both sums.
    #[must_use]
    pub fn scratch_len(&self, n: usize) -> usize {
        match self.form {
            Form::Whole => 0,
            Form::Thirds => {
                let d_y = thirds_len(n, self.outputs) + thirds_len(self.outputs, n);
                d_y.max(thirds_len(n, self.inputs))
            }
            Form::Halves => {
                let d_y = blocked_len(n, self.outputs.div_ceil(2))
                    + blocked_len(n.div_ceil(2), self.outputs);
                d_y.max(blocked_len(n, self.inputs.div_ceil(2)))
            }
        }
    }

    /// The layer of some of its outputs, from a multiple of a panel's on.
    pub(super) fn part(&self, outputs: Range<usize>) -> Self {
        Self {
            outputs: outputs.len(),
            matrix: self.matrix + outputs.start * self.inputs,
            bias: self.bias.map(|bias| bias + outputs.start),
            ..*self
        }
    }

    /// Writes Y `[n, outputs]` of X `[n, inputs]`, cut below at 0 if `relu`; in f32.
    pub fn forward(
        &self,
        parameters: &[AtomicU32],
        x: Activations<'_>,
        relu: bool,
        y: &mut ActivationsMut<'_>,
    ) {
        forward(x, self.w(parameters), self.b(parameters), relu, y);
    }

    /// As [`Self::forward`], in the layer's precision, of some of the examples of `x` and `y`; they
    /// begin with an even one. `prepared: [prepared_len]` is that of [`Self::round`], or scratch;
    /// `kept: [kept_len(n)]` is written for backward.
    pub fn forward_in_training(
        &self,
        parameters: &[AtomicU32],
        prepared: &mut [f32],
        (x, some): (Activations<'_>, Range<usize>),
        relu: bool,
        y: &mut ActivationsMut<'_>,
        (kept, scratch): (&mut [f32], &mut [f32]),
    ) {
        let (n, x, mut y) = (x.n(), x.examples(some.clone()), y.examples(some.clone()));
        match self.form_of(n) {
            Form::Whole => self.forward(parameters, x, relu, &mut y),
            Form::Thirds => {
                let (weight, bias) = (self.w(parameters), self.b(parameters));
                forward_of_thirds(x, weight, bias, relu, &mut y, (scratch, prepared));
            }
            Form::Halves => {
                let mut columns = ActivationsMut::blocked(scratch, x.n(), self.inputs.div_ceil(2));
                let mut kept = ActivationsMut::blocked(kept, n.div_ceil(2), self.inputs);
                let mut examples = kept.examples(in_pairs(some));
                round_activations(x, Some(&mut columns), &mut examples);
                let panels = &prepared[..half_panels_len(self.outputs, self.inputs)];
                forward_halves(columns.view(), panels, self.b(parameters), relu, &mut y);
            }
        }
    }

    /// Writes W and Wᵀ in bf16, if the layer's products are: before the first forward pass of a
    /// step. `prepared: [prepared_len]`
    pub fn round(&self, parameters: &[AtomicU32], prepared: &mut [f32]) {
        if self.form == Form::Halves {
            let (outputs, inputs) = (self.outputs, self.inputs);
            let (panels, transposed) = prepared.split_at_mut(half_panels_len(outputs, inputs));
            round_weight(self.w(parameters), (outputs, inputs), panels, transposed);
        }
    }

    /// Writes the panels of Wᵀ, in f32. `transposed: [matrix_len]`
    pub fn transpose(&self, parameters: &[AtomicU32], transposed: &mut [f32]) {
        transpose(self.w(parameters), self.outputs, self.inputs, transposed);
    }

    /// The panels of Wᵀ for the gradient of X of a pass of `n` examples: in the `first` one of a
    /// step to be written, unless [`Self::round`] did; then those of that pass, if it was told that
    /// they are needed `again`. Those of thirds are written every time. `prepared: [prepared_len]`
    pub fn transposed<'a>(
        &self,
        parameters: &'a [AtomicU32],
        n: usize,
        (first, again): (bool, bool),
        prepared: &'a mut [f32],
    ) -> Transposed<'a> {
        let weight = self.w(parameters);
        match self.form_of(n) {
            // Another pass of the step may have had enough examples for thirds.
            Form::Whole if first || self.form == Form::Thirds => {
                let again = again && self.form == Form::Whole;
                Transposed::Fresh { weight, panels: &mut prepared[..self.matrix_len()], again }
            }
            Form::Whole => Transposed::Made(&prepared[..self.matrix_len()]),
            Form::Thirds => Transposed::Fresh { weight, panels: prepared, again: false },
            Form::Halves => {
                Transposed::Made(&prepared[half_panels_len(self.outputs, self.inputs)..])
            }
        }
    }

    /// What backward multiplies, of some of the examples of X `[n, inputs]` and their d_Y; they
    /// begin with an even one. `kept` is what forward kept, `scratch: [scratch_len]` of so many;
    /// without `d_x` no gradient of X will be asked for.
    pub fn operands<'a>(
        &self,
        (x, some): (Activations<'a>, Range<usize>),
        d_y: Activations<'a>,
        d_x: bool,
        kept: &'a [f32],
        scratch: &'a mut [f32],
    ) -> Operands<'a> {
        match self.form_of(x.n()) {
            Form::Whole => {
                let examples = Factors::Whole(x.examples(some), d_y);
                Operands { d_y, columns: Columns::Whole(d_y), examples }
            }
            Form::Thirds => {
                let (columns, examples) = scratch.split_at_mut(thirds_len(d_y.n(), self.outputs));
                let columns = Columns::Thirds(columns);
                let examples = Factors::Thirds(x.examples(some), split_examples(d_y, examples));
                Operands { d_y, columns, examples }
            }
            Form::Halves => {
                let (n, half, width) = (d_y.n(), d_y.n().div_ceil(2), self.outputs.div_ceil(2));
                let (columns, examples) = scratch.split_at_mut(blocked_len(n, width));
                {
                    let mut columns = ActivationsMut::blocked(columns, n, width);
                    let mut examples = ActivationsMut::blocked(examples, half, self.outputs);
                    round_activations(d_y, d_x.then_some(&mut columns), &mut examples);
                }
                let columns = Activations::blocked(columns, n, width);
                let x = Activations::blocked(kept, x.n().div_ceil(2), self.inputs);
                let x = x.examples(in_pairs(some));
                let d = Activations::blocked(examples, half, self.outputs);
                let columns = Columns::Halves(columns);
                Operands { d_y, columns, examples: Factors::Halves(x, d) }
            }
        }
    }

    /// Writes d_X = d_Y·W, times the mask.
    pub fn data_gradient(
        &self,
        of: &mut Operands<'_>,
        transposed: Transposed<'_>,
        mask: Option<Mask<'_>>,
        d_x: &mut ActivationsMut<'_>,
    ) {
        match (&mut of.columns, transposed) {
            (Columns::Whole(d_y), transposed) => {
                data_gradient(Precision::F32, *d_y, transposed, mask, d_x);
            }
            (Columns::Halves(d_y), transposed) => {
                data_gradient(Precision::Bf16, *d_y, transposed, mask, d_x);
            }
            (Columns::Thirds(scratch), Transposed::Fresh { weight, panels, .. }) => {
                data_gradient_of_thirds(of.d_y, weight, mask, d_x, (scratch, panels));
            }
            (Columns::Thirds(_), _) => unreachable!("thirds of W are made where asked"),
        }
    }

    /// Sets d_W and d_b in the gradient of the parameters, or adds to them unless `fresh`; where
    /// there is an `update`, the parameters are updated by them.
    pub fn gradient(
        &self,
        of: Operands<'_>,
        fresh: bool,
        update: Option<Update<'_>>,
        d_parameters: &mut [f32],
    ) {
        if let Some(bias) = self.bias {
            bias_gradient(of.d_y, fresh, &mut d_parameters[bias..bias + self.outputs]);
        }
        let d_w = &mut d_parameters[self.matrix..self.matrix + self.matrix_len()];
        let Some(update) = update else {
            return weight_gradient(of.examples, fresh, d_w);
        };
        update.apply_product(self.matrix, of.examples, fresh, d_w);
        if let Some(bias) = self.bias {
            update.apply(bias, &d_parameters[bias..bias + self.outputs]);
        }
    }

    fn w<'a>(&self, parameters: &'a [AtomicU32]) -> &'a [AtomicU32] {
        &parameters[self.matrix..self.matrix + self.matrix_len()]
    }

    fn b<'a>(&self, parameters: &'a [AtomicU32]) -> Option<&'a [AtomicU32]> {
        self.bias.map(|bias| &parameters[bias..bias + self.outputs])
    }
}

/// The larger of two lengths.
const fn larger(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

/// The words of two examples that have these, the first of them even.
const fn in_pairs(some: Range<usize>) -> Range<usize> {
    some.start / 2..some.end.div_ceil(2)
}
