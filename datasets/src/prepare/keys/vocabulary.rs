//! The vocabulary of a field: its keys, counted and ranked.
//!
//! Kept keys are in the order of descending count, ties by the bytes of their text, so that ids
//! depend on the input alone. A vocabulary that grows keeps its keys where they are, and new ones
//! follow in the same order among themselves. The text of a number key is its canonical spelling
//! ([`Spelling`]); the text of the missing key is empty, and it is counted and kept like any other.

use core::cmp::Ordering;

use super::hash::FastMap;
use super::key_column::Keys;
use super::number_map::NumberMap;
use super::rule::Counting;
use super::spelling::{SPELLED_BYTES_MAX, Spelling};
use super::text_map::TextMap;
use super::word::{long_order, order, short_text, word_in};

/// The kept keys of one field in the order of their ids: the text of key number i is
/// `bytes[offsets[i]..offsets[i + 1]]`. This is what a dataset stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyList {
    pub(crate) bytes: Vec<u8>,
    pub(crate) offsets: Vec<u64>,
}

impl Default for KeyList {
    fn default() -> Self {
        Self { bytes: Vec::new(), offsets: vec![0] }
    }
}

impl KeyList {
    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Makes room for `keys` more, of about eight bytes each.
    fn reserve(&mut self, keys: usize) {
        self.bytes.reserve(keys * 8);
        self.offsets.reserve(keys);
    }

    /// What was added to the bytes is a key.
    fn end_key(&mut self) {
        self.offsets.push(self.bytes.len() as u64);
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let bounds = self.offsets.windows(2);
        bounds.map(|bound| {
            let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
            &self.bytes[at(bound[0])..at(bound[1])]
        })
    }

    /// The keys with `values` in turn, none of which may be 0.
    ///
    /// # Errors
    /// A key that is not in this spelling, or stands there twice; its number.
    pub(crate) fn number_map(
        &self,
        spelling: Spelling,
        values: impl Iterator<Item = u32>,
    ) -> Result<NumberMap, u64> {
        let mut map = NumberMap::default();
        map.reserve(self.len());
        for ((text, value), at) in self.texts().zip(values).zip(0u64..) {
            let key = spelling.read(text).ok_or(at)?;
            map.set(key, value).then_some(()).ok_or(at)?;
        }
        Ok(map)
    }

    /// The keys with `values` in turn, none of which may be 0.
    ///
    /// # Errors
    /// A key that stands there twice; its number.
    pub(crate) fn text_map(&self, values: impl Iterator<Item = u32>) -> Result<TextMap, u64> {
        let mut map = TextMap::default();
        map.reserve(self.len());
        for ((text, value), at) in self.texts().zip(values).zip(0u64..) {
            map.set(text, value).then_some(()).ok_or(at)?;
        }
        Ok(map)
    }
}

/// Numbers the keys of one field in the order in which they first come, those of a known list in
/// front of them, and counts them. Counts stop at the largest u32: then only ties at the very top
/// are ranked by key.
pub(crate) struct Numbering {
    map: Map,
    /// The number that was given last; the first is 1.
    given: u32,
    /// By number; of 0 nothing. `[given + 1]`
    counts: Vec<u32>,
    known: KeyList,
}

enum Map {
    Number { numbers: NumberMap, spelling: Spelling },
    Text { numbers: TextMap },
}

/// What was counted in one field.
pub(crate) struct Counted {
    pub(crate) list: KeyList,
    /// By number; of 0 nothing. `[given + 1]`
    pub(crate) ids: Vec<u32>,
    /// Distinct keys.
    pub(crate) keys: u64,
    /// Distinct keys that are not kept.
    pub(crate) keys_left_out: u64,
}

impl Numbering {
    /// `spelling` is `None` for text keys.
    ///
    /// # Errors
    /// A key of `known` that is not in this format's spelling, or stands there twice; its number in
    /// the list.
    pub(crate) fn new(spelling: Option<Spelling>, known: KeyList) -> Result<Self, u64> {
        let map = match spelling {
            Some(spelling) => Map::Number { numbers: known.number_map(spelling, 1..)?, spelling },
            None => Map::Text { numbers: known.text_map(1..)? },
        };
        let given = u32::try_from(known.len()).unwrap_or(u32::MAX);
        Ok(Self { map, given, counts: vec![0; given as usize + 1], known })
    }

    /// Writes the number of every key to `numbers`.
    pub(crate) fn add(&mut self, keys: &Keys, numbers: &mut Vec<u32>) {
        let given = &mut self.given;
        match (&mut self.map, keys) {
            (Map::Number { numbers: map, .. }, Keys::Number(keys)) => {
                map.number(keys, given, numbers);
            }
            (Map::Text { numbers: map }, Keys::Text(keys)) => map.number(keys, given, numbers),
            // A format has either numbers or texts, and its fields are made for it.
            _ => numbers.clear(),
        }
        self.counts.resize(self.given as usize + 1, 0);
        for &number in &*numbers {
            let count = &mut self.counts[number as usize];
            *count = count.saturating_add(1);
        }
    }

    /// The known keys, and behind them the others that `counting` keeps.
    pub(crate) fn finish(self, counting: &Counting) -> Counted {
        let Self { map, given, counts, known } = self;
        let old = known.len();
        let mut ranking = Ranking { counting, counts: &counts, old, ids: Vec::new(), list: known };
        ranking.ids.resize(given as usize + 1, 0);
        let old_ids = ranking.ids.iter_mut().skip(1).zip(counting.unknown.count..);
        old_ids.take(old).for_each(|(place, id)| *place = id);
        let distinct = match map {
            Map::Number { numbers, spelling } => {
                let rank = |(key, number)| {
                    descending(counts[number as usize])
                        | u128::from(spelling.order(key)) << 32
                        | u128::from(number)
                };
                let mut spelt = [0; SPELLED_BYTES_MAX];
                ranking.rank(
                    numbers.entries().map(rank),
                    u128::cmp,
                    |rank| low_32(*rank),
                    |rank, text| {
                        let key = spelling.key(order_in(*rank));
                        text.extend_from_slice(spelling.spell(key, &mut spelt));
                    },
                );
                numbers.len()
            }
            Map::Text { numbers } => {
                // The order of a longer text says only how it begins.
                let long: FastMap<u32, &[u8]> =
                    numbers.long().map(|(text, number)| (number, text)).collect();
                let short = numbers.short().map(|(word, number)| (order(word), number));
                let longer = numbers.long().map(|(text, number)| (long_order(text), number));
                let rank = |(order, number)| (descending(counts[number as usize]) | order, number);
                ranking.rank(
                    short.chain(longer).map(rank),
                    |a: &(u128, u32), b| {
                        a.0.cmp(&b.0).then_with(|| long.get(&a.1).cmp(&long.get(&b.1)))
                    },
                    |(_, number)| *number,
                    |(rank, number), text| {
                        let word = word_in(*rank).to_le_bytes();
                        let of_long = || long.get(number).copied().unwrap_or_default();
                        text.extend_from_slice(short_text(&word).unwrap_or_else(of_long));
                    },
                );
                numbers.len()
            }
        };
        let Ranking { ids, list, .. } = ranking;
        let old_seen = counts[1..=old].iter().filter(|count| **count > 0).count();
        let left_out = distinct - list.len();
        let keys = (distinct - old + old_seen) as u64;
        Counted { list, ids, keys, keys_left_out: left_out as u64 }
    }
}

/// From counts to ids.
struct Ranking<'a> {
    counting: &'a Counting,
    /// By number.
    counts: &'a [u32],
    /// The first so many numbers are of keys that were known.
    old: usize,
    /// By number.
    ids: Vec<u32>,
    list: KeyList,
}

impl Ranking<'_> {
    /// Ranks all keys but those known: in the order of `compare`, with their numbers, and with a
    /// way to append their texts.
    fn rank<R>(
        &mut self,
        keys: impl Iterator<Item = R>,
        compare: impl Fn(&R, &R) -> Ordering,
        number: impl Fn(&R) -> u32,
        mut spell: impl FnMut(&R, &mut Vec<u8>),
    ) {
        let Self { counting, counts, old, ids, list } = self;
        let mut text = Vec::new();
        // Most often all of them share id 0, and need no spelling.
        let mut leave_out = |key: &R, spell: &mut dyn FnMut(&R, &mut Vec<u8>), id: &mut u32| {
            if counting.unknown.count > 1 {
                text.clear();
                spell(key, &mut text);
                *id = counting.unknown.id(&text);
            }
        };
        let mut ranked = Vec::new();
        for key in keys.filter(|key| number(key) as usize > *old) {
            let at = number(&key) as usize;
            if counts[at] >= counting.min_count {
                ranked.push(key);
            } else {
                leave_out(&key, &mut spell, &mut ids[at]);
            }
        }
        ranked.sort_unstable_by(compare);
        let room = counting.cap.map_or(usize::MAX, |cap| cap as usize).saturating_sub(*old);
        let (kept, beyond) = ranked.split_at(room.min(ranked.len()));
        for key in beyond {
            leave_out(key, &mut spell, &mut ids[number(key) as usize]);
        }
        list.reserve(kept.len());
        for key in kept {
            ids[number(key) as usize] = id_of(list.len(), counting.unknown.count);
            spell(key, &mut list.bytes);
            list.end_key();
        }
    }
}

/// The id of the kept key number `at` from 0. Where there are too many for ids the caller refuses
/// them all.
#[expect(clippy::cast_possible_truncation, reason = "too many are refused")]
fn id_of(at: usize, unknown: u32) -> u32 {
    unknown.wrapping_add(at as u32)
}

/// The upper 32 bits of a rank.
fn descending(count: u32) -> u128 {
    u128::from(u32::MAX - count) << 96
}

#[expect(clippy::cast_possible_truncation, reason = "the number is in the lowest 32 bits")]
fn low_32(rank: u128) -> u32 {
    rank as u32
}

/// The order of a number key, between its count and its number.
fn order_in(rank: u128) -> u64 {
    #[expect(clippy::cast_possible_truncation, reason = "so many bits are left")]
    let order = (rank >> 32) as u64 & ((1 << 40) - 1);
    order
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
mod tests {
    use super::*;
    use crate::prepare::keys::encoder::Encoder;
    use crate::prepare::keys::hash::hash_key;
    use crate::prepare::keys::key_column::{MISSING, TextKeys};
    use crate::prepare::keys::rule::{Buckets, IdRule};

    fn counting(min_count: u32, cap: Option<u32>, buckets: u32) -> Counting {
        Counting { min_count, cap, unknown: Buckets { count: buckets, salt: 3 } }
    }

    fn encoder(counting: Counting, list: &KeyList, spelling: Option<Spelling>) -> Encoder {
        Encoder::new(IdRule::Counted(counting), list, spelling).unwrap()
    }

    /// What is counted of `keys`, which are numbered in two parts, and their ids.
    fn count(
        keys: &[Keys],
        counting: &Counting,
        spelling: Option<Spelling>,
        known: KeyList,
    ) -> (Counted, Vec<u32>) {
        let mut numbering = Numbering::new(spelling, known).unwrap();
        let mut all = Vec::new();
        for keys in keys {
            let mut numbers = vec![7];
            numbering.add(keys, &mut numbers);
            all.extend(numbers);
        }
        let counted = numbering.finish(counting);
        let ids = all.iter().map(|&number| counted.ids[number as usize]).collect();
        (counted, ids)
    }

    #[test]
    fn ids_follow_counts_then_texts() {
        let keys = [vec![9, 10, 2, 9], vec![MISSING, MISSING, 100, 10, 7]].map(Keys::Number);
        let spelling = Some(Spelling::Decimal);
        let (counted, ids) = count(&keys, &counting(1, None, 1), spelling, KeyList::default());
        assert_eq!(ids, [3, 2, 5, 3, 1, 1, 4, 2, 6]);
        let texts: Vec<&[u8]> = counted.list.texts().collect();
        assert_eq!(texts, [b"" as &[u8], b"10", b"9", b"100", b"2", b"7"]);
        assert_eq!((counted.keys, counted.keys_left_out), (6, 0));

        let encoder = encoder(counting(1, None, 1), &counted.list, Some(Spelling::Decimal));
        let mut out = [99; 8];
        let unknown = encoder.encode(&Keys::Number(vec![7, MISSING, 8, 9]), 0..4, &mut out[1..], 2);
        assert_eq!((out, unknown), ([99, 6, 99, 1, 99, 0, 99, 3], 1));
    }

    #[test]
    fn rare_keys_share_id_zero() {
        let mut keys = TextKeys::default();
        for key in ["a", "", "b", "a", "c", "c", ""] {
            keys.push(key.as_bytes());
        }
        let keys = Keys::Text(keys);
        let keys = [keys];
        let (counted, ids) = count(&keys, &counting(2, None, 1), None, KeyList::default());
        let [keys] = keys;
        assert_eq!(ids, [2, 1, 0, 2, 3, 3, 1]);
        assert_eq!((counted.keys, counted.keys_left_out), (4, 1));
        assert_eq!(counted.list.len(), 3);
        let encoder = encoder(counting(2, None, 1), &counted.list, None);
        let mut out = [99; 7];
        assert_eq!(encoder.encode(&keys, 0..7, &mut out, 1), 1);
        assert_eq!(out, [2, 1, 0, 2, 3, 3, 1]);
    }

    #[test]
    fn a_list_in_another_spelling_or_with_a_key_twice_is_refused() {
        let mut list = KeyList::default();
        for key in [b"12" as &[u8], b"x", b"x"] {
            list.bytes.extend_from_slice(key);
            list.end_key();
        }
        assert_eq!(Numbering::new(None, list.clone()).err(), Some(2), "twice");
        let rule = IdRule::Counted(counting(1, None, 1));
        assert_eq!(Encoder::new(rule, &list, Some(Spelling::Decimal)).err(), Some(1));
        assert_eq!(Numbering::new(Some(Spelling::Decimal), list).err(), Some(1));
    }

    #[test]
    fn the_most_frequent_keys_are_kept_and_known_ones_stay_in_front() {
        for spelling in [None, Some(Spelling::Decimal)] {
            let keys = |texts: &[&str]| match spelling {
                None => {
                    let mut keys = TextKeys::default();
                    texts.iter().for_each(|text| keys.push(text.as_bytes()));
                    Keys::Text(keys)
                }
                Some(_) => Keys::Number(texts.iter().map(|text| text.parse().unwrap()).collect()),
            };
            let texts = |list: &KeyList| -> Vec<String> {
                list.texts().map(|text| String::from_utf8(text.to_vec()).unwrap()).collect()
            };
            let seen = [keys(&["5", "7", "7"]), keys(&["9", "9", "9", "4"])];
            let (first, ids) = count(&seen, &counting(1, Some(2), 1), spelling, KeyList::default());
            assert_eq!(ids, [0, 2, 2, 1, 1, 1, 0]);
            assert_eq!(texts(&first.list), ["9", "7"]);
            assert_eq!((first.keys, first.keys_left_out), (4, 2));

            let seen = [keys(&["7", "8", "8", "5", "6"]), keys(&["6", "6", "1", "1"])];
            let counted = counting(2, Some(4), 3);
            let (second, seen_ids) = count(&seen, &counted, spelling, first.list);
            assert_eq!(texts(&second.list), ["9", "7", "6", "1"]);
            assert_eq!((second.keys, second.keys_left_out), (5, 2));

            // Ids of keys begin behind the buckets; unknown ones are hashed into those.
            let encoder = encoder(counting(2, Some(4), 3), &second.list, spelling);
            let mut ids = [99; 4];
            assert_eq!(encoder.encode(&keys(&["9", "1", "8", "5"]), 0..4, &mut ids, 1), 2);
            let bucket = |key: &str| (hash_key(key.as_bytes(), 3) % 3) as u32;
            assert_eq!(ids, [3, 6, bucket("8"), bucket("5")]);
            let [five, eight] = ["5", "8"].map(bucket);
            assert_eq!(seen_ids, [4, eight, eight, five, 5, 5, 5, 6, 6]);
        }
    }
}
