//! The map under [`NumberMap`](super::number_map::NumberMap) and
//! [`TextMap`](super::text_map::TextMap): open addressing with linear probing (Knuth, The Art of
//! Computer Programming 3, §6.4, algorithm L), a key and its value in one word.
//!
//! A key costs one cache miss where the standard map has two, and the misses of many keys overlap,
//! since their first places are asked for ahead. Frequent keys come early, so they lie where they
//! are looked for first. The keys are the user's own data: nobody chooses them to collide.
//!
//! Invariants: a value of 0 marks a free place; at most three places in four are taken.

use bytemuck::Pod;
use umbra_core::kernel::prefetch;

use super::places::Places;

/// A key and its value in one word, all zeros in a free place.
pub(crate) trait Entry: Pod {
    type Key: Copy + PartialEq;

    fn new(key: Self::Key, value: u32) -> Self;

    fn key(self) -> Self::Key;

    /// 0 in a free place.
    fn value(self) -> u32;

    /// Its top bits say where a key is looked for first.
    fn hash(key: Self::Key) -> u64;
}

/// Keys to values that are not 0.
#[derive(Debug)]
pub(crate) struct Probing<E> {
    /// A power of two of them, one or more.
    places: Places<E>,
    taken: usize,
}

impl<E: Entry> Probing<E> {
    /// Makes room for `keys` more.
    pub(crate) fn reserve(&mut self, keys: usize) {
        let needed = (self.taken + keys) * 4;
        if needed <= self.places.len() * 3 {
            return;
        }
        let places = needed.div_ceil(3).next_power_of_two();
        let old = core::mem::replace(&mut self.places, Places::new(places));
        let places = &mut *self.places;
        for entry in old.iter().filter(|entry| entry.value() != 0) {
            let place = find(places, entry.key());
            places[place] = *entry;
        }
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.taken
    }

    /// Sets the values of keys; no value may be 0.
    pub(crate) fn set(&mut self, mut entries: impl Iterator<Item = (E::Key, u32)>) {
        let mut some = [E::zeroed(); AHEAD];
        loop {
            let taken = some
                .iter_mut()
                .zip(&mut entries)
                .map(|(entry, (key, value))| *entry = E::new(key, value))
                .count();
            if taken == 0 {
                return;
            }
            self.reserve(taken);
            let some = &some[..taken];
            self.ask_for(some.iter().map(|entry| entry.key()));
            let places = &mut *self.places;
            for entry in some {
                let place = find(places, entry.key());
                self.taken += usize::from(places[place].value() == 0);
                places[place] = *entry;
            }
        }
    }

    /// Calls `take` with the value of every one of `keys` in turn, and with 0 where there is no key.
    /// A key that has none yet gets the next number: `given`, that many were given so far, and one.
    pub(crate) fn number(
        &mut self,
        mut keys: impl Iterator<Item = Option<E::Key>> + Clone,
        given: &mut u32,
        mut take: impl FnMut(u32),
    ) {
        let mut ahead = keys.clone();
        self.ask_for(ahead.by_ref().take(AHEAD).flatten());
        let mut is_more = true;
        while is_more {
            is_more = false;
            self.reserve(AHEAD);
            for key in keys.by_ref().take(AHEAD) {
                is_more = true;
                self.ask_for(ahead.next().flatten());
                let Some(key) = key else {
                    take(0);
                    continue;
                };
                let places = &mut *self.places;
                let place = find(places, key);
                let mut value = places[place].value();
                if value == 0 {
                    // Past the largest number keys share it, and are refused once all are counted.
                    *given = given.saturating_add(1);
                    value = *given;
                    places[place] = E::new(key, value);
                    self.taken += 1;
                }
                take(value);
            }
        }
    }

    /// Calls `take` with the value of every one of `keys` in turn; 0 for a key that has none.
    pub(crate) fn look_up(
        &self,
        keys: impl Iterator<Item = E::Key> + Clone,
        mut take: impl FnMut(u32),
    ) {
        let places = &*self.places;
        let mut ahead = keys.clone();
        self.ask_for(ahead.by_ref().take(AHEAD));
        for key in keys {
            self.ask_for(ahead.next());
            // In a free place too this is the answer.
            take(places[find(places, key)].value());
        }
    }

    /// Asks for the first places of `keys` ahead of their use.
    #[inline(always)]
    fn ask_for(&self, keys: impl IntoIterator<Item = E::Key>) {
        let places = &*self.places;
        keys.into_iter().for_each(|key| prefetch(&places[home::<E>(places, key)]));
    }

    /// Keys and values, in no order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (E::Key, u32)> {
        let taken = self.places.iter().filter(|entry| entry.value() != 0);
        taken.map(|entry| (entry.key(), entry.value()))
    }
}

impl<E: Entry> Default for Probing<E> {
    fn default() -> Self {
        Self { places: Places::new(1), taken: 0 }
    }
}

/// Where `key` is, or the free place where it belongs.
#[inline]
fn find<E: Entry>(places: &[E], key: E::Key) -> usize {
    let mut place = home(places, key);
    while places[place].value() != 0 && places[place].key() != key {
        place = (place + 1) & (places.len() - 1);
    }
    place
}

#[inline]
fn home<E: Entry>(places: &[E], key: E::Key) -> usize {
    // In two steps: the shift of a single place is 64.
    (E::hash(key) >> 1 >> (63 - places.len().trailing_zeros())) as usize
}

/// Keys asked for ahead: at a few ns each, as long as a memory access takes.
const AHEAD: usize = 32;
