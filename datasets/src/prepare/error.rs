//! Why a split could not be prepared.

use std::io;
use std::path::{Path, PathBuf};

use super::options::BadRow;
use crate::DatasetError;
use crate::output::OutputError;

/// Every way [`prepare`](super::prepare) can fail. No output is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The options contradict each other.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The schema cannot be read from disk.
    #[error("{}: cannot read the schema: {source}", path.display())]
    SchemaUnreadable {
        /// The schema.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The schema is not one, or does not fit the input.
    #[error("{}: {error}", path.display())]
    Schema {
        /// The schema.
        path: PathBuf,
        /// What is wrong.
        error: SchemaError,
    },
    /// An input is missing, may not be read, or its compressed stream is damaged or cut short.
    #[error("{}: cannot read the input: {}", path.display(), read_failure(source))]
    Input {
        /// The input.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An input is compressed in a way that is not read here.
    #[error(
        "{}: {name} is not read (plain text, gzip and zstd are): unpack it first with `{cure} {}`",
        path.display(),
        path.display()
    )]
    Compression {
        /// The input.
        path: PathBuf,
        /// Name of the compression.
        name: &'static str,
        /// The command that unpacks it.
        cure: &'static str,
    },
    /// An input is no Parquet file.
    #[error(
        "{}: not a Parquet file: expected PAR1 at its beginning: for text use --format csv",
        path.display()
    )]
    NotParquet {
        /// The input.
        path: PathBuf,
    },
    /// A pipe, of which the end cannot be read first.
    #[error(
        "{}: a Parquet file is read from its end, which a pipe cannot be: use a file",
        path.display()
    )]
    ParquetPipe {
        /// The pipe.
        path: PathBuf,
    },
    /// A Parquet file that contradicts itself, is cut short or uses what is not read.
    #[error("{}: damaged Parquet file: {reason}", path.display())]
    Parquet {
        /// The input.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A Parquet file is compressed in a way that is not read here.
    #[error(
        "{}: columns compressed with {name} are not read: write the file with \
         compression=\"zstd\" (snappy, gzip and lz4 are read too)",
        path.display()
    )]
    ParquetCompression {
        /// The input.
        path: PathBuf,
        /// Name of the compression.
        name: &'static str,
    },
    /// A folder or a pattern that stands for no file.
    #[error("{}: no file there that could be read as input", argument.display())]
    NoFiles {
        /// As given.
        argument: PathBuf,
    },
    /// An input has no text.
    #[error("{}: the input is empty", path.display())]
    EmptyInput {
        /// The input.
        path: PathBuf,
    },
    /// An input has text, but no row.
    #[error(
        "{}{}: no rows: {rows_bad} malformed lines, {lines_skipped} blank or comment",
        path.display(),
        others(*files)
    )]
    NoRows {
        /// The first input.
        path: PathBuf,
        /// How many inputs there are.
        files: usize,
        /// Lines without a row.
        lines_skipped: u64,
        /// Malformed lines.
        rows_bad: u64,
    },
    /// The first line has no id.
    #[error("{}: its first row has no feature: there is nothing to learn from", path.display())]
    NoFeatures {
        /// The input.
        path: PathBuf,
    },
    /// Rows that were read cannot be kept until they are written.
    #[error(
        "{}: cannot {doing} the rows that are kept there, in a file without a name, until all \
         keys are counted: {source}",
        folder.display()
    )]
    Kept {
        /// The folder of the output.
        folder: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The system's own words.
        source: io::Error,
    },
    /// A line without an end in sight.
    #[error(
        "{}: a line is longer than {expected_bytes_max} bytes: is this a text file with one row \
         per line?",
        path.display()
    )]
    LineTooLong {
        /// The input.
        path: PathBuf,
        /// The limit.
        expected_bytes_max: usize,
    },
    /// More malformed lines than allowed; this is the one that was too many.
    #[error(
        "{row}\n{}: mend the line, or let more of them be left out with --max-bad-rows N",
        past_limit(*max_bad_rows)
    )]
    BadRows {
        /// The line that was one too many.
        row: BadRow,
        /// The limit.
        max_bad_rows: u64,
    },
    /// The output cannot be written, or would harm what is there.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Asked to stop before the end.
    #[error("stopped before the end: nothing was written")]
    Interrupted,
    /// The file given by `--vocabulary` has none.
    #[error("{}: no vocabulary inside: {cure}", path.display())]
    NoVocabulary {
        /// The file.
        path: PathBuf,
        /// What to do.
        cure: String,
    },
    /// The file given by `--vocabulary` was made in another way than this run would.
    #[error(
        "{}: its vocabulary does not fit: {what}: expected {expected} as in this run, got {got}: \
         use the same format, schema and transform for all splits",
        path.display()
    )]
    VocabularyMismatch {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
        /// What this run has.
        expected: String,
        /// What the file has.
        got: String,
    },
    /// The vocabulary in a file contradicts the rest of it.
    #[error("{}: the vocabulary of field {field} is damaged: {reason}", path.display())]
    DamagedVocabulary {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// What was expected, and what is there.
        reason: String,
    },
    /// Too many distinct keys for numbers of 32 bits.
    #[error(
        "field {field}: {keys} distinct keys are more than numbers of 32 bits can tell apart: use \
         --hash-size"
    )]
    TooManyKeys {
        /// The field.
        field: String,
        /// Its distinct keys.
        keys: u64,
    },
    /// A bag dataset block with more values than its offsets can tell.
    #[error("{}: more than 2^32 values in one block of lines", path.display())]
    TooManyValues {
        /// The input.
        path: PathBuf,
    },
    /// The threads could not be started.
    #[error("cannot start {threads} threads: {reason}")]
    Threads {
        /// How many.
        threads: usize,
        /// Why.
        reason: String,
    },
    /// The dataset could not be written, or the file given by `--vocabulary` not read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}

impl PrepareError {
    /// True for a mistake in the call (exit code 2), false for bad data (exit code 3).
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Options(_)
                | Self::SchemaUnreadable { .. }
                | Self::Schema { .. }
                | Self::Output(_)
                | Self::ParquetPipe { .. }
        )
    }

    pub(super) fn input(path: &Path, source: io::Error) -> Self {
        Self::Input { path: path.to_path_buf(), source }
    }
}

/// Options that contradict each other. Messages name the flags of `umbra prepare`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// Nothing to read.
    #[error("--input: expected at least one file")]
    NoInput,
    /// Columns without a schema.
    #[error("--format {format} needs --schema S.toml, which says what the columns are")]
    SchemaNeeded {
        /// The format.
        format: &'static str,
    },
    /// A schema that would be ignored.
    #[error("--schema is for --format csv and parquet: the columns of {format} are fixed")]
    SchemaUnused {
        /// The format.
        format: &'static str,
    },
    /// `--fields` that would be ignored.
    #[error("--fields is for --format libfm, got {format}")]
    FieldsUnused {
        /// The format.
        format: &'static str,
    },
    /// `--dense-transform` that would be ignored.
    #[error("--dense-transform: libfm has no dense features")]
    TransformUnused,
    /// A threshold of zero.
    #[error("--min-count: expected at least 1, got 0")]
    MinCount,
    /// A threshold that nothing is counted for.
    #[error("--min-count needs a vocabulary of this run: remove {other}, or --min-count")]
    MinCountUnused {
        /// The other flag.
        other: &'static str,
    },
    /// A table without rows.
    #[error("--hash-size: expected at least 1, got 0")]
    HashSize,
    /// Two sources of ids.
    #[error("--hash-size and --vocabulary exclude each other: remove one of the two")]
    TwoSourcesOfIds,
    /// No thread to work, or too many.
    #[error("--threads: expected 1 to 1024, got {got}")]
    Threads {
        /// As given.
        got: usize,
    },
    /// `--no-label` with a schema, which says itself whether there is one.
    #[error("--no-label is for criteo and libfm: leave `label` out of the schema instead")]
    NoLabelUnused,
    /// A z-score where it is not computed.
    #[error("--dense-transform zscore is for --format csv")]
    ZScore,
    /// Nothing that could grow.
    #[error("--grow needs --vocabulary FROM.h5, the vocabulary that grows")]
    GrowAlone,
    /// A setting of zero.
    #[error("{flag}: expected at least 1, got 0")]
    FromOne {
        /// The flag.
        flag: &'static str,
    },
    /// A setting that would be ignored.
    #[error("{flag} is for a vocabulary that this run begins: remove {other}, or {flag}")]
    SettingUnused {
        /// The flag.
        flag: &'static str,
        /// The other flag.
        other: &'static str,
    },
}

/// What is wrong with a schema.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// Not TOML, an unknown key, or a value of the wrong type; the message shows the line.
    #[error("{0}")]
    Toml(String),
    /// The delimiter cannot separate columns.
    #[error(
        "delimiter: expected one ASCII character that is no quote and no line end, got {got:?}"
    )]
    Delimiter {
        /// As written.
        got: String,
    },
    /// Without a header nothing says what the columns are.
    #[error(
        "columns: with header = false, expected the list of all column names, or how many there are"
    )]
    ColumnsNeeded,
    /// Names would come from two places.
    #[error(
        "columns: with header = true the names come from the first line: remove one of the two"
    )]
    ColumnsAndHeader,
    /// More columns than a line can hold.
    #[error("columns: expected at most {expected_max}, got {got}")]
    ColumnsTooMany {
        /// The limit.
        expected_max: usize,
        /// As written.
        got: usize,
    },
    /// A column that is not there.
    #[error("{key}: no column {column}; the columns are {known}")]
    NoColumn {
        /// The key that names it.
        key: &'static str,
        /// As written.
        column: String,
        /// All columns.
        known: String,
    },
    /// Two features with the same name.
    #[error("two features are called `{name}`: use each column once")]
    SameFeature {
        /// The name.
        name: String,
    },
    /// A name that a dataset cannot hold.
    #[error("the name of column `{name}` has a NUL in it: rename the column")]
    NulInName {
        /// The name, escaped.
        name: String,
    },
    /// A cross of fewer than two columns.
    #[error("cross: expected two columns or more")]
    ShortCross,
    /// A setting that makes no sense.
    #[error("{list}: {name}: {key}: expected {expected}")]
    Setting {
        /// `dense` or `sparse`.
        list: &'static str,
        /// The feature.
        name: String,
        /// The setting.
        key: &'static str,
        /// What would make sense.
        expected: &'static str,
    },
    /// A rule for labels without a label.
    #[error(
        "label_positive and label_at_least: expected that the schema says which column the label is"
    )]
    RuleWithoutLabel,
    /// A column that is the label and a feature, or a feature twice.
    #[error("column `{name}` is used as {first} and as {second}")]
    UsedTwice {
        /// The column.
        name: String,
        /// One use.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// Two rules for the label.
    #[error("label_at_least and label_positive exclude each other: remove one of the two")]
    TwoLabelRules,
    /// `label_negative` says what else is legal beside `label_positive`.
    #[error("label_negative needs label_positive")]
    NegativeAlone,
    /// Nothing to learn from.
    #[error("expected at least one column under dense, sparse or cross")]
    NoFeatures,
    /// A key about text, of a schema for Parquet.
    #[error("{key}: is about text: remove it for --format parquet, whose columns have names")]
    TextKey {
        /// The key.
        key: &'static str,
    },
    /// An input lacks a column that the first one has.
    #[error("no column `{column}` in {}", path.display())]
    NoColumnInFile {
        /// The input.
        path: PathBuf,
        /// The column.
        column: String,
    },
    /// A column of a type that is not read.
    #[error("column `{column}` of {}: {kind} is not read: {cure}", path.display())]
    ColumnType {
        /// The input.
        path: PathBuf,
        /// The column.
        column: String,
        /// Its type.
        kind: String,
        /// What to do.
        cure: &'static str,
    },
    /// Headers of two inputs differ.
    #[error(
        "the header of {} differs from that of the first file: expected {expected}, got {got}",
        path.display()
    )]
    HeadersDiffer {
        /// The later input.
        path: PathBuf,
        /// Names of the first.
        expected: String,
        /// Its names.
        got: String,
    },
}

/// The system's word, and for a compressed file what it means.
fn read_failure(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => {
            format!("{source}: the compressed file is cut short: fetch it again")
        }
        _ => source.to_string(),
    }
}

fn others(files: usize) -> String {
    match files {
        0 | 1 => String::new(),
        2 => " and another file".into(),
        _ => format!(" and {} other files", files - 1),
    }
}

fn past_limit(max_bad_rows: u64) -> String {
    match max_bad_rows {
        0 => "no malformed row is allowed".into(),
        1 => "this is the second malformed row, and --max-bad-rows is 1".into(),
        max => format!("this malformed row comes after {max} others, which is the --max-bad-rows"),
    }
}
