//! The plainest input of an MLP: all embedding vectors of an example in a row, then its dense
//! features.
//!
//! x = [e_1 … e_S, dense], `[n, S·d + D]` in the layout `Strides::padded`.

use super::step::{BackwardPass, ForwardPass, Tile};
use crate::kernel::{Activations, ActivationsMut, Strides, padded_len};
use crate::sparse::bag::Pooled;

/// Shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Concatenation {
    /// S
    pub(super) fields: usize,
    /// D
    pub(super) dense_features: usize,
    /// d
    pub(super) embedding_dim: usize,
    /// Columns of a row in front of its vector.
    pub(super) first_column: usize,
}

impl Concatenation {
    /// Columns of x.
    pub(super) const fn width(&self) -> usize {
        self.fields * self.embedding_dim + self.dense_features
    }

    /// f32s of an embedding row.
    pub(super) const fn row_width(&self) -> usize {
        self.first_column + self.embedding_dim
    }

    /// f32s of x for `n` examples.
    pub(super) const fn len(&self, n: usize) -> usize {
        padded_len(n, self.width())
    }

    const fn strides(&self) -> Strides {
        Strides::padded(self.width())
    }

    /// Where the embeddings stand in x.
    const fn embeddings(&self) -> Pooled {
        let columns = self.first_column..self.row_width();
        Pooled { columns, stride: self.strides().row, at: 0 }
    }

    /// Writes x.
    pub(super) fn fill(&self, tile: &Tile<'_>, pass: &mut ForwardPass<'_, '_>, x: &mut [f32]) {
        pass.gather.forward(tile, pass.replica.parameters, &self.embeddings(), x);
        if self.dense_features == 0 {
            return;
        }
        let examples = tile.dense.chunks_exact(self.dense_features);
        for (x, dense) in x.chunks_mut(self.strides().row).zip(examples) {
            x[self.fields * self.embedding_dim..self.width()].copy_from_slice(dense);
        }
    }

    /// Adds the gradient of x to that of the rows.
    pub(super) fn backward(&self, tile: &Tile<'_>, d_x: &[f32], pass: BackwardPass<'_>) {
        let BackwardPass { d_parameters, d_rows, fresh, update, gather, .. } = pass;
        gather.backward(tile, (d_x, &self.embeddings()), d_rows, (d_parameters, fresh, update));
    }

    /// x as an MLP reads it.
    pub(super) fn view<'a>(&self, n: usize, x: &'a [f32]) -> Activations<'a> {
        Activations::new(x, n, self.width(), self.strides())
    }

    /// Its gradient as an MLP writes it.
    pub(super) fn view_mut<'a>(&self, n: usize, d_x: &'a mut [f32]) -> ActivationsMut<'a> {
        ActivationsMut::new(d_x, n, self.width(), self.strides())
    }
}
