//! How the keys of a field become ids.
//!
//! Counted: the kept keys have ids of their own, from `oov_buckets` on; unknown ones share the ids
//! below, spread by their hash. Hashed: the remainder of a salted hash, without a vocabulary
//! (Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning"). With two hashes
//! a value has two ids of one table, whose rows the model adds up, so that two values are confused
//! only where both ids are (Zhang et al. 2020, "Model Size Reduction Using Frequency Based Double
//! Hashing for Recommender Systems"; here every value is hashed twice, not the rare ones alone).

use serde::{Deserialize, Serialize};

use super::hash::hash_key;

/// What is asked of a field, or of all fields that ask for nothing themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeySettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cap: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oov_buckets: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hash_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hashes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) salt: Option<u32>,
}

/// [`KeySettings`] with nothing left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdRule {
    Counted(Counting),
    Hashed(Hashing),
}

/// Ids by a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counting {
    /// Keys seen less often are not kept.
    pub(crate) min_count: u32,
    /// So many keys are kept at most, the most frequent ones.
    pub(crate) cap: Option<u32>,
    pub(crate) unknown: Buckets,
}

/// The ids of keys that are not in the vocabulary: those below `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buckets {
    /// 1 or more.
    pub(crate) count: u32,
    pub(crate) salt: u64,
}

/// Ids by hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hashing {
    /// Rows of the table.
    pub(crate) size: u32,
    /// Ids of a value, 1 or 2.
    pub(crate) hashes: u32,
    pub(crate) salt: u64,
}

impl KeySettings {
    /// The rule of a field with these settings, where `all` are those of all fields. A field that
    /// says anything of its vocabulary has one, whatever the others do.
    pub(crate) fn rule(&self, all: &Self) -> IdRule {
        let own_vocabulary =
            self.min_count.is_some() || self.cap.is_some() || self.oov_buckets.is_some();
        let hash_size = self.hash_size.or(all.hash_size.filter(|_| !own_vocabulary));
        let salt = u64::from(self.salt.or(all.salt).unwrap_or(0));
        match hash_size {
            Some(size) => IdRule::Hashed(Hashing { size, hashes: self.hashes.unwrap_or(1), salt }),
            None => IdRule::Counted(Counting {
                min_count: self.min_count.or(all.min_count).unwrap_or(1),
                cap: self.cap.or(all.cap),
                unknown: Buckets { count: self.oov_buckets.or(all.oov_buckets).unwrap_or(1), salt },
            }),
        }
    }

    /// What no field can do: the name of the setting, and what is expected of it.
    pub(crate) fn defect(&self) -> Option<(&'static str, &'static str)> {
        let from_one = [
            ("min_count", self.min_count),
            ("cap", self.cap),
            ("oov_buckets", self.oov_buckets),
            ("hash_size", self.hash_size),
        ];
        if let Some((name, _)) = from_one.into_iter().find(|(_, value)| *value == Some(0)) {
            return Some((name, "at least 1, got 0"));
        }
        if self.hashes.is_some_and(|hashes| !(1..=2).contains(&hashes)) {
            return Some(("hashes", "1 or 2"));
        }
        if self.hashes.is_some() && self.hash_size.is_none() {
            return Some(("hashes", "hash_size beside it"));
        }
        let counted = from_one[..3].iter().find(|(_, value)| value.is_some());
        match counted {
            Some((name, _)) if self.hash_size.is_some() => {
                Some((name, "no hash_size beside it: a field has a vocabulary, or is hashed"))
            }
            _ => None,
        }
    }
}

impl Buckets {
    /// The id of a key that is not in the vocabulary.
    pub(crate) fn id(self, key: &[u8]) -> u32 {
        if self.count == 1 { 0 } else { remainder(hash_key(key, self.salt), self.count) }
    }
}

impl Hashing {
    /// The id of a key by hash number `hash` from 0.
    pub(crate) fn id(self, key: &[u8], hash: u32) -> u32 {
        remainder(hash_key(key, self.salt + u64::from(hash)), self.size)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a remainder of a u32 is a u32")]
fn remainder(hash: u64, of: u32) -> u32 {
    (hash % u64::from(of)) as u32
}
