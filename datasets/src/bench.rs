//! Our own parts as the examples measure them beside libraries; no part of the interface.

use crate::codec::Deflate;
use crate::prepare::NumberMap;

/// Counts keys below 2^32, then looks all of them up. Returns the number of keys and the sum of the
/// counts found.
#[must_use]
pub fn number_map(keys: &[u64]) -> (usize, u64) {
    let mut map = NumberMap::default();
    map.count(keys);
    let mut sum = 0;
    map.look_up(keys, |count| sum += u64::from(count));
    (map.len(), sum)
}

/// A zlib stream of one shuffled chunk of `elements`, as a dataset holds it.
pub fn deflate(encoder: &mut Encoder, chunk: &[u8], elements: usize, stream: &mut Vec<u8>) {
    encoder.0.compress(chunk, elements, stream);
}

/// Buffers of [`deflate`].
#[derive(Debug, Default)]
pub struct Encoder(Deflate);
