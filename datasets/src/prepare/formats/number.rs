//! Numbers as they stand in a text.

use crate::prepare::keys::digits;

/// The finite number that `text` spells, as Rust reads it: `1`, `-2.5`, `1e3`; a truth value, as
/// Python writes it, is 1 or 0.
pub(crate) fn number(text: &[u8]) -> Option<f64> {
    if let Some(whole) = digits::decimal(text) {
        return Some(f64::from(whole));
    }
    match text {
        b"True" => return Some(1.0),
        b"False" => return Some(0.0),
        _ => {}
    }
    core::str::from_utf8(text).ok()?.parse::<f64>().ok().filter(|x| x.is_finite())
}

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
