//! A section of the state: a name, whose it is, and its words.
//!
//! Invariants: words are 32 bits; a value of 64 bits is two of them, the low one first. A name and
//! a scope are in the list once. Nothing trains while sections are lent.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};
use umbra_core::sync::Part;

/// A trainer's replica, as training left it.
pub const REPLICA: &str = "replica";
/// The model that is evaluated and saved, while it is in the place of a replica.
pub const PUBLISHED: &str = "published";
/// A trainer's optimizer state.
pub const OPTIMIZER: &str = "optimizer";
/// The mean of all optimizer states, where that is saved.
pub const MEAN_OPTIMIZER: &str = "mean_optimizer";

/// What values are, by the names of the safetensors format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// 32 bits, IEEE 754.
    F32,
    /// 64 bits, IEEE 754.
    F64,
    /// 64 bits.
    U64,
    /// The upper half of an f32: in files alone.
    #[serde(rename = "BF16")]
    Bf16,
}

impl Kind {
    /// Bytes of a value.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F64 | Self::U64 => 8,
            Self::Bf16 => 2,
        }
    }

    /// Words of a value.
    #[must_use]
    pub const fn words(self) -> u64 {
        match self {
            Self::F32 | Self::Bf16 => 1,
            Self::F64 | Self::U64 => 2,
        }
    }
}

/// Whose a section is: who can copy it, and who would read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The job's: the same words on every rank.
    Job,
    /// That trainer's.
    Trainer(usize),
    /// What the method remembers of a slice, at a trainer or at its center.
    Slice(Part),
    /// Rows of that partition.
    Partition(u32),
}

/// A section of the state, lent by its owner.
#[derive(Debug)]
pub struct Section<'a> {
    /// What it is: once per scope.
    pub name: &'static str,
    /// Whose.
    pub scope: Scope,
    /// Its memory.
    pub words: Words<'a>,
}

/// Memory of a section where it stands.
#[derive(Debug)]
pub enum Words<'a> {
    /// Words that threads share.
    Shared(&'a [AtomicU32]),
    /// An f32 per word.
    Floats(&'a mut [f32]),
    /// Two words each.
    Doubles(&'a mut [f64]),
    /// Two words each.
    Counts(&'a mut [u64]),
    /// Two words each, of counters that threads share.
    SharedCounts(Vec<&'a AtomicU64>),
}

impl Words<'_> {
    /// What a value is.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Shared(_) | Self::Floats(_) => Kind::F32,
            Self::Doubles(_) => Kind::F64,
            Self::Counts(_) | Self::SharedCounts(_) => Kind::U64,
        }
    }

    /// Words.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Shared(words) => words.len(),
            Self::Floats(values) => values.len(),
            Self::Doubles(values) => 2 * values.len(),
            Self::Counts(counts) => 2 * counts.len(),
            Self::SharedCounts(counts) => 2 * counts.len(),
        }
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the words from number `first` on. `out: [at most len - first]`
    pub fn copy_out(&self, first: usize, out: &mut [u32]) {
        let halves = |out: &mut [u32], of: &dyn Fn(usize) -> u64| {
            for (place, word) in (first..).zip(out) {
                *word = half(of(place / 2), place);
            }
        };
        match self {
            // A table's: gigabytes.
            Self::Shared(words) => {
                for (out, word) in out.iter_mut().zip(&words[first..]) {
                    *out = word.load(Relaxed);
                }
            }
            Self::Floats(values) => {
                for (out, value) in out.iter_mut().zip(&values[first..]) {
                    *out = value.to_bits();
                }
            }
            Self::Doubles(values) => halves(out, &|place| values[place].to_bits()),
            Self::Counts(counts) => halves(out, &|place| counts[place]),
            Self::SharedCounts(counts) => halves(out, &|place| counts[place].load(Relaxed)),
        }
    }

    /// Puts words in the place of those from number `first` on. `words: [at most len - first]`
    pub fn read_in(&mut self, first: usize, words: &[u32]) {
        for (place, word) in (first..).zip(words) {
            match self {
                Self::Shared(words) => words[place].store(*word, Relaxed),
                Self::Floats(values) => values[place] = f32::from_bits(*word),
                Self::Doubles(values) => {
                    let value = &mut values[place / 2];
                    *value = f64::from_bits(with_half(value.to_bits(), place, *word));
                }
                Self::Counts(counts) => {
                    let count = &mut counts[place / 2];
                    *count = with_half(*count, place, *word);
                }
                Self::SharedCounts(counts) => {
                    let count = counts[place / 2];
                    count.store(with_half(count.load(Relaxed), place, *word), Relaxed);
                }
            }
        }
    }
}

/// The low half of `value` at an even place, else the high one.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the halves of 64 bits")]
pub const fn half(value: u64, place: usize) -> u32 {
    (value >> shift(place)) as u32
}

const fn with_half(value: u64, place: usize, word: u32) -> u64 {
    value & !(0xffff_ffff << shift(place)) | (word as u64) << shift(place)
}

const fn shift(place: usize) -> u32 {
    if place.is_multiple_of(2) { 0 } else { 32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies `from`, in blocks that part values of two words, and reads the copy into `to`.
    fn carry(from: &Words<'_>, to: &mut Words<'_>) {
        assert_eq!(from.len(), to.len());
        for first in (0..from.len()).step_by(3) {
            let mut block = [0; 3];
            let block = &mut block[..(from.len() - first).min(3)];
            from.copy_out(first, block);
            to.read_in(first, block);
        }
    }

    #[test]
    fn what_is_copied_out_and_read_in_is_the_same() {
        let bits = [1f32.to_bits(), f32::NAN.to_bits() | 5, 7, u32::MAX];
        let (from, to) = (bits.map(AtomicU32::new), [0; 4].map(AtomicU32::new));
        carry(&Words::Shared(&from), &mut Words::Shared(&to));
        assert_eq!(to.map(AtomicU32::into_inner), bits);

        let (mut from, mut to) = (bits.map(f32::from_bits), [0.0; 4]);
        carry(&Words::Floats(&mut from), &mut Words::Floats(&mut to));
        assert_eq!(to.map(f32::to_bits), bits);

        let (mut from, mut to) = ([f64::NEG_INFINITY, 0.1], [3.0; 2]);
        carry(&Words::Doubles(&mut from), &mut Words::Doubles(&mut to));
        assert_eq!(from.map(f64::to_bits), to.map(f64::to_bits));

        let counts = [u64::MAX - 1, 1 << 40 | 9, 0];
        let (mut from, mut to) = (counts, [u64::MAX; 3]);
        carry(&Words::Counts(&mut from), &mut Words::Counts(&mut to));
        assert_eq!(to, counts);

        let shared = [8; 3].map(AtomicU64::new);
        carry(&Words::Counts(&mut from), &mut Words::SharedCounts(shared.iter().collect()));
        assert_eq!(shared.map(AtomicU64::into_inner), counts);
    }

    /// The order of halves is that of files.
    #[test]
    fn the_low_half_comes_first() {
        let mut words = [0; 2];
        Words::Counts(&mut [0x1_0000_0002]).copy_out(0, &mut words);
        assert_eq!(words, [2, 1]);
    }
}
