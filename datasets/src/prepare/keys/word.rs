//! Short texts as numbers: equal where the texts are.
//!
//! A text of up to [`SHORT_BYTES_MAX`] bytes, filled up with zeros, and its length behind it are
//! the lower 96 bits of a word, the first byte lowest, so that a word in memory is its text. With
//! the first byte highest they are its [`order`]: of two texts that are equal but for the zeros the
//! shorter is a prefix of the longer, and its length is less.

/// The word of a short text; `None` of a longer one.
#[inline]
pub(crate) fn word(text: &[u8]) -> Option<u128> {
    let length = text.len();
    // Both ends of the text, which overlap, and so agree where they do.
    let (start, end) = match length {
        0 => (0, 0),
        1..=3 => {
            let middle = u64::from(text[length / 2]) << (length / 2 * 8);
            let last = u64::from(text[length - 1]) << ((length - 1) * 8);
            (u64::from(text[0]) | middle | last, 0)
        }
        4..=7 => {
            let first = u64::from(u32::from_le_bytes(*text.first_chunk()?));
            let last = u64::from(u32::from_le_bytes(*text.last_chunk()?));
            (first | last << ((length - 4) * 8), 0)
        }
        8..=SHORT_BYTES_MAX => {
            let last = u64::from_le_bytes(*text.last_chunk()?);
            // In two steps: of eight bytes none are left, and a shift by all bits is none.
            let end = last >> 8 >> ((15 - length) * 8);
            (u64::from_le_bytes(*text.first_chunk()?), end)
        }
        _ => return None,
    };
    let end = end | (length as u64) << (LENGTH_AT * 8 - 64);
    Some(u128::from(start) | u128::from(end) << 64)
}

/// Where the text of a word stands among texts; below 2^96.
pub(crate) fn order(word: u128) -> u128 {
    word.swap_bytes() >> 32
}

/// The word of an [`order`], whose upper bits may be anything.
pub(crate) fn word_in(order: u128) -> u128 {
    (order << 32).swap_bytes()
}

/// Where a longer text stands among others, but for those that begin with the same bytes.
pub(crate) fn long_order(text: &[u8]) -> u128 {
    let start = word(&text[..text.len().min(SHORT_BYTES_MAX)]).unwrap_or_default();
    order(start) | u128::from(LONG)
}

/// The text of a word's bytes, the lowest first, and `None` of [`long_word`].
#[inline]
pub(crate) fn short_text(word: &[u8; 16]) -> Option<&[u8]> {
    let length = usize::from(word[LENGTH_AT]);
    (length <= SHORT_BYTES_MAX).then(|| &word[..length])
}

/// A word that is no text's, with a number that [`long_number`] gives back.
pub(crate) fn long_word(number: usize) -> u128 {
    number as u128 | u128::from(LONG) << (LENGTH_AT * 8)
}

/// The number of a [`long_word`].
pub(crate) fn long_number(word: u128) -> usize {
    word as usize
}

/// True of words of [`long_word`].
#[inline]
pub(crate) fn is_long(word: u128) -> bool {
    word >> (LENGTH_AT * 8) & 0xff == u128::from(LONG)
}

/// Bytes of the longest text that is a word.
pub(crate) const SHORT_BYTES_MAX: usize = 11;

/// The byte of a word that is the length of its text.
const LENGTH_AT: usize = SHORT_BYTES_MAX;

/// In place of the length.
const LONG: u8 = 0xff;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// [`word`], byte by byte.
    fn plain(text: &[u8]) -> Option<u128> {
        let mut bytes = [0; 16];
        let place = bytes[..LENGTH_AT].get_mut(..text.len())?;
        place.copy_from_slice(text);
        bytes[LENGTH_AT] = u8::try_from(text.len()).unwrap();
        Some(u128::from_le_bytes(bytes))
    }

    fn texts() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255), 0u8..], 0..15)
    }

    proptest! {
        #[test]
        fn words_are_texts_in_the_order_of_their_bytes(a in texts(), b in texts()) {
            prop_assert_eq!(word(&a), plain(&a));
            if let Some(word) = word(&a) {
                prop_assert!(short_text(&word.to_le_bytes()).is_some_and(|text| text == a));
                prop_assert!(!is_long(word));
                prop_assert_eq!(word_in(order(word) | 7 << 96), word);
            }
            let order_of = |text: &[u8]| word(text).map_or_else(|| long_order(text), order);
            prop_assert!(order_of(&a) >> 96 == 0);
            prop_assert_eq!((order_of(&a), &a).cmp(&(order_of(&b), &b)), a.cmp(&b));
        }

        #[test]
        fn numbers_of_long_texts_come_back(number: usize) {
            let word = long_word(number);
            prop_assert!(is_long(word) && word >> 96 == 0);
            prop_assert_eq!(long_number(word), number);
            prop_assert!(short_text(&word.to_le_bytes()).is_none());
        }
    }
}
