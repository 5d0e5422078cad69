//! A map from text keys to numbers or ids: short ones, as most are, stand in the map as
//! [words](super::word), sixteen bytes a key; longer ones have a map of their own.

use core::hash::{Hash, Hasher};
use core::ops::Range;

use super::hash::FastMap;
use super::key_column::TextKeys;
use super::word::{is_long, word};

/// Texts to values that are not 0.
#[derive(Debug, Default)]
pub(crate) struct TextMap {
    short: FastMap<Short, u32>,
    long: FastMap<Box<[u8]>, u32>,
}

/// The word of a short text, in as many bytes as it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Short([u32; 3]);

impl TextMap {
    /// Makes room for `keys` more short ones.
    pub(crate) fn reserve(&mut self, keys: usize) {
        self.short.reserve(keys);
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.short.len() + self.long.len()
    }

    /// Sets the value of a key, which may not be 0. False if it had one.
    pub(crate) fn set(&mut self, key: &[u8], value: u32) -> bool {
        let before = match word(key) {
            Some(word) => self.short.insert(Short::new(word), value),
            None => self.long.insert(key.into(), value),
        };
        before.is_none()
    }

    /// Writes the values of `keys` to `out`. A key that has none yet gets the next number: `given`,
    /// that many were given so far, and one.
    pub(crate) fn number(&mut self, keys: &TextKeys, given: &mut u32, out: &mut Vec<u32>) {
        out.clear();
        let mut next = || {
            *given = given.saturating_add(1);
            *given
        };
        let mut long = keys.long();
        out.extend(keys.words(0..keys.len()).map(|word| {
            if !is_long(word) {
                return *self.short.entry(Short::new(word)).or_insert_with(&mut next);
            }
            let text = long.next().unwrap_or_default();
            match self.long.get(text) {
                Some(number) => *number,
                None => *self.long.entry(text.into()).or_insert_with(&mut next),
            }
        }));
    }

    /// The value of every one of the keys number `range` in turn; 0 for a key that has none.
    pub(crate) fn values(&self, keys: &TextKeys, range: Range<usize>) -> impl Iterator<Item = u32> {
        let words = keys.words(range.clone()).zip(range);
        words.map(|(word, at)| {
            let found = if is_long(word) {
                self.long.get(keys.at(at))
            } else {
                self.short.get(&Short::new(word))
            };
            found.copied().unwrap_or(0)
        })
    }

    /// Words of the short keys and their values, in no order.
    pub(crate) fn short(&self) -> impl Iterator<Item = (u128, u32)> {
        self.short.iter().map(|(key, value)| (key.word(), *value))
    }

    /// The longer keys and their values, in no order.
    pub(crate) fn long(&self) -> impl Iterator<Item = (&[u8], u32)> {
        self.long.iter().map(|(key, value)| (&**key, *value))
    }
}

impl Short {
    #[expect(clippy::cast_possible_truncation, reason = "the parts are taken apart")]
    fn new(word: u128) -> Self {
        Self([word as u32, (word >> 32) as u32, (word >> 64) as u32])
    }

    fn word(self) -> u128 {
        let [a, b, c] = self.0.map(u128::from);
        a | b << 32 | c << 64
    }
}

impl Hash for Short {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // In one piece: a hasher takes parts in turn.
        state.write_u128(self.word());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, HashMap};

    fn keys(texts: &[Vec<u8>]) -> TextKeys {
        let mut keys = TextKeys::default();
        texts.iter().for_each(|text| keys.push(text));
        keys
    }

    fn texts() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let text = prop_oneof![
            "[01]{0,3}".prop_map(String::into_bytes),
            "[0-9a-f]{8}".prop_map(String::into_bytes),
            prop::collection::vec(0u8..2, 9..14),
        ];
        prop::collection::vec(text, 0..400)
    }

    proptest! {
        #[test]
        fn it_is_the_standard_map(seen in texts(), set in texts(), asked in texts()) {
            let (mut ours, mut theirs) = (TextMap::default(), HashMap::new());
            let set: BTreeSet<Vec<u8>> = set.into_iter().collect();
            for (key, value) in set.iter().zip(1..) {
                prop_assert!(ours.set(key, value + 1) && !ours.set(key, value));
            }
            theirs.extend(set.iter().cloned().zip(1u32..));
            let mut given = u32::try_from(set.len()).unwrap();
            let mut numbers = vec![7];
            for texts in [&seen[..seen.len() / 3], &seen[seen.len() / 3..]] {
                ours.number(&keys(texts), &mut given, &mut numbers);
                prop_assert_eq!(numbers.len(), texts.len());
                for (key, &number) in texts.iter().zip(&numbers) {
                    prop_assert_eq!(number, *theirs.entry(key.clone()).or_insert(number));
                }
            }
            prop_assert_eq!((ours.len(), given as usize), (theirs.len(), theirs.len()));
            let asked = [seen, set.into_iter().collect(), asked].concat();
            let start = asked.len() / 3;
            let expected = asked[start..].iter().map(|key| theirs.get(key).copied().unwrap_or(0));
            prop_assert!(ours.values(&keys(&asked), start..asked.len()).eq(expected));
            let mut entries: Vec<(u128, u32)> = ours.short().collect();
            entries.sort_unstable();
            let short = theirs.iter().filter_map(|(key, &value)| Some((word(key)?, value)));
            let mut expected: Vec<(u128, u32)> = short.collect();
            expected.sort_unstable();
            prop_assert_eq!(entries, expected);
            for (key, value) in ours.long() {
                prop_assert!(word(key).is_none() && theirs[key] == value);
            }
            let mut numbers: Vec<u32> = theirs.into_values().collect();
            numbers.sort_unstable();
            prop_assert!(numbers.iter().copied().eq(1..=given), "each number is given once");
        }
    }
}
