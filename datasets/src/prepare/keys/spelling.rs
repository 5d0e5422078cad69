//! Number keys as text: what a dataset stores of them, and what is hashed.

use super::digits;
use super::key_column::MISSING;
use super::number_map::low;

/// How number keys are written as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// Eight lower-case hex digits.
    Hex,
    /// Decimal without leading zeros.
    Decimal,
}

impl Spelling {
    /// The text of a key; the missing key has none.
    pub(crate) fn spell(self, key: u64, text: &mut [u8; SPELLED_BYTES_MAX]) -> &[u8] {
        if key == MISSING {
            return b"";
        }
        match self {
            Self::Hex => {
                let start = SPELLED_BYTES_MAX - 8;
                text[start..].copy_from_slice(&digits::spell_hex(low(key)));
                &text[start..]
            }
            Self::Decimal => {
                let mut rest = key;
                let mut start = SPELLED_BYTES_MAX;
                while rest > 0 || start == SPELLED_BYTES_MAX {
                    start -= 1;
                    text[start] = b"0123456789"[usize::try_from(rest % 10).unwrap_or(0)];
                    rest /= 10;
                }
                &text[start..]
            }
        }
    }

    /// The key that is spelt so.
    pub(crate) fn read(self, text: &[u8]) -> Option<u64> {
        if text.is_empty() {
            return Some(MISSING);
        }
        let number = match self {
            Self::Hex => digits::hex(text.try_into().ok()?)?,
            Self::Decimal => core::str::from_utf8(text).ok()?.parse().ok()?,
        };
        Some(u64::from(number))
    }

    /// Orders keys as the bytes of their texts do, without spelling them; below 2^40.
    pub(crate) fn order(self, key: u64) -> u64 {
        if key == MISSING {
            return 0;
        }
        let (number, digits) = match self {
            // Of equal length: their order is that of the numbers.
            Self::Hex => (key, 8),
            // Filled up with zeros at the end they have equal length; of two that are then equal
            // the shorter is a prefix of the longer.
            Self::Decimal => {
                let digits = key.checked_ilog10().unwrap_or(0) + 1;
                (key * 10u64.pow(10 - digits), digits)
            }
        };
        number << 4 | u64::from(digits)
    }

    /// The key of an order.
    pub(crate) fn key(self, order: u64) -> u64 {
        match (order, self) {
            (0, _) => MISSING,
            (_, Self::Hex) => order >> 4,
            (_, Self::Decimal) => (order >> 4) / 10u64.pow(10 - (order & 0xf) as u32),
        }
    }
}

/// The longest spelling of a number below 2^32.
pub(crate) const SPELLED_BYTES_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(spelling: Spelling, key: u64) -> Vec<u8> {
        spelling.spell(key, &mut [0; SPELLED_BYTES_MAX]).to_vec()
    }

    proptest! {
        #[test]
        fn spelling_is_its_own_inverse_and_order(
            a in prop_oneof![0u64..1 << 32, 0u64..200, Just(MISSING)],
            b in prop_oneof![0u64..1 << 32, 0u64..200, Just(MISSING)],
        ) {
            for spelling in [Spelling::Hex, Spelling::Decimal] {
                let (text_a, text_b) = (text(spelling, a), text(spelling, b));
                let format = match spelling {
                    Spelling::Hex => format!("{a:08x}"),
                    Spelling::Decimal => a.to_string(),
                };
                if a != MISSING {
                    prop_assert_eq!(&text_a, format.as_bytes());
                }
                prop_assert_eq!(spelling.read(&text_a), Some(a));
                prop_assert_eq!(spelling.key(spelling.order(a)), a);
                prop_assert_eq!(
                    text_a.cmp(&text_b),
                    spelling.order(a).cmp(&spelling.order(b)),
                    "{} {}", a, b
                );
            }
        }
    }
}
