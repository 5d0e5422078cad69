//! Interactions between feature vectors.
//!
//! - dot: all pairwise dot products, Naumov et al., arXiv 1906.00091, section 2.1.3, in the order
//!   of its reference program: for i, for j < i.
//! - second order of a factorization machine: Rendle, "Factorization Machines", ICDM 2010, lemma
//!   3.1.
//!
//! Letters: n examples, F vectors, d elements of a vector.

use crate::kernel::DotShape;

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

    /// The dot products of all pairs, behind the first vector's own elements if `lead`.
    #[must_use]
    pub const fn dot(&self, lead: bool) -> DotShape {
        let Self { vectors, width } = *self;
        DotShape { vectors, width, lead: if lead { width } else { 0 } }
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

    /// Adds to `d_v` `[n, F, d]` the gradient of [`Self::second_order`]: d_v_fk = g (Σ_f v_fk −
    /// v_fk).
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
