//! What a part says to the others where activations cross, and what it makes of what they say.
//!
//! DCT, arXiv 2010.08899, model parallelism; messages are those of `compress/crossing.rs`, carried
//! by whoever has the parts. At a boundary whose layer is split every part sends its columns to
//! all, and gets the gradient of them from all. Where all parts have computed the output, each
//! holds it against the threshold by itself, and all send their terms of its gradient to all.
//!
//! Invariants: all parts have the same output behind a boundary, and terms are added up in the
//! order of the parts, each as it was sent, one's own too. So what several parts need has the same
//! bits on all of them.

use super::{Boundary, Model};
use crate::compress::{
    Coding, Counts, Finding, Kept, Malformed, Mask, Threshold, Values, add, gather, hold, mask_len,
    pass, scatter,
};
use crate::kernel::{Activations, ActivationsMut};

/// The memory of a part for what crosses.
#[derive(Debug)]
pub struct Carrier<'a> {
    /// What is sent of it.
    pub coding: Coding,
    /// Another number every step.
    pub turn: u32,
    /// By boundary, those of own columns. `[boundaries]`, defaults in the beginning.
    pub thresholds: &'a mut [Threshold],
    /// Scratch. `[crossing_len]`
    pub output: &'a mut [f32],
    /// Scratch. `[crossing_len]`
    pub gradient: &'a mut [f32],
    /// Scratch. `[mask_len(crossing_len)]`
    pub mask: &'a mut [u32],
    /// Scratch.
    pub counts: &'a mut Counts,
}

impl Model {
    /// Most elements that cross at a boundary, for a batch of `n` examples.
    #[must_use]
    pub fn crossing_len(&self, n: usize) -> usize {
        n * self.boundaries().map(|at| at.width).max().unwrap_or(0)
    }
}

impl Carrier<'_> {
    /// Holds own columns of an output against the threshold, and writes what all other parts get to
    /// `out`: nothing where they have the output themselves.
    pub fn send_output(
        &mut self,
        at: &Boundary,
        y: &mut ActivationsMut<'_>,
        out: &mut [u8],
    ) -> Kept {
        let Self { coding, turn, thresholds, output, mask, counts, .. } = self;
        leave(at, y, (output, out), |output, out| {
            let finding = Finding { mask: &mut mask[..mask_len(output.len())], counts };
            hold(output, &mut thresholds[at.number], *coding, *turn, finding, out)
        })
    }

    /// As [`send_output`](Self::send_output) while nobody learns: thresholds stay as they are,
    /// whatever passes; or `all` is sent as it is.
    pub fn send_scored(
        &mut self,
        at: &Boundary,
        all: bool,
        y: &mut ActivationsMut<'_>,
        out: &mut [u8],
    ) -> Kept {
        let (tau, values) = if all {
            (0.0, Values::F32)
        } else {
            (self.thresholds[at.number].tau(), self.coding.values)
        };
        let Self { output, mask, .. } = self;
        leave(at, y, (output, out), |output, out| pass(output, tau, values, mask, out))
    }

    /// Takes the columns that another part has sent.
    ///
    /// # Errors
    /// When it is no message of them.
    pub fn take_output(
        &mut self,
        at: &Boundary,
        part: usize,
        message: &[u8],
        y: &mut ActivationsMut<'_>,
    ) -> Result<(), Malformed> {
        let mut columns = y.columns(at.columns(part));
        let output = &mut self.output[..len(columns.view())];
        output.fill(0.0);
        add(message, output)?;
        columns.unpack(output);
        Ok(())
    }

    /// Writes what `part` gets of this part's term of a gradient to `out`.
    pub fn send_gradient(
        &mut self,
        at: &Boundary,
        part: usize,
        y: Activations<'_>,
        d: Activations<'_>,
        out: &mut [u8],
    ) -> Kept {
        let values = self.coding.values;
        let (mask, gradient) = self.sent(at, part, y);
        d.columns(at.columns(part)).pack(gradient);
        Kept { elements: mask.count(), bytes: gather(gradient, &mask, values, out) }
    }

    /// Makes own columns of a gradient the sum of what all parts have sent, in their order.
    ///
    /// # Errors
    /// When something else was sent than their terms.
    pub fn take_gradient<'m>(
        &mut self,
        at: &Boundary,
        messages: impl Iterator<Item = &'m [u8]>,
        y: Activations<'_>,
        d: &mut ActivationsMut<'_>,
    ) -> Result<(), Malformed> {
        let values = self.coding.values;
        let (mask, gradient) = self.sent(at, at.of.part, y);
        gradient.fill(0.0);
        for message in messages {
            scatter(message, &mask, values, gradient)?;
        }
        d.columns(at.own()).unpack(gradient);
        Ok(())
    }

    /// What was sent of the columns of `part` of an output, and room for their gradient.
    fn sent(&mut self, at: &Boundary, part: usize, y: Activations<'_>) -> (Mask<'_>, &mut [f32]) {
        let columns = y.columns(at.columns(part));
        let output = &mut self.output[..len(columns)];
        columns.pack(output);
        let words = &mut self.mask[..mask_len(output.len())];
        (Mask::nonzero(output, words), &mut self.gradient[..len(columns)])
    }
}

const fn len(activations: Activations<'_>) -> usize {
    activations.n() * activations.width()
}

/// Leaves of own columns of an output what `held` does, which writes to `out` where others get it.
/// `columns`: scratch
fn leave(
    at: &Boundary,
    y: &mut ActivationsMut<'_>,
    (columns, out): (&mut [f32], &mut [u8]),
    held: impl FnOnce(&mut [f32], Option<&mut [u8]>) -> Kept,
) -> Kept {
    let mut own = y.columns(at.own());
    let columns = &mut columns[..len(own.view())];
    own.view().pack(columns);
    let kept = held(columns, at.split.then_some(out));
    own.unpack(columns);
    kept
}
