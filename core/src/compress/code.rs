//! Elements of a vector as bytes: which they are, and their values.
//!
//! A message is eight bytes, then indices, then values, all little-endian.
//!
//! | byte | what |
//! | --- | --- |
//! | 0 | how indices are written |
//! | 1 | bytes of a value: 4 (f32), 2 (bfloat16) or 1 (`half.rs`) |
//! | 4..8 | elements that are there |
//!
//! | indices | bytes, of n elements with k there |
//! | --- | --- |
//! | 0: none, all elements are there | 0 |
//! | 1: a bit for each element | n / 8 |
//! | 2: a byte for each that is there, the elements before it since the last; 255: as many are not there, and none is | k + n / 255 at most |
//! | 3: the same with 16 bits | 2 k + 2 n / 65535 at most |
//!
//! Of these the shortest is taken. With one element in a hundred and values of 16 bits that is
//! 3.1 bytes for each.
//!
//! Invariant: whatever bytes come, reading them ends, and touches the vector's elements alone.

use core::fmt;

use super::half::{from_half, from_quarter, to_half, to_quarter};
use super::mask::{Mask, mask_len};
use crate::kernel::isa::{Isa, Kernel, run};

/// What values are written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// As they are.
    #[default]
    F32 = 4,
    /// bfloat16, rounded to the nearest.
    Bf16 = 2,
    /// Of 8 bits, rounded to the nearest ([`to_quarter`]).
    F8 = 1,
}

impl Values {
    /// Bytes of one.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self as usize
    }

    /// `x` as whoever reads it has it.
    #[inline(always)]
    #[must_use]
    pub const fn sent(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::Bf16 => from_half(to_half(x)),
            Self::F8 => from_quarter(to_quarter(x)),
        }
    }

    /// How values of so many bytes are written.
    #[must_use]
    pub const fn of_bytes(bytes: usize) -> Option<Self> {
        match bytes {
            4 => Some(Self::F32),
            2 => Some(Self::Bf16),
            1 => Some(Self::F8),
            _ => None,
        }
    }

    /// Writes the elements of `vector` at the mask's positions, or all; returns how many bytes.
    #[inline(always)]
    pub(super) fn write(self, vector: &[f32], mask: Option<&Mask<'_>>, out: &mut [u8]) -> usize {
        match self {
            Self::F32 => write_each(vector, mask, out, f32::to_le_bytes),
            Self::Bf16 => write_each(vector, mask, out, |x| to_half(x).to_le_bytes()),
            Self::F8 => write_each(vector, mask, out, |x| [to_quarter(x)]),
        }
    }
}

#[inline(always)]
fn write_each<const BYTES: usize>(
    vector: &[f32],
    mask: Option<&Mask<'_>>,
    out: &mut [u8],
    bytes: impl Fn(f32) -> [u8; BYTES],
) -> usize {
    let count = mask.map_or(vector.len(), Mask::count);
    let (out, _) = out[..count * BYTES].as_chunks_mut::<BYTES>();
    match mask {
        None => out.iter_mut().zip(vector).for_each(|(out, x)| *out = bytes(*x)),
        Some(mask) => {
            let mut out = out.iter_mut();
            mask.visit(|at| out.next().into_iter().for_each(|out| *out = bytes(vector[at])));
        }
    }
    count * BYTES
}

/// Bytes of a message of `len` elements at most.
#[must_use]
pub const fn len_max(len: usize, values: Values) -> usize {
    HEADER + len * values.bytes()
}

/// Bytes of a message in which `count` of `len` elements are there, as many at most.
#[must_use]
pub fn len_of(count: usize, len: usize, values: Values) -> usize {
    HEADER + Indices::for_count(count, len, values).1
}

/// How indices are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Indices {
    All = 0,
    Bits = 1,
    Gaps8 = 2,
    Gaps16 = 3,
}

impl Indices {
    /// The shortest for `count` of `len` elements, and the bytes of indices and values at most.
    fn for_count(count: usize, len: usize, values: Values) -> (Self, usize) {
        let with_values = |indices: usize| indices + count * values.bytes();
        let choices = [
            (len * values.bytes(), Self::All),
            (with_values(len.div_ceil(8)), Self::Bits),
            (with_values(count + len / FAR_8), Self::Gaps8),
            (with_values(2 * (count + len / FAR_16)), Self::Gaps16),
        ];
        let all = (Self::All, len * values.bytes());
        choices.into_iter().min_by_key(|(bytes, _)| *bytes).map_or(all, |(bytes, it)| (it, bytes))
    }
}

/// Writes the elements of `vector` that pass `mask` to `out`, which has room for
/// [`len_max`] bytes. Returns how many bytes they are.
///
/// # Panics
/// When there is no room.
pub fn code(vector: &[f32], mask: &Mask<'_>, values: Values, out: &mut [u8]) -> usize {
    let (indices, _) = Indices::for_count(mask.count(), vector.len(), values);
    let mut length = 0;
    run(Code { vector, mask, indices, values, out, length: &mut length });
    length
}

/// [`code`] with indices written so.
struct Code<'a> {
    vector: &'a [f32],
    mask: &'a Mask<'a>,
    indices: Indices,
    values: Values,
    out: &'a mut [u8],
    /// Bytes written.
    length: &'a mut usize,
}

impl Kernel for Code<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        let Self { vector, mask, indices, values, out, length } = self;
        let count = if indices == Indices::All { vector.len() } else { mask.count() };
        *length = write(vector, mask, (indices, count), values, out);
    }
}

#[inline(always)]
fn write(
    vector: &[f32],
    mask: &Mask<'_>,
    (indices, count): (Indices, usize),
    values: Values,
    out: &mut [u8],
) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "at most u32::MAX elements")]
    let words = (count as u32).to_le_bytes();
    let (header, rest) = out.split_at_mut(HEADER);
    header[..2].copy_from_slice(&[indices as u8, values as u8]);
    header[2..4].fill(0);
    header[4..].copy_from_slice(&words);
    let of_indices = match indices {
        Indices::All => 0,
        Indices::Bits => bits(mask, vector.len(), rest),
        Indices::Gaps8 => gaps::<FAR_8, 1>(mask, rest),
        Indices::Gaps16 => gaps::<FAR_16, 2>(mask, rest),
    };
    let sent = (indices != Indices::All).then_some(mask);
    HEADER + of_indices + values.write(vector, sent, &mut rest[of_indices..])
}

#[inline(always)]
fn bits(mask: &Mask<'_>, len: usize, out: &mut [u8]) -> usize {
    let out = &mut out[..len.div_ceil(8)];
    for (out, word) in out.chunks_mut(4).zip(mask.words()) {
        out.copy_from_slice(&word.to_le_bytes()[..out.len()]);
    }
    out.len()
}

#[inline(always)]
fn gaps<const FAR: usize, const BYTES: usize>(mask: &Mask<'_>, out: &mut [u8]) -> usize {
    let (out, _) = out.as_chunks_mut::<BYTES>();
    let (mut length, mut next) = (0, 0);
    let mut put = |gap: usize| {
        out[length].copy_from_slice(&gap.to_le_bytes()[..BYTES]);
        length += 1;
    };
    mask.visit(|at| {
        let mut gap = at - next;
        while gap >= FAR {
            put(FAR);
            gap -= FAR;
        }
        put(gap);
        next = at + 1;
    });
    BYTES * length
}

/// So many elements are not there, and then none is: the largest number of a byte, and of two.
const FAR_8: usize = u8::MAX as usize;
const FAR_16: usize = u16::MAX as usize;

/// Adds the elements of a message to `vector`. Returns how many there were.
///
/// # Errors
/// When it is no message of a vector of this length; some of its elements may have been added.
pub fn add(message: &[u8], vector: &mut [f32]) -> Result<usize, Malformed> {
    visit(message, vector, |to, x| *to += x)
}

/// Calls `each` with the elements of `vector` that a message has, ascending, and its values.
/// Returns how many there were.
///
/// # Errors
/// When it is no message of a vector of this length; some elements may have been visited.
pub fn visit<T>(
    message: &[u8],
    vector: &mut [T],
    each: impl FnMut(&mut T, f32),
) -> Result<usize, Malformed> {
    let mut visited = Ok(0);
    run(Visit { message, vector, each, visited: &mut visited });
    visited
}

/// [`visit`] as a kernel.
struct Visit<'a, T, F> {
    message: &'a [u8],
    vector: &'a mut [T],
    each: F,
    visited: &'a mut Result<usize, Malformed>,
}

impl<T, F: FnMut(&mut T, f32)> Kernel for Visit<'_, T, F> {
    #[inline(always)]
    fn run<I: Isa>(mut self, _: I) {
        *self.visited = read(self.message, self.vector, &mut self.each);
    }
}

#[inline(always)]
fn read<T>(
    message: &[u8],
    vector: &mut [T],
    each: &mut impl FnMut(&mut T, f32),
) -> Result<usize, Malformed> {
    let Parts { indices, count, bytes, values, of_a_value } = Parts::of(message, vector.len())?;
    match of_a_value {
        Values::F32 => {
            let values = values.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x));
            visit_all(indices, bytes, values, vector, each)?;
        }
        Values::Bf16 => {
            let halves = values.as_chunks::<2>().0.iter();
            let values = halves.map(|x| from_half(u16::from_le_bytes(*x)));
            visit_all(indices, bytes, values, vector, each)?;
        }
        Values::F8 => {
            let values = values.iter().map(|x| from_quarter(*x));
            visit_all(indices, bytes, values, vector, each)?;
        }
    }
    Ok(count)
}

/// What a message is made of.
struct Parts<'a> {
    /// How indices are written.
    indices: u8,
    /// Elements that are there.
    count: usize,
    /// The indices.
    bytes: &'a [u8],
    values: &'a [u8],
    /// How they are written.
    of_a_value: Values,
}

impl<'a> Parts<'a> {
    /// Of a message of a vector of `len`.
    #[inline(always)]
    fn of(message: &'a [u8], len: usize) -> Result<Self, Malformed> {
        let (header, rest) = message.split_first_chunk::<HEADER>().ok_or(Malformed)?;
        let [indices, of_a_value, _, _, count @ ..] = *header;
        let count = u32::from_le_bytes(count) as usize;
        let of_a_value = Values::of_bytes(usize::from(of_a_value)).ok_or(Malformed)?;
        if count > len {
            return Err(Malformed);
        }
        let of_indices = rest.len().checked_sub(count * of_a_value.bytes()).ok_or(Malformed)?;
        let (bytes, values) = rest.split_at(of_indices);
        Ok(Self { indices, count, bytes, values, of_a_value })
    }
}

#[inline(always)]
fn visit_all<T>(
    indices: u8,
    bytes: &[u8],
    mut values: impl ExactSizeIterator<Item = f32>,
    vector: &mut [T],
    each: &mut impl FnMut(&mut T, f32),
) -> Result<(), Malformed> {
    let ends = |values: &dyn ExactSizeIterator<Item = f32>| {
        if values.len() == 0 { Ok(()) } else { Err(Malformed) }
    };
    match indices {
        0 if bytes.is_empty() && values.len() == vector.len() => {
            vector.iter_mut().zip(&mut values).for_each(|(to, x)| each(to, x));
            Ok(())
        }
        1 if bytes.len() == vector.len().div_ceil(8) => {
            for (to, bits) in vector.chunks_mut(8).zip(bytes) {
                let mut bits = u32::from(*bits);
                while bits != 0 {
                    let to = to.get_mut(bits.trailing_zeros() as usize).ok_or(Malformed)?;
                    each(to, values.next().ok_or(Malformed)?);
                    bits &= bits - 1;
                }
            }
            ends(&values)
        }
        2 => {
            let gaps = bytes.iter().map(|gap| usize::from(*gap));
            visit_gaps::<FAR_8, T>(gaps, &mut values, vector, each)?;
            ends(&values)
        }
        3 if bytes.len().is_multiple_of(2) => {
            let gaps = bytes.as_chunks::<2>().0.iter();
            let gaps = gaps.map(|gap| usize::from(u16::from_le_bytes(*gap)));
            visit_gaps::<FAR_16, T>(gaps, &mut values, vector, each)?;
            ends(&values)
        }
        _ => Err(Malformed),
    }
}

#[inline(always)]
fn visit_gaps<const FAR: usize, T>(
    gaps: impl Iterator<Item = usize>,
    values: &mut impl Iterator<Item = f32>,
    vector: &mut [T],
    each: &mut impl FnMut(&mut T, f32),
) -> Result<(), Malformed> {
    each_of_gaps::<FAR>(gaps, |at| {
        let to = vector.get_mut(at).ok_or(Malformed)?;
        each(to, values.next().ok_or(Malformed)?);
        Ok(())
    })
}

/// Calls `each` with the elements that gaps name, ascending.
#[inline(always)]
fn each_of_gaps<const FAR: usize>(
    gaps: impl Iterator<Item = usize>,
    mut each: impl FnMut(usize) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let mut at = 0;
    for gap in gaps {
        at += gap;
        if gap != FAR {
            each(at)?;
            at += 1;
        }
    }
    Ok(())
}

/// Which elements of a vector of `len` a message has. `words`: `[mask_len(len)]` or more
///
/// # Errors
/// When it is no message of such a vector.
pub fn read_mask<'a>(
    message: &[u8],
    len: usize,
    words: &'a mut [u32],
) -> Result<Mask<'a>, Malformed> {
    let Parts { indices, count, bytes, .. } = Parts::of(message, len)?;
    let words = &mut words[..mask_len(len)];
    words.fill(0);
    let mut set = |at: usize| {
        if at >= len {
            return Err(Malformed);
        }
        words[at / 32] |= 1 << (at % 32);
        Ok(())
    };
    match indices {
        0 if bytes.is_empty() => (0..len).try_for_each(set)?,
        1 if bytes.len() == len.div_ceil(8) => {
            for (at, byte) in (0..).step_by(8).zip(bytes) {
                (0..8).filter(|bit| byte >> bit & 1 != 0).try_for_each(|bit| set(at + bit))?;
            }
        }
        2 => each_of_gaps::<FAR_8>(bytes.iter().map(|gap| usize::from(*gap)), set)?,
        3 if bytes.len().is_multiple_of(2) => {
            let gaps = bytes.as_chunks::<2>().0.iter();
            each_of_gaps::<FAR_16>(gaps.map(|gap| usize::from(u16::from_le_bytes(*gap))), set)?;
        }
        _ => return Err(Malformed),
    }
    let mask = Mask::told(words);
    if mask.count() == count { Ok(mask) } else { Err(Malformed) }
}

/// Bytes before the indices.
const HEADER: usize = 8;

/// It is no message of elements of a vector of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no message of elements of a vector of this length")
    }
}

impl core::error::Error for Malformed {}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// A vector of which one element in `one_of` is no zero.
    fn vector(len: usize, one_of: u32, seed: u32) -> Vec<f32> {
        let at = |i: u32| {
            let word = (i ^ seed).wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(40_503);
            if (word >> 8).is_multiple_of(one_of) { (word as f32 - 2e9) / 1e9 } else { 0.0 }
        };
        (0..len).map(|i| at(u32::try_from(i).unwrap())).collect()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            len in 0usize..5000,
            one_of in prop_oneof![Just(1u32), 2u32..12, 50u32..300, 1000u32..100_000],
            seed in any::<u32>(),
        ) {
            let vector = vector(len, one_of, seed);
            let mut words = vec![0; mask_len(len)];
            let mask = Mask::of(&vector, 0.0, &mut words);
            for values in [Values::F32, Values::Bf16, Values::F8] {
                let mut out = vec![7; len_max(len, values)];
                let length = code(&vector, &mask, values, &mut out);
                let message = &out[..length];
                let mut read = vec![0.0; len];
                let added = add(message, &mut read).unwrap();
                prop_assert!(added == mask.count() || added == len);
                let expected: Vec<f32> = vector.iter().map(|x| values.sent(*x)).collect();
                prop_assert_eq!(read, expected);
                // Of another length, or cut, it is refused or touches nothing else.
                if mask.count() > 0 && length > 8 {
                    let cut = add(&message[..length - 1], &mut vec![0.0; len]);
                    prop_assert_eq!(cut, Err(Malformed));
                }
            }
        }

        /// Whatever bytes come.
        #[test]
        fn anything_is_read_or_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..300),
            indices in 0u8..5,
            value in prop_oneof![Just(2u8), Just(4u8), any::<u8>()],
            count in 0u32..80,
            len in 0usize..300,
        ) {
            if bytes.len() >= 8 {
                (bytes[0], bytes[1]) = (indices, value);
                bytes[4..8].copy_from_slice(&count.to_le_bytes());
            }
            let _ = add(&bytes, &mut vec![0.0; len]);
        }
    }

    /// Bytes for an element that is there.
    #[test]
    fn few_bytes_for_each_element() {
        for (one_of, values, most) in [
            (1, Values::F32, 4.01),
            (4, Values::Bf16, 2.6),
            (30, Values::Bf16, 3.1),
            (100, Values::Bf16, 3.45),
            (100, Values::F32, 5.45),
            (1000, Values::Bf16, 4.1),
        ] {
            let vector = vector(1 << 17, one_of, 1);
            let mut words = vec![0; mask_len(vector.len())];
            let mask = Mask::of(&vector, 0.0, &mut words);
            let mut out = vec![0; len_max(vector.len(), values)];
            let length = code(&vector, &mask, values, &mut out);
            let expected = len_of(mask.count(), vector.len(), values);
            assert!(length <= expected && expected <= length + length / 10, "{length}: {expected}");
            let each = length as f64 / mask.count() as f64;
            assert!(each < most, "one of {one_of}: {each} bytes");
        }
    }
}
