//! Keys to ids: counted and ranked, taken from another file, or hashed.
//!
//! A vocabulary gives the kept keys of a field the ids 1, 2, … by descending count, ties by the
//! bytes of their text, so that ids depend on the input alone; 0 is every other key. The text of a
//! number key is its canonical spelling ([`Spelling`]); the text of the missing key is empty, and
//! it is counted and kept like any other.

use core::ops::Range;

use super::digits;
use super::hash::{FastMap, hash_key};
use super::key_column::{Keys, MISSING};
use super::number_map::{NumberMap, low};

/// How number keys are written as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// Eight lower-case hex digits.
    Hex,
    /// Decimal without leading zeros.
    Decimal,
}

/// The kept keys of one field in the order of their ids: key number i has id i + 1, and its text is
/// `bytes[offsets[i]..offsets[i + 1]]`. This is what a dataset stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyList {
    pub(crate) bytes: Vec<u8>,
    pub(crate) offsets: Vec<u64>,
}

impl KeyList {
    /// Size of the embedding table: the kept keys, and id 0.
    pub(crate) fn cardinality(&self) -> u64 {
        self.offsets.len().max(1) as u64
    }

    /// Makes room for `keys` more number keys.
    fn reserve(&mut self, keys: usize) {
        self.bytes.reserve(keys * 8);
        self.offsets.reserve(keys);
    }

    fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.offsets.push(self.bytes.len() as u64);
    }

    fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let bounds = self.offsets.windows(2);
        bounds.map(|bound| {
            let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
            &self.bytes[at(bound[0])..at(bound[1])]
        })
    }
}

/// Counts the keys of one field.
pub(crate) enum Counter {
    Number {
        /// Counts stop at the largest u32: then only ties at the very top are ranked by key.
        counts: NumberMap,
        spelling: Spelling,
    },
    Text {
        counts: FastMap<Box<[u8]>, u64>,
    },
}

/// What was counted in one field.
pub(crate) struct Counted {
    pub(crate) list: KeyList,
    /// Distinct keys.
    pub(crate) keys: u64,
    /// Distinct keys below the threshold.
    pub(crate) keys_below_threshold: u64,
}

impl Counter {
    /// `spelling` is `None` for text keys.
    pub(crate) fn new(spelling: Option<Spelling>) -> Self {
        match spelling {
            Some(spelling) => Self::Number { counts: NumberMap::default(), spelling },
            None => Self::Text { counts: FastMap::default() },
        }
    }

    pub(crate) fn add(&mut self, keys: &Keys) {
        match (self, keys) {
            (Self::Number { counts, .. }, Keys::Number(keys)) => counts.count(keys),
            (Self::Text { counts }, Keys::Text(keys)) => {
                for key in keys.iter(0..keys.len()) {
                    match counts.get_mut(key) {
                        Some(count) => *count += 1,
                        None => {
                            counts.insert(key.into(), 1);
                        }
                    }
                }
            }
            (Self::Number { .. }, Keys::Text(_)) | (Self::Text { .. }, Keys::Number(_)) => {}
        }
    }

    /// Ranks the keys that were seen at least `min_count` times.
    pub(crate) fn finish(self, min_count: u32) -> Counted {
        let mut list = KeyList { bytes: Vec::new(), offsets: vec![0] };
        let kept = |count: u64| count >= u64::from(min_count);
        let (keys, keys_kept) = match self {
            Self::Number { counts, spelling } => {
                let distinct = counts.len();
                let mut ranked: Vec<u128> = counts
                    .entries()
                    .filter(|&(_, count)| kept(u64::from(count)))
                    .map(|(key, count)| rank(count, spelling.order(key), key))
                    .collect();
                ranked.sort_unstable();
                list.reserve(ranked.len());
                let mut text = [0; SPELLED_BYTES_MAX];
                for &rank in &ranked {
                    list.push(spelling.spell(ranked_key(rank), &mut text));
                }
                (distinct, ranked.len())
            }
            Self::Text { counts } => {
                let distinct = counts.len();
                let mut ranked: Vec<(Box<[u8]>, u64)> =
                    counts.into_iter().filter(|(_, count)| kept(*count)).collect();
                ranked.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
                for (key, _) in &ranked {
                    list.push(key);
                }
                (distinct, ranked.len())
            }
        };
        Counted { list, keys: keys as u64, keys_below_threshold: (keys - keys_kept) as u64 }
    }
}

/// One number to sort by: descending count, then the order of spellings; it ends in the key.
fn rank(count: u32, order: u64, key: u64) -> u128 {
    u128::from(u32::MAX - count) << 96 | u128::from(order) << 40 | u128::from(key)
}

#[expect(clippy::cast_possible_truncation, reason = "the key is in the lowest 40 bits")]
fn ranked_key(rank: u128) -> u64 {
    rank as u64 & ((1 << 40) - 1)
}

/// Gives the keys of one field their ids.
pub(crate) enum Encoder {
    Number { ids: NumberMap },
    Text { ids: FastMap<Box<[u8]>, u32> },
    Hash { size: u32, spelling: Option<Spelling> },
}

impl Encoder {
    /// Looks keys up in `list`.
    ///
    /// # Errors
    /// A key of the list that is not in this format's spelling; its number in the list.
    pub(crate) fn from_list(list: &KeyList, spelling: Option<Spelling>) -> Result<Self, u64> {
        let texts = (1u32..).zip(list.texts());
        let Some(spelling) = spelling else {
            return Ok(Self::Text { ids: texts.map(|(id, text)| (text.into(), id)).collect() });
        };
        let mut ids = NumberMap::default();
        ids.reserve(list.offsets.len());
        for (id, text) in texts {
            ids.set(spelling.read(text).ok_or(u64::from(id - 1))?, id);
        }
        Ok(Self::Number { ids })
    }

    /// Writes the id of key number `range.start + i` to `out[i * stride]`. Returns how many keys
    /// have no id.
    pub(crate) fn encode(
        &self,
        keys: &Keys,
        range: Range<usize>,
        out: &mut [u32],
        stride: usize,
    ) -> u64 {
        let places = out.iter_mut().step_by(stride);
        let mut unknown = 0;
        match (self, keys) {
            (Self::Number { ids }, Keys::Number(keys)) => {
                let mut places = places;
                ids.look_up(&keys[range], |id| {
                    unknown += u64::from(id == OUT_OF_VOCABULARY);
                    if let Some(place) = places.next() {
                        *place = id;
                    }
                });
            }
            (Self::Text { ids }, Keys::Text(keys)) => {
                for (place, key) in places.zip(keys.iter(range)) {
                    *place = ids.get(key).copied().unwrap_or(OUT_OF_VOCABULARY);
                    unknown += u64::from(*place == OUT_OF_VOCABULARY);
                }
            }
            (Self::Hash { size, spelling: Some(spelling) }, Keys::Number(keys)) => {
                let mut text = [0; SPELLED_BYTES_MAX];
                for (place, &key) in places.zip(&keys[range]) {
                    *place = hashed_id(spelling.spell(key, &mut text), *size);
                }
            }
            (Self::Hash { size, .. }, Keys::Text(keys)) => {
                for (place, key) in places.zip(keys.iter(range)) {
                    *place = hashed_id(key, *size);
                }
            }
            // A format has either numbers or texts, and its encoders are made for it.
            _ => {}
        }
        unknown
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a remainder of a u32 is a u32")]
fn hashed_id(key: &[u8], size: u32) -> u32 {
    (hash_key(key) % u64::from(size)) as u32
}

impl Spelling {
    /// The text of a key; the missing key has none.
    fn spell(self, key: u64, text: &mut [u8; SPELLED_BYTES_MAX]) -> &[u8] {
        if key == MISSING {
            return b"";
        }
        match self {
            Self::Hex => {
                let start = SPELLED_BYTES_MAX - 8;
                text[start..].copy_from_slice(&digits::spell_hex(low(key)));
                &text[start..]
            }
            Self::Decimal => {
                let mut rest = key;
                let mut start = SPELLED_BYTES_MAX;
                while rest > 0 || start == SPELLED_BYTES_MAX {
                    start -= 1;
                    text[start] = b"0123456789"[usize::try_from(rest % 10).unwrap_or(0)];
                    rest /= 10;
                }
                &text[start..]
            }
        }
    }

    /// The key that is spelt so.
    fn read(self, text: &[u8]) -> Option<u64> {
        if text.is_empty() {
            return Some(MISSING);
        }
        let number = match self {
            Self::Hex => digits::hex(text.try_into().ok()?)?,
            Self::Decimal => core::str::from_utf8(text).ok()?.parse().ok()?,
        };
        Some(u64::from(number))
    }

    /// Orders keys as the bytes of their texts do, without spelling them; below 2^40.
    fn order(self, key: u64) -> u64 {
        if key == MISSING {
            return 0;
        }
        let (number, digits) = match self {
            // Of equal length: their order is that of the numbers.
            Self::Hex => (key, 8),
            // Filled up with zeros at the end they have equal length; of two that are then equal
            // the shorter is a prefix of the longer.
            Self::Decimal => {
                let digits = key.checked_ilog10().unwrap_or(0) + 1;
                (key * 10u64.pow(10 - digits), digits)
            }
        };
        number << 4 | u64::from(digits)
    }
}

/// The id of every key that is not in the vocabulary.
pub(crate) const OUT_OF_VOCABULARY: u32 = 0;

/// The longest spelling of a number below 2^32.
const SPELLED_BYTES_MAX: usize = 10;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::prepare::keys::key_column::TextKeys;
    use proptest::prelude::*;

    fn text(spelling: Spelling, key: u64) -> Vec<u8> {
        spelling.spell(key, &mut [0; SPELLED_BYTES_MAX]).to_vec()
    }

    #[test]
    fn ids_follow_counts_then_texts() {
        let mut counter = Counter::new(Some(Spelling::Decimal));
        counter.add(&Keys::Number(vec![9, 10, 2, 9, MISSING, MISSING, 100, 10, 7]));
        let counted = counter.finish(1);
        let texts: Vec<&[u8]> = counted.list.texts().collect();
        assert_eq!(texts, [b"" as &[u8], b"10", b"9", b"100", b"2", b"7"]);
        assert_eq!((counted.keys, counted.keys_below_threshold), (6, 0));

        let encoder = Encoder::from_list(&counted.list, Some(Spelling::Decimal)).unwrap();
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
        let counted = counter.finish(2);
        assert_eq!((counted.keys, counted.keys_below_threshold), (4, 1));
        assert_eq!(counted.list.cardinality(), 4);
        let encoder = Encoder::from_list(&counted.list, None).unwrap();
        let mut out = [99; 7];
        assert_eq!(encoder.encode(&keys, 0..7, &mut out, 1), 1);
        assert_eq!(out, [2, 1, 0, 2, 3, 3, 1]);
    }

    #[test]
    fn a_list_in_another_spelling_is_refused() {
        let mut list = KeyList { bytes: Vec::new(), offsets: vec![0] };
        list.push(b"12");
        list.push(b"x");
        assert_eq!(Encoder::from_list(&list, Some(Spelling::Decimal)).err(), Some(1));
    }

    proptest! {
        #[test]
        fn spelling_is_its_own_inverse_and_order(
            a in prop_oneof![0u64..1 << 32, 0u64..200, Just(MISSING)],
            b in prop_oneof![0u64..1 << 32, 0u64..200, Just(MISSING)],
        ) {
            for spelling in [Spelling::Hex, Spelling::Decimal] {
                let (text_a, text_b) = (text(spelling, a), text(spelling, b));
                let format = match spelling {
                    Spelling::Hex => format!("{a:08x}"),
                    Spelling::Decimal => a.to_string(),
                };
                if a != MISSING {
                    prop_assert_eq!(&text_a, format.as_bytes());
                }
                prop_assert_eq!(spelling.read(&text_a), Some(a));
                prop_assert_eq!(
                    text_a.cmp(&text_b),
                    spelling.order(a).cmp(&spelling.order(b)),
                    "{} {}", a, b
                );
            }
        }
    }
}
