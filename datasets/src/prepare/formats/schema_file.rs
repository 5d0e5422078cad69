//! The TOML file that says what the columns of a csv are.
//!
//! ```toml
//! delimiter = ","                  # one ASCII character; "\t" for a tab. Default ","
//! quote = true                     # values may stand in double quotes. Default true
//! trim = true                      # drop blanks around values. Default false
//! missing = ["?"]                  # values that mean nothing; an empty value always does
//! header = false                   # the first line of every file names the columns. Default true
//! columns = ["age", "work", "income"]   # without a header: the names, or how many there are
//! label = "income"               # a column, here and below: its name, or its number from 1.
//!                                  # Left out: rows without labels, to be predicted
//! label_positive = [">50K"]        # these values are 1, others 0
//! label_negative = ["<=50K"]       # optional: these are 0, others malformed
//! # label_at_least = 4             # instead: numbers from 4 are 1
//!                                  # with none of these: the label is a number from 0 to 1
//! dense = [
//!   "age",
//!   { column = "gain", transform = "log", clip = [0, 1e5], fill = 1.5, missing_flag = true },
//! ]
//! dense_transform = "none"         # of those without one of their own: none | log | zscore
//! sparse = [
//!   "work",
//!   { column = "shop", min_count = 5, cap = 100000, oov_buckets = 10 },
//!   { column = "item", hash_size = 65536, hashes = 2, salt = 7 },
//!   { column = "genres", separator = "|", max_length = 20, keep = "last" },   # bags
//!   { column = "interests", separator = "|", weight_separator = ":" },   # a:0.5|b:2
//!   { column = "age", buckets = [18, 30, 50] },
//! ]
//! cross = [["work", "shop"], { columns = ["work", "item"], hash_size = 1000000 }]
//! weight = "fnlwgt"                # optional
//! group = ["user"]                 # optional, for AUC per group: the hash of these values
//! ```

use std::path::Path;

use serde::Deserialize;

use super::features::{FieldRecipe, Keep};
use crate::prepare::error::{PrepareError, SchemaError};
use crate::prepare::keys::rule::KeySettings;
use crate::prepare::options::DenseTransform;

/// A schema as it is written, before its columns are looked up.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SchemaFile {
    #[serde(default = "comma")]
    pub(crate) delimiter: String,
    #[serde(default = "yes")]
    pub(crate) quote: bool,
    #[serde(default)]
    pub(crate) trim: bool,
    #[serde(default)]
    pub(crate) missing: Vec<String>,
    #[serde(default = "yes")]
    pub(crate) header: bool,
    pub(crate) columns: Option<Columns>,
    pub(crate) label: Option<Column>,
    pub(crate) label_positive: Option<Vec<String>>,
    pub(crate) label_negative: Option<Vec<String>>,
    pub(crate) label_at_least: Option<f64>,
    #[serde(default)]
    pub(crate) dense: Vec<Dense>,
    pub(crate) dense_transform: Option<DenseTransform>,
    #[serde(default)]
    pub(crate) sparse: Vec<Sparse>,
    #[serde(default)]
    pub(crate) cross: Vec<Cross>,
    pub(crate) weight: Option<Column>,
    #[serde(default)]
    pub(crate) group: Vec<Column>,
}

/// The columns of a file without a header.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a list of names, or how many columns there are")]
pub(crate) enum Columns {
    Names(Vec<String>),
    Count(usize),
}

/// A column by its name, or by its number from 1.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "expected the name of a column, or its number from 1")]
pub(crate) enum Column {
    Name(String),
    Number(usize),
}

impl core::fmt::Display for Column {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Name(name) => write!(f, "`{name}`"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// A numeric feature.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a column, or { column = …, transform = \"none\", \"log\" or \"zscore\", \
                 clip = [LOW, HIGH], fill = NUMBER, missing_flag = true }"
)]
pub(crate) enum Dense {
    Plain(Column),
    Own(DenseColumn),
}

/// A numeric feature with wishes of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DenseColumn {
    pub(crate) column: Column,
    pub(crate) transform: Option<DenseTransform>,
    pub(crate) clip: Option<[f64; 2]>,
    pub(crate) fill: Option<f64>,
    #[serde(default)]
    pub(crate) missing_flag: bool,
}

/// A categorical field.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a column, or { column = …, and any of min_count, cap, oov_buckets, \
                 hash_size, hashes, salt, separator, weight_separator, max_length, \
                 keep = \"first\" or \"last\", buckets = [NUMBERS] }"
)]
pub(crate) enum Sparse {
    Plain(Column),
    Own(SparseColumn),
}

/// A categorical field with wishes of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SparseColumn {
    pub(crate) column: Column,
    separator: Option<String>,
    weight_separator: Option<String>,
    max_length: Option<u32>,
    keep: Option<Keep>,
    buckets: Option<Vec<f64>>,
    min_count: Option<u32>,
    cap: Option<u32>,
    oov_buckets: Option<u32>,
    hash_size: Option<u32>,
    hashes: Option<u32>,
    salt: Option<u32>,
}

/// Columns whose values together are the key of a field.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a list of columns, or { columns = […], and any of min_count, cap, \
                 oov_buckets, hash_size, hashes, salt }"
)]
pub(crate) enum Cross {
    Plain(Vec<Column>),
    Own(CrossColumns),
}

/// A cross with wishes of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CrossColumns {
    columns: Vec<Column>,
    min_count: Option<u32>,
    cap: Option<u32>,
    oov_buckets: Option<u32>,
    hash_size: Option<u32>,
    hashes: Option<u32>,
    salt: Option<u32>,
}

impl Dense {
    pub(crate) fn column(&self) -> &Column {
        match self {
            Self::Plain(column) | Self::Own(DenseColumn { column, .. }) => column,
        }
    }
}

impl Sparse {
    pub(crate) fn column(&self) -> &Column {
        match self {
            Self::Plain(column) | Self::Own(SparseColumn { column, .. }) => column,
        }
    }

    /// What is made of the column.
    pub(crate) fn recipe(&self) -> FieldRecipe {
        match self {
            Self::Plain(_) => FieldRecipe::default(),
            Self::Own(own) => FieldRecipe {
                columns: Vec::new(),
                separator: own.separator.clone(),
                weight_separator: own.weight_separator.clone(),
                max_length: own.max_length,
                keep: own.keep,
                buckets: own.buckets.clone(),
                settings: KeySettings {
                    min_count: own.min_count,
                    cap: own.cap,
                    oov_buckets: own.oov_buckets,
                    hash_size: own.hash_size,
                    hashes: own.hashes,
                    salt: own.salt,
                },
            },
        }
    }
}

impl Cross {
    pub(crate) fn columns(&self) -> &[Column] {
        match self {
            Self::Plain(columns) | Self::Own(CrossColumns { columns, .. }) => columns,
        }
    }

    pub(crate) fn settings(&self) -> KeySettings {
        match self {
            Self::Plain(_) => KeySettings::default(),
            Self::Own(own) => KeySettings {
                min_count: own.min_count,
                cap: own.cap,
                oov_buckets: own.oov_buckets,
                hash_size: own.hash_size,
                hashes: own.hashes,
                salt: own.salt,
            },
        }
    }
}

impl SchemaFile {
    /// Reads and parses the schema at `path`.
    ///
    /// # Errors
    /// [`PrepareError::SchemaUnreadable`], or [`PrepareError::Schema`] for what is wrong inside.
    pub(crate) fn read(path: &Path) -> Result<Self, PrepareError> {
        let text = std::fs::read_to_string(path).map_err(|source| {
            PrepareError::SchemaUnreadable { path: path.to_path_buf(), source }
        })?;
        Self::parse(&text).map_err(|error| PrepareError::Schema { path: path.to_path_buf(), error })
    }

    /// As [`SchemaFile::read`], for columns that have names and types of their own: keys about text
    /// are refused.
    ///
    /// # Errors
    /// As [`SchemaFile::read`].
    pub(crate) fn read_without_text(path: &Path) -> Result<Self, PrepareError> {
        let schema = Self::read(path)?;
        let wrong = |error| PrepareError::Schema { path: path.to_path_buf(), error };
        let text = std::fs::read_to_string(path).map_err(|source| {
            PrepareError::SchemaUnreadable { path: path.to_path_buf(), source }
        })?;
        let keys: toml::Table =
            toml::from_str(&text).map_err(|error| wrong(SchemaError::Toml(error.to_string())))?;
        match TEXT_KEYS.into_iter().find(|key| keys.contains_key(*key)) {
            Some(key) => Err(wrong(SchemaError::TextKey { key })),
            None => Ok(schema),
        }
    }

    /// Parses the text of a schema, and checks what can be checked without its columns.
    pub(crate) fn parse(text: &str) -> Result<Self, SchemaError> {
        let schema: Self =
            toml::from_str(text).map_err(|error| SchemaError::Toml(error.to_string()))?;
        let [delimiter] = schema.delimiter.as_bytes() else {
            return Err(SchemaError::Delimiter { got: schema.delimiter });
        };
        if !delimiter.is_ascii() || b"\"\r\n".contains(delimiter) {
            return Err(SchemaError::Delimiter { got: schema.delimiter });
        }
        match (&schema.columns, schema.header) {
            (None, false) => return Err(SchemaError::ColumnsNeeded),
            (Some(_), true) => return Err(SchemaError::ColumnsAndHeader),
            (Some(Columns::Count(got)), false) if *got > COLUMNS_MAX => {
                return Err(SchemaError::ColumnsTooMany { expected_max: COLUMNS_MAX, got: *got });
            }
            _ => {}
        }
        if schema.label_at_least.is_some() && schema.label_positive.is_some() {
            return Err(SchemaError::TwoLabelRules);
        }
        if schema.label_negative.is_some() && schema.label_positive.is_none() {
            return Err(SchemaError::NegativeAlone);
        }
        if schema.label.is_none()
            && (schema.label_positive.is_some() || schema.label_at_least.is_some())
        {
            return Err(SchemaError::RuleWithoutLabel);
        }
        if schema.dense.is_empty() && schema.sparse.is_empty() && schema.cross.is_empty() {
            return Err(SchemaError::NoFeatures);
        }
        Ok(schema)
    }

    /// The delimiter; `parse` has checked that there is one.
    pub(crate) fn delimiter(&self) -> u8 {
        self.delimiter.as_bytes().first().copied().unwrap_or(b',')
    }
}

/// What only text has.
const TEXT_KEYS: [&str; 4] = ["delimiter", "quote", "header", "columns"];

/// Each has a name in memory.
const COLUMNS_MAX: usize = 1 << 16;

fn comma() -> String {
    ",".into()
}

fn yes() -> bool {
    true
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn defects_are_named() {
        let cases = [
            ("label = 1\nsparse = [2]\ncolumns = 2\nheader = false\ndelimeter = ';'", "delimeter"),
            ("label = 1\nsparse = [2]\ncolumns = 2", "remove one of the two"),
            ("label = 1\nsparse = [2]\nheader = false", "header = false"),
            ("label = 1\nsparse = [2]\nheader = false\ncolumns = 21474836480", "at most 65536"),
            ("label = 1\nsparse = [2]\ndelimiter = ', '", "got \", \""),
            ("label = 1\nsparse = [2]\ndelimiter = '\"'", "no quote"),
            ("label = 1", "dense, sparse or cross"),
            ("sparse = [2]\nlabel_at_least = 3", "which column the label is"),
            ("label = 1\nsparse = [{ column = 2, min_cont = 3 }]", "any of min_count, cap"),
            ("label = 1\ncross = [{ columns = [1, 2], separator = 'x' }]", "a list of columns"),
            ("label = 1\nsparse = [2]\nlabel_at_least = 4\nlabel_positive = ['a']", "exclude"),
            ("label = 1\nsparse = [2]\nlabel_negative = ['a']", "needs label_positive"),
            ("label = 1\ndense = [{ column = 2, transform = 'sqrt' }]", "transform ="),
            ("label = true\ndense = [2]", "its number from 1"),
        ];
        for (text, expected) in cases {
            let got = SchemaFile::parse(text).unwrap_err().to_string();
            assert!(got.contains(expected), "{text:?}: {got}");
        }
    }
}
