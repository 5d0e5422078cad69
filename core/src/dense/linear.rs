//! A linear layer: Y = X·Wᵀ + b, with W `[outputs, inputs]` as in PyTorch.
//!
//! W stands in panels and X, Y where their owner put them (`kernel/layout.rs`). A layer holds
//! offsets into the parameters, never numbers.
//!
//! Its products may be of bf16s (`kernel/operand.rs`): W once a step, X and d_Y where they are
//! multiplied. Everything else is f32: W itself, sums, gradients, Y.

use core::ops::Range;
use core::sync::atomic::AtomicU32;

use super::replica::Update;
use crate::kernel::{
    Activations, ActivationsMut, Mask, Precision, Transposed, bias_gradient, blocked_len,
    data_gradient, forward, forward_halves, half_panels_len, round_activations, round_weight,
    transpose, weight_gradient,
};

/// Layers narrower than this on either side stay f32: half their words would be empty, or their
/// vectors.
const NARROW: usize = 32;

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
    /// Of the products of a training step.
    pub precision: Precision,
}

/// What a backward pass multiplies.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// d_Y, for its sums over examples. `[n, outputs]`
    d_y: Activations<'a>,
    /// d_Y, for the gradient of X: as it is, or words of two columns.
    columns: Activations<'a>,
    /// X and d_Y, for the gradient of W: as they are, or words of two examples.
    examples: [Activations<'a>; 2],
}

impl Linear {
    /// Elements of W.
    #[must_use]
    pub const fn matrix_len(&self) -> usize {
        self.outputs * self.inputs
    }

    /// Makes its products `precision`, if it is wide enough.
    pub(super) const fn set_precision(&mut self, precision: Precision) {
        let narrow = self.inputs < NARROW || self.outputs < NARROW;
        self.precision = if narrow { Precision::F32 } else { precision };
    }

    /// f32s that a step makes of W: Wᵀ, or W and Wᵀ in bf16.
    #[must_use]
    pub const fn prepared_len(&self) -> usize {
        match self.precision {
            Precision::F32 => self.matrix_len(),
            Precision::Bf16 => {
                half_panels_len(self.outputs, self.inputs)
                    + half_panels_len(self.inputs, self.outputs)
            }
        }
    }

    /// f32s kept of X from forward to backward: none, or X in words of two of `n` examples.
    #[must_use]
    pub const fn kept_len(&self, n: usize) -> usize {
        match self.precision {
            Precision::F32 => 0,
            Precision::Bf16 => blocked_len(n.div_ceil(2), self.inputs),
        }
    }

    /// f32s of scratch of a pass: none, or X in words of two columns, or d_Y in both forms.
    #[must_use]
    pub fn scratch_len(&self, n: usize) -> usize {
        match self.precision {
            Precision::F32 => 0,
            Precision::Bf16 => {
                let d_y = blocked_len(n, self.outputs.div_ceil(2))
                    + blocked_len(n.div_ceil(2), self.outputs);
                d_y.max(blocked_len(n, self.inputs.div_ceil(2)))
            }
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
    /// begin with an even one. `prepared` is that of [`Self::round`]; `kept: [kept_len(n)]` is
    /// written for backward.
    pub fn forward_in_training(
        &self,
        parameters: &[AtomicU32],
        prepared: &[f32],
        (x, some): (Activations<'_>, Range<usize>),
        relu: bool,
        y: &mut ActivationsMut<'_>,
        (kept, scratch): (&mut [f32], &mut [f32]),
    ) {
        let (n, x, mut y) = (x.n(), x.examples(some.clone()), y.examples(some.clone()));
        match self.precision {
            Precision::F32 => self.forward(parameters, x, relu, &mut y),
            Precision::Bf16 => {
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
        if self.precision == Precision::Bf16 {
            let (outputs, inputs) = (self.outputs, self.inputs);
            let (panels, transposed) = prepared.split_at_mut(half_panels_len(outputs, inputs));
            round_weight(self.w(parameters), (outputs, inputs), panels, transposed);
        }
    }

    /// Writes the panels of Wᵀ, in f32. `transposed: [matrix_len]`
    pub fn transpose(&self, parameters: &[AtomicU32], transposed: &mut [f32]) {
        transpose(self.w(parameters), self.outputs, self.inputs, transposed);
    }

    /// The panels of Wᵀ for the gradient of X: in the first backward pass of a step, for which
    /// there are the `parameters`, to be written, unless [`Self::round`] did; then those of that
    /// pass, if it was told that they are needed `again`. `prepared: [prepared_len]`
    pub fn transposed<'a>(
        &self,
        parameters: Option<&'a [AtomicU32]>,
        again: bool,
        prepared: &'a mut [f32],
    ) -> Transposed<'a> {
        match (self.precision, parameters) {
            (Precision::F32, Some(parameters)) => {
                Transposed::Fresh { weight: self.w(parameters), panels: prepared, again }
            }
            (Precision::F32, None) => Transposed::Made(prepared),
            (Precision::Bf16, _) => {
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
        match self.precision {
            Precision::F32 => Operands { d_y, columns: d_y, examples: [x.examples(some), d_y] },
            Precision::Bf16 => {
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
                Operands { d_y, columns, examples: [x, d] }
            }
        }
    }

    /// Writes d_X = d_Y·W, times the mask.
    pub fn data_gradient(
        &self,
        of: Operands<'_>,
        transposed: Transposed<'_>,
        mask: Option<Mask<'_>>,
        d_x: &mut ActivationsMut<'_>,
    ) {
        data_gradient(self.precision, of.columns, transposed, mask, d_x);
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
        let (precision, [x, d_y]) = (self.precision, of.examples);
        let Some(update) = update else {
            return weight_gradient(precision, x, d_y, fresh, d_w);
        };
        update.apply_product((precision, self.matrix), x, d_y, fresh, d_w);
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

/// The words of two examples that have these, the first of them even.
const fn in_pairs(some: Range<usize>) -> Range<usize> {
    some.start / 2..some.end.div_ceil(2)
}
