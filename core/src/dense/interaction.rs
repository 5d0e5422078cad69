//! The shape of interacting feature vectors.
//!
//! Interactions are kernels: `kernel/dot.rs`, all pairwise dot products, Naumov et al., arXiv
//! 1906.00091, section 2.1.3, in the order of its reference program: for i, for j < i;
//! `kernel/second_order.rs`, a factorization machine's.
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
}
