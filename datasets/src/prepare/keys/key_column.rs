//! The keys of one field, as they stand in the text, before they have ids.

use core::ops::Range;

use super::word::{is_long, long_number, long_word, short_text, word};

/// The keys of one field in row order, as they stand in the text.
#[derive(Debug, PartialEq)]
pub(crate) enum Keys {
    /// Keys below 2^32, or [`MISSING`].
    Number(Vec<u64>),
    /// Any text; empty is missing.
    Text(TextKeys),
    /// What a [`Numbering`](super::vocabulary::Numbering) made of keys of either kind, or already
    /// the ids of a hashed field, those of a key one after the other.
    Numbered(Vec<u32>),
}

/// The missing key among number keys.
pub(crate) const MISSING: u64 = 1 << 32;

/// Texts: short ones as [words](super::word), the longer ones elsewhere, one after the other:
/// number i of them is `long[long_ends[i - 1]..long_ends[i]]`.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct TextKeys {
    /// Each with its lowest byte first, so that its text can be lent.
    words: Vec<[u8; 16]>,
    long: Vec<u8>,
    long_ends: Vec<usize>,
}

impl TextKeys {
    #[inline(always)]
    pub(crate) fn push(&mut self, key: &[u8]) {
        match word(key) {
            Some(word) => self.words.push(word.to_le_bytes()),
            None => {
                self.long.extend_from_slice(key);
                self.end_long();
            }
        }
    }

    /// One key of several texts with `separator` between them.
    pub(crate) fn push_joined<'a>(
        &mut self,
        texts: impl Iterator<Item = &'a [u8]>,
        separator: [u8; 1],
    ) {
        let start = self.long.len();
        for (number, text) in texts.enumerate() {
            if number > 0 {
                self.long.extend_from_slice(&separator);
            }
            self.long.extend_from_slice(text);
        }
        match word(&self.long[start..]) {
            Some(word) => {
                self.words.push(word.to_le_bytes());
                self.long.truncate(start);
            }
            None => self.end_long(),
        }
    }

    /// What was added to the long texts is a key.
    fn end_long(&mut self) {
        self.words.push(long_word(self.long_ends.len()).to_le_bytes());
        self.long_ends.push(self.long.len());
    }

    /// Key number `at`.
    pub(crate) fn at(&self, at: usize) -> &[u8] {
        self.text(&self.words[at])
    }

    /// The keys number `range`.
    pub(crate) fn iter(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> + Clone {
        self.words[range].iter().map(|word| self.text(word))
    }

    #[inline]
    fn text<'a>(&'a self, word: &'a [u8; 16]) -> &'a [u8] {
        short_text(word).unwrap_or_else(|| self.long_text(long_number(u128::from_le_bytes(*word))))
    }

    fn long_text(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.long_ends[before]);
        &self.long[start..self.long_ends[number]]
    }

    /// The words of the keys number `range`, those of the longer ones among them.
    pub(crate) fn words(&self, range: Range<usize>) -> impl Iterator<Item = u128> + Clone {
        self.words[range].iter().map(|word| u128::from_le_bytes(*word))
    }

    /// The longer keys.
    pub(crate) fn long(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.long_ends.len()).map(|number| self.long_text(number))
    }

    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    fn truncate(&mut self, len: usize) {
        if !self.long_ends.is_empty() {
            let gone = self.words(len.min(self.len())..self.len()).find(|word| is_long(*word));
            if let Some(first) = gone.map(long_number) {
                self.long_ends.truncate(first);
                self.long.truncate(self.long_ends.last().copied().unwrap_or(0));
            }
        }
        self.words.truncate(len);
    }
}

impl Keys {
    pub(crate) fn push_number(&mut self, key: u64) {
        if let Self::Number(keys) = self {
            keys.push(key);
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Number(keys) => keys.len(),
            Self::Text(keys) => keys.len(),
            Self::Numbered(numbers) => numbers.len(),
        }
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        match self {
            Self::Number(keys) => keys.truncate(len),
            Self::Text(keys) => keys.truncate(len),
            Self::Numbered(numbers) => numbers.truncate(len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(texts: &[Vec<u8>]) -> TextKeys {
        let mut keys = TextKeys::default();
        texts.iter().for_each(|text| keys.push(text));
        keys
    }

    proptest! {
        #[test]
        fn texts_are_those_that_were_pushed(
            texts in prop::collection::vec(prop::collection::vec(0u8.., 0..20), 0..20),
            len in 0usize..25,
            parts in 0usize..4,
        ) {
            let mut ours = keys(&texts);
            prop_assert_eq!(ours.len(), texts.len());
            prop_assert!(ours.iter(0..texts.len()).eq(texts.iter().map(Vec::as_slice)));
            let long: Vec<&Vec<u8>> = texts.iter().filter(|text| word(text).is_none()).collect();
            prop_assert!(ours.long().eq(long));
            ours.truncate(len);
            let mut kept = texts[..len.min(texts.len())].to_vec();
            prop_assert_eq!(&ours, &keys(&kept));
            let parts = &texts[..parts.min(texts.len())];
            ours.push_joined(parts.iter().map(Vec::as_slice), [7]);
            kept.push(parts.join(&7));
            prop_assert_eq!(ours.at(kept.len() - 1), &kept[kept.len() - 1][..]);
            prop_assert_eq!(ours, keys(&kept));
        }
    }
}
