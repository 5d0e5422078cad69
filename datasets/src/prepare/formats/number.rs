//! Numbers as they stand in a text.

/// The finite number that `text` spells, as Rust reads it: `1`, `-2.5`, `1e3`; a truth value, as
/// Python writes it, is 1 or 0.
pub(crate) fn number(text: &[u8]) -> Option<f64> {
    if text.len() <= EXACT_DIGITS && !text.is_empty() && text.iter().all(u8::is_ascii_digit) {
        let whole = text.iter().fold(0u64, |whole, digit| whole * 10 + u64::from(digit - b'0'));
        return Some(whole as f64);
    }
    match text {
        b"True" => return Some(1.0),
        b"False" => return Some(0.0),
        _ => {}
    }
    core::str::from_utf8(text).ok()?.parse::<f64>().ok().filter(|x| x.is_finite())
}

/// Whole numbers of so many digits are exact in an f64.
const EXACT_DIGITS: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whole_numbers_are_read_as_others_are(text in "[0-9]{0,18}|[0-9.e+-]{0,6}") {
            let expected = text.parse::<f64>().ok().filter(|x| x.is_finite());
            prop_assert_eq!(number(text.as_bytes()), expected);
        }
    }
}
