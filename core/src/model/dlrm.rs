//! DLRM: Naumov et al., arXiv 1906.00091, figure 1.
//!
//! x = bottom(dense); T = [x; e_1 … e_S]; Z = all t_i · t_j with j < i; logit = top([x, Z]).
//! Without dense features there is no x: T holds the embeddings alone and the top's input is Z.

use super::Model;
use super::buffers::Buffers;
use super::step::{BackwardPass, Tile};
use crate::dense::mlp::{Backward, Replica, Scratch, Stored, Training};
use crate::kernel::{Activations, ActivationsMut, Strides, dot, dot_backward};
use crate::sparse::bag::Pooled;

impl Model {
    /// Elements of x: d, or 0 without a bottom MLP.
    fn x_width(&self) -> usize {
        if self.bottom.is_empty() { 0 } else { self.vectors.width }
    }

    /// Where the embeddings stand in T.
    fn embeddings(&self) -> Pooled {
        Pooled { columns: 0..self.vectors.width, stride: self.vectors.len(), at: self.x_width() }
    }

    pub(super) fn dlrm_forward(
        &self,
        replica: Replica<'_>,
        tile: &Tile<'_>,
        mut training: Option<&mut Training<'_>>,
        buffers: &mut Buffers<'_>,
    ) {
        let Buffers { vectors, joined, bottom, top, sums, .. } = buffers;
        let (n, x_width) = (tile.n, self.x_width());
        if x_width > 0 {
            let scratch = &mut Scratch { kept: buffers.bottom_kept, sums };
            let training = training.as_deref_mut();
            self.bottom.forward(replica, self.dense(tile), training, bottom, scratch);
            let x = self.bottom.output(n, bottom);
            for (i, t) in vectors.chunks_exact_mut(self.vectors.len()).enumerate().take(n) {
                x.copy_row(i, &mut t[..x_width]);
            }
        }
        tile.bags.pool(n, tile.rows, &self.embeddings(), vectors);
        let mut joined = ActivationsMut::blocked(joined, n, self.joined_width());
        dot(self.dot(), vectors, &mut joined, buffers.interaction);
        let scratch = &mut Scratch { kept: buffers.top_kept, sums };
        self.top.forward(replica, joined.view(), training, top, scratch);
        self.top.output(n, top).copy_column(0, buffers.logits);
    }

    /// The input of the bottom MLP.
    pub(super) fn dense<'a>(&self, tile: &Tile<'a>) -> Activations<'a> {
        let features = self.dense_features;
        Activations::new(tile.dense, tile.n, features, Strides::row_major(features))
    }

    pub(super) fn dlrm_backward(
        &self,
        tile: &Tile<'_>,
        pass: BackwardPass<'_>,
        buffers: &mut Buffers<'_>,
    ) {
        let Buffers { vectors, d_vectors, joined, d_joined, sums, .. } = buffers;
        let [d, other] = &mut buffers.d;
        let (n, x_width, width) = (tile.n, self.x_width(), self.joined_width());
        d[..n].copy_from_slice(buffers.d_logits);
        let BackwardPass { parameters, d_parameters, d_rows, fresh, update, reduce } = pass;
        let stored = Stored {
            parameters,
            transposed: buffers.top_transposed,
            x: Activations::blocked(joined, n, width),
            activations: buffers.top,
        };
        let out = Backward {
            parameters: &mut *d_parameters,
            fresh,
            d,
            other,
            update,
            reduce: &mut *reduce,
        };
        let scratch = &mut Scratch { kept: buffers.top_kept, sums };
        let d_x = ActivationsMut::blocked(d_joined, n, width);
        self.top.backward(stored, out, Some(d_x), scratch);
        let d_joined = Activations::blocked(d_joined, n, width);
        dot_backward(self.dot(), vectors, d_joined, d_vectors, buffers.interaction);
        tile.bags.pool_backward(n, d_vectors, &self.embeddings(), d_rows);
        if x_width > 0 {
            // x reaches the loss twice: through the dot products and directly.
            let mut d_x = ActivationsMut::blocked(d, n, x_width);
            for (i, through) in d_vectors.chunks_exact_mut(self.vectors.len()).enumerate().take(n) {
                let through = &mut through[..x_width];
                d_joined.add_row(i, through);
                d_x.set_row(i, through);
            }
            let stored = Stored {
                parameters,
                transposed: buffers.bottom_transposed,
                x: self.dense(tile),
                activations: buffers.bottom,
            };
            let out = Backward { parameters: d_parameters, fresh, d, other, update, reduce };
            let scratch = &mut Scratch { kept: buffers.bottom_kept, sums };
            self.bottom.backward(stored, out, None, scratch);
        }
    }
}
