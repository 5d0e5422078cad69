//! Undoes the filters of a chunk outside the library: fletcher32, deflate, shuffle.
//!
//! HDF5 file format specification, IV.A.2.l, as [`super::filters`] applies them; the filters of a
//! dataset may be any of the three, in this order. A chunk's *mask* has a bit for each filter of
//! the pipeline that was left out when the chunk was written.

use core::fmt;

use hdf5::filters::Filter;
use libdeflater::{DecompressionError, Decompressor};

use super::filters::fletcher32;

/// Places in the pipeline of the filters that stand there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Filters {
    shuffle: Option<u8>,
    deflate: Option<u8>,
    fletcher32: Option<u8>,
}

impl Filters {
    /// `pipeline`, when it is one that can be undone here.
    pub(super) fn of(pipeline: &[Filter]) -> Option<Self> {
        let mut filters = Self::default();
        for (place, filter) in (0..).zip(pipeline) {
            let Self { deflate, fletcher32, .. } = filters;
            let (slot, in_order) = match filter {
                Filter::Shuffle => (&mut filters.shuffle, deflate.is_none()),
                Filter::Deflate(_) => (&mut filters.deflate, true),
                Filter::Fletcher32 => (&mut filters.fletcher32, true),
                _ => return None,
            };
            if !in_order || fletcher32.is_some() || slot.replace(place).is_some() {
                return None;
            }
        }
        Some(filters)
    }
}

/// The filter at `place` of the pipeline was applied to a chunk with this mask.
fn applied(place: Option<u8>, mask: u32) -> bool {
    place.is_some_and(|place| mask >> place & 1 == 0)
}

/// What is wrong with a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    Checksum,
    Stream,
    /// Bytes found and expected.
    Length(usize, usize),
    /// More bytes than are expected, these.
    Longer(usize),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checksum => f.write_str("data error detected by its Fletcher32 checksum"),
            Self::Stream => f.write_str("the chunk is damaged: no zlib stream"),
            Self::Length(found, expected) => {
                write!(f, "the chunk is damaged: {found} bytes where {expected} are expected")
            }
            Self::Longer(expected) => {
                write!(f, "the chunk is damaged: more than {expected} bytes, its length")
            }
        }
    }
}

/// Undoes filters, chunk after chunk. Its memory is used again and again.
pub(crate) struct Unpacker {
    inflater: Decompressor,
    inflated: Vec<u8>,
}

/// Memory that is kept from one chunk to the next, in bytes.
const KEPT_BYTES: usize = 16 << 20;

impl fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

impl Default for Unpacker {
    fn default() -> Self {
        Self { inflater: Decompressor::new(), inflated: Vec::new() }
    }
}

impl Unpacker {
    /// The first `values.len()` bytes of a chunk of `elements` numbers of `size` bytes, which is
    /// stored as `raw`.
    pub(super) fn unpack(
        &mut self,
        filters: Filters,
        (raw, mask): (&[u8], u32),
        (elements, size): (usize, usize),
        values: &mut [u8],
    ) -> Result<(), Damage> {
        let mut body = raw;
        if applied(filters.fletcher32, mask) {
            let Some((checked, sum)) = raw.split_last_chunk() else { return Err(Damage::Checksum) };
            let expected = fletcher32(checked);
            // Before HDF5 1.6.3 the halves were written with their bytes the other way round.
            let swapped = (expected & 0x00ff_00ff) << 8 | expected >> 8 & 0x00ff_00ff;
            let found = u32::from_le_bytes(*sum);
            if found != expected && found != swapped {
                return Err(Damage::Checksum);
            }
            body = checked;
        }
        let length = elements * size;
        let shuffled = size > 1 && applied(filters.shuffle, mask);
        if !applied(filters.deflate, mask) {
            if body.len() != length {
                return Err(Damage::Length(body.len(), length));
            }
            place(body, shuffled, (elements, size), values);
            return Ok(());
        }
        if !shuffled && values.len() == length {
            return inflate(&mut self.inflater, body, values);
        }
        self.inflated.resize(length, 0);
        inflate(&mut self.inflater, body, &mut self.inflated)?;
        place(&self.inflated, shuffled, (elements, size), values);
        if self.inflated.len() > KEPT_BYTES {
            self.inflated = Vec::new();
        }
        Ok(())
    }
}

/// Fills `values` from the zlib stream `stream`.
fn inflate(inflater: &mut Decompressor, stream: &[u8], values: &mut [u8]) -> Result<(), Damage> {
    let expected = values.len();
    match inflater.zlib_decompress(stream, values) {
        Ok(found) if found == expected => Ok(()),
        Ok(found) => Err(Damage::Length(found, expected)),
        Err(DecompressionError::InsufficientSpace) => Err(Damage::Longer(expected)),
        Err(DecompressionError::BadData) => Err(Damage::Stream),
    }
}

/// The first bytes of a chunk to `values`.
fn place(chunk: &[u8], shuffled: bool, (elements, size): (usize, usize), values: &mut [u8]) {
    if !shuffled {
        values.copy_from_slice(&chunk[..values.len()]);
        return;
    }
    let count = values.len() / size;
    let planes = |k: usize| &chunk[k * elements..][..count];
    match size {
        2 => interleave(values.as_chunks_mut().0, [planes(0), planes(1)]),
        4 => interleave(values.as_chunks_mut().0, core::array::from_fn::<_, 4, _>(planes)),
        8 => interleave(values.as_chunks_mut().0, core::array::from_fn::<_, 8, _>(planes)),
        _ => {
            for (i, value) in values.chunks_exact_mut(size).enumerate() {
                (0..).zip(value).for_each(|(k, byte): (usize, _)| *byte = chunk[k * elements + i]);
            }
        }
    }
}

/// Byte k of value i from `planes[k][i]`.
fn interleave<const N: usize>(values: &mut [[u8; N]], planes: [&[u8]; N]) {
    // Of equal length by the compiler's knowledge, so that this becomes vector code.
    let count = values.len();
    let planes = planes.map(|plane| &plane[..count]);
    for i in 0..count {
        values[i] = core::array::from_fn(|k| planes[k][i]);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::filters::Packer;
    use super::*;

    const ALL: [Filter; 3] = [Filter::Shuffle, Filter::Deflate(1), Filter::Fletcher32];

    fn unpack(
        filters: &[Filter],
        stored: (&[u8], u32),
        elements: usize,
    ) -> Result<Vec<u32>, Damage> {
        let mut values = vec![0u32; elements];
        let bytes = bytemuck::cast_slice_mut(&mut values);
        let filters = Filters::of(filters).unwrap();
        Unpacker::default().unpack(filters, stored, (elements, 4), bytes).map(|()| values)
    }

    #[test]
    fn what_was_packed_comes_back_and_damage_is_seen() {
        let values: Vec<u32> = (0..1000).map(|i| i * i * 77).collect();
        let mut packer = Packer::default();
        packer.pack(&values, 1000);
        let packed = packer.filtered.clone();
        assert_eq!(unpack(&ALL, (&packed, 0), 1000).unwrap(), values);
        // The sum's halves with their bytes the other way round, as old libraries wrote them.
        let mut swapped = packed.clone();
        let end = swapped.len();
        swapped.swap(end - 4, end - 3);
        swapped.swap(end - 2, end - 1);
        assert_eq!(unpack(&ALL, (&swapped, 0), 1000).unwrap(), values);
        for at in [0, end / 2, end - 1] {
            let mut damaged = packed.clone();
            damaged[at] ^= 8;
            assert_eq!(unpack(&ALL, (&damaged, 0), 1000), Err(Damage::Checksum));
            // Without the checksum of HDF5 there is that of zlib.
            let unchecked = unpack(&ALL, (&damaged[..end - 4], 0b100), 1000);
            assert!(at == end - 1 || unchecked.is_err());
        }
        assert_eq!(unpack(&ALL, (&packed, 0), 999), Err(Damage::Longer(3996)));
        assert_eq!(unpack(&ALL, (&packed, 0), 1001), Err(Damage::Length(4000, 4004)));
        assert_eq!(unpack(&ALL, (&[], 0), 1000), Err(Damage::Checksum));
    }

    #[test]
    fn filters_that_a_chunk_was_written_without_are_not_undone() {
        let values: Vec<u32> = (0..100).collect();
        let plain: &[u8] = bytemuck::cast_slice(&values);
        assert_eq!(unpack(&ALL, (plain, 0b111), 100).unwrap(), values);
        assert_eq!(unpack(&[], (plain, 0), 100).unwrap(), values);
        assert_eq!(unpack(&ALL, (plain, 0b111), 99), Err(Damage::Length(400, 396)));
        let sum = fletcher32(plain).to_le_bytes();
        assert_eq!(unpack(&ALL, (&[plain, &sum].concat(), 0b011), 100).unwrap(), values);
        assert_eq!(
            unpack(&[Filter::Fletcher32], (&[plain, &sum].concat(), 0), 100).unwrap(),
            values
        );
    }

    #[test]
    fn only_our_filters_in_our_order_are_undone_here() {
        assert!(Filters::of(&ALL[1..]).is_some() && Filters::of(&[]).is_some());
        assert!(Filters::of(&[Filter::Deflate(1), Filter::Shuffle]).is_none());
        assert!(Filters::of(&[Filter::Fletcher32, Filter::Deflate(1)]).is_none());
        assert!(Filters::of(&[Filter::Shuffle, Filter::Shuffle]).is_none());
        assert!(Filters::of(&[Filter::Shuffle, Filter::NBit]).is_none());
    }
}
