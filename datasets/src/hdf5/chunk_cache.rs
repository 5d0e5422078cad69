//! Chunks of which more than one piece is read: they are inflated once, by whoever comes first.
//!
//! A chunk is dropped when the next does not fit beside it, those first that nobody asked for a
//! second time since the last round (the clock algorithm). The one that is asked for is always
//! held, however large.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::unpack::{Damage, Filters, Unpacker};

/// A chunk as it is in the file, and its numbers once somebody wants them.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The stored bytes and the mask; taken by who inflates them.
    raw: Mutex<(Vec<u8>, u32)>,
    numbers: OnceLock<Result<Vec<u8>, Damage>>,
}

impl Chunk {
    pub(super) fn new(raw: Vec<u8>, mask: u32) -> Self {
        Self { raw: Mutex::new((raw, mask)), numbers: OnceLock::new() }
    }

    /// The bytes of its `elements` numbers of `size` bytes.
    pub(super) fn numbers(
        &self,
        filters: Filters,
        (elements, size): (usize, usize),
        unpacker: &mut Unpacker,
    ) -> Result<&[u8], Damage> {
        let numbers = self.numbers.get_or_init(|| {
            let mut raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
            let (raw, mask) = core::mem::take(&mut *raw);
            let mut numbers = vec![0; elements * size];
            unpacker.unpack(filters, (&raw, mask), (elements, size), &mut numbers).map(|()| numbers)
        });
        numbers.as_deref().map_err(|damage| *damage)
    }
}

/// Which chunk: the file and the dataset in it, by number, and the chunk's first row and column.
pub(super) type Key = (usize, usize, u64, usize);

/// The chunks that are held.
#[derive(Debug)]
pub(crate) struct ChunkCache {
    bytes_max: usize,
    bytes: usize,
    chunks: HashMap<Key, Held>,
    /// In the order in which they are looked at to be dropped.
    queue: VecDeque<Key>,
}

#[derive(Debug)]
struct Held {
    chunk: Arc<Chunk>,
    bytes: usize,
    /// Asked for since it was last looked at.
    asked: bool,
}

/// What a chunk costs beside its numbers, in bytes.
const OVERHEAD_BYTES: usize = 256;

impl ChunkCache {
    /// Holds `bytes_max` bytes of numbers, or one chunk.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, chunks: HashMap::new(), queue: VecDeque::new() }
    }

    pub(super) fn get(&mut self, key: Key) -> Option<Arc<Chunk>> {
        self.chunks.get_mut(&key).map(|held| {
            held.asked = true;
            Arc::clone(&held.chunk)
        })
    }

    /// Takes in `chunk` of `bytes` bytes, in place of others where it must be.
    pub(super) fn insert(&mut self, key: Key, chunk: Arc<Chunk>, bytes: usize) {
        let bytes = bytes + OVERHEAD_BYTES;
        while self.bytes + bytes > self.bytes_max {
            let Some(key) = self.queue.pop_front() else { break };
            match self.chunks.get_mut(&key) {
                Some(held) if held.asked => {
                    held.asked = false;
                    self.queue.push_back(key);
                }
                Some(held) => {
                    self.bytes -= held.bytes;
                    self.chunks.remove(&key);
                }
                None => {}
            }
        }
        if self.chunks.insert(key, Held { chunk, bytes, asked: false }).is_none() {
            self.bytes += bytes;
            self.queue.push_back(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_the_last_is_held_however_large() {
        let mut cache = ChunkCache::new(3 * (OVERHEAD_BYTES + 100));
        let chunk = || Arc::new(Chunk::new(Vec::new(), 0));
        let key = |row| (0, 0, row, 0);
        for row in 0..3 {
            cache.insert(key(row), chunk(), 100);
        }
        assert!(cache.get(key(0)).is_some());
        cache.insert(key(3), chunk(), 100);
        let held = |cache: &ChunkCache| {
            let mut rows: Vec<u64> = cache.chunks.keys().map(|key| key.2).collect();
            rows.sort_unstable();
            rows
        };
        assert_eq!(held(&cache), [0, 2, 3]);
        cache.insert(key(4), chunk(), 10_000);
        assert_eq!(held(&cache), [4]);
        assert_eq!(cache.bytes, 10_000 + OVERHEAD_BYTES);
        cache.insert(key(5), chunk(), 1);
        assert_eq!(held(&cache), [5]);
    }
}
