//! Digits to numbers and back, eight at once in one word, the first digit lowest (as bytes are read
//! on any machine by `from_le_bytes`).
//!
//! The arithmetic within a word is that of D. Lemire and W. Muła ("Parsing series of integers with
//! SIMD", Software: Practice and Experience 2023) and older. The loops in the tests say what each
//! function means.

use super::word::word;

/// The number of eight hex digits of either case.
pub(crate) fn hex(digits: [u8; 8]) -> Option<u32> {
    let text = u64::from_le_bytes(digits);
    let letters = (text >> 6) & ONES;
    let values = (text & (ONES * 0xf)) + letters * 9;
    // Right if all are below 16, and are spelt as the text is in lower case.
    if values & (ONES * 0xf0) != 0 || spelt(values) != text | letters << 5 {
        return None;
    }
    let pairs = (values << 4 | values >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs << 8 | pairs >> 16) & 0x0000_ffff_0000_ffff;
    #[expect(clippy::cast_possible_truncation, reason = "the lower half, after the upper")]
    Some((fours << 16 | fours >> 32) as u32)
}

/// Eight lower-case hex digits.
pub(crate) fn spell_hex(number: u32) -> [u8; 8] {
    let word = u64::from(number.swap_bytes());
    let fours = (word | word << 16) & 0x0000_ffff_0000_ffff;
    let pairs = (fours | fours << 8) & 0x00ff_00ff_00ff_00ff;
    spelt((pairs >> 4 | pairs << 8) & (ONES * 0xf)).to_le_bytes()
}

/// Values to hex digits in lower case; above 15 to other letters.
fn spelt(values: u64) -> u64 {
    let from_ten = ((values + ONES * 118) >> 7) & ONES;
    values + ONES * 0x30 + from_ten * 39
}

/// The number of up to seven decimal digits in front of a tab, and how many they are: none is 0.
/// `None` for any other text, a longer one among them.
pub(crate) fn decimal_before_tab(text: [u8; 8]) -> Option<(u32, usize)> {
    let text = u64::from_le_bytes(text);
    let other_than_tab = text ^ (ONES * 0x09);
    // The lowest zero byte is found exactly.
    let tab = other_than_tab.wrapping_sub(ONES) & !other_than_tab & HIGH_BITS;
    if tab == 0 {
        return None;
    }
    // Of the bits up to the tab's highest, those before the tab move to the top.
    let bits = tab.trailing_zeros() & !7;
    let right = |word: u64| word << (56 - bits) << 8;
    let values = right(text) ^ right(ONES * 0x30);
    eight_digits(values).map(|number| (number, (bits / 8) as usize))
}

/// The number of one to eight decimal digits.
#[inline]
pub(crate) fn decimal(text: &[u8]) -> Option<u32> {
    if !(1..=8).contains(&text.len()) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "above it there is only the length")]
    let word = word(text)? as u64;
    let right = |word: u64| word << (64 - text.len() * 8);
    eight_digits(right(word) ^ right(ONES * 0x30))
}

/// The number whose digits have these values, the first lowest; `None` if one is no digit.
#[inline]
fn eight_digits(values: u64) -> Option<u32> {
    // Above nine, or far above: a lane that carries has its own high bit set.
    if (values | values.wrapping_add(ONES * 0x76)) & HIGH_BITS != 0 {
        return None;
    }
    let pairs = (values * 10 + (values >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    #[expect(clippy::cast_possible_truncation, reason = "the upper half is masked away")]
    let number = (fours * 10_000 + (fours >> 32)) as u32;
    Some(number)
}

/// A one in every byte.
const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = ONES * 0x80;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// [`hex`], digit by digit.
    fn plain_hex(digits: [u8; 8]) -> Option<u32> {
        digits.iter().try_fold(0, |number, &digit| {
            char::from(digit).to_digit(16).map(|value| number << 4 | value)
        })
    }

    /// [`decimal_before_tab`], digit by digit.
    fn plain_decimal(text: [u8; 8]) -> Option<(u32, usize)> {
        let length = text.iter().position(|&byte| byte == b'\t')?;
        let digits = text[..length].iter();
        let number = digits.clone().try_fold(0, |number, &digit| {
            char::from(digit).to_digit(10).map(|value| number * 10 + value)
        })?;
        Some((number, length))
    }

    #[test]
    fn every_byte_in_every_place_is_read_as_digit_by_digit() {
        for place in 0..8 {
            for byte in 0..=255 {
                for filler in *b"07afAF9" {
                    let mut text = [filler; 8];
                    text[place] = byte;
                    assert_eq!(hex(text), plain_hex(text), "{text:?}");
                }
                for tab in 0..8 {
                    let mut text = *b"19203948";
                    text[tab] = b'\t';
                    text[place] = byte;
                    assert_eq!(decimal_before_tab(text), plain_decimal(text), "{text:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn text_is_read_as_digit_by_digit(
            digits in "[0-9a-fA-F]{8}", text in "[0-9\t]{7}\t", bytes: [u8; 8], number: u32,
        ) {
            for text in [digits.as_bytes(), text.as_bytes(), &bytes] {
                let text = *text.first_chunk().expect("eight bytes");
                prop_assert_eq!(hex(text), plain_hex(text));
                prop_assert_eq!(decimal_before_tab(text), plain_decimal(text));
                for length in 0..=8 {
                    let text = &text[..length];
                    let digits = text.iter().all(u8::is_ascii_digit).then_some(text);
                    let plain = digits.and_then(|text| core::str::from_utf8(text).ok());
                    prop_assert_eq!(decimal(text), plain.and_then(|text| text.parse().ok()));
                }
            }
            prop_assert_eq!(spell_hex(number).to_vec(), format!("{number:08x}").into_bytes());
        }
    }
}
