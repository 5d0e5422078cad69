//! Sums of gradients of which every trainer sends what matters: the coded twin of `comm/reduce.rs`.
//!
//! DCT, arXiv 2010.08899, data parallelism (`umbra_core::compress`). A tensor is cut into as many
//! pieces as there are trainers, each owned by one. Every trainer sends the owner of a piece what
//! of its own gradient passes the threshold; the owner adds up, in the order of the trainers, and
//! sends all what passes of the sum. Both keep what did not, and add it to the next. Small tensors
//! are summed as they are.
//!
//! Invariants: all trainers have the same bits of a sum, the same in every run on as many trainers.
//! With all elements kept, as f32, it has the bits of the sum that is not coded: the owner adds up
//! as a tree then.

use core::ops::Range;
use core::time::Duration;
use std::time::Instant;

use umbra_core::compress::{Coding, Counts, Residual, Threshold, add, len_max, mask_len};
use umbra_core::model::Model;
use umbra_core::sync::reduction::{add as add_vectors, sum_into_first};

use crate::comm::Comm;
use crate::comm::reduce::{MANY, Sums};
use crate::dense::endpoints::DriveError;

/// What coding came to on a rank, both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Elements that were sent.
    pub kept: u64,
    /// Elements that there were.
    pub elements: u64,
    /// Bytes that left this rank.
    pub bytes: u64,
    /// Bytes that would have left it.
    pub bytes_plain: u64,
    /// Time for thresholds, writing and reading.
    pub coding: Duration,
}

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

/// The sums of a trainer's gradients with those of the others.
pub struct CodedSum {
    coding: Coding,
    rank: usize,
    ranks: usize,
    /// By owners.
    pieces: Vec<Piece>,
    /// What is summed as it is.
    small: Vec<Range<usize>>,
    packed: Vec<f32>,
    /// What this rank has not sent of its gradients. `[parameters]`
    residual: Vec<f32>,
    /// Of sums of own pieces, one behind the other.
    residual_of_sums: Vec<f32>,
    /// Those sums: one, or one of each rank.
    sums: Vec<Vec<f32>>,
    mask: Vec<u32>,
    counts: Box<Counts>,
    message: Vec<u8>,
    turn: u32,
    ledger: Ledger,
}

/// Tensors of fewer elements are summed as they are.
const LEAST: usize = 4096;

impl CodedSum {
    /// Of gradients of `model`, over `ranks` trainers, of which this is `rank`.
    #[must_use]
    pub fn new(coding: Coding, model: &Model, rank: usize, ranks: usize) -> Self {
        let parameters = model.parameters_len();
        let (mut pieces, mut small) = (vec![], vec![]);
        for range in tensors(model) {
            if range.len() < LEAST {
                small.push(range);
                continue;
            }
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
            rank,
            ranks,
            packed: vec![0.0; small.iter().map(Range::len).sum()],
            residual: vec![0.0; parameters],
            residual_of_sums: vec![0.0; own],
            sums: vec![vec![0.0; own]; sums],
            mask: vec![0; mask_len(largest)],
            counts: Box::new([0; 1 << 15]),
            message: vec![0; len_max(largest, coding.values)],
            pieces,
            small,
            turn: 0,
            ledger: Ledger::default(),
        }
    }

    /// Makes `values` the sum of all trainers' in place, and `few` beside it. Returns the bytes
    /// that left this rank. *Collective over `comm`.*
    ///
    /// # Errors
    /// When not all come in time, or something else came than was sent.
    pub fn sum(
        &mut self,
        comm: &Comm,
        sums: &mut Sums,
        values: &mut [f32],
        few: &mut [f64],
        what: &str,
    ) -> Result<u64, DriveError> {
        self.pack(values);
        let beside = sums.sum_with_few(comm, &mut self.packed, few, MANY, what)?;
        self.unpack(values);
        let begun = Instant::now();
        let sent = self.code_own(values);
        self.ledger.coding += begun.elapsed();
        let to_others = |sent: &[Vec<u8>], rank: usize| {
            let others = sent.iter().enumerate().filter(|(owner, _)| *owner != rank);
            others.map(|(_, bytes)| bytes.len() as u64).sum::<u64>()
        };
        let mut bytes = to_others(&sent, self.rank);
        let lists: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
        let received = comm.exchange(&lists, what)?;
        let begun = Instant::now();
        let sum = self.add_up(&received)?;
        self.ledger.coding += begun.elapsed();
        bytes += sum.len() as u64 * (self.ranks as u64 - 1);
        let all = comm.all_gather_varied(&sum, what)?;
        let begun = Instant::now();
        self.read(&all, values)?;
        self.ledger.coding += begun.elapsed();
        self.turn = self.turn.wrapping_add(1);
        self.ledger.bytes += bytes;
        Ok(bytes + beside.bytes)
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

    /// What every owner gets of this rank's gradient.
    fn code_own(&mut self, values: &[f32]) -> Vec<Vec<u8>> {
        let Self { coding, pieces, residual, mask, counts, message, ledger, .. } = self;
        let mut sent = vec![vec![]; self.ranks];
        for piece in pieces {
            let range = piece.range.clone();
            let values_left = &mut residual[range.clone()];
            let mut residual = Residual { values: values_left, mask, counts };
            let with = (coding.values, self.turn);
            let gradient = &values[range.clone()];
            let kept = residual.send(gradient, &mut piece.threshold, coding.keep, with, message);
            append(&mut sent[piece.owner], &message[..kept.bytes]);
            if piece.owner != self.rank {
                ledger.count(range.len(), kept.elements, 1);
            }
        }
        sent
    }

    /// Adds up what all have sent of the own pieces. Returns what all get of the sums.
    fn add_up(&mut self, received: &[Vec<u8>]) -> Result<Vec<u8>, DriveError> {
        let Self { coding, pieces, sums, mask, counts, message, ledger, .. } = self;
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
            let values_left = &mut self.residual_of_sums[part.clone()];
            let mut residual = Residual { values: values_left, mask, counts };
            let with = (coding.values, self.turn);
            let sum = &sums[0][part.clone()];
            let kept = residual.send(sum, &mut piece.of_sum, coding.keep, with, message);
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

impl Ledger {
    /// `kept` of so many elements were sent to so many ranks.
    const fn count(&mut self, elements: usize, kept: usize, ranks: u64) {
        self.kept += kept as u64 * ranks;
        self.elements += elements as u64 * ranks;
        self.bytes_plain += 4 * elements as u64 * ranks;
    }

    /// As words.
    #[must_use]
    pub fn to_words(self) -> [u64; 5] {
        let Self { kept, elements, bytes, bytes_plain, coding } = self;
        let coding = u64::try_from(coding.as_nanos()).unwrap_or(u64::MAX);
        [kept, elements, bytes, bytes_plain, coding]
    }
}

/// The ranges of a model's tensors in its gradient, which they fill.
fn tensors(model: &Model) -> Vec<Range<usize>> {
    let parameters = model.parameters_len();
    let trained = model.tensors().filter(|tensor| tensor.trainable);
    let mut starts: Vec<usize> = trained.map(|tensor| tensor.offset).collect();
    // What is before the first, or between two, goes with the one before.
    starts.push(0);
    starts.sort_unstable();
    starts.dedup();
    let ends = starts.iter().skip(1).copied().chain([parameters]);
    starts.iter().zip(ends).map(|(start, end)| *start..end).collect()
}

/// Puts a message behind others, with its length.
fn append(to: &mut Vec<u8>, message: &[u8]) {
    #[expect(clippy::cast_possible_truncation, reason = "a part of a vector of u32::MAX elements")]
    to.extend_from_slice(&(message.len() as u32).to_le_bytes());
    to.extend_from_slice(message);
}

/// Takes the first message away.
fn first<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, behind) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    let (message, behind) = behind.split_at_checked(length)?;
    *rest = behind;
    Some(message)
}
