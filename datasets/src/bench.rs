//! Our own parts as the examples measure them beside libraries; no part of the interface.

use crate::codec::Deflate;
use crate::prepare::NumberMap;

/// Numbers keys below 2^32 in the order in which they first come, and counts them by number. Returns
/// how many there are, and the sum of the squares of their counts.
#[must_use]
pub fn number_map(keys: &[u64]) -> (usize, u64) {
    let (mut map, mut given, mut numbers) = (NumberMap::default(), 0, Vec::new());
    let mut counts = vec![0];
    for keys in keys.chunks(KEYS_AT_ONCE) {
        map.number(keys, &mut given, &mut numbers);
        count(&numbers, given, &mut counts);
    }
    (map.len(), sum_of_squares(&counts))
}

/// Counts `numbers`, of which the largest is `given`.
pub fn count(numbers: &[u32], given: u32, counts: &mut Vec<u32>) {
    counts.resize(given as usize + 1, 0);
    numbers.iter().for_each(|&number| counts[number as usize] += 1);
}

/// Of counts.
#[must_use]
pub fn sum_of_squares(counts: &[u32]) -> u64 {
    counts.iter().map(|&count| u64::from(count) * u64::from(count)).sum()
}

/// As many as a block of text has lines.
pub const KEYS_AT_ONCE: usize = 16_384;

/// A zlib stream of one shuffled chunk of `elements`, as a dataset holds it.
pub fn deflate(encoder: &mut Encoder, chunk: &[u8], elements: usize, stream: &mut Vec<u8>) {
    encoder.0.compress(chunk, elements, stream);
}

/// Buffers of [`deflate`].
#[derive(Debug, Default)]
pub struct Encoder(Deflate);
