//! Memory of reading, used again from call to call and from file to file.

use super::chunk_cache::ChunkCache;
use super::unpack::Unpacker;

/// What the reading of files needs from one call to the next.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) cache: ChunkCache,
    pub(crate) unpacker: Unpacker,
}

impl Workspace {
    /// With a cache of `cache_bytes` bytes for chunks that are read in pieces.
    pub(crate) fn new(cache_bytes: usize) -> Self {
        Self { cache: ChunkCache::new(cache_bytes), unpacker: Unpacker::default() }
    }
}
