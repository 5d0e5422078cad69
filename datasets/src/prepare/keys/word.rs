//! Short texts as numbers: equal where the texts are, and in the order of their bytes.
//!
//! A text of up to [`SHORT_BYTES_MAX`] bytes, filled up with zeros, and its length below it are the
//! lower 96 bits of a word. Of two texts that are equal but for the zeros the shorter is a prefix
//! of the longer, and its length is less.

/// The word of a short text; `None` of a longer one.
#[inline]
pub(crate) fn word(text: &[u8]) -> Option<u128> {
    let length = text.len();
    // Both ends of the text, which overlap, and so agree where they do.
    let (start, end) = match length {
        0 => (0, 0),
        1..=3 => {
            let middle = u64::from(text[length / 2]) << (56 - length / 2 * 8);
            let last = u64::from(text[length - 1]) << (64 - length * 8);
            (u64::from(text[0]) << 56 | middle | last, 0)
        }
        4..=7 => {
            let first = u64::from(u32::from_be_bytes(*text.first_chunk()?));
            let last = u64::from(u32::from_be_bytes(*text.last_chunk()?));
            (first << 32 | last << (64 - length * 8), 0)
        }
        8..=SHORT_BYTES_MAX => {
            let last = u64::from_be_bytes(*text.last_chunk()?);
            let end = last << (96 - length * 8) & 0xffff_ff00;
            (u64::from_be_bytes(*text.first_chunk()?), end)
        }
        _ => return None,
    };
    Some(u128::from(start) << 32 | u128::from(end | length as u64))
}

/// Where a longer text stands among words, but for others that begin with the same bytes.
pub(crate) fn long_rank(text: &[u8]) -> u128 {
    let start = word(&text[..text.len().min(SHORT_BYTES_MAX)]).unwrap_or_default();
    start | u128::from(LONG)
}

/// The text of a word's bytes, the highest first, and `None` of [`long_word`].
#[inline]
pub(crate) fn short_text(word: &[u8; 16]) -> Option<&[u8]> {
    let length = usize::from(word[15]);
    (length <= SHORT_BYTES_MAX).then(|| &word[TEXT_START..TEXT_START + length])
}

/// A word that is no text's, with a number that [`long_number`] gives back.
pub(crate) fn long_word(number: usize) -> u128 {
    (number as u128) << 8 | u128::from(LONG)
}

/// The number of a [`long_word`].
pub(crate) fn long_number(word: u128) -> usize {
    (word >> 8) as usize
}

/// True of words of [`long_word`].
#[inline]
pub(crate) fn is_long(word: u128) -> bool {
    word & 0xff == u128::from(LONG)
}

/// Bytes of the longest text that is a word.
pub(crate) const SHORT_BYTES_MAX: usize = 11;

/// In place of the length.
const LONG: u8 = 0xff;

/// Behind the upper 32 bits.
const TEXT_START: usize = 4;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// [`word`], byte by byte.
    fn plain(text: &[u8]) -> Option<u128> {
        let mut bytes = [0; 16];
        let place = bytes[TEXT_START..15].get_mut(..text.len())?;
        place.copy_from_slice(text);
        bytes[15] = u8::try_from(text.len()).unwrap();
        Some(u128::from_be_bytes(bytes))
    }

    fn texts() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255), 0u8..], 0..15)
    }

    proptest! {
        #[test]
        fn words_are_texts_in_the_order_of_their_bytes(a in texts(), b in texts()) {
            prop_assert_eq!(word(&a), plain(&a));
            if let Some(word) = word(&a) {
                prop_assert!(short_text(&word.to_be_bytes()).is_some_and(|text| text == a));
                prop_assert!(!is_long(word));
            }
            let rank = |text: &[u8]| word(text).unwrap_or_else(|| long_rank(text));
            prop_assert_eq!((rank(&a), &a).cmp(&(rank(&b), &b)), a.cmp(&b));
        }

        #[test]
        fn numbers_of_long_texts_come_back(number: usize) {
            let word = long_word(number);
            prop_assert!(is_long(word) && word >> 96 == 0);
            prop_assert_eq!(long_number(word), number);
            prop_assert!(short_text(&word.to_be_bytes()).is_none());
        }
    }
}
