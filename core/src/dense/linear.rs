//! A linear layer: Y = X·Wᵀ + b, with W `[outputs, inputs]` as in PyTorch.
//!
//! W stands in panels and X, Y where their owner put them (`kernel/layout.rs`). A layer holds
//! offsets into the parameters, never numbers.

use core::sync::atomic::AtomicU32;

use super::replica::Update;
use crate::kernel::{
    Activations, ActivationsMut, bias_gradient, forward, transpose, weight_gradient,
};

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
}

impl Linear {
    /// Elements of W.
    #[must_use]
    pub const fn matrix_len(&self) -> usize {
        self.outputs * self.inputs
    }

    /// Writes Y `[n, outputs]` of X `[n, inputs]`, cut below at 0 if `relu`.
    pub fn forward(
        &self,
        parameters: &[AtomicU32],
        x: Activations<'_>,
        relu: bool,
        y: &mut ActivationsMut<'_>,
    ) {
        let bias = self.bias.map(|bias| &parameters[bias..bias + self.outputs]);
        forward(x, self.w(parameters), bias, relu, y);
    }

    /// Writes the panels of Wᵀ, which the gradient of X needs. `transposed: [matrix_len]`
    pub fn transpose(&self, parameters: &[AtomicU32], transposed: &mut [f32]) {
        transpose(self.w(parameters), self.outputs, self.inputs, transposed);
    }

    /// Sets d_W and d_b in the gradient of the parameters, or adds to them unless `fresh`; where
    /// there is an `update`, the parameters are updated by them.
    pub fn gradient(
        &self,
        x: Activations<'_>,
        d_y: Activations<'_>,
        fresh: bool,
        update: Option<Update<'_>>,
        d_parameters: &mut [f32],
    ) {
        if let Some(bias) = self.bias {
            bias_gradient(d_y, fresh, &mut d_parameters[bias..bias + self.outputs]);
        }
        let d_w = &mut d_parameters[self.matrix..self.matrix + self.matrix_len()];
        let Some(update) = update else { return weight_gradient(x, d_y, fresh, d_w) };
        update.apply_product(self.matrix, x, d_y, fresh, d_w);
        if let Some(bias) = self.bias {
            update.apply(bias, &d_parameters[bias..bias + self.outputs]);
        }
    }

    fn w<'a>(&self, parameters: &'a [AtomicU32]) -> &'a [AtomicU32] {
        &parameters[self.matrix..self.matrix + self.matrix_len()]
    }
}
