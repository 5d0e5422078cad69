//! A map from text keys to numbers or ids, sixteen bytes a key: short ones, as most are, stand in
//! the map as [words](super::word); longer ones have a map of their own.

use core::ops::Range;

use super::hash::FastMap;
use super::key_column::TextKeys;
use super::probing::{Entry, Probing};
use super::word::{is_long, word};

/// Texts to values that are not 0.
#[derive(Debug, Default)]
pub(crate) struct TextMap {
    short: Probing<u128>,
    long: FastMap<Box<[u8]>, u32>,
}

impl TextMap {
    /// Makes room for `keys` more short ones.
    pub(crate) fn reserve(&mut self, keys: usize) {
        self.short.reserve(keys);
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.short.len() + self.long.len()
    }

    /// Sets the values of keys; no value may be 0.
    pub(crate) fn set<'a>(&mut self, entries: impl Iterator<Item = (&'a [u8], u32)>) {
        let long = &mut self.long;
        self.short.set(entries.filter_map(|(key, value)| {
            let short = word(key);
            if short.is_none() {
                long.insert(key.into(), value);
            }
            Some((short?, value))
        }));
    }

    /// Writes the values of `keys` to `out`. A key that has none yet gets the next number: `given`,
    /// that many were given so far, and one.
    pub(crate) fn number(&mut self, keys: &TextKeys, given: &mut u32, out: &mut Vec<u32>) {
        out.clear();
        let short = keys.words(0..keys.len()).map(|word| (!is_long(word)).then_some(word));
        self.short.number(short, given, |number| out.push(number));
        let none = out.iter_mut().filter(|number| **number == 0);
        for (place, key) in none.zip(keys.long()) {
            *place = match self.long.get(key) {
                Some(number) => *number,
                None => {
                    *given = given.saturating_add(1);
                    self.long.insert(key.into(), *given);
                    *given
                }
            };
        }
    }

    /// Calls `take` with the value of every one of the keys number `range` in turn; 0 for a key
    /// that has none.
    pub(crate) fn look_up(&self, keys: &TextKeys, range: Range<usize>, mut take: impl FnMut(u32)) {
        let mut at = range.start;
        let mut words = keys.words(range.clone());
        self.short.look_up(keys.words(range), |value| {
            let is_long = words.next().is_some_and(is_long);
            take(if is_long { self.long.get(keys.at(at)).copied().unwrap_or(0) } else { value });
            at += 1;
        });
    }

    /// Words of the short keys and their values, in no order.
    pub(crate) fn short(&self) -> impl Iterator<Item = (u128, u32)> {
        self.short.entries()
    }

    /// The longer keys and their values, in no order.
    pub(crate) fn long(&self) -> impl Iterator<Item = (&[u8], u32)> {
        self.long.iter().map(|(key, value)| (&**key, *value))
    }
}

/// A word, and above it its value.
impl Entry for u128 {
    type Key = Self;

    fn new(key: Self, value: u32) -> Self {
        Self::from(value) << 96 | key
    }

    fn key(self) -> Self {
        self & ((1 << 96) - 1)
    }

    fn value(self) -> u32 {
        (self >> 96) as u32
    }

    /// Both halves of a product of both parts (foldhash).
    #[expect(clippy::cast_possible_truncation, reason = "the parts are taken apart")]
    fn hash(key: Self) -> u64 {
        let (text, rest) = (key as u64, (key >> 64) as u64);
        let product = Self::from(text ^ 0x243f_6a88_85a3_08d3)
            * Self::from(rest.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1319_8a2e_0370_7344);
        product as u64 ^ (product >> 64) as u64
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
            ours.set(set.iter().map(Vec::as_slice).zip(1..));
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
            let mut values = Vec::new();
            ours.look_up(&keys(&asked), start..asked.len(), |value| values.push(value));
            let expected = asked[start..].iter().map(|key| theirs.get(key).copied().unwrap_or(0));
            prop_assert_eq!(values, expected.collect::<Vec<u32>>());
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
