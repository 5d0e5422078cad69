//! A dense replica that is dealt to several ranks, layer by layer.
//!
//! DCT, arXiv 2010.08899, model parallelism. The ranks of a replica read the same batches and look
//! up the same rows; each computes its columns of the layers that are split, and all others alike
//! (`umbra_core::model`, `part.rs`). What crosses between layers goes over a communicator of these
//! ranks alone, of which the one worker of a rank is the user while it trains, and the main thread
//! between two stretches.
//!
//! Invariants: all ranks of a replica make the same calls in the same order. What is not split has
//! the same bits on all of them. A rank's own slices are up to date, and those of others are not,
//! and take no memory but for a while: [`Parts::gather`] makes the replica whole, to be saved, and
//! [`Parts::release`] gives the memory back.

use core::ops::Range;
use core::sync::atomic::AtomicU32;
use std::time::Instant;

use umbra_core::compress::{Coding, Counts, Threshold, Values, len_max, mask_len};
use umbra_core::dense::replica::{Update, element, store};
use umbra_core::kernel::{Activations, ActivationsMut};
use umbra_core::model::{Boundary, Carrier, Crossing, Input, Model, PartOf, Workspace};

use crate::comm::Comm;
use crate::comm::traffic::Traffic;
use crate::comm::watch::Lost;
use crate::dense::endpoints::DriveError;
use crate::dense::ledger::Ledger;
use crate::memory::Words;

/// A rank's part of a dense replica.
pub struct Parts {
    model: Model,
    comm: Comm,
    of: PartOf,
    /// By part, the parameters that it alone computes.
    slices: Vec<Vec<Range<usize>>>,
    /// The parameters that this part computes, ascending.
    own: Vec<Range<usize>>,
    coding: Coding,
    turn: u32,
    thresholds: Vec<Threshold>,
    output: Vec<f32>,
    gradient: Vec<f32>,
    mask: Vec<u32>,
    counts: Box<Counts>,
    message: Vec<u8>,
    ledger: Ledger,
}

impl Parts {
    /// Of `model`, a part, for batches of up to `batch_max` examples; `comm` is that of the ranks
    /// of the replica.
    #[must_use]
    pub fn new(model: Model, of: PartOf, coding: Coding, batch_max: usize, comm: Comm) -> Self {
        let elements = model.crossing_len(batch_max);
        let slices: Vec<Vec<Range<usize>>> = (0..of.parts)
            .map(|part| {
                // Every other part has as much to split as this one.
                let other = model.part(PartOf { part, ..of });
                other.iter().flat_map(Model::own_slices).collect()
            })
            .collect();
        let others = slices.iter().enumerate().filter(|(part, _)| *part != of.part);
        let mut foreign: Vec<Range<usize>> = others.flat_map(|(_, it)| it).cloned().collect();
        foreign.sort_unstable_by_key(|range| range.start);
        let ends = foreign.iter().map(|range| range.start).chain([model.parameters_len()]);
        let starts = [0].into_iter().chain(foreign.iter().map(|range| range.end));
        let own = starts.zip(ends).map(|(start, end)| start..end);
        Self {
            own: own.filter(|range| !range.is_empty()).collect(),
            slices,
            thresholds: vec![Threshold::default(); model.boundaries().count()],
            output: vec![0.0; elements],
            gradient: vec![0.0; elements],
            mask: vec![0; mask_len(elements)],
            counts: Box::new([0; 1 << 15]),
            // Evaluations send all.
            message: vec![0; len_max(elements, Values::F32)],
            model,
            comm,
            of,
            coding,
            turn: 0,
            ledger: Ledger::default(),
        }
    }

    /// The part of the model.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// Whether this rank speaks for the replica where one must.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.of.part == 0
    }

    /// Parameters that this part computes.
    #[must_use]
    pub fn own_len(&self) -> usize {
        self.own.iter().map(Range::len).sum()
    }

    /// What crossed so far, from this rank to others, forward and backward.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What this rank sent and received of it so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.comm.traffic()
    }

    /// Carries what crosses in a step. *Collective over the replica.*
    ///
    /// # Errors
    /// When not all come in time, or something else came than was sent.
    pub fn cross(&mut self, crossing: Crossing<'_>) -> Result<(), DriveError> {
        let begun = Instant::now();
        let done = match crossing {
            Crossing::Outputs { at, y } => self.cross_output(at, y),
            Crossing::Gradient { at, y, d } => self.cross_gradient(at, y, d),
        };
        self.ledger.time += begun.elapsed();
        done
    }

    /// Whether a step is `sound` for all parts, and whether one was asked to `stop`; the end of the
    /// step. *Collective over the replica.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn end_step(&mut self, sound: bool, stop: bool) -> Result<(bool, bool), Lost> {
        self.turn = self.turn.wrapping_add(1);
        let mut all = vec![0u64; 2 * self.of.parts];
        let own = [u64::from(sound), u64::from(stop)];
        self.comm.all_gather(&own, &mut all, "the parts of a replica, at the end of a step")?;
        let parts = || all.as_chunks::<2>().0.iter();
        Ok((parts().all(|it| it[0] == 1), parts().any(|it| it[1] == 1)))
    }

    /// Copies what this part computes of a `gradient` `[parameters]`, range after range. `own:
    /// [own_len]`
    pub fn pack(&self, gradient: &[f32], own: &mut [f32]) {
        let mut rest = own;
        for range in &self.own {
            let (here, after) = rest.split_at_mut(range.len());
            here.copy_from_slice(&gradient[range.clone()]);
            rest = after;
        }
    }

    /// Updates the parameters that this part computes with their gradient. `own: [own_len]`
    pub fn update(&self, update: Update<'_>, own: &[f32]) {
        let mut rest = own;
        for range in &self.own {
            let (here, after) = rest.split_at(range.len());
            update.apply(range.start, here);
            rest = after;
        }
    }

    /// Makes a replica and its optimizer state whole on `whole_on`: all its ranks or the first.
    /// *Collective over the replica; nothing trains meanwhile.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn gather(&self, replica: &Words, state: &Words, whole_on: WholeOn) -> Result<(), Lost> {
        let parameters = self.model.parameters_len();
        let planes = || [&replica[..parameters]].into_iter().chain(state.chunks(parameters));
        let own = &self.slices[self.of.part];
        let mut sent = vec![];
        for plane in planes() {
            sent.extend(own.iter().cloned().flat_map(|range| &plane[range]).map(element));
        }
        let gets = |part: usize| whole_on == WholeOn::All || part == 0;
        let lists = (0..self.of.parts).map(|part| if gets(part) { &*sent } else { &[] });
        let lists: Vec<&[f32]> = lists.collect();
        let all = self.comm.exchange(&lists, "the slices of a replica")?;
        for (slices, values) in self.slices.iter().zip(&all).filter(|(_, it)| !it.is_empty()) {
            let mut rest = values.as_slice();
            for plane in planes() {
                for range in slices {
                    let (here, after) = rest.split_at(range.len());
                    store(&plane[range.clone()], here);
                    rest = after;
                }
            }
        }
        Ok(())
    }

    /// Gives the memory of what others compute back. Nothing trains meanwhile.
    pub fn release(&self, replica: &Words, state: &Words) {
        let parameters = self.model.parameters_len();
        let others = self.slices.iter().enumerate().filter(|(part, _)| *part != self.of.part);
        for range in others.flat_map(|(_, slices)| slices) {
            replica.release(range.clone());
            for first in (0..state.len()).step_by(parameters) {
                state.release(first + range.start..first + range.end);
            }
        }
    }

    /// Scores examples, the same on all parts: `masked`, with what passes the thresholds as they
    /// stand, or with all. Arguments are those of [`Model::forward`]; so is what panics.
    /// *Collective over the replica.*
    ///
    /// # Errors
    /// When not all come in time, or something else came than was sent.
    pub fn forward(
        &mut self,
        (replica, masked): (&[AtomicU32], bool),
        input: &Input<'_>,
        workspace: &mut Workspace<'_>,
        logits: &mut [f32],
    ) -> Result<(), DriveError> {
        let (model, mut done) = (self.model, Ok(()));
        let mut exchange = |it: Crossing<'_>| {
            if let (Crossing::Outputs { at, y }, Ok(())) = (it, &done) {
                done = self.cross_scored(at, masked, y);
            }
        };
        model.forward_part(replica, input, &mut exchange, workspace, logits);
        done
    }

    fn cross_scored(
        &mut self,
        at: &Boundary,
        masked: bool,
        mut y: ActivationsMut<'_>,
    ) -> Result<(), DriveError> {
        let (mut carrier, comm, out, _) = self.carrier();
        let kept = carrier.send_scored(at, !masked, &mut y, out);
        take_outputs(&mut carrier, comm, at, &out[..kept.bytes], &mut y)
    }

    fn cross_output(&mut self, at: &Boundary, mut y: ActivationsMut<'_>) -> Result<(), DriveError> {
        let (own, others) = (y.view().n() * at.own().len(), self.of.parts as u64 - 1);
        let (mut carrier, comm, out, ledger) = self.carrier();
        let kept = carrier.send_output(at, &mut y, out);
        if at.split {
            ledger.count(own, kept.elements, others);
            ledger.bytes += kept.bytes as u64 * others;
        }
        take_outputs(&mut carrier, comm, at, &out[..kept.bytes], &mut y)
    }

    fn cross_gradient(
        &mut self,
        at: &Boundary,
        y: Activations<'_>,
        mut d: ActivationsMut<'_>,
    ) -> Result<(), DriveError> {
        let (mut carrier, comm, out, ledger) = self.carrier();
        let mut sent: Vec<Vec<u8>> = vec![];
        for part in 0..at.of.parts {
            let elements = y.n() * at.columns(part).len();
            // All parts get the same where all need all of it.
            if at.split || part == 0 {
                let kept = carrier.send_gradient(at, part, y, d.view(), out);
                sent.push(out[..kept.bytes].to_vec());
            }
            if part != at.of.part {
                let bytes = sent.last().map_or(0, Vec::len);
                ledger.count(elements, bytes / carrier.coding.values.bytes(), 1);
                ledger.bytes += bytes as u64;
            }
        }
        let to = |part: usize| sent[if at.split { part } else { 0 }].as_slice();
        let lists: Vec<&[u8]> = (0..at.of.parts).map(to).collect();
        let got = comm.exchange(&lists, "gradients of the other parts")?;
        let got = got.iter().map(Vec::as_slice);
        carrier.take_gradient(at, got, y, &mut d).map_err(|_| DriveError::Malformed)
    }

    fn carrier(&mut self) -> (Carrier<'_>, &Comm, &mut [u8], &mut Ledger) {
        let Self { coding, turn, thresholds, output, gradient, mask, counts, .. } = self;
        let (coding, turn) = (*coding, *turn);
        let carrier = Carrier { coding, turn, thresholds, output, gradient, mask, counts };
        (carrier, &self.comm, &mut self.message, &mut self.ledger)
    }
}

/// Tells the other parts own columns of an output and takes theirs, where it is split.
fn take_outputs(
    carrier: &mut Carrier<'_>,
    comm: &Comm,
    at: &Boundary,
    own: &[u8],
    y: &mut ActivationsMut<'_>,
) -> Result<(), DriveError> {
    if !at.split {
        return Ok(());
    }
    let all = comm.all_gather_varied(own, "activations of the other parts")?;
    for (part, message) in all.iter().enumerate().filter(|(part, _)| *part != at.of.part) {
        carrier.take_output(at, part, message, y).map_err(|_| DriveError::Malformed)?;
    }
    Ok(())
}

/// Where a replica is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeOn {
    /// On all its ranks: each writes what it can go on from.
    All,
    /// On the first of them, which writes for all.
    First,
}
