//! Hashes of keys: one that is part of the file format (hashed ids, buckets of unknown keys,
//! groups), one that only places keys in memory.
//!
//! [`hash_key`] is XXH3-64 (Y. Collet, the xxHash specification) with the salt as its seed. It
//! never changes: files written years apart agree. In Python:
//! `xxhash.xxh3_64_intdigest(key, seed=salt)`.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The stable hash of a key's text. `""` is the missing key.
pub fn hash_key(key: &[u8], salt: u64) -> u64 {
    xxh3_64_with_seed(key, salt)
}

/// A map whose order is never looked at. The keys are the user's own data: nobody chooses them to
/// collide.
pub(crate) type FastMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::FixedState>;

#[cfg(test)]
mod tests {
    use super::*;

    /// Values printed by the Python of the file's head.
    #[test]
    fn the_stable_hash_never_changes() {
        assert_eq!(hash_key(b"", 0), 0x2d06_8005_38d3_94c2);
        assert_eq!(hash_key(b"68fd1e64", 0), 0x00b0_4310_5806_0b4d);
        assert_eq!(hash_key(b"68fd1e64", 7), 0x1d20_60ec_41b3_547b);
        assert_eq!(hash_key(b"State-gov", 0), 0xea4b_d126_9897_b7a2);
        assert_eq!(hash_key(&[b'x'; 300], 1), 0x34c2_97d5_dc46_ccff);
    }
}
