//! A map from number keys to numbers or ids, eight bytes a key.

use super::hash::FastMap;
use super::key_column::MISSING;

/// Keys below 2^32 and [`MISSING`] to values that are not 0.
#[derive(Debug, Default)]
pub(crate) struct NumberMap {
    numbers: FastMap<u32, u32>,
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

    /// Sets the value of a key, which may not be 0. False if it had one.
    pub(crate) fn set(&mut self, key: u64, value: u32) -> bool {
        if key == MISSING {
            return core::mem::replace(&mut self.missing, value) == 0;
        }
        self.numbers.insert(low(key), value).is_none()
    }

    /// Writes the values of `keys` to `out`. A key that has none yet gets the next number: `given`,
    /// that many were given so far, and one.
    pub(crate) fn number(&mut self, keys: &[u64], given: &mut u32, out: &mut Vec<u32>) {
        out.clear();
        let mut next = || {
            *given = given.saturating_add(1);
            *given
        };
        out.extend(keys.iter().map(|&key| {
            if key == MISSING {
                if self.missing == 0 {
                    self.missing = next();
                }
                return self.missing;
            }
            *self.numbers.entry(low(key)).or_insert_with(&mut next)
        }));
    }

    /// The value of `key`; 0 where it has none.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> u32 {
        if key == MISSING {
            return self.missing;
        }
        self.numbers.get(&low(key)).copied().unwrap_or(0)
    }

    /// Keys and values, in no order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, u32)> {
        let missing = (self.missing != 0).then_some((MISSING, self.missing));
        self.numbers.iter().map(|(&key, &value)| (u64::from(key), value)).chain(missing)
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
            for (&key, value) in set.iter().zip(1..) {
                prop_assert!(ours.set(key, value + 1) && !ours.set(key, value));
            }
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
            for key in asked {
                prop_assert_eq!(ours.get(key), theirs.get(&key).copied().unwrap_or(0));
            }
            let mut numbers: Vec<u32> = theirs.values().copied().collect();
            numbers.sort_unstable();
            prop_assert!(numbers.iter().copied().eq(1..=given), "each number is given once");
            prop_assert_eq!(ours.entries().collect::<HashMap<_, _>>(), theirs);
        }
    }
}
