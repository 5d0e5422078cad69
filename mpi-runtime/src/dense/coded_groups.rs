//! Averages in groups that change from round to round, of what has moved enough.
//!
//! The groups are those of DS-Sync (arXiv 2007.03298, `group_sums.rs`), the threshold is DCT's
//! (arXiv 2010.08899, `umbra_core::compress`); the two together are this project's own. Members of
//! a group have no model in common to which they could tell differences. So each element is
//! averaged on its own, when it has moved:
//!
//! 1. Every member owns a stretch of the slice. The others send it those elements of the stretch
//!    that are far enough from what they were when they were last averaged.
//! 2. The owner makes each of them the mean of the members that have sent it and of its own, and
//!    sends every member the means of what that has sent, in the same order, without indices.
//!
//! What has not passed stays in the replica, and is as far away the next time: there is nothing
//! else to keep. Nor is what an owner's elements have moved by others': that is news for its next
//! groups, which it sends on. Small tensors and statistics are averaged whole.
//!
//! Invariants: a mean of elements moves no sum over the members that it is of. Members agree on
//! whether a round is of what has moved: in one in which a member has nothing to compare with, or
//! no say, all replicas are averaged whole.

use core::ops::Range;
use std::collections::BTreeMap;
use std::time::Instant;

use umbra_core::compress::{Coding, Counts, Residual, Threshold, Values, len_max, mask_len, visit};

use crate::dense::endpoints::DriveError;
use crate::dense::ledger::Ledger;
use crate::dense::stretches::{Stretches, append, first};

/// A trainer's memory of its averages.
pub struct CodedGroups {
    coding: Coding,
    parts: Stretches,
    /// What elements were when they were last averaged; `None` before the first round. `[slice]`
    agreed: Option<Vec<f32>>,
    /// By coded stretch, and the place of its part's owner.
    thresholds: BTreeMap<(usize, usize), Threshold>,
    /// By owner's place, what was sent in this round.
    sent: Vec<Vec<u8>>,
    scratch: Vec<f32>,
    mask: Vec<u32>,
    counts: Box<Counts>,
    message: Vec<u8>,
    cells: Vec<Cell>,
    turn: u32,
    ledger: Ledger,
}

/// An element on its owner: the sum of the values that came, and how many.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    sum: f32,
    count: f32,
}

impl CodedGroups {
    /// Of a slice that is cut into `parts`. Values are sent as they are: of those of 16 bits no
    /// mean could follow small changes.
    #[must_use]
    pub fn new(coding: Coding, parts: Stretches) -> Self {
        let longest = parts.longest();
        Self {
            coding: Coding { values: Values::F32, ..coding },
            agreed: None,
            thresholds: BTreeMap::new(),
            sent: vec![],
            scratch: vec![0.0; longest],
            mask: vec![0; mask_len(longest)],
            counts: Box::new([0; 1 << 15]),
            message: vec![0; len_max(longest, Values::F32)],
            cells: vec![],
            parts,
            turn: 0,
            ledger: Ledger::default(),
        }
    }

    /// What it came to so far.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether there is something to compare with.
    #[must_use]
    pub const fn has_agreed(&self) -> bool {
        self.agreed.is_some()
    }

    /// All of `slice` has been averaged.
    pub fn agree(&mut self, slice: &[f32]) {
        self.agreed = Some(slice.to_vec());
    }

    /// Replicas are others from now on.
    pub fn forget(&mut self) {
        self.agreed = None;
    }

    /// What the owners of `stretches`, by their places, get of `slice`; to be asked for with
    /// [`Self::sent_to`].
    pub fn code(&mut self, slice: &[f32], stretches: &[Range<usize>]) {
        let begun = Instant::now();
        let Self { coding, parts, agreed, thresholds, sent, scratch, mask, .. } = self;
        let Some(agreed) = agreed else { return };
        sent.resize_with(sent.len().max(stretches.len()), Vec::new);
        for ((place, stretch), sent) in stretches.iter().enumerate().zip(sent) {
            sent.clear();
            let (coded, plain) = parts.within(stretch);
            for part in plain {
                sent.extend_from_slice(bytemuck::cast_slice(&slice[part]));
            }
            for (number, part) in coded {
                let threshold = thresholds.entry((number, place)).or_default();
                let values = &mut scratch[..part.len()];
                let mut u = Residual { values, mask, counts: &mut self.counts };
                let both = (&slice[part.clone()], &agreed[part.clone()]);
                let sent_as = (coding.values, self.turn);
                let kept = u.send_moved(both, threshold, coding.keep, sent_as, &mut self.message);
                append(sent, &self.message[..kept.bytes]);
                self.ledger.count(part.len(), kept.elements, 1);
                self.ledger.bytes += kept.bytes as u64;
            }
        }
        self.turn = self.turn.wrapping_add(1);
        self.ledger.time += begun.elapsed();
    }

    /// What the owner in this place gets.
    #[must_use]
    pub fn sent_to(&self, place: usize) -> &[u8] {
        &self.sent[place]
    }

    /// Averages the own `stretch` of `slice` with what the other members have sent of it. Returns
    /// what each of them gets, in their order.
    ///
    /// # Errors
    /// When a message is none.
    pub fn average(
        &mut self,
        slice: &mut [f32],
        stretch: &Range<usize>,
        messages: &[Vec<u8>],
    ) -> Result<Vec<Vec<f32>>, DriveError> {
        let begun = Instant::now();
        let Self { parts, cells, .. } = self;
        let own = &mut slice[stretch.clone()];
        cells.clear();
        cells.extend(own.iter().map(|x| Cell { sum: *x, count: 1.0 }));
        for message in messages {
            each(parts, stretch, message, cells, |cell, x| {
                cell.sum += x;
                cell.count += 1.0;
            })?;
        }
        let answer = |message: &Vec<u8>| {
            let mut means = vec![];
            each(parts, stretch, message, cells, |cell, _| means.push(cell.sum / cell.count))?;
            Ok(means)
        };
        let answers = messages.iter().map(answer).collect();
        for (x, cell) in own.iter_mut().zip(cells) {
            if cell.count > 1.0 {
                *x = cell.sum / cell.count;
            }
        }
        self.ledger.time += begun.elapsed();
        answers
    }

    /// Takes the means of what was sent to the owner in `place`, of this `stretch`, into `slice`.
    ///
    /// # Errors
    /// When there are not as many.
    pub fn take(
        &mut self,
        slice: &mut [f32],
        (place, stretch): (usize, &Range<usize>),
        means: &[f32],
    ) -> Result<(), DriveError> {
        let begun = Instant::now();
        let Self { parts, agreed, sent, ledger, .. } = self;
        let whole = agreed.iter_mut().map(|agreed| &mut agreed[stretch.clone()]);
        for vector in [&mut slice[stretch.clone()]].into_iter().chain(whole) {
            let mut means = means.iter();
            let mut missing = false;
            each(parts, stretch, &sent[place], vector, |x, _| match means.next() {
                Some(mean) => *x = *mean,
                None => missing = true,
            })?;
            if missing || means.len() > 0 {
                return Err(DriveError::Malformed);
            }
        }
        // The way back has as many elements, and no indices; small tensors are not coded.
        let (coded, plain) = parts.within(stretch);
        let plain: usize = plain.map(|part| part.len()).sum();
        let all = coded.map(|(_, part)| part.len()).sum();
        let kept = means.len().saturating_sub(plain);
        ledger.count(all, kept, 1);
        ledger.bytes += (size_of::<f32>() * kept) as u64;
        ledger.time += begun.elapsed();
        Ok(())
    }
}

/// Calls `visitor` with those elements of `vector`, which is `stretch` of a slice, that a message
/// has, and their values. `vector: [stretch]`
///
/// # Errors
/// When it is no message of this stretch; some elements may have been visited.
pub fn each<T>(
    parts: &Stretches,
    stretch: &Range<usize>,
    message: &[u8],
    vector: &mut [T],
    mut visitor: impl FnMut(&mut T, f32),
) -> Result<(), DriveError> {
    let (coded, plain) = parts.within(stretch);
    let here = |part: Range<usize>| part.start - stretch.start..part.end - stretch.start;
    let mut rest = message;
    for part in plain {
        let bytes = rest.split_at_checked(size_of::<f32>() * part.len());
        let (values, behind) = bytes.ok_or(DriveError::Malformed)?;
        let values = values.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
        vector[here(part)].iter_mut().zip(values).for_each(|(to, x)| visitor(to, x));
        rest = behind;
    }
    for (_, part) in coded {
        let message = first(&mut rest).ok_or(DriveError::Malformed)?;
        visit(message, &mut vector[here(part)], &mut visitor).map_err(|_| DriveError::Malformed)?;
    }
    // Up to a whole number of words.
    if rest.len() < size_of::<u32>() { Ok(()) } else { Err(DriveError::Malformed) }
}
