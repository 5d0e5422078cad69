//! The sparse text format of LIBSVM (Chang, Lin 2011) and libFM (Rendle 2012): `label id:value …`.
//!
//! Values must be 1: the layout of a dataset holds ids, not values. Ids are names, not positions:
//! they become keys of a vocabulary, so gaps and the first number do not matter. Columns are
//! separated by spaces or tabs, also at the end of a line; `#` starts a comment.
//!
//! Two shapes ([`Fields`]): by position, the n-th id of a line belonging to field n (Frappe,
//! MovieLens), or one field that holds all ids of a line as a bag (a9a).

use super::malformed::{Malformed, NO_SCHEMA_CURE, Quoted};
use super::parsed::{Line, LineFormat, Parsed};
use crate::prepare::keys::key_column::Keys;
use crate::prepare::options::Fields;

/// The format, with the meaning of its columns.
pub(crate) struct Libfm {
    fields: Fields,
    /// False for lines of features alone: rows to be predicted.
    has_label: bool,
    /// Ids of every line, by position. Not used by bags.
    width: usize,
}

impl Libfm {
    /// By position: the first line that holds a row tells the number of fields.
    pub(crate) fn new(fields: Fields, has_label: bool, first_row: &[u8]) -> Self {
        let width = words(first_row).skip(usize::from(has_label)).count();
        Self { fields, has_label, width }
    }

    /// Names of the fields: the format has none.
    pub(crate) fn sparse_names(&self) -> Vec<String> {
        match self.fields {
            Fields::Positional => (1..=self.width).map(|i| format!("F{i}")).collect(),
            Fields::Bag => vec!["features".to_string()],
        }
    }
}

impl LineFormat for Libfm {
    fn columns(&self) -> Parsed {
        let bag_ends = match self.fields {
            Fields::Positional => vec![None; self.width],
            Fields::Bag => vec![Some(Vec::new())],
        };
        Parsed {
            keys: bag_ends.iter().map(|_| Keys::Number(Vec::new())).collect(),
            bag_ends,
            ..Parsed::default()
        }
    }

    fn parse_line(&self, line: &[u8], columns: &mut Parsed) -> Result<Line, Malformed> {
        let mut words = words(line).peekable();
        let Some(first) = words.peek() else { return Ok(Line::Skipped) };
        if self.has_label {
            columns.label.push(parse_label(first)?);
            words.next();
        }
        let mut features = 0;
        for word in words {
            features += 1;
            let key = parse_feature(word, features)?;
            match self.fields {
                Fields::Bag => columns.keys[0].push_number(key),
                Fields::Positional if features <= self.width => {
                    columns.keys[features - 1].push_number(key);
                }
                // Counted below.
                Fields::Positional => {}
            }
        }
        match (self.fields, &mut columns.bag_ends[..]) {
            (Fields::Bag, [Some(ends)]) => ends.push(columns.keys[0].len()),
            (Fields::Positional, _) if features != self.width => {
                return Err(Malformed::Features { expected: self.width, got: features });
            }
            _ => {}
        }
        Ok(Line::Row)
    }
}

/// True if the line holds more than blanks and a comment.
pub(crate) fn holds_row(line: &[u8]) -> bool {
    words(line).next().is_some()
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = memchr::memchr(b'#', line).unwrap_or(line.len());
    line[..end].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

fn parse_label(text: &[u8]) -> Result<f32, Malformed> {
    let number = || core::str::from_utf8(text).ok()?.parse::<f32>().ok();
    match text {
        b"0" | b"-1" => Ok(0.0),
        b"1" | b"+1" => Ok(1.0),
        _ => match number() {
            Some(-1.0 | 0.0) => Ok(0.0),
            Some(1.0) => Ok(1.0),
            other => {
                let cure = if other.is_some() { NO_SCHEMA_CURE } else { "" };
                let (expected, got) = ("0, 1, -1 or +1".into(), Quoted::new(text));
                Err(Malformed::Label { expected, got, cure: cure.into() })
            }
        },
    }
}

/// `number` counts the features of the line from 1.
fn parse_feature(word: &[u8], number: usize) -> Result<u64, Malformed> {
    let malformed = || Malformed::Feature { number, got: Quoted::new(word) };
    let colon = memchr::memchr(b':', word).ok_or_else(malformed)?;
    let (id, value) = (&word[..colon], &word[colon + 1..]);
    let mut key = 0u64;
    for &digit in id {
        if !digit.is_ascii_digit() {
            return Err(malformed());
        }
        key = key * 10 + u64::from(digit - b'0');
        if u32::try_from(key).is_err() {
            return Err(malformed());
        }
    }
    if id.is_empty() {
        return Err(malformed());
    }
    let is_one = || core::str::from_utf8(value).ok()?.parse::<f64>().ok().map(|v| v == 1.0);
    if memchr::memchr(b':', value).is_some() {
        return Err(Malformed::Libffm { number, got: Quoted::new(word) });
    }
    if value != b"1" && is_one() != Some(true) {
        return Err(Malformed::FeatureValue { number, got: Quoted::new(word) });
    }
    Ok(key)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(format: &Libfm, line: &str) -> Result<Parsed, String> {
        let mut columns = format.columns();
        match format.parse_line(line.as_bytes(), &mut columns) {
            Ok(Line::Row) => Ok(columns),
            Ok(Line::Skipped) => Err("skipped".into()),
            Err(malformed) => Err(malformed.to_string()),
        }
    }

    #[test]
    fn positions_are_fields() {
        let format = Libfm::new(Fields::Positional, true, b"0 1:1 2:1 3:1  # first");
        let parsed = parse(&format, "-1 91:1 3055:1.0\t007:1  # a comment 5:5").unwrap();
        assert_eq!(parsed.label, [0.0]);
        let keys = [91, 3055, 7].map(|key| Keys::Number(vec![key]));
        assert_eq!(parsed.keys, keys);
        assert_eq!(parsed.bag_ends, [None, None, None]);
        assert_eq!(format.sparse_names(), ["F1", "F2", "F3"]);
    }

    #[test]
    fn bags_have_any_length() {
        let format = Libfm::new(Fields::Bag, true, b"");
        let parsed = parse(&format, "+1 3:1 11:1 ").unwrap();
        assert_eq!((parsed.label[0], parsed.bag_ends), (1.0, vec![Some(vec![2])]));
        assert_eq!(parsed.keys, [Keys::Number(vec![3, 11])]);
        assert_eq!(parse(&format, "0").unwrap().bag_ends, [Some(vec![0])]);
    }

    #[test]
    fn rows_without_labels_are_features_alone() {
        let format = Libfm::new(Fields::Positional, false, b"1:1 2:1");
        let parsed = parse(&format, "5:1 6:1").unwrap();
        assert_eq!((parsed.label.len(), format.sparse_names().len()), (0, 2));
        assert_eq!(parsed.keys, [5, 6].map(|key| Keys::Number(vec![key])));
        assert!(parse(&format, "0 5:1 6:1").unwrap_err().starts_with("feature 1: expected ID:1"));
    }

    #[test]
    fn every_defect_is_named() {
        let format = Libfm::new(Fields::Positional, true, b"0 1:1 2:1");
        let cases = [
            ("  # only a comment", "skipped"),
            ("", "skipped"),
            ("2 1:1 2:1", "label: expected 0, 1, -1 or +1, got `2`"),
            ("x 1:1 2:1", "label: expected 0, 1, -1 or +1, got `x`"),
            ("1 1:1", "expected 2 features as in the first line, got 1: with --fields positional"),
            ("1 1:1 2:1 3:1", "expected 2 features as in the first line, got 3"),
            ("1 1 2:1", "feature 1: expected ID:1 with a whole id below 2^32, got `1`"),
            ("1 1:1 :1", "feature 2: expected ID:1 with a whole id below 2^32, got `:1`"),
            ("1 1:1 -2:1", "feature 2: expected ID:1"),
            ("1 qid:1 2:1", "feature 1: expected ID:1"),
            ("1 1:1 4294967296:1", "feature 2: expected ID:1 with a whole id below 2^32"),
            ("1 1:1 2:0.5", "feature 2: expected the value 1, got `2:0.5`: a dataset holds ids"),
            ("1 1:1 2:", "feature 2: expected the value 1"),
            (
                "1 0:1:1 2:1",
                "feature 1: expected the value 1, got `0:1:1`, which looks like libffm",
            ),
        ];
        for (line, expected) in cases {
            let got = parse(&format, line).unwrap_err();
            assert!(got.starts_with(expected), "{line:?}: {got}");
        }
        assert!(parse(&format, "1 1:1").unwrap_err().contains("--fields bag"));
    }
}
