//! A map from number keys to numbers or ids, eight bytes a key.

use super::key_column::MISSING;
use super::probing::{Entry, Probing};

/// Keys below 2^32 and [`MISSING`] to values that are not 0.
#[derive(Debug, Default)]
pub(crate) struct NumberMap {
    numbers: Probing<[u32; 2]>,
    /// Value of the missing key; 0 without one.
    missing: u32,
}

impl NumberMap {
    /// Makes room for `keys` more.
    pub(crate) fn reserve(&mut self, keys: usize) {
        self.numbers.reserve(keys);
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len() + usize::from(self.missing != 0)
    }

    /// Sets the values of keys; no value may be 0.
    pub(crate) fn set(&mut self, entries: impl Iterator<Item = (u64, u32)>) {
        let missing = &mut self.missing;
        self.numbers.set(entries.filter_map(|(key, value)| {
            if key == MISSING {
                *missing = value;
                return None;
            }
            Some((low(key), value))
        }));
    }

    /// Writes the values of `keys` to `out`. A key that has none yet gets the next number: `given`,
    /// that many were given so far, and one.
    pub(crate) fn number(&mut self, keys: &[u64], given: &mut u32, out: &mut Vec<u32>) {
        out.clear();
        let there = keys.iter().map(|&key| (key != MISSING).then(|| low(key)));
        let mut some_are_missing = false;
        self.numbers.number(there, given, |number| {
            some_are_missing |= number == 0;
            out.push(number);
        });
        if some_are_missing {
            if self.missing == 0 {
                *given = given.saturating_add(1);
                self.missing = *given;
            }
            out.iter_mut().filter(|number| **number == 0).for_each(|none| *none = self.missing);
        }
    }

    /// Calls `take` with the value of every one of `keys` in turn; 0 for a key that has none.
    pub(crate) fn look_up(&self, keys: &[u64], mut take: impl FnMut(u32)) {
        let mut key = keys.iter();
        self.numbers.look_up(keys.iter().map(|&key| low(key)), |value| {
            take(if key.next() == Some(&MISSING) { self.missing } else { value });
        });
    }

    /// Keys and values, in no order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, u32)> {
        let missing = (self.missing != 0).then_some((MISSING, self.missing));
        self.numbers.entries().map(|(key, value)| (u64::from(key), value)).chain(missing)
    }
}

/// A key and its value.
impl Entry for [u32; 2] {
    type Key = u32;

    fn new(key: u32, value: u32) -> Self {
        [key, value]
    }

    fn key(self) -> u32 {
        self[0]
    }

    fn value(self) -> u32 {
        self[1]
    }

    /// Fibonacci hashing (Knuth 3, §6.4): the top bits of a product.
    fn hash(key: u32) -> u64 {
        u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// A key that is not missing; 0 for the missing one.
#[expect(
    clippy::cast_possible_truncation,
    reason = "keys are below 2^32; the missing one ends in 0"
)]
pub(crate) fn low(key: u64) -> u32 {
    key as u32
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_the_standard_map(
            keys in prop::collection::vec(
                prop_oneof![
                    0u64..50,
                    0u64..1 << 32,
                    Just(MISSING),
                    (0u64..40).prop_map(|i| i << 26),
                ],
                0..400,
            ),
            set in prop::collection::btree_set(prop_oneof![0u64..60, Just(MISSING)], 0..40),
        ) {
            let (mut ours, mut theirs) = (NumberMap::default(), HashMap::new());
            ours.set(set.iter().copied().zip(1..));
            theirs.extend(set.iter().copied().zip(1u32..));
            let mut given = u32::try_from(set.len()).unwrap();
            let (first, second) = keys.split_at(keys.len() / 3);
            let mut numbers = vec![7];
            for keys in [first, second] {
                ours.number(keys, &mut given, &mut numbers);
                prop_assert_eq!(numbers.len(), keys.len());
                for (key, &number) in keys.iter().zip(&numbers) {
                    prop_assert_eq!(number, *theirs.entry(*key).or_insert(number));
                }
            }
            prop_assert_eq!((ours.len(), given as usize), (theirs.len(), theirs.len()));
            let asked: Vec<u64> = keys.iter().copied().chain(0..100).chain([MISSING]).collect();
            let mut values = Vec::new();
            ours.look_up(&asked, |value| values.push(value));
            let expected: Vec<u32> =
                asked.iter().map(|key| theirs.get(key).copied().unwrap_or(0)).collect();
            prop_assert_eq!(values, expected);
            let mut numbers: Vec<u32> = theirs.values().copied().collect();
            numbers.sort_unstable();
            prop_assert!(numbers.iter().copied().eq(1..=given), "each number is given once");
            prop_assert_eq!(ours.entries().collect::<HashMap<_, _>>(), theirs);
        }
    }
}
