//! Why a line is not a row: what was expected, what was there, and where it helps, how to mend it.
//!
//! Column numbers count from 1, as in `cut` and `awk`.

use core::fmt;

/// One defect of one line; the first found from left to right.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("expected {expected} columns, got {got}{hint}")]
    Columns { expected: usize, got: usize, hint: &'static str },
    #[error("label: expected {expected}, got {got}{cure}")]
    Label { expected: String, got: Quoted, cure: String },
    #[error("column {column}: expected an integer of at most 18 digits or nothing, got {got}")]
    Integer { column: usize, got: Quoted },
    #[error("column {column}: expected eight hex digits or nothing, got {got}")]
    Hex { column: usize, got: Quoted },
    #[error("column {name}: expected a finite number{or_missing}, got {got}")]
    Number { name: String, or_missing: &'static str, got: Quoted },
    #[error("column {name}: expected a weight of at least 0, got {got}")]
    Weight { name: String, got: Quoted },
    #[error("feature {number}: expected ID:1 with a whole id below 2^32, got {got}")]
    Feature { number: usize, got: Quoted },
    #[error(
        "feature {number}: expected the value 1, got {got}: a dataset holds ids without values, \
         so numeric features have to be turned into ids first"
    )]
    FeatureValue { number: usize, got: Quoted },
    #[error(
        "expected {expected} features as in the first line, got {got}: with --fields positional \
         the n-th id is that of field n; if a line is a bag of ids of any length, use \
         --fields bag"
    )]
    Features { expected: usize, got: usize },
    #[error(
        "feature {number}: expected the value 1, got {got}, which looks like libffm's \
         FIELD:ID:VALUE: take the fields away first, e.g. with \
         `sed -E 's/[0-9]+:([0-9]+:)/\\1/g'`"
    )]
    Libffm { number: usize, got: Quoted },
    #[error(
        "a quoted value is not closed on its line (line breaks inside quotes are not read; with \
         stray quotes, set quote = false)"
    )]
    OpenQuote,
}

/// Text of the input inside a message: quoted, escaped, and cut after [`QUOTED_BYTES_MAX`] bytes.
#[derive(PartialEq)]
pub(crate) struct Quoted(Vec<u8>);

impl Quoted {
    pub(crate) fn new(text: &[u8]) -> Self {
        Self(text[..text.len().min(QUOTED_BYTES_MAX + 1)].to_vec())
    }
}

impl fmt::Display for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        let shown = &self.0[..self.0.len().min(QUOTED_BYTES_MAX)];
        let dots = if self.0.len() > QUOTED_BYTES_MAX { "…" } else { "" };
        write!(f, "`{}{dots}`", shown.escape_ascii())
    }
}

impl fmt::Debug for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How to mend the labels of a format without a schema.
pub(crate) const NO_SCHEMA_CURE: &str = ": a label says whether there was a click; ratings and \
                                         classes have to be turned into 0 and 1 first, e.g. with \
                                         `awk '{ $1 = ($1 >= 4); print }'`";

const QUOTED_BYTES_MAX: usize = 40;
