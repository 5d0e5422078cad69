//! What instances send each other, of which what matters goes over the wire.
//!
//! DCT, arXiv 2010.08899, data parallelism with parameter servers and centers
//! (`umbra_core::compress`). A protocol says what its message is (`umbra_core::sync::Payload`):
//!
//! | payload | sent | kept |
//! | --- | --- | --- |
//! | a change (a gradient for a server, a center's pull) | what passes of it | the rest, added to the next |
//! | a state (parameters, a replica) | what passes of its difference to what the receiver has | what the receiver has, on both sides |
//! | whole | all | of a state, what the receiver has now |
//!
//! The first state on a link is sent whole. A message is what small tensors and statistics have as
//! they are, and of every stretch that is coded its length and its bytes
//! (`umbra_core::compress::code`).
//!
//! Invariants: what a sender believes of the receiver of a state is what the receiver has, to the
//! bit: both add the same bytes to the same values. A link belongs to two instances, and its
//! messages keep their order.

use core::ops::Range;
use std::collections::BTreeMap;
use std::time::Instant;

use umbra_core::compress::{Coding, Counts, Residual, Threshold, add, len_max, mask_len};
use umbra_core::sync::Payload;

use crate::comm::post::{Body, Post};
use crate::dense::endpoints::DriveError;
use crate::dense::ledger::Ledger;
use crate::dense::stretches::{Stretches, append, first};

/// The links of a rank's instances.
pub struct CodedLinks {
    coding: Coding,
    /// By center: how its slice is cut.
    parts: Vec<Stretches>,
    /// The instance of the first center.
    first_center: usize,
    /// By the instances from and to: what was sent.
    sent: BTreeMap<(usize, usize), Sender>,
    /// By the instances from and to: the state that came last.
    received: BTreeMap<(usize, usize), Vec<f32>>,
    mask: Vec<u32>,
    counts: Box<Counts>,
    message: Vec<u8>,
    bytes: Vec<u8>,
    turn: u32,
    ledger: Ledger,
}

/// A sender's end of a link.
struct Sender {
    /// Of every stretch that is coded.
    thresholds: Vec<Threshold>,
    /// What has not been sent. `[slice]`
    left: Vec<f32>,
    /// The state that the receiver has; `None` before the first. `[slice]`
    known: Option<Vec<f32>>,
}

impl CodedLinks {
    /// Links between instances, of which centers begin at `first_center`; `parts`: how the slice of
    /// each is cut.
    #[must_use]
    pub fn new(coding: Coding, parts: Vec<Stretches>, first_center: usize) -> Self {
        let longest = parts.iter().map(Stretches::longest).max().unwrap_or(0);
        Self {
            coding,
            parts,
            first_center,
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            mask: vec![0; mask_len(longest)],
            counts: Box::new([0; 1 << 15]),
            message: vec![0; len_max(longest, coding.values)],
            bytes: vec![],
            turn: 0,
            ledger: Ledger::default(),
        }
    }

    /// What it came to so far.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// States are no longer those that went over the links: the next ones are sent whole.
    pub fn forget(&mut self) {
        self.sent.values_mut().for_each(|sender| sender.known = None);
    }

    /// Sends `values`, a slice of a center, with a word, as what `payload` says that they are.
    /// Returns the bytes that leave this rank.
    pub fn send(
        &mut self,
        post: &mut Post,
        (from, to, word): (usize, usize, u64),
        payload: Payload,
        values: &[f32],
    ) -> u64 {
        let begun = Instant::now();
        let center = from.max(to) - self.first_center;
        let parts = &self.parts[center];
        let sender = self.sent.entry((from, to)).or_insert_with(|| Sender::new(parts, values));
        let of_state = payload == Payload::State;
        if payload == Payload::Whole || (of_state && sender.known.is_none()) {
            // What the receiver has from now on, if it is a state that this link carries.
            if of_state || sender.known.is_some() {
                sender.known = Some(values.to_vec());
                return post.send(from, to, word, &Body::State(values));
            }
            return post.send(from, to, word, &Body::Values(values));
        }
        let is_remote = post.rank_of(to) != post.rank_of(from);
        let Self { coding, mask, counts, message, bytes, ledger, .. } = self;
        bytes.clear();
        for range in &parts.plain {
            bytes.extend_from_slice(bytemuck::cast_slice(&values[range.clone()]));
        }
        let before = bytes.len();
        for (range, threshold) in parts.coded.iter().zip(&mut sender.thresholds) {
            let left = &mut sender.left[range.clone()];
            let mut residual = Residual { values: left, mask, counts };
            let (own, sent_as) = (&values[range.clone()], (coding.values, self.turn));
            let kept = match &mut sender.known {
                Some(known) if of_state => {
                    let known = &mut known[range.clone()];
                    let both = (own, &*known);
                    let kept =
                        residual.send_difference(both, threshold, coding.keep, sent_as, message);
                    // As the receiver does.
                    let _ = add(&message[..kept.bytes], known);
                    kept
                }
                _ => residual.send(own, threshold, coding.keep, sent_as, message),
            };
            append(bytes, &message[..kept.bytes]);
            if is_remote {
                ledger.count(range.len(), kept.elements, 1);
            }
        }
        self.turn = self.turn.wrapping_add(1);
        if is_remote {
            ledger.bytes += (bytes.len() - before) as u64;
        }
        ledger.time += begun.elapsed();
        let body = if of_state { Body::CodedState(bytes) } else { Body::CodedChange(bytes) };
        post.send(from, to, word, &body)
    }

    /// Makes `values` what a message says, of instance `from` to `to`. Returns how many there are.
    ///
    /// # Errors
    /// When it is no message of this link.
    pub fn read(
        &mut self,
        (from, to): (usize, usize),
        body: &Body<'_>,
        values: &mut [f32],
    ) -> Result<usize, DriveError> {
        let begun = Instant::now();
        let center = from.max(to).checked_sub(self.first_center);
        let parts = center.and_then(|center| self.parts.get(center));
        let parts = parts.ok_or(DriveError::Malformed)?;
        match *body {
            Body::Values(_) | Body::Note(_) => return Err(DriveError::Malformed),
            Body::State(state) => {
                let values = values.get_mut(..state.len()).ok_or(DriveError::Malformed)?;
                values.copy_from_slice(state);
                self.received.insert((from, to), state.to_vec());
            }
            Body::CodedChange(bytes) => {
                values.fill(0.0);
                read(parts, bytes, values)?;
            }
            Body::CodedState(bytes) => {
                let known = self.received.get_mut(&(from, to)).ok_or(DriveError::Malformed)?;
                read(parts, bytes, known)?;
                let values = values.get_mut(..known.len()).ok_or(DriveError::Malformed)?;
                values.copy_from_slice(known);
            }
        }
        self.ledger.time += begun.elapsed();
        Ok(values.len())
    }
}

impl Sender {
    fn new(parts: &Stretches, values: &[f32]) -> Self {
        let thresholds = vec![Threshold::default(); parts.coded.len()];
        Self { thresholds, left: vec![0.0; values.len()], known: None }
    }
}

/// Adds the stretches of a message that are coded to `values`, and replaces the others.
///
/// # Errors
/// When it is no message of these parts; some values may have changed.
pub fn read(parts: &Stretches, bytes: &[u8], values: &mut [f32]) -> Result<(), DriveError> {
    let is_in = |range: &Range<usize>| range.end <= values.len();
    if !parts.coded.iter().chain(&parts.plain).all(is_in) {
        return Err(DriveError::Malformed);
    }
    let plain = bytes.split_at_checked(size_of::<f32>() * parts.plain_len());
    let (plain, mut rest) = plain.ok_or(DriveError::Malformed)?;
    let mut plain = plain.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
    for range in &parts.plain {
        values[range.clone()].iter_mut().zip(&mut plain).for_each(|(to, x)| *to = x);
    }
    for range in &parts.coded {
        let message = first(&mut rest).ok_or(DriveError::Malformed)?;
        add(message, &mut values[range.clone()]).map_err(|_| DriveError::Malformed)?;
    }
    // Up to a whole number of words.
    if rest.len() < size_of::<u32>() { Ok(()) } else { Err(DriveError::Malformed) }
}
