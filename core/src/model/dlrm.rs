//! DLRM: Naumov et al., arXiv 1906.00091, figure 1.
//!
//! x = bottom(dense); T = [x; e_1 … e_S]; Z = all t_i · t_j with j < i; logit = top([x, Z]).
//! Without dense features there is no x: T holds the embeddings alone and the top's input is Z.

use super::Model;
use super::buffers::Buffers;
use super::step::{BackwardPass, Tile};
use crate::dense::mlp::{Backward, Replica, Scratch, Stored, Training};
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
        let Buffers { vectors, joined, bottom, top, product, sums, .. } = buffers;
        let (n, x_width, stride) = (tile.n, self.x_width(), self.joined_width());
        if x_width > 0 {
            let scratch = &mut Scratch { kept: buffers.bottom_kept, sums, product };
            let training = training.as_deref_mut();
            self.bottom.forward(replica, n, tile.dense, training, bottom, scratch);
            let x = self.bottom.output(n, bottom).chunks_exact(x_width);
            let t = vectors.chunks_exact_mut(self.vectors.len());
            for ((x, t), joined) in x.zip(t).zip(joined.chunks_exact_mut(stride)) {
                t[..x_width].copy_from_slice(x);
                joined[..x_width].copy_from_slice(x);
            }
        }
        tile.bags.pool(n, tile.rows, &self.embeddings(), vectors);
        self.vectors.dot(vectors, joined, stride, x_width, buffers.interaction);
        let scratch = &mut Scratch { kept: buffers.top_kept, sums, product };
        self.top.forward(replica, n, joined, training, top, scratch);
        buffers.logits.copy_from_slice(self.top.output(n, top));
    }

    pub(super) fn dlrm_backward(
        &self,
        tile: &Tile<'_>,
        pass: BackwardPass<'_>,
        buffers: &mut Buffers<'_>,
    ) {
        let Buffers { vectors, d_vectors, joined, d_joined, product, sums, .. } = buffers;
        let [d, other] = &mut buffers.d;
        let (n, x_width, stride) = (tile.n, self.x_width(), self.joined_width());
        d[..n].copy_from_slice(buffers.d_logits);
        let BackwardPass { parameters, d_parameters, d_rows, fresh, reduce } = pass;
        let stored = Stored { parameters, x: joined, activations: buffers.top };
        let out =
            Backward { parameters: &mut *d_parameters, fresh, d, other, reduce: &mut *reduce };
        let scratch = &mut Scratch { kept: buffers.top_kept, sums, product };
        self.top.backward(n, stored, out, Some(&mut *d_joined), scratch);
        self.vectors.dot_backward(
            vectors,
            d_joined,
            stride,
            x_width,
            d_vectors,
            buffers.interaction,
        );
        tile.bags.pool_backward(n, d_vectors, &self.embeddings(), d_rows);
        if x_width > 0 {
            // x reaches the loss twice: through the dot products and directly.
            let through = d_vectors.chunks_exact(self.vectors.len());
            let direct = d_joined.chunks_exact(stride);
            for ((through, direct), d) in through.zip(direct).zip(d.chunks_exact_mut(x_width)) {
                for ((d, a), b) in d.iter_mut().zip(&through[..x_width]).zip(direct) {
                    *d = a + b;
                }
            }
            let stored = Stored { parameters, x: tile.dense, activations: buffers.bottom };
            let out = Backward { parameters: d_parameters, fresh, d, other, reduce };
            let scratch = &mut Scratch { kept: buffers.bottom_kept, sums, product };
            self.bottom.backward(n, stored, out, None, scratch);
        }
    }
}
