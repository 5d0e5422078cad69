//! The vocabulary of a field: its keys, counted and ranked.
//!
//! Kept keys are in the order of descending count, ties by the bytes of their text, so that ids
//! depend on the input alone. A vocabulary that grows keeps its keys where they are, and new ones
//! follow in the same order among themselves. The text of a number key is its canonical spelling
//! ([`Spelling`]); the text of the missing key is empty, and it is counted and kept like any other.

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

    fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
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
    /// A key that is not in this spelling; its number.
    pub(crate) fn number_map(
        &self,
        spelling: Spelling,
        values: impl Iterator<Item = u32>,
    ) -> Result<NumberMap, u64> {
        let mut map = NumberMap::default();
        map.reserve(self.len());
        let mut read = 0;
        map.set(self.texts().zip(values).map_while(|(text, value)| {
            let key = spelling.read(text)?;
            read += 1;
            Some((key, value))
        }));
        if read == self.len() as u64 { Ok(map) } else { Err(read) }
    }

    /// The keys with `values` in turn, none of which may be 0.
    pub(crate) fn text_map(&self, values: impl Iterator<Item = u32>) -> TextMap {
        let mut map = TextMap::default();
        map.reserve(self.len());
        map.set(self.texts().zip(values));
        map
    }
}

/// Counts the keys of one field. Counts stop at the largest u32: then only ties at the very top are
/// ranked by key.
pub(crate) enum Counter {
    Number { counts: NumberMap, spelling: Spelling },
    Text { counts: TextMap },
}

/// What was counted in one field.
pub(crate) struct Counted {
    pub(crate) list: KeyList,
    /// Distinct keys.
    pub(crate) keys: u64,
    /// Distinct keys that are not kept.
    pub(crate) keys_left_out: u64,
}

impl Counter {
    /// `spelling` is `None` for text keys.
    pub(crate) fn new(spelling: Option<Spelling>) -> Self {
        match spelling {
            Some(spelling) => Self::Number { counts: NumberMap::default(), spelling },
            None => Self::Text { counts: TextMap::default() },
        }
    }

    pub(crate) fn add(&mut self, keys: &Keys) {
        match (self, keys) {
            (Self::Number { counts, .. }, Keys::Number(keys)) => counts.count(keys),
            (Self::Text { counts }, Keys::Text(keys)) => counts.count(keys),
            (Self::Number { .. }, Keys::Text(_)) | (Self::Text { .. }, Keys::Number(_)) => {}
        }
    }

    /// The keys of `known`, and behind them the others that `counting` keeps.
    ///
    /// # Errors
    /// A key of `known` that is not in this format's spelling; its number in the list.
    pub(crate) fn finish(self, counting: &Counting, known: KeyList) -> Result<Counted, u64> {
        let kept = |count: u64| count >= u64::from(counting.min_count);
        let mut list = known;
        let old = list.len();
        let room = counting.cap.map_or(usize::MAX, |cap| cap as usize).saturating_sub(old);
        let (seen, old_seen) = match self {
            Self::Number { counts, spelling } => {
                let distinct = counts.len();
                let known = list.number_map(spelling, 1..)?;
                let mut old_seen = 0;
                let mut ranked: Vec<u128> = Vec::new();
                for (key, count) in counts.entries() {
                    if known.has(key) {
                        old_seen += 1;
                    } else if kept(u64::from(count)) {
                        ranked.push(rank(count, spelling.order(key), key));
                    }
                }
                ranked.sort_unstable();
                ranked.truncate(room);
                list.reserve(ranked.len());
                let mut text = [0; SPELLED_BYTES_MAX];
                for &rank in &ranked {
                    list.push(spelling.spell(ranked_key(rank), &mut text));
                }
                (distinct, old_seen)
            }
            Self::Text { counts } => {
                let known = list.text_map(1..);
                let mut old_seen = 0;
                // A long text behind its order, which says only how it begins.
                let mut ranked: Vec<(u128, &[u8])> = Vec::new();
                let short = counts
                    .short()
                    .map(|(word, count)| (order(word), count, known.has_short(word), &b""[..]));
                let long = counts
                    .long()
                    .map(|(text, count)| (long_order(text), count, known.has_long(text), text));
                for (order, count, is_known, text) in short.chain(long) {
                    if is_known {
                        old_seen += 1;
                    } else if kept(u64::from(count)) {
                        ranked.push((descending(count) | order, text));
                    }
                }
                ranked.sort_unstable();
                ranked.truncate(room);
                list.reserve(ranked.len());
                for (rank, text) in &ranked {
                    list.push(short_text(&word_in(*rank).to_le_bytes()).unwrap_or(text));
                }
                (counts.len(), old_seen)
            }
        };
        let new = list.len() - old;
        Ok(Counted { list, keys: seen as u64, keys_left_out: (seen - old_seen - new) as u64 })
    }
}

/// One number to sort by: descending count, then the order of spellings; it ends in the key.
fn rank(count: u32, order: u64, key: u64) -> u128 {
    descending(count) | u128::from(order) << 40 | u128::from(key)
}

/// The upper 32 bits of a rank.
fn descending(count: u32) -> u128 {
    u128::from(u32::MAX - count) << 96
}

#[expect(clippy::cast_possible_truncation, reason = "the key is in the lowest 40 bits")]
fn ranked_key(rank: u128) -> u64 {
    rank as u64 & ((1 << 40) - 1)
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

    #[test]
    fn ids_follow_counts_then_texts() {
        let mut counter = Counter::new(Some(Spelling::Decimal));
        counter.add(&Keys::Number(vec![9, 10, 2, 9, MISSING, MISSING, 100, 10, 7]));
        let counted = counter.finish(&counting(1, None, 1), KeyList::default()).unwrap();
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
        let mut counter = Counter::new(None);
        counter.add(&keys);
        let counted = counter.finish(&counting(2, None, 1), KeyList::default()).unwrap();
        assert_eq!((counted.keys, counted.keys_left_out), (4, 1));
        assert_eq!(counted.list.len(), 3);
        let encoder = encoder(counting(2, None, 1), &counted.list, None);
        let mut out = [99; 7];
        assert_eq!(encoder.encode(&keys, 0..7, &mut out, 1), 1);
        assert_eq!(out, [2, 1, 0, 2, 3, 3, 1]);
    }

    #[test]
    fn a_list_in_another_spelling_is_refused() {
        let mut list = KeyList::default();
        list.push(b"12");
        list.push(b"x");
        let rule = IdRule::Counted(counting(1, None, 1));
        assert_eq!(Encoder::new(rule, &list, Some(Spelling::Decimal)).err(), Some(1));
        let counter = Counter::new(Some(Spelling::Decimal));
        assert_eq!(counter.finish(&counting(1, None, 1), list).err(), Some(1));
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
            let mut first = Counter::new(spelling);
            first.add(&keys(&["5", "7", "7", "9", "9", "9", "4"]));
            let first = first.finish(&counting(1, Some(2), 1), KeyList::default()).unwrap();
            assert_eq!(texts(&first.list), ["9", "7"]);
            assert_eq!((first.keys, first.keys_left_out), (4, 2));

            let mut second = Counter::new(spelling);
            second.add(&keys(&["7", "8", "8", "5", "6", "6", "6", "1", "1"]));
            let second = second.finish(&counting(2, Some(4), 1), first.list).unwrap();
            assert_eq!(texts(&second.list), ["9", "7", "6", "1"]);
            assert_eq!((second.keys, second.keys_left_out), (5, 2));

            // Ids of keys begin behind the buckets; unknown ones are hashed into those.
            let encoder = encoder(counting(2, Some(4), 3), &second.list, spelling);
            let mut ids = [99; 4];
            assert_eq!(encoder.encode(&keys(&["9", "1", "8", "5"]), 0..4, &mut ids, 1), 2);
            let bucket = |key: &str| (hash_key(key.as_bytes(), 3) % 3) as u32;
            assert_eq!(ids, [3, 6, bucket("8"), bucket("5")]);
        }
    }
}
