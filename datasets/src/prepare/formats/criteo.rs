//! Criteo's click logs: tab separated, no header, a label, 13 integers, 26 ids of eight hex digits.
//!
//! Source: the `readme.txt` of the Kaggle Display Advertising Challenge set and of the 1 TB logs,
//! which share the layout; the test set has no labels. Integers and ids may be missing (nothing
//! between the tabs, nor after the last); integers may be negative. A line has exactly 40 columns,
//! or 39 without a label.
//!
//! A good line is read in one sweep without allocation. The sweep only says that a line is not
//! good; [`defect`] then reads it again, column by column, to say why.

use super::malformed::{Malformed, Quoted};
use super::parsed::{Line, LineFormat, Parsed};
use super::transform::{MISSING_NUMBER, NumberTransform};
use crate::prepare::keys::digits;
use crate::prepare::keys::key_column::{Keys, MISSING};

/// The layout with the transform of its integers.
pub(crate) struct Criteo {
    pub(crate) transform: NumberTransform,
    /// False for lines that begin with the integers: rows to be predicted.
    pub(crate) has_label: bool,
}

impl LineFormat for Criteo {
    fn columns(&self) -> Parsed {
        Parsed {
            dense_features: INTEGERS,
            keys: (0..IDS).map(|_| Keys::Number(Vec::new())).collect(),
            bag_ends: vec![None; IDS],
            ..Parsed::default()
        }
    }

    fn parse_line(&self, line: &[u8], columns: &mut Parsed) -> Result<Line, Malformed> {
        if line.is_empty() {
            return Ok(Line::Skipped);
        }
        let mut dense = [MISSING_NUMBER; INTEGERS];
        let mut keys = [MISSING; IDS];
        let Some(label) = self.sweep(line, &mut dense, &mut keys) else {
            return Err(defect(line, self.has_label));
        };
        columns.label.extend(label);
        columns.dense.extend_from_slice(&dense);
        for (column, key) in columns.keys.iter_mut().zip(keys) {
            column.push_number(key);
        }
        Ok(Line::Row)
    }
}

impl Criteo {
    /// The whole line, of which the label is returned if it has one, or `None` if any column is not
    /// as it should be.
    fn sweep(
        &self,
        line: &[u8],
        dense: &mut [f32; INTEGERS],
        keys: &mut [u64; IDS],
    ) -> Option<Option<f32>> {
        let (label, mut rest) = match line {
            _ if !self.has_label => (None, line),
            [label @ (b'0' | b'1'), b'\t', rest @ ..] => (Some(f32::from(label - b'0')), rest),
            _ => return None,
        };
        for feature in dense {
            let (number, after) = integer(rest)?;
            *feature = self.transform.integer(number);
            rest = after;
        }
        let (last, first) = keys.split_last_mut()?;
        for key in first {
            rest = id(rest, key)?;
        }
        if !rest.is_empty() {
            *last = u64::from(digits::hex(rest.try_into().ok()?)?);
        }
        Some(label)
    }
}

/// Names of the dense features, as in the published schemas.
pub(crate) fn dense_names() -> Vec<String> {
    (1..=INTEGERS).map(|i| format!("I{i}")).collect()
}

/// Names of the sparse fields, as in the published schemas.
pub(crate) fn sparse_names() -> Vec<String> {
    (1..=IDS).map(|i| format!("C{i}")).collect()
}

/// The integer before the next tab, and what follows the tab. Nothing before the tab is 0: a
/// missing number's feature is that of 0.
fn integer(text: &[u8]) -> Option<(i64, &[u8])> {
    if let Some(&start) = text.first_chunk()
        && let Some((number, length)) = digits::decimal_before_tab(start)
    {
        return Some((i64::from(number), &text[length + 1..]));
    }
    any_integer(text)
}

/// [`integer`], byte by byte: negative, or of more than seven digits.
fn any_integer(text: &[u8]) -> Option<(i64, &[u8])> {
    let (negative, digits) = match text {
        [b'\t', after @ ..] => return Some((0, after)),
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let mut value = 0i64;
    for (at, &byte) in digits.iter().enumerate().take(DIGITS_MAX + 1) {
        match byte {
            b'0'..=b'9' if at < DIGITS_MAX => value = value * 10 + i64::from(byte - b'0'),
            b'\t' if at > 0 => {
                return Some((if negative { -value } else { value }, &digits[at + 1..]));
            }
            _ => return None,
        }
    }
    None
}

/// Reads the id before the next tab, if there is one, into `key`. Returns what follows the tab.
fn id<'a>(text: &'a [u8], key: &mut u64) -> Option<&'a [u8]> {
    if let [b'\t', after @ ..] = text {
        return Some(after);
    }
    let (digits, after) = text.split_first_chunk::<8>()?;
    *key = u64::from(digits::hex(*digits)?);
    let [b'\t', after @ ..] = after else { return None };
    Some(after)
}

/// Why [`Criteo::sweep`] refused a line.
fn defect(line: &[u8], has_label: bool) -> Malformed {
    let columns: Vec<&[u8]> = line.split(|&byte| byte == b'\t').collect();
    let labels = usize::from(has_label);
    let expected = labels + INTEGERS + IDS;
    if columns.len() != expected {
        let hint = match columns.len() {
            39 => " (rows without labels are read with --no-label)",
            40 => " (rows with labels are read without --no-label)",
            1 => " (columns are separated by tabs)",
            _ => "",
        };
        return Malformed::Columns { expected, got: columns.len(), hint };
    }
    if has_label && !matches!(columns[0], b"0" | b"1") {
        let (expected, got) = ("0 or 1".into(), Quoted::new(columns[0]));
        return Malformed::Label { expected, got, cure: String::new() };
    }
    for (at, text) in columns.iter().enumerate().skip(labels).take(INTEGERS) {
        let digits = text.strip_prefix(b"-").unwrap_or(text);
        let whole =
            (1..=DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
        if !text.is_empty() && !whole {
            return Malformed::Integer { column: at + 1, got: Quoted::new(text) };
        }
    }
    // The only columns left to be at fault are the ids: the first that is, or the last of all.
    let faulty = |text: &&[u8]| {
        !(text.is_empty() || text.len() == 8 && text.iter().all(u8::is_ascii_hexdigit))
    };
    let ids = &columns[labels + INTEGERS..];
    let at = ids.iter().position(faulty).unwrap_or(IDS - 1);
    Malformed::Hex { column: labels + INTEGERS + at + 1, got: Quoted::new(ids[at]) }
}

const INTEGERS: usize = 13;
const IDS: usize = 26;

/// Every integer of so many digits fits an `i64`.
const DIGITS_MAX: usize = 18;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::prepare::formats::features::NumberRecipe;
    use crate::prepare::options::DenseTransform;
    use proptest::prelude::*;

    fn parse(line: &str) -> Result<Parsed, String> {
        parse_as(line, true)
    }

    fn parse_as(line: &str, has_label: bool) -> Result<Parsed, String> {
        let transform = NumberTransform::new(DenseTransform::None, NumberRecipe::default());
        let format = Criteo { transform, has_label };
        let mut columns = format.columns();
        match format.parse_line(line.as_bytes(), &mut columns) {
            Ok(Line::Row) => Ok(columns),
            Ok(Line::Skipped) => Err("skipped".into()),
            Err(malformed) => Err(malformed.to_string()),
        }
    }

    fn good_columns() -> Vec<String> {
        let mut columns = vec!["1".to_string()];
        columns.extend((0..13).map(|i| i.to_string()));
        columns.extend((0..26).map(|i| format!("{:08x}", i * 0x0101_0101u32)));
        columns
    }

    fn with(column: usize, text: &str) -> String {
        let mut columns = good_columns();
        columns[column - 1] = text.into();
        columns.join("\t")
    }

    #[test]
    fn missing_and_negative_values_are_read() {
        let mut columns = good_columns();
        columns[1] = "-12".into();
        columns[2] = String::new();
        columns[14] = String::new();
        columns[39] = String::new();
        columns[20] = "DEADbeef".into();
        let parsed = parse(&columns.join("\t")).unwrap();
        assert_eq!(parsed.label, [1.0]);
        assert_eq!(parsed.dense[..3], [-12.0, 0.0, 2.0]);
        assert_eq!(parsed.keys[0], Keys::Number(vec![MISSING]));
        assert_eq!(parsed.keys[6], Keys::Number(vec![0xdead_beef]));
        assert_eq!(parsed.keys[25], Keys::Number(vec![MISSING]));
        assert_eq!(parsed.keys[24], Keys::Number(vec![0x1818_1818]));
    }

    #[test]
    fn every_defect_is_named() {
        let cases = [
            (good_columns()[..39].join("\t"), "expected 40 columns, got 39 (rows without labels"),
            ("1,2,3".to_string(), "expected 40 columns, got 1 (columns are separated by tabs)"),
            (good_columns().join("\t") + "\t", "expected 40 columns, got 41"),
            (with(1, "2"), "label: expected 0 or 1, got `2`"),
            (with(1, ""), "label: expected 0 or 1, got nothing"),
            (
                with(2, "1.5"),
                "column 2: expected an integer of at most 18 digits or nothing, got `1.5`",
            ),
            (
                with(14, "-"),
                "column 14: expected an integer of at most 18 digits or nothing, got `-`",
            ),
            (with(5, "1234567890123456789"), "column 5: expected an integer of at most 18 digits"),
            (with(15, "123"), "column 15: expected eight hex digits or nothing, got `123`"),
            (
                with(40, "0000000g"),
                "column 40: expected eight hex digits or nothing, got `0000000g`",
            ),
            (with(40, "0000000 "), "column 40: expected eight hex digits or nothing"),
        ];
        for (line, expected) in cases {
            let got = parse(&line).unwrap_err();
            assert!(got.starts_with(expected), "{line:?}: {got}");
        }
    }

    #[test]
    fn rows_without_labels_begin_with_the_integers() {
        let columns = good_columns();
        let parsed = parse_as(&columns[1..].join("\t"), false).unwrap();
        assert_eq!((parsed.label.len(), parsed.dense[12]), (0, 12.0));
        assert_eq!(parsed.keys[25], Keys::Number(vec![0x1919_1919]));
        let got = parse_as(&columns.join("\t"), false).unwrap_err();
        assert!(got.starts_with("expected 39 columns, got 40 (rows with labels are read"), "{got}");
        let got = parse_as(&with(2, "x").as_str()[2..], false).unwrap_err();
        assert!(got.starts_with("column 1: expected an integer"), "{got}");
    }

    /// The slow reading of a line: the definition that the sweep must agree with.
    fn naive(line: &str) -> bool {
        let columns: Vec<&str> = line.split('\t').collect();
        let integer = |t: &str| {
            let digits = t.strip_prefix('-').unwrap_or(t);
            t.is_empty()
                || !digits.is_empty()
                    && digits.len() <= 18
                    && digits.bytes().all(|b| b.is_ascii_digit())
        };
        let hex = |t: &str| {
            t.is_empty()
                || t.len() == 8 && u32::from_str_radix(t, 16).is_ok() && !t.starts_with('+')
        };
        columns.len() == 40
            && ["0", "1"].contains(&columns[0])
            && columns[1..14].iter().all(|t| integer(t))
            && columns[14..].iter().all(|t| hex(t))
    }

    proptest! {
        #[test]
        fn the_sweep_accepts_what_the_definition_accepts(
            column in 1usize..=40,
            text in "(-?[0-9]{0,20}|[0-9a-fA-F+]{0,9}|[\t 0a]{0,3})",
        ) {
            let line = with(column, &text);
            prop_assert_eq!(parse(&line).is_ok(), naive(&line), "{:?}", line);
        }
    }
}
