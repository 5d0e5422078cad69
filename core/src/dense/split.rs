//! Layers whose outputs are dealt to several ranks: what of a layer a rank computes, and what
//! crosses from rank to rank.
//!
//! DCT, arXiv 2010.08899, model parallelism (`compress/crossing.rs` is what is sent). Of P *parts*
//! each computes a part of the outputs of every layer that is split, and all of the others. What
//! stands at a *boundary*, the output of a layer that is split or is the input of one that is,
//! crosses:
//!
//! - forward, each part's columns of the output of a split layer to all parts;
//! - backward, the gradient of the input of a split layer, which every part has a term of: to the
//!   part that has the column, or to all of them where all have computed it.
//!
//! Invariants: parts hold whole panels (`kernel/layout.rs`), so a part of a matrix has no gaps.
//! What is not split has the same bits on all parts. An output that does not pass the threshold is
//! 0 on all parts, and as that of a ReLU passes no gradient.

use core::ops::Range;

use crate::kernel::{Activations, ActivationsMut, PANEL};

/// One of several parts of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartOf {
    /// Its number.
    pub part: usize,
    /// How many there are.
    pub parts: usize,
}

/// Where activations and their gradients cross from part to part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Its number in the model, from 0.
    pub number: usize,
    /// Columns of what crosses.
    pub width: usize,
    /// The part that asks.
    pub of: PartOf,
    /// Each part computes its own columns; otherwise all parts compute all of them.
    pub split: bool,
}

impl Boundary {
    /// The columns that `part` computes, and whose gradient it needs.
    #[must_use]
    pub const fn columns(&self, part: usize) -> Range<usize> {
        if self.split { columns(self.width, part, self.of.parts) } else { 0..self.width }
    }

    /// Those of the part that asks.
    #[must_use]
    pub const fn own(&self) -> Range<usize> {
        self.columns(self.of.part)
    }
}

/// The columns of `part`, of `width` that are dealt to `parts`: whole panels.
const fn columns(width: usize, part: usize, parts: usize) -> Range<usize> {
    let panels = width.div_ceil(PANEL);
    let first = panels * part / parts * PANEL;
    let end = panels * (part + 1) / parts * PANEL;
    first..if end < width { end } else { width }
}

/// Whether a layer of `outputs` is dealt to `parts`: two panels each, so that the smallest part is
/// no less than half of the largest.
#[must_use]
pub(crate) const fn is_worth_it(outputs: usize, parts: usize) -> bool {
    parts > 1 && outputs >= 2 * PANEL * parts
}

/// What the parts do together, in the same order on all of them.
#[derive(Debug)]
pub enum Crossing<'a> {
    /// Own columns of an output are there. All of them are wanted, those that do not pass as 0.
    Outputs {
        /// Where.
        at: &'a Boundary,
        /// `[n, width]`
        y: ActivationsMut<'a>,
    },
    /// A term of a gradient is there, 0 where the output is. The sum over all parts is wanted, in
    /// own columns at least.
    Gradient {
        /// Where.
        at: &'a Boundary,
        /// The output, as it crossed. `[n, width]`
        y: Activations<'a>,
        /// `[n, width]`
        d: ActivationsMut<'a>,
    },
}

/// Carries what crosses.
pub type Exchange<'a> = dyn FnMut(Crossing<'_>) + 'a;
