//! Places of two bytes in a line, 64 bytes at a time.
//!
//! A search for the next one costs more than the few bytes that most values have: all are found in
//! one sweep, as bits of a word: by vectors, and elsewhere with the arithmetic of zero bytes
//! (H. S. Warren, Hacker's Delight, §6-1).

/// Where a byte is one of two, in ascending order.
pub(super) struct Marks<'a> {
    line: &'a [u8],
    either: [u8; 2],
    /// Behind the block whose marks are in `found`.
    next: usize,
    /// Where that block begins.
    block: usize,
    /// A bit for every byte of the block that is a mark and has not been given.
    found: u64,
}

impl<'a> Marks<'a> {
    pub(super) fn new(line: &'a [u8], either: [u8; 2]) -> Self {
        Self { line, either, next: 0, block: 0, found: 0 }
    }

    /// Looks at the next block that has marks; false if there is none. Not inlined, so that what is
    /// done for every mark stays short.
    #[inline(never)]
    fn advance(&mut self) -> bool {
        while self.found == 0 {
            let rest = &self.line[self.next..];
            self.block = self.next;
            if let Some(block) = rest.first_chunk() {
                self.found = marks(block, self.either);
                self.next += BLOCK;
            } else if rest.is_empty() {
                return false;
            } else {
                // The bytes before it, where there are so many, are looked at again.
                self.found = match self.line.last_chunk() {
                    Some(block) => marks(block, self.either) >> (BLOCK - rest.len()),
                    None => {
                        let mut block = [0; BLOCK];
                        block[..rest.len()].copy_from_slice(rest);
                        marks(&block, self.either) & ((1 << rest.len()) - 1)
                    }
                };
                self.next = self.line.len();
            }
        }
        true
    }
}

impl Iterator for Marks<'_> {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.found == 0 && !self.advance() {
            return None;
        }
        let at = self.block + self.found.trailing_zeros() as usize;
        self.found &= self.found - 1;
        Some(at)
    }
}

/// Bytes that are looked at together.
const BLOCK: usize = 64;

/// A bit for every byte of `block` that is one of `either`.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[inline]
fn marks(block: &[u8; BLOCK], either: [u8; 2]) -> u64 {
    use core::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8};
    let quarters = block.as_chunks::<16>().0;
    quarters.iter().rev().fold(0, |found, quarter| {
        let bytes = bytemuck::cast(*quarter);
        // SAFETY: every x86-64 processor has SSE2, which is all that these need.
        let here = unsafe {
            let [a, b] = either.map(|byte| _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte as i8)));
            _mm_movemask_epi8(_mm_or_si128(a, b))
        };
        found << 16 | u64::from(here.cast_unsigned())
    })
}

#[cfg(not(target_arch = "x86_64"))]
use plain_marks as marks;

/// [`marks`], a word at a time.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn plain_marks(block: &[u8; BLOCK], either: [u8; 2]) -> u64 {
    let either = either.map(|byte| ONES * u64::from(byte));
    block.as_chunks::<8>().0.iter().rev().fold(0, |found, word| {
        let word = u64::from_le_bytes(*word);
        let here = zeros(word ^ either[0]) | zeros(word ^ either[1]);
        // The bit of byte i comes to bit 56 + i, and to no other there.
        found << 8 | (here >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    })
}

/// The highest bits of the bytes that are zero: exactly those, since nothing is carried.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn zeros(word: u64) -> u64 {
    !(((word & LOW_BITS) + LOW_BITS) | word) & !LOW_BITS
}

/// A one in every byte.
#[cfg(any(test, not(target_arch = "x86_64")))]
const ONES: u64 = 0x0101_0101_0101_0101;
#[cfg(any(test, not(target_arch = "x86_64")))]
const LOW_BITS: u64 = ONES * 0x7f;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn marks_are_found_as_byte_by_byte(
            line in prop::collection::vec(
                prop_oneof![Just(b','), Just(b'"'), Just(0), 0u8..],
                0..300,
            ),
            either in prop_oneof![Just([b',', b'"']), Just([b';'; 2]), Just([0, 255])],
        ) {
            let plain = (0..line.len()).filter(|&at| either.contains(&line[at]));
            prop_assert!(Marks::new(&line, either).eq(plain));
            for block in line.as_chunks().0 {
                prop_assert_eq!(marks(block, either), plain_marks(block, either));
            }
        }
    }
}
