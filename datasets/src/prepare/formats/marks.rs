//! Places of two bytes in a line, eight bytes at a time.
//!
//! A search for the next one costs more than the few bytes that most values have: all are found in
//! one sweep, with the arithmetic of zero bytes in a word (H. S. Warren, Hacker's Delight, §6-1).

/// Where a byte is one of two, in ascending order.
pub(super) struct Marks<'a> {
    line: &'a [u8],
    /// Each of the two in all bytes of a word.
    either: [u64; 2],
    /// Behind the word whose marks are in `found`.
    next: usize,
    /// The highest bits of the bytes that are marks and have not been given.
    found: u64,
}

impl<'a> Marks<'a> {
    pub(super) fn new(line: &'a [u8], either: [u8; 2]) -> Self {
        Self { line, either: either.map(|byte| ONES * u64::from(byte)), next: 0, found: 0 }
    }
}

impl Iterator for Marks<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.found == 0 {
            let rest = self.line.get(self.next..).filter(|rest| !rest.is_empty())?;
            let word = rest.first_chunk().copied().unwrap_or_else(|| filled_up(rest));
            let word = u64::from_le_bytes(word);
            self.found = zeros(word ^ self.either[0]) | zeros(word ^ self.either[1]);
            self.next += 8;
        }
        let at = self.next - 8 + (self.found.trailing_zeros() / 8) as usize;
        self.found &= self.found - 1;
        // What a short word is filled up with may look like marks.
        (at < self.line.len()).then_some(at)
    }
}

/// The last bytes of a line, and zeros.
fn filled_up(rest: &[u8]) -> [u8; 8] {
    let mut word = [0; 8];
    word[..rest.len()].copy_from_slice(rest);
    word
}

/// The highest bits of the bytes that are zero: exactly those, since nothing is carried.
#[inline]
fn zeros(word: u64) -> u64 {
    !(((word & LOW_BITS) + LOW_BITS) | word) & !LOW_BITS
}

/// A one in every byte.
const ONES: u64 = 0x0101_0101_0101_0101;
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
                0..40,
            ),
            either in prop_oneof![Just([b',', b'"']), Just([b';'; 2]), Just([0, 255])],
        ) {
            let plain = (0..line.len()).filter(|&at| either.contains(&line[at]));
            prop_assert!(Marks::new(&line, either).eq(plain));
        }
    }
}
