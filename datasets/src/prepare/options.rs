//! What a call of [`prepare`](super::prepare) is asked, tells on its way, and returns.
//!
//! The fields of [`PrepareOptions`] are the flags of `umbra prepare`, one to one; the doc of each
//! names its flag.

use core::sync::atomic::AtomicBool;
use std::path::PathBuf;
use std::sync::Arc;

/// One split of raw text to turn into one HDF5 file.
#[derive(Clone, Debug)]
pub struct PrepareOptions {
    /// `--format criteo|libfm|csv|parquet`
    pub format: Format,
    /// `--input FILE…`: files, folders, patterns or `-`, read in this order; text is plain, gzip or
    /// zstd (told by its first bytes, not by its name).
    pub inputs: Vec<PathBuf>,
    /// `--output FILE.h5`
    pub output: PathBuf,
    /// `--schema S.toml`: which column is what; needed by `csv` and `parquet`, refused by
    /// the others.
    pub schema: Option<PathBuf>,
    /// `--vocabulary FROM.h5`: encode with the ids that FROM was written with. Ids unknown to it
    /// become 0.
    pub vocabulary_from: Option<PathBuf>,
    /// `--max-bad-rows N`: malformed lines that are left out (and counted) before the run stops.
    /// Default 0.
    pub max_bad_rows: u64,
    /// `--min-count T`: keys seen fewer than T times in their field share id 0. Default 1: every
    /// key seen is kept.
    pub min_count: u32,
    /// `--hash-size H`: id = [`hash_key`](super::hash_key)(key, salt) mod H in every field, in one
    /// pass, without a vocabulary.
    pub hash_size: Option<u32>,
    /// `--cap N`: of every field the N most frequent keys are kept. `None` keeps all.
    pub cap: Option<u32>,
    /// `--oov-buckets B`: unknown keys are spread over the ids below B by their hash, and ids of
    /// kept keys begin at B. `None` is 1.
    pub oov_buckets: Option<u32>,
    /// `--salt S`: seed of the hash. `None` is 0.
    pub salt: Option<u32>,
    /// `--grow`: of `vocabulary_from` all ids stay, and keys that it does not know are appended.
    pub grow: bool,
    /// `--no-label`: lines of criteo and libfm begin without a label. A csv's schema has none.
    pub no_label: bool,
    /// `--fields positional|bag`: what the columns of a libfm line mean. `None` is `positional`;
    /// refused by the others.
    pub fields: Option<Fields>,
    /// `--dense-transform log|none`: of numeric columns that the schema gives no transform. `None`
    /// is the format's own: `log` for criteo, `none` for csv. Refused by libfm, which has no
    /// numeric columns.
    pub dense_transform: Option<DenseTransform>,
    /// `--rows-per-file N`: of `OUT.h5` the parts `OUT-00000.h5`, … of N rows, the last with what
    /// remains; the first keeps the vocabulary. `None` is one file.
    pub rows_per_file: Option<u64>,
    /// `--overwrite`: replace an existing output.
    pub overwrite: bool,
    /// Set by whoever wants the work to end early; then nothing is written.
    pub stop: Arc<AtomicBool>,
    /// `--threads N`: threads that parse; `None` is one per core. The output does not depend on it.
    pub threads: Option<usize>,
}

impl PrepareOptions {
    /// The defaults of every flag for `format`, with no input yet.
    pub fn new(format: Format, inputs: Vec<PathBuf>, output: PathBuf) -> Self {
        Self {
            format,
            inputs,
            output,
            schema: None,
            vocabulary_from: None,
            max_bad_rows: 0,
            min_count: 1,
            hash_size: None,
            cap: None,
            oov_buckets: None,
            salt: None,
            grow: false,
            no_label: false,
            fields: None,
            dense_transform: None,
            rows_per_file: None,
            overwrite: false,
            stop: Arc::default(),
            threads: None,
        }
    }
}

/// The raw formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Tab separated, no header: label, 13 integers, 26 ids of eight hex digits.
    Criteo,
    /// `label id:1 id:1 …`, also known as libsvm.
    Libfm,
    /// Delimited text whose columns a TOML schema describes.
    Csv,
    /// Apache Parquet; the same schema.
    Parquet,
}

impl Format {
    /// The name used on the command line and stored in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Criteo => "criteo",
            Self::Libfm => "libfm",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
        }
    }

    /// The name stored in the output: Parquet is read as a csv of the same values, and the splits
    /// of a dataset may be either.
    pub(crate) fn recipe_name(self) -> &'static str {
        match self {
            Self::Parquet => Self::Csv.name(),
            other => other.name(),
        }
    }

    /// True if a schema says what the columns are.
    pub(crate) fn has_schema(self) -> bool {
        matches!(self, Self::Csv | Self::Parquet)
    }
}

/// What the ids of a libfm line mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    /// The n-th id of every line belongs to field n; every line has as many ids as the first.
    Positional,
    /// All ids of a line are one bag, of any length, in a single field.
    Bag,
}

impl Fields {
    /// The name used on the command line and stored in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Positional => "positional",
            Self::Bag => "bag",
        }
    }
}

/// How a number becomes a dense feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DenseTransform {
    /// The number itself; missing is 0.
    None,
    /// ln(1 + max(x, 0)); missing is 0 (Naumov et al. 2019, `data_utils.py` of
    /// facebookresearch/dlrm).
    Log,
    /// (x - mean) / standard deviation, both of the numbers that are there; missing is 0, the mean.
    ZScore,
}

impl DenseTransform {
    /// The name used on the command line, in schemas and in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Log => "log",
            Self::ZScore => "zscore",
        }
    }
}

/// How far the work is. Called about once per parsed block of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which pass over the rows this is, from 1: the first reads the input.
    pub pass: u32,
    /// 2 when a vocabulary or numbers are counted first, else 1.
    pub passes: u32,
    /// Bytes of this pass read so far (compressed ones of compressed inputs), of a second one
    /// those of rows that were kept.
    pub bytes_read: u64,
    /// Bytes of this pass; of a pipe they are not known.
    pub bytes_total: u64,
    /// Good rows of this pass so far.
    pub rows: u64,
}

/// What was read, written and left out. `rows_read = rows_written + rows_bad`.
#[derive(Clone, Debug, PartialEq)]
pub struct PrepareSummary {
    /// Lines that hold a row, good or malformed.
    pub rows_read: u64,
    /// Rows of the output.
    pub rows_written: u64,
    /// Malformed lines, left out.
    pub rows_bad: u64,
    /// Of these, lines of csv that end inside quotes: what follows one may be the rest of its last
    /// value, and was read as lines of their own.
    pub rows_open: u64,
    /// Blank lines and lines of comment only.
    pub lines_skipped: u64,
    /// Sum of the labels: the positive rows, where labels are 0 and 1. `None` without labels.
    pub label_sum: Option<f64>,
    /// The first [`BAD_ROWS_SHOWN`] malformed lines.
    pub bad_rows: Vec<BadRow>,
    /// Dense features, D.
    pub dense_features: usize,
    /// One entry per sparse field, S.
    pub fields: Vec<FieldSummary>,
    /// Bytes of all inputs on disk.
    pub input_bytes: u64,
    /// Wall time of all passes.
    pub seconds: f64,
}

/// What became of one sparse field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSummary {
    /// Name of the field.
    pub name: String,
    /// Size of the embedding table: kept keys and `oov_buckets`, or `hash_size`.
    pub cardinality: u64,
    /// Distinct keys in the input; absent when no vocabulary was counted in this run.
    pub keys: Option<u64>,
    /// Of these, the keys that are not kept: below `min_count`, or beyond `cap`; absent when no
    /// vocabulary was counted in this run.
    pub keys_left_out: Option<u64>,
    /// Ids written.
    pub values: u64,
    /// Of these, the ids that were of keys that are not in the vocabulary.
    pub values_out_of_vocabulary: u64,
}

/// One malformed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// The input file.
    pub file: PathBuf,
    /// Line number from 1, headers and blank lines included; of Parquet the row, from 1.
    pub line: u64,
    /// What was expected and what was there.
    pub reason: String,
}

impl core::fmt::Display for BadRow {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.reason)
    }
}

/// Malformed lines that are kept word for word in [`PrepareSummary::bad_rows`]; all are counted.
pub const BAD_ROWS_SHOWN: usize = 10;
