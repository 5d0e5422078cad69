//! An MLP that ends in a logit, with its buffers.

use super::space::Space;
use super::step::{BackwardPass, ForwardPass};
use crate::dense::mlp::{Backward, Mlp, Scratch, Stored};
use crate::kernel::{Activations, ActivationsMut};

/// Buffers of a tile of n examples.
pub(super) struct Tower<'a> {
    /// What a step makes of the matrices.
    prepared: &'a mut [f32],
    /// Scratch of products.
    operands: &'a mut [f32],
    /// What forward stores.
    stored: &'a mut [f32],
    /// Gradients on their way back, two in turn.
    d: [&'a mut [f32]; 2],
    /// f64s that the norms keep.
    kept: &'a mut [f64],
    /// f64 scratch of the norms.
    sums: &'a mut [f64],
}

impl<'a> Tower<'a> {
    /// `prepared` is taken by the caller: all its chains' first, then what depends on n
    /// (`space.rs`).
    pub(super) fn new(mlp: &Mlp, n: usize, prepared: &'a mut [f32], space: &mut Space<'a>) -> Self {
        let gradient = mlp.gradient_len(n);
        Self {
            prepared,
            operands: space.single(mlp.operands_len(n)),
            stored: space.single(mlp.stored_len(n)),
            d: [space.single(gradient), space.single(gradient)],
            kept: space.double(mlp.kept_len()),
            sums: space.double(mlp.sums_len()),
        }
    }

    /// Adds the output of `mlp` on `x` to the logits.
    pub(super) fn forward(self, mlp: &Mlp, x: Activations<'_>, pass: &mut ForwardPass<'_, '_>) {
        let Self { prepared, operands, kept, sums, .. } = self;
        let scratch = &mut Scratch { prepared, operands, kept, sums };
        let training = pass.training.as_deref_mut();
        mlp.forward(pass.replica, x, training, &mut *pass.exchange, self.stored, scratch);
        mlp.output(x.n(), self.stored).add_column(0, pass.logits);
    }

    /// Writes the gradient of `x`, and those of the parameters of `mlp`.
    pub(super) fn backward(
        self,
        mlp: &Mlp,
        x: Activations<'_>,
        d_x: ActivationsMut<'_>,
        pass: &mut BackwardPass<'_>,
    ) {
        let [d, other] = self.d;
        d[..x.n()].copy_from_slice(pass.d_logits);
        let stored = Stored { parameters: pass.parameters, x, activations: self.stored };
        let out = Backward {
            parameters: &mut *pass.d_parameters,
            fresh: pass.fresh,
            d,
            other,
            update: pass.update,
            reduce: &mut *pass.reduce,
            exchange: &mut *pass.exchange,
        };
        let Self { prepared, operands, kept, sums, .. } = self;
        mlp.backward(stored, out, Some(d_x), &mut Scratch { prepared, operands, kept, sums });
    }
}
