//! A map from number keys to counts or ids: open addressing with linear probing (Knuth, The Art of
//! Computer Programming 3, §6.4, algorithm L), a key and its value in one word.
//!
//! A key costs one cache miss where the standard map has two, and the misses of many keys overlap,
//! since their first places are asked for ahead. Frequent keys come early, so they lie where they
//! are looked for first. The keys are the user's own data: nobody chooses them to collide.
//!
//! Invariants: a value of 0 marks a free place; at most three places in four are taken.

use umbra_core::kernel::prefetch;

use super::key_column::MISSING;
use super::places::{Entry, Places};

/// Keys below 2^32 and [`MISSING`] to values that are not 0.
#[derive(Debug)]
pub(crate) struct NumberMap {
    /// Keys and their values, 0 in a free place; a power of two of them, one or more.
    places: Places,
    taken: usize,
    /// Value of the missing key; 0 without one.
    missing: u32,
}

impl NumberMap {
    /// Makes room for `keys` more.
    pub(crate) fn reserve(&mut self, keys: usize) {
        let needed = (self.taken + keys) * 4;
        if needed <= self.places.len() * 3 {
            return;
        }
        let places = needed.div_ceil(3).next_power_of_two();
        let old = core::mem::replace(&mut self.places, Places::new(places));
        let places = &mut *self.places;
        for entry in old.iter().filter(|[_, value]| *value != 0) {
            let place = find(places, entry[0], home(places, entry[0]));
            places[place] = *entry;
        }
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.taken + usize::from(self.missing != 0)
    }

    /// Sets the value of `key`, which must not be 0.
    pub(crate) fn set(&mut self, key: u64, value: u32) {
        if key == MISSING {
            self.missing = value;
            return;
        }
        self.reserve(1);
        let (key, places) = (low(key), &mut *self.places);
        let place = find(places, key, home(places, key));
        self.taken += usize::from(places[place][1] == 0);
        places[place] = [key, value];
    }

    /// Whether `key` has a value.
    pub(crate) fn has(&self, key: u64) -> bool {
        let mut found = 0;
        self.look_up(&[key], |value| found = value);
        found != 0
    }

    /// Adds 1 to the value of every one of `keys`, up to the largest.
    pub(crate) fn count(&mut self, keys: &[u64]) {
        self.ask_for(keys.iter().take(AHEAD));
        let mut ahead = keys.iter().skip(AHEAD);
        for keys in keys.chunks(AHEAD) {
            self.reserve(keys.len());
            for &key in keys {
                self.ask_for(ahead.next());
                if key == MISSING {
                    self.missing = self.missing.saturating_add(1);
                    continue;
                }
                let (key, places) = (low(key), &mut *self.places);
                let place = find(places, key, home(places, key));
                let value = places[place][1];
                self.taken += usize::from(value == 0);
                places[place] = [key, value.saturating_add(1)];
            }
        }
    }

    /// Calls `take` with the value of every one of `keys` in turn; 0 for a key that has none.
    pub(crate) fn look_up(&self, keys: &[u64], mut take: impl FnMut(u32)) {
        let places = &*self.places;
        self.ask_for(keys.iter().take(AHEAD));
        let mut ahead = keys.iter().skip(AHEAD);
        for &key in keys {
            self.ask_for(ahead.next());
            take(if key == MISSING {
                self.missing
            } else {
                // In a free place too this is the answer.
                places[find(places, low(key), home(places, low(key)))][1]
            });
        }
    }

    /// Asks for the first places of `keys` ahead of their use.
    #[inline(always)]
    fn ask_for<'a>(&self, keys: impl IntoIterator<Item = &'a u64>) {
        let places = &*self.places;
        keys.into_iter().for_each(|&key| prefetch(&places[home(places, low(key))]));
    }

    /// Keys and values, in no order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, u32)> {
        let taken = self.places.iter().filter(|[_, value]| *value != 0);
        let missing = (self.missing != 0).then_some((MISSING, self.missing));
        taken.map(|&[key, value]| (u64::from(key), value)).chain(missing)
    }
}

/// Where `key` is, or the free place where it belongs.
#[inline]
fn find(places: &[Entry], key: u32, home: usize) -> usize {
    let mut place = home;
    while places[place][1] != 0 && places[place][0] != key {
        place = (place + 1) & (places.len() - 1);
    }
    place
}

/// Fibonacci hashing (Knuth 3, §6.4): the top bits of a product.
#[inline]
fn home(places: &[Entry], key: u32) -> usize {
    let product = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // In two steps: the shift of a single place is 64.
    (product >> 1 >> (63 - places.len().trailing_zeros())) as usize
}

impl Default for NumberMap {
    fn default() -> Self {
        Self { places: Places::new(1), taken: 0, missing: 0 }
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

/// Keys asked for ahead: at a few ns each, as long as a memory access takes.
const AHEAD: usize = 32;

#[cfg(test)]
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
            set in prop::collection::vec((0u64..60, 1u32..), 0..40),
        ) {
            let (mut ours, mut theirs) = (NumberMap::default(), HashMap::new());
            for &(key, value) in &set {
                ours.set(key, value);
                theirs.insert(key, value);
            }
            ours.count(&keys);
            for &key in &keys {
                let count = theirs.entry(key).or_insert(0u32);
                *count = count.saturating_add(1);
            }
            prop_assert_eq!(ours.len(), theirs.len());
            let asked: Vec<u64> = keys.iter().copied().chain(0..100).chain([MISSING]).collect();
            let mut values = Vec::new();
            ours.look_up(&asked, |value| values.push(value));
            let expected: Vec<u32> =
                asked.iter().map(|key| theirs.get(key).copied().unwrap_or(0)).collect();
            prop_assert_eq!(values, expected);
            prop_assert_eq!(ours.entries().collect::<HashMap<_, _>>(), theirs);
        }
    }
}
