//! How the examples of a chain are walked, and what waits between two of its layers.
//!
//! A batch norm has all examples pass at once. They go a tile at a time all the same, and what can
//! be done with one is done while it is near: a norm waits for its sums, and is applied where the
//! next layer multiplies; on the way back its sums are added where the gradient was written.

use core::ops::Range;
use core::sync::atomic::AtomicU32;

use super::dropout::{Masks, drop_units};
use super::mlp::{Layer, Training};
use super::norm::Norm;
use crate::kernel::{Activations, ActivationsMut};

/// Whether a tile comes first or last.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) first: bool,
    pub(super) last: bool,
}

/// `most` at a time, forth for one layer and back for the next: those that were near last come
/// first.
pub(super) fn tiles(
    (n, most): (usize, usize),
    layer: usize,
) -> impl Iterator<Item = (Range<usize>, Place)> {
    let count = n.div_ceil(most);
    (0..count).map(move |at| {
        let start = most * if layer.is_multiple_of(2) { at } else { count - 1 - at };
        (start..n.min(start + most), Place { first: at == 0, last: at + 1 == count })
    })
}

/// The output of a layer on its way forward.
pub(super) struct Output<'a> {
    pub(super) layer: &'a Layer,
    /// Of the linear part, if a norm follows. `[n, outputs]`
    pub(super) linear: Option<ActivationsMut<'a>>,
    /// Of the norm.
    pub(super) kept: &'a [f64],
    /// `[n, outputs]`
    pub(super) y: ActivationsMut<'a>,
    /// All of it is there.
    pub(super) finished: bool,
}

impl Output<'_> {
    /// What follows the linear part, of some of the examples; nothing if all have it.
    pub(super) fn finish(
        &mut self,
        parameters: &[AtomicU32],
        training: Option<&Training<'_>>,
        examples: Range<usize>,
    ) {
        if self.finished {
            return;
        }
        let mut y = self.y.examples(examples.clone());
        let Layer { stream, dropout, relu, .. } = *self.layer;
        let masks = training.filter(|_| dropout > 0.0).map(|training| {
            Masks::new(training.key, &training.rows[examples.clone()], stream, dropout)
        });
        match (&self.layer.norm, &self.linear) {
            (Some(norm), Some(x)) => {
                let x = x.view().examples(examples);
                norm.apply(parameters, self.kept, x, (relu, masks), &mut y);
            }
            _ => masks.into_iter().for_each(|masks| drop_units(masks, &mut y)),
        }
    }
}

/// A norm on the way back.
pub(super) struct Normalized<'a> {
    pub(super) norm: Norm,
    /// Its input. `[n, units]`
    pub(super) linear: Activations<'a>,
    pub(super) kept: &'a [f64],
}

impl Normalized<'_> {
    pub(super) fn add_products(
        &self,
        d_y: Activations<'_>,
        examples: Range<usize>,
        sums: &mut [f64],
    ) {
        self.norm.add_products(self.linear.examples(examples), d_y, sums);
    }

    pub(super) fn apply_gradient(
        &self,
        parameters: &[AtomicU32],
        examples: Range<usize>,
        means: &[f64],
        d: &mut ActivationsMut<'_>,
    ) {
        let x = self.linear.examples(examples);
        self.norm.apply_gradient(parameters, self.kept, means, x, d);
    }
}
