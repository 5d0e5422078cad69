//! Hashes of keys: one that is part of the file format (`--hash-size`, groups), one that only
//! places keys in memory.
//!
//! [`hash_key`] is FNV-1a 64 (Fowler, Noll, Vo; draft-eastlake-fnv §2) followed by the 64-bit
//! finaliser of SplitMix64 (Steele, Lea, Flood 2014), so that the low digits that `mod H` keeps
//! depend on every byte. It has no seed and never changes: files written years apart agree. In
//! Python:
//!
//! ```python
//! def hash_key(key: bytes) -> int:
//!     h, m = 0xcbf29ce484222325, (1 << 64) - 1
//!     for b in key: h = ((h ^ b) * 0x100000001b3) & m
//!     h = ((h ^ h >> 30) * 0xbf58476d1ce4e5b9) & m
//!     h = ((h ^ h >> 27) * 0x94d049bb133111eb) & m
//!     return h ^ h >> 31
//! ```

use core::hash::{BuildHasherDefault, Hasher};

/// The stable hash of a key's text. `""` is the missing key.
pub fn hash_key(key: &[u8]) -> u64 {
    let mut hash = FNV_OFFSET;
    for &byte in key {
        hash = (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// A map whose order is never looked at.
pub(crate) type FastMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<FoldHasher>>;

/// One widening multiplication per word, both halves folded: several times cheaper than the
/// standard hasher, which guards against keys chosen by an adversary. Here the keys are the user's
/// own data.
#[derive(Clone, Default)]
pub(crate) struct FoldHasher {
    state: u64,
}

impl FoldHasher {
    fn fold(&mut self, word: u64) {
        let product = u128::from(self.state ^ word ^ FNV_OFFSET) * u128::from(FOLD_MULTIPLIER);
        #[expect(clippy::cast_possible_truncation, reason = "folding takes the two halves")]
        {
            self.state = (product >> 64) as u64 ^ product as u64;
        }
    }
}

impl Hasher for FoldHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            self.fold(u64::from_le_bytes(word));
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.fold(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.fold(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.fold(word as u64);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
/// The golden ratio in 64 bits, odd.
const FOLD_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    /// Values printed by the Python of the file's head.
    #[test]
    fn the_stable_hash_never_changes() {
        assert_eq!(hash_key(b""), 0xf52a_15e9_a9b5_e89b);
        assert_eq!(hash_key(b"68fd1e64"), 0x9465_c231_1026_1b59);
        assert_eq!(hash_key(b"State-gov"), 0x74fa_acf8_b62a_02c0);
    }

    #[test]
    fn the_map_hash_spreads_small_numbers() {
        let low_bits = |key: u32| {
            let mut hasher = FoldHasher::default();
            hasher.write_u32(key);
            hasher.finish() & 0xfff
        };
        let distinct: std::collections::HashSet<u64> = (0..4096).map(low_bits).collect();
        // A random map of 4096 keys to 4096 places fills 1 - 1/e of them.
        assert!(distinct.len() > 2300, "{} places of 4096", distinct.len());
    }
}
