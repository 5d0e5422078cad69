//! f32s as sums of three bf16s, for processors that multiply matrices of bf16s many times as fast.
//!
//! After Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For
//! Higher-Precision Computations" (arXiv 1904.06376): x = x₀ + x₁ + x₂, where x₀ is the bf16
//! nearest to x, x₁ that nearest to what is left, and x₂ the rest, which is a bf16 itself where
//! nothing is denormal: 24 bits are three times 8. Of the nine products of the parts of a and b the
//! three smallest are left out, together at most 2⁻²⁴ (1 + 2⁻⁹) of |a b|, as much as one rounding
//! of an f32. Sums are f32, as ever, but for their order (`amx/mod.rs`). What is infinite or no
//! number makes NaNs; a part below 2⁻¹²⁶ is 0, so an operand below 2⁻¹⁰² has fewer bits.
//!
//! Operands stand as the registers are loaded: rows of A, or columns of B, thirty-two at a time, a
//! *tile*; of a tile one *step* of thirty-two elements of the sum after another; of a step three
//! *planes*, the parts; of a plane two matrices of 16 × 16 words, those of A `[row][word]` and of B
//! `[word][column]`. A word is two neighbours of the sum, the first in its lower half. Behind the
//! last element of the sum zeros follow, to the end of the step; rows and columns behind the last
//! are left as they are, and so is what the registers make of them.
//!
//! - `split.rs`: the parts of f32s; `made.rs`: operands that are made beside products
//! - `products.rs`: the products of a linear layer

mod made;
mod products;
mod split;

#[cfg(test)]
pub(super) use made::{Columns, MakeAll, Panels, Rows, TransposedPanels};
#[cfg(target_arch = "x86_64")]
pub(super) use made::{Make, Part};
pub(super) use products::{GradientOfThirds, UpdateOfThirds};
pub use products::{data_gradient_of_thirds, forward_of_thirds};
#[cfg(test)]
pub(super) use split::SplitExamples;
pub use split::split_examples;

use super::layout::PANEL;

/// Rows, or words of a row, of a register.
const SIDE: usize = 16;
/// Elements of the sum of a step: two a word.
const DEPTH: usize = 2 * SIDE;
/// f32s of a part of a step: two registers.
pub(super) const PLANE: usize = 2 * SIDE * SIDE;
/// f32s of a step.
pub(super) const STEP: usize = 3 * PLANE;
const _: () = assert!(PANEL == 2 * SIDE, "a tile is a panel, or a block of columns");

/// f32s of the thirds of `count` rows or columns over `depth`.
#[must_use]
pub const fn thirds_len(count: usize, depth: usize) -> usize {
    count.div_ceil(PANEL) * depth.div_ceil(DEPTH) * STEP
}

/// An operand, as [`split_examples`] made it. `[depth, count]` of B
#[derive(Clone, Copy, Debug)]
pub struct Thirds<'a> {
    words: &'a [f32],
    count: usize,
    depth: usize,
}

impl<'a> Thirds<'a> {
    /// What is in `words`, of [`thirds_len`].
    fn new(words: &'a [f32], count: usize, depth: usize) -> Self {
        assert!(words.len() >= thirds_len(count, depth), "words of thirds");
        Self { words, count, depth }
    }

    /// Rows of A, or columns of B.
    pub(super) const fn count(self) -> usize {
        self.count
    }

    /// Elements of the sum.
    pub(super) const fn depth(self) -> usize {
        self.depth
    }

    /// Its steps, tile by tile.
    pub(super) fn steps(self) -> *const [f32; STEP] {
        self.words.as_ptr().cast()
    }
}
