//! Which stretches of a dense vector are coded, and their messages one behind the other.
//!
//! DCT (`umbra_core::compress`): tensors of few elements, and running statistics, are sent as they
//! are. Each of the others has a threshold of its own, since their scales differ.
//!
//! Invariant: the stretches of a slice, coded or not, are all of it.

use core::ops::Range;

use umbra_core::compress::{Coding, len_of};
use umbra_core::model::Model;

/// The stretches of a slice of the dense replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretches {
    /// Those that are coded, ascending, from the beginning of the slice on.
    pub coded: Vec<Range<usize>>,
    /// Those that are sent as they are.
    pub plain: Vec<Range<usize>>,
}

/// Tensors of fewer elements are sent as they are.
const LEAST: usize = 4096;

impl Stretches {
    /// Those of the elements `slice` of a replica of `model`.
    #[must_use]
    pub fn new(model: &Model, slice: &Range<usize>) -> Self {
        let (mut coded, mut plain) = (vec![], vec![]);
        for tensor in tensors(model) {
            let to = if tensor.len() < LEAST { &mut plain } else { &mut coded };
            let own = tensor.start.max(slice.start)..tensor.end.min(slice.end);
            if !own.is_empty() {
                to.push(own.start - slice.start..own.end - slice.start);
            }
        }
        let statistics = model.parameters_len().max(slice.start)..slice.end;
        if !statistics.is_empty() {
            plain.push(statistics.start - slice.start..slice.len());
        }
        Self { coded, plain }
    }

    /// Those of these that lie in `stretch` of the slice, where they are in it, and by its number
    /// which of them is which.
    pub fn within(
        &self,
        stretch: &Range<usize>,
    ) -> (impl Iterator<Item = (usize, Range<usize>)>, impl Iterator<Item = Range<usize>>) {
        let Range { start, end } = *stretch;
        let cut =
            move |part: &Range<usize>| part.start.clamp(start, end)..part.end.clamp(start, end);
        let coded = self.coded.iter().enumerate().map(move |(number, part)| (number, cut(part)));
        let plain = self.plain.iter().map(cut);
        (coded.filter(|(_, part)| !part.is_empty()), plain.filter(|part| !part.is_empty()))
    }

    /// Elements that are sent as they are.
    #[must_use]
    pub fn plain_len(&self) -> usize {
        self.plain.iter().map(Range::len).sum()
    }

    /// Bytes that are expected to be sent of the pieces of one of so many owners.
    #[must_use]
    pub fn pieces_len(&self, coding: Coding, owners: usize) -> usize {
        self.coded.iter().map(|part| message_len(part.len().div_ceil(owners), coding)).sum()
    }

    /// Bytes that are expected to be sent in place of one, where each of so many owners has a piece
    /// of every stretch.
    #[must_use]
    pub fn sent_share(&self, coding: Coding, owners: usize) -> f64 {
        let plain = (size_of::<f32>() * self.plain_len()) as f64;
        let all: usize = self.coded.iter().map(Range::len).sum();
        let sent = (owners * self.pieces_len(coding, owners)) as f64;
        (plain + sent) / (plain + (size_of::<f32>() * all) as f64)
    }

    /// Bytes that are expected to be sent of all of it to one that gets it whole.
    #[must_use]
    pub fn message_len(&self, coding: Coding) -> usize {
        let coded = self.coded.iter().map(|part| message_len(part.len(), coding));
        size_of::<f32>() * self.plain_len() + coded.sum::<usize>()
    }

    /// Elements of the longest stretch that is coded.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.coded.iter().map(Range::len).max().unwrap_or(0)
    }
}

/// The ranges of a model's trained tensors, which fill the parameters.
fn tensors(model: &Model) -> Vec<Range<usize>> {
    let trained = model.tensors().filter(|tensor| tensor.trainable);
    let mut starts: Vec<usize> = trained.map(|tensor| tensor.offset).collect();
    // What is before the first, or between two, goes with the one before.
    starts.push(0);
    starts.sort_unstable();
    starts.dedup();
    let ends = starts.iter().skip(1).copied().chain([model.parameters_len()]);
    starts.iter().zip(ends).map(|(start, end)| *start..end).collect()
}

/// Bytes that are expected to be sent of a stretch of so many elements, its length included.
#[must_use]
fn message_len(elements: usize, coding: Coding) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share")]
    let count = (elements as f32 * coding.keep.share).ceil() as usize;
    size_of::<u32>() + len_of(count, elements, coding.values)
}

/// Puts a message behind others, with its length.
pub fn append(to: &mut Vec<u8>, message: &[u8]) {
    #[expect(clippy::cast_possible_truncation, reason = "a part of a vector of u32::MAX elements")]
    to.extend_from_slice(&(message.len() as u32).to_le_bytes());
    to.extend_from_slice(message);
}

/// Takes the first message away.
pub fn first<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, behind) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    let (message, behind) = behind.split_at_checked(length)?;
    *rest = behind;
    Some(message)
}
