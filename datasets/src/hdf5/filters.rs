//! The filters of our chunks, applied outside the library: shuffle, deflate, fletcher32.
//!
//! HDF5 file format specification, IV.A.2.l (filter pipeline message): filter 2 puts the first
//! bytes of all elements before all second bytes; filter 1 is a zlib stream (`crate::codec`);
//! filter 3 appends Fletcher's checksum of what came before it, lowest byte first.

use core::iter::zip;

use bytemuck::NoUninit;

use crate::codec::Deflate;

/// Filters chunk after chunk. Its buffers are used again and again.
#[derive(Debug, Default)]
pub(super) struct Packer {
    shuffled: Vec<u8>,
    deflate: Deflate,
    /// The chunk as it goes into the file.
    pub(super) filtered: Vec<u8>,
}

impl Packer {
    /// Filters a chunk of `elements`, of which `values` are the first and zeros the rest.
    pub(super) fn pack<T: NoUninit>(&mut self, values: &[T], elements: usize) {
        self.shuffled.resize(elements * size_of::<T>(), 0);
        shuffle(values, elements, &mut self.shuffled);
        self.deflate.compress(&self.shuffled, elements, &mut self.filtered);
        let checksum = fletcher32(&self.filtered);
        self.filtered.extend_from_slice(&checksum.to_le_bytes());
    }
}

/// Byte k of value i to `planes[k * elements + i]`; zeros for the elements after the last value.
#[expect(clippy::cast_possible_truncation, reason = "the lowest byte is what is wanted")]
fn shuffle<T: NoUninit>(values: &[T], elements: usize, planes: &mut [u8]) {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    for (k, plane) in planes.chunks_exact_mut(elements).enumerate() {
        let (plane, after) = plane.split_at_mut(values.len());
        after.fill(0);
        match size_of::<T>() {
            1 => plane.copy_from_slice(bytes),
            // As shifts these loops become vector code.
            4 => zip(plane, bytes.as_chunks().0)
                .for_each(|(to, &value)| *to = (u32::from_le_bytes(value) >> (8 * k)) as u8),
            8 => zip(plane, bytes.as_chunks().0)
                .for_each(|(to, &value)| *to = (u64::from_le_bytes(value) >> (8 * k)) as u8),
            width => zip(plane, bytes.chunks_exact(width)).for_each(|(to, value)| *to = value[k]),
        }
    }
}

/// The checksum as HDF5 computes it: of 16-bit words, highest byte first, with a last odd byte as
/// the high half of a word; sums modulo 65535 in which only sums of nothing but zeros are 0.
///
/// Word i of a block goes to lane i modulo [`LANES`], so that lanes are added as vectors; the sums
/// of the whole follow from those of the lanes.
pub(super) fn fletcher32(bytes: &[u8]) -> u32 {
    let reduce = |sum: u64| if sum == 0 { 0 } else { (sum - 1) % 65_535 + 1 };
    let (mut sum, mut sum_of_sums) = (0u64, 0u64);
    // 360 words a lane: the most that sums of sums in 32 bits hold.
    let mut blocks = bytes.chunks_exact(LANES * 2 * 360);
    let mut block = |bytes: &[[u8; 2 * LANES]]| {
        let (mut sums, mut sums_of_sums) = ([0u32; LANES], [0u32; LANES]);
        for words in bytes {
            for lane in 0..LANES {
                let word = u16::from_be_bytes([words[2 * lane], words[2 * lane + 1]]);
                sums[lane] += u32::from(word);
                sums_of_sums[lane] += sums[lane];
            }
        }
        let words = (bytes.len() * LANES) as u64;
        let mut here = words * sum;
        for (lane, (&own, &of_sums)) in (0..).zip(zip(&sums, &sums_of_sums)) {
            // The words of a lane count LANES times for each row of words from theirs on, less
            // the lanes before them in their own row.
            here += LANES as u64 * u64::from(of_sums) - lane * u64::from(own);
        }
        sum_of_sums = reduce(sum_of_sums + here);
        sum = reduce(sum + sums.iter().map(|&own| u64::from(own)).sum::<u64>());
    };
    blocks.by_ref().for_each(|bytes| block(bytes.as_chunks().0));
    let (rows, rest) = blocks.remainder().as_chunks();
    block(rows);
    let words = rest.as_chunks::<2>();
    let last = words.1.iter().map(|&byte| [byte, 0]);
    for word in words.0.iter().copied().chain(last) {
        sum += u64::from(u16::from_be_bytes(word));
        sum_of_sums += sum;
    }
    u32::try_from(reduce(sum_of_sums) << 16 | reduce(sum)).unwrap_or(0)
}

/// Words that are summed side by side.
const LANES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The loop of HDF5's `H5_checksum_fletcher32`, 360 words at a time.
    fn plain_fletcher32(bytes: &[u8]) -> u32 {
        let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
        let (mut a, mut b) = (0u32, 0u32);
        let mut words = bytes.chunks_exact(2);
        while words.len() > 0 {
            for word in words.by_ref().take(360) {
                a += u32::from(word[0]) << 8 | u32::from(word[1]);
                b += a;
            }
            (a, b) = (fold(a), fold(b));
        }
        if let [last] = words.remainder() {
            a += u32::from(*last) << 8;
            b += a;
            (a, b) = (fold(a), fold(b));
        }
        (a, b) = (fold(a), fold(b));
        b << 16 | a
    }

    #[test]
    fn planes_are_bytes_of_equal_rank_and_what_is_not_filled_is_zero() {
        let mut planes = [9; 12];
        shuffle(&[0x0403_0201u32.to_le(), 0x1413_1211u32.to_le()], 3, &mut planes);
        assert_eq!(planes, [0x01, 0x11, 0, 0x02, 0x12, 0, 0x03, 0x13, 0, 0x04, 0x14, 0]);
        let mut planes = [9; 8];
        shuffle(&[0x0807_0605_0403_0201u64.to_le()], 1, &mut planes);
        assert_eq!(planes, [1, 2, 3, 4, 5, 6, 7, 8]);
        let mut planes = [9; 3];
        shuffle(&[5u8, 6], 3, &mut planes);
        assert_eq!(planes, [5, 6, 0]);
    }

    proptest! {
        #[test]
        fn the_checksum_is_hdf5s(
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..3000),
                prop::collection::vec(prop_oneof![Just(0u8), Just(255u8)], 0..1500),
                (any::<u8>(), 0usize..200_000).prop_map(|(byte, n)| vec![byte; n]),
            ],
        ) {
            prop_assert_eq!(fletcher32(&bytes), plain_fletcher32(&bytes));
        }
    }
}
