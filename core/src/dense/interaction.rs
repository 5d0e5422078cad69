//! Interactions between feature vectors.
//!
//! - dot: all pairwise dot products, Naumov et al., arXiv 1906.00091, section 2.1.3, in the order of
//!   its reference program: for i, for j < i.
//! - second order of a factorization machine: Rendle, "Factorization Machines", ICDM 2010, lemma 3.1.
//!
//! Letters: n examples, F vectors, d elements of a vector.

use crate::kernel::{Matrix, MatrixMut, gemm, workspace_len};

/// Shape of the vectors that interact. `[n, vectors, width]`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vectors {
    /// F
    pub vectors: usize,
    /// d
    pub width: usize,
}

impl Vectors {
    /// Elements of one example.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.vectors * self.width
    }

    /// There are no vectors.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pairs (i, j) with j < i.
    #[must_use]
    pub const fn pairs(&self) -> usize {
        self.vectors * self.vectors.saturating_sub(1) / 2
    }

    /// f32s of scratch for [`Self::dot`] and [`Self::dot_backward`]: a square, and the product's.
    #[must_use]
    pub fn dot_scratch_len(&self) -> usize {
        let product = workspace_len(self.vectors, self.vectors, self.width);
        let backward = workspace_len(self.vectors, self.width, self.vectors);
        self.vectors * self.vectors + product.max(backward)
    }

    /// Writes the pairwise dot products of example `i` to `out[i * stride + at..][..pairs]`.
    /// `t`: `[n, F, d]`
    pub fn dot(&self, t: &[f32], out: &mut [f32], stride: usize, at: usize, scratch: &mut [f32]) {
        let f = self.vectors;
        let (square, scratch) = scratch.split_at_mut(f * f);
        for (t, out) in t.chunks_exact(self.len()).zip(out.chunks_exact_mut(stride)) {
            let t = Matrix::new(t, f, self.width);
            gemm(t, t.t(), false, &mut MatrixMut::new(square, f, f), scratch);
            let mut out = &mut out[at..at + self.pairs()];
            for i in 1..f {
                let (row, rest) = out.split_at_mut(i);
                row.copy_from_slice(&square[i * f..i * f + i]);
                out = rest;
            }
        }
    }

    /// Writes to `d_t` `[n, F, d]` the gradient of [`Self::dot`], given that of its output, which
    /// stands in `d_out` as `dot` writes its output.
    pub fn dot_backward(
        &self,
        t: &[f32],
        d_out: &[f32],
        stride: usize,
        at: usize,
        d_t: &mut [f32],
        scratch: &mut [f32],
    ) {
        let f = self.vectors;
        let (square, scratch) = scratch.split_at_mut(f * f);
        let examples = t.chunks_exact(self.len()).zip(d_out.chunks_exact(stride));
        for ((t, d_out), d_t) in examples.zip(d_t.chunks_exact_mut(self.len())) {
            // z_ij = t_i · t_j gives d_t_i = Σ_j d_z_ij t_j: a symmetric matrix with zeros on the
            // diagonal, times T.
            let mut d_z = &d_out[at..at + self.pairs()];
            for i in 0..f {
                let (row, rest) = d_z.split_at(i);
                square[i * f..i * f + i].copy_from_slice(row);
                square[i * f + i] = 0.0;
                for (j, g) in row.iter().enumerate() {
                    square[j * f + i] = *g;
                }
                d_z = rest;
            }
            let (z, t) = (Matrix::new(square, f, f), Matrix::new(t, f, self.width));
            gemm(z, t, false, &mut MatrixMut::new(d_t, f, self.width), scratch);
        }
    }

    /// Adds ½ Σ_k [(Σ_f v_fk)² − Σ_f v_fk²] to every logit. `v`: `[n, F, d]`, `logits: [n]`,
    /// `sums: [d]` scratch
    pub fn second_order(&self, v: &[f32], logits: &mut [f32], sums: &mut [f32]) {
        for (v, logit) in v.chunks_exact(self.len()).zip(logits) {
            let sums = &mut sums[..self.width];
            sum_vectors(v, sums);
            let squares: f32 = v.iter().map(|x| x * x).sum();
            let whole: f32 = sums.iter().map(|x| x * x).sum();
            *logit += 0.5 * (whole - squares);
        }
    }

    /// Adds to `d_v` `[n, F, d]` the gradient of [`Self::second_order`]: d_v_fk = g (Σ_f v_fk − v_fk).
    pub fn second_order_backward(
        &self,
        v: &[f32],
        d_logits: &[f32],
        d_v: &mut [f32],
        sums: &mut [f32],
    ) {
        let examples = v.chunks_exact(self.len()).zip(d_v.chunks_exact_mut(self.len()));
        for ((v, d_v), g) in examples.zip(d_logits) {
            let sums = &mut sums[..self.width];
            sum_vectors(v, sums);
            for (v, d_v) in v.chunks_exact(self.width).zip(d_v.chunks_exact_mut(self.width)) {
                for ((d, v), sum) in d_v.iter_mut().zip(v).zip(&*sums) {
                    *d += g * (sum - v);
                }
            }
        }
    }
}

fn sum_vectors(v: &[f32], sums: &mut [f32]) {
    sums.fill(0.0);
    for v in v.chunks_exact(sums.len()) {
        sums.iter_mut().zip(v).for_each(|(sum, x)| *sum += x);
    }
}
