//! Sums of vectors of which every trainer sends what matters: the coded twin of `comm/reduce.rs`.
//!
//! DCT, arXiv 2010.08899, data parallelism (`umbra_core::compress`). A tensor is cut into as many
//! pieces as there are trainers, each owned by one. Every trainer sends the owner of a piece what
//! of its own vector passes the threshold; the owner adds up, in the order of the trainers, and
//! sends all what passes of the sum. Both keep what did not, and add it to the next. Small tensors
//! are summed as they are.
//!
//! The vectors are gradients, or what replicas have over the model that all have last moved
//! towards. Where a replica moves only part of the way (alpha) to the sum, the rest of what it has
//! over the model is there in the next vector again: of u = v + e and the s of it that was sent,
//! alpha (u − s) + (1 − alpha) e is kept. So replicas and what is kept are together what all have
//! moved, and no round finds anything twice.
//!
//! Invariants: all trainers have the same bits of a sum, the same in every run on as many trainers.
//! With all elements kept, as f32, it has the bits of the sum that is not coded: the owner adds up
//! as a tree then.

use core::ops::Range;
use std::time::Instant;

use umbra_core::compress::{Coding, Counts, Residual, Threshold, add, len_max, mask_len};
use umbra_core::sync::reduction::{TAIL, add as add_vectors, sum_into_first};

use crate::comm::Comm;
use crate::comm::reduce::Sums;
use crate::dense::endpoints::DriveError;
use crate::dense::ledger::Ledger;
use crate::dense::stretches::{Stretches, append, first};

/// A part of a tensor, and who adds it up.
#[derive(Clone, Debug)]
struct Piece {
    owner: usize,
    /// In the gradient.
    range: Range<usize>,
    /// Of this rank's own gradient.
    threshold: Threshold,
    /// On its owner: of the sum.
    of_sum: Threshold,
}

/// The sums of a trainer's vectors with those of the others.
pub struct CodedSum {
    coding: Coding,
    /// Share of the way that a replica moves.
    alpha: f32,
    rank: usize,
    ranks: usize,
    /// By owners.
    pieces: Vec<Piece>,
    /// What is summed as it is.
    small: Vec<Range<usize>>,
    packed: Vec<f32>,
    /// What this rank has not sent of its vectors. `[elements]`
    residual: Vec<f32>,
    /// Of sums of own pieces, one behind the other.
    residual_of_sums: Vec<f32>,
    /// Those sums: one, or one of each rank.
    sums: Vec<Vec<f32>>,
    mask: Vec<u32>,
    counts: Box<Counts>,
    /// What was kept of a piece before, where alpha is below 1.
    before: Vec<f32>,
    message: Vec<u8>,
    turn: u32,
    ledger: Ledger,
}

impl CodedSum {
    /// Of vectors of `elements` with these `parts`, over `ranks` trainers, of which this is `rank`;
    /// replicas move `alpha` of the way to what is found.
    #[must_use]
    pub fn new(
        (coding, alpha): (Coding, f32),
        parts: Stretches,
        elements: usize,
        (rank, ranks): (usize, usize),
    ) -> Self {
        let Stretches { coded, plain: small } = parts;
        let mut pieces = vec![];
        for range in coded {
            let cut = |part: usize| range.start + range.len() * part / ranks;
            pieces.extend((0..ranks).map(|owner| Piece {
                owner,
                range: cut(owner)..cut(owner + 1),
                threshold: Threshold::default(),
                of_sum: Threshold::default(),
            }));
        }
        pieces.sort_by_key(|piece| piece.owner);
        let own = pieces.iter().filter(|piece| piece.owner == rank);
        let own: usize = own.map(|piece| piece.range.len()).sum();
        let largest = pieces.iter().map(|piece| piece.range.len()).max().unwrap_or(0);
        let sums = if coding.is_all() { ranks } else { 1 };
        Self {
            coding,
            alpha,
            rank,
            ranks,
            packed: vec![0.0; small.iter().map(Range::len).sum()],
            residual: vec![0.0; elements],
            residual_of_sums: vec![0.0; own],
            sums: vec![vec![0.0; own]; sums],
            mask: vec![0; mask_len(largest)],
            counts: Box::new([0; 1 << 15]),
            before: vec![0.0; if alpha < 1.0 { largest } else { 0 }],
            message: vec![0; len_max(largest, coding.values)],
            pieces,
            small,
            turn: 0,
            ledger: Ledger::default(),
        }
    }

    /// Makes `values` the sum of all trainers' in place, and `few` beside it, of which at most
    /// `under_way` pieces are with MPI at a time. Returns the bytes that left this rank.
    /// *Collective over `comm`.*
    ///
    /// # Errors
    /// When not all come in time, or something else came than was sent.
    pub fn sum(
        &mut self,
        comm: &Comm,
        sums: &mut Sums,
        values: &mut [f32],
        few: &mut [f64],
        (under_way, what): (usize, &str),
    ) -> Result<u64, DriveError> {
        self.pack(values);
        let beside = sums.sum_with_few(comm, &mut self.packed, few, under_way, what)?;
        self.unpack(values);
        let begun = Instant::now();
        let sent = self.code_own(values);
        self.ledger.time += begun.elapsed();
        let to_others = |sent: &[Vec<u8>], rank: usize| {
            let others = sent.iter().enumerate().filter(|(owner, _)| *owner != rank);
            others.map(|(_, bytes)| bytes.len() as u64).sum::<u64>()
        };
        let mut bytes = to_others(&sent, self.rank);
        let lists: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
        let received = comm.exchange(&lists, what)?;
        let begun = Instant::now();
        let sum = self.add_up(&received)?;
        self.ledger.time += begun.elapsed();
        bytes += sum.len() as u64 * (self.ranks as u64 - 1);
        let all = comm.all_gather_varied(&sum, what)?;
        let begun = Instant::now();
        self.read(&all, values)?;
        self.ledger.time += begun.elapsed();
        self.turn = self.turn.wrapping_add(1);
        self.ledger.bytes += bytes;
        Ok(bytes + beside.bytes)
    }

    /// The same of `staging`, a slice of a replica with its tail (`umbra_core::sync::reduction`).
    /// *Collective over `comm`.*
    ///
    /// # Errors
    /// When not all come in time, or something else came than was sent.
    pub fn sum_with_tail(
        &mut self,
        comm: &Comm,
        sums: &mut Sums,
        staging: &mut [f32],
        how: (usize, &str),
    ) -> Result<u64, DriveError> {
        let (values, tail) = staging.split_at_mut(staging.len() - TAIL);
        let mut few: Vec<f64> = tail.iter().map(|x| f64::from(*x)).collect();
        let bytes = self.sum(comm, sums, values, &mut few, how)?;
        #[expect(clippy::cast_possible_truncation, reason = "sums of small numbers")]
        tail.iter_mut().zip(few).for_each(|(to, x)| *to = x as f32);
        Ok(bytes)
    }

    /// What it came to so far.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn pack(&mut self, values: &[f32]) {
        let mut at = 0;
        for range in &self.small {
            self.packed[at..at + range.len()].copy_from_slice(&values[range.clone()]);
            at += range.len();
        }
    }

    fn unpack(&self, values: &mut [f32]) {
        let mut at = 0;
        for range in &self.small {
            values[range.clone()].copy_from_slice(&self.packed[at..at + range.len()]);
            at += range.len();
        }
    }

    /// What every owner gets of this rank's vector.
    fn code_own(&mut self, values: &[f32]) -> Vec<Vec<u8>> {
        let Self { coding, alpha, pieces, residual, mask, counts, before, message, ledger, .. } =
            self;
        let mut sent = vec![vec![]; self.ranks];
        for piece in pieces {
            let range = piece.range.clone();
            let left = &mut residual[range.clone()];
            let with = (coding.values, self.turn);
            let kept = moving(*alpha, left, before, |left| {
                let mut residual = Residual { values: left, mask, counts };
                let own = &values[range.clone()];
                residual.send(own, &mut piece.threshold, coding.keep, with, message)
            });
            append(&mut sent[piece.owner], &message[..kept.bytes]);
            if piece.owner != self.rank {
                ledger.count(range.len(), kept.elements, 1);
            }
        }
        sent
    }

    /// Adds up what all have sent of the own pieces. Returns what all get of the sums.
    fn add_up(&mut self, received: &[Vec<u8>]) -> Result<Vec<u8>, DriveError> {
        let Self { coding, alpha, pieces, sums, mask, counts, before, message, ledger, .. } = self;
        sums.iter_mut().for_each(|sum| sum.fill(0.0));
        let own = || pieces.iter().filter(|piece| piece.owner == self.rank);
        for (rank, bytes) in received.iter().enumerate() {
            let sum = sums.get_mut(rank).map_or(0, |_| rank);
            let mut rest = bytes.as_slice();
            let mut at = 0;
            for length in own().map(|piece| piece.range.len()) {
                let message = first(&mut rest).ok_or(DriveError::Malformed)?;
                let vector = &mut sums[sum][at..at + length];
                add(message, vector).map_err(|_| DriveError::Malformed)?;
                at += length;
            }
        }
        sum_into_first(sums, |to, from| add_vectors(to, from));
        let (mut sent, mut at) = (vec![], 0);
        for piece in pieces.iter_mut().filter(|piece| piece.owner == self.rank) {
            let part = at..at + piece.range.len();
            let left = &mut self.residual_of_sums[part.clone()];
            let with = (coding.values, self.turn);
            let kept = moving(*alpha, left, before, |left| {
                let mut residual = Residual { values: left, mask, counts };
                let sum = &sums[0][part.clone()];
                residual.send(sum, &mut piece.of_sum, coding.keep, with, message)
            });
            append(&mut sent, &message[..kept.bytes]);
            ledger.count(part.len(), kept.elements, self.ranks as u64 - 1);
            at = part.end;
        }
        Ok(sent)
    }

    /// Makes `values` what all owners have sent.
    fn read(&self, all: &[Vec<u8>], values: &mut [f32]) -> Result<(), DriveError> {
        let mut rests: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        for piece in &self.pieces {
            let rest = rests.get_mut(piece.owner).ok_or(DriveError::Malformed)?;
            let message = first(rest).ok_or(DriveError::Malformed)?;
            let vector = &mut values[piece.range.clone()];
            vector.fill(0.0);
            add(message, vector).map_err(|_| DriveError::Malformed)?;
        }
        Ok(())
    }
}

/// Sends, and keeps what is to be kept where replicas move `alpha` of the way.
fn moving<T>(
    alpha: f32,
    left: &mut [f32],
    before: &mut [f32],
    send: impl FnOnce(&mut [f32]) -> T,
) -> T {
    if alpha >= 1.0 {
        return send(left);
    }
    let before = &mut before[..left.len()];
    before.copy_from_slice(left);
    let sent = send(left);
    left.iter_mut()
        .zip(before)
        .for_each(|(left, before)| *left = *before + alpha * (*left - *before));
    sent
}
