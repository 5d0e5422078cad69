//! Gives the keys of one field their ids: looked up in a list or by number, or hashed.

use core::ops::Range;

use super::key_column::Keys;
use super::number_map::NumberMap;
use super::rule::{Buckets, Hashing, IdRule};
use super::spelling::{SPELLED_BYTES_MAX, Spelling};
use super::text_map::TextMap;
use super::vocabulary::KeyList;

/// How to find the ids of the keys of one field.
pub(crate) struct Encoder {
    kind: Kind,
    /// How number keys are hashed; `None` for text keys.
    spelling: Option<Spelling>,
}

enum Kind {
    Number {
        ids: NumberMap,
        unknown: Buckets,
    },
    Text {
        ids: TextMap,
        unknown: Buckets,
    },
    Hash(Hashing),
    /// By number; those of keys that are not in the vocabulary are below `unknown`.
    Numbered {
        ids: Vec<u32>,
        unknown: u32,
    },
    /// So many of a key, which are there already.
    Given {
        ids_per_key: usize,
    },
}

impl Encoder {
    /// By `rule`, with the kept keys in `list` where they are counted.
    ///
    /// # Errors
    /// A key of the list that is not in this format's spelling, or stands there twice; its number
    /// in the list.
    pub(crate) fn new(
        rule: IdRule,
        list: &KeyList,
        spelling: Option<Spelling>,
    ) -> Result<Self, u64> {
        let counting = match rule {
            IdRule::Hashed(hashing) => return Ok(Self { kind: Kind::Hash(hashing), spelling }),
            IdRule::Counted(counting) => counting,
        };
        let unknown = counting.unknown;
        let values = unknown.count..;
        let kind = match spelling {
            None => Kind::Text { ids: list.text_map(values)?, unknown },
            Some(spelling) => Kind::Number { ids: list.number_map(spelling, values)?, unknown },
        };
        Ok(Self { kind, spelling })
    }

    /// By what [`Numbering::finish`](super::vocabulary::Numbering::finish) makes of numbers, with
    /// so many ids for keys that are not in the vocabulary.
    pub(crate) fn numbered(ids: Vec<u32>, unknown: u32) -> Self {
        Self { kind: Kind::Numbered { ids, unknown }, spelling: None }
    }

    /// Of a field whose keys are its ids already, so many of them a key.
    pub(crate) fn given(ids_per_key: usize) -> Self {
        Self { kind: Kind::Given { ids_per_key }, spelling: None }
    }

    /// Ids of one key.
    pub(crate) fn ids_per_key(&self) -> usize {
        match self.kind {
            Kind::Hash(Hashing { hashes: 2, .. }) => 2,
            Kind::Given { ids_per_key } => ids_per_key,
            _ => 1,
        }
    }

    /// Writes the id of key number `range.start + i` to `out[i * stride]`; of two ids of a key the
    /// second to the place after it. Returns how many keys are not in the vocabulary.
    pub(crate) fn encode(
        &self,
        keys: &Keys,
        range: Range<usize>,
        out: &mut [u32],
        stride: usize,
    ) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let places = out.iter_mut().step_by(stride);
        let mut count = 0;
        match (&self.kind, keys) {
            (Kind::Number { ids, unknown }, Keys::Number(keys)) => {
                for (place, &key) in places.zip(&keys[range]) {
                    *place = ids.get(key);
                    if *place == NOT_THERE {
                        count += 1;
                        *place = self.unknown_number(key, *unknown);
                    }
                }
            }
            (Kind::Text { ids, unknown }, Keys::Text(keys)) => {
                for ((place, id), at) in places.zip(ids.values(keys, range.clone())).zip(range) {
                    *place = id;
                    if id == NOT_THERE {
                        count += 1;
                        *place = unknown.id(keys.at(at));
                    }
                }
            }
            (Kind::Hash(hashing), _) => {
                for hash in 0..hashing.hashes {
                    let places = out[hash as usize..].iter_mut().step_by(stride);
                    self.hash(*hashing, hash, keys, range.clone(), places);
                }
            }
            (Kind::Numbered { ids, unknown }, Keys::Numbered(numbers)) => {
                for (place, &number) in places.zip(&numbers[range]) {
                    *place = ids[number as usize];
                    count += u64::from(*place < *unknown);
                }
            }
            (Kind::Given { ids_per_key }, Keys::Numbered(ids)) => {
                let ids = &ids[range.start * ids_per_key..range.end * ids_per_key];
                for of_a_key in 0..*ids_per_key {
                    let places = out[of_a_key..].iter_mut().step_by(stride);
                    let ids = ids[of_a_key..].iter().step_by(*ids_per_key);
                    places.zip(ids).for_each(|(place, id)| *place = *id);
                }
            }
            // A format has either numbers or texts, and its encoders are made for it.
            _ => {}
        }
        count
    }

    fn unknown_number(&self, key: u64, unknown: Buckets) -> u32 {
        match self.spelling {
            Some(spelling) if unknown.count > 1 => {
                unknown.id(spelling.spell(key, &mut [0; SPELLED_BYTES_MAX]))
            }
            _ => 0,
        }
    }

    fn hash<'a>(
        &self,
        hashing: Hashing,
        hash: u32,
        keys: &Keys,
        range: Range<usize>,
        places: impl Iterator<Item = &'a mut u32>,
    ) {
        match (keys, self.spelling) {
            (Keys::Number(keys), Some(spelling)) => {
                let mut text = [0; SPELLED_BYTES_MAX];
                for (place, &key) in places.zip(&keys[range]) {
                    *place = hashing.id(spelling.spell(key, &mut text), hash);
                }
            }
            (Keys::Text(keys), _) => {
                for (place, key) in places.zip(keys.iter(range)) {
                    *place = hashing.id(key, hash);
                }
            }
            (Keys::Number(_), None) | (Keys::Numbered(_), _) => {}
        }
    }
}

/// What a map says of a key that it does not have; ids of kept keys are 1 or more.
const NOT_THERE: u32 = 0;
