//! What can be wrong with a dataset, said so that its owner can mend it.
//!
//! Every message names the file, the HDF5 object and the row where there is one, then what was
//! expected and what was found. Errors are `Clone`, because the one reader thread of a rank tells
//! the same error to every worker it feeds.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a dataset cannot be read or written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DatasetError {
    /// An empty list of files.
    #[error("no data file was given: expected one HDF5 file or more")]
    NoFiles,

    /// The operating system refused.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was attempted.
        doing: &'static str,
        /// The system's own words.
        source: Arc<io::Error>,
    },

    /// The file exists, but its content is not HDF5.
    #[error(
        "{}: not an HDF5 file (no HDF5 signature): expected a dataset; `umbra prepare` turns text \
         into one",
        path.display()
    )]
    NotHdf5 {
        /// The file.
        path: PathBuf,
    },

    /// The HDF5 library refused: truncated file, damaged chunk, missing filter, full disk.
    #[error("{}: cannot {doing} {object}: {reason}{}", path.display(), hint(reason))]
    Hdf5 {
        /// The file.
        path: PathBuf,
        /// The dataset, attribute or group, and the rows where known.
        object: String,
        /// What was attempted.
        doing: &'static str,
        /// The library's own words.
        reason: String,
    },

    /// An object that the layout requires is not there.
    #[error("{}: no {object}: expected {expected}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The dataset or attribute.
        object: &'static str,
        /// What it should be, and how to add it.
        expected: String,
    },

    /// An object has another type, shape or value than the layout says.
    #[error("{}: {object}: expected {expected}, got {got}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The dataset or attribute.
        object: String,
        /// What the layout says.
        expected: String,
        /// What the file has.
        got: String,
    },

    /// An id has no row in its table.
    #[error(
        "{}: dataset `{dataset}`: row {row}, field {field} (`{name}`): id {id} is not below the \
         cardinality {cardinality}",
        path.display()
    )]
    IdOutOfRange {
        /// The file.
        path: PathBuf,
        /// `sparse` or `sparse_values`.
        dataset: &'static str,
        /// Row in this file, from 0.
        row: u64,
        /// Field, from 0.
        field: usize,
        /// Name of the field.
        name: String,
        /// The id found.
        id: u32,
        /// Ids of this field are below it.
        cardinality: u64,
    },

    /// A number is not finite, or outside the range of its dataset.
    #[error(
        "{}: dataset `{dataset}`: row {row}, column {column}: expected {expected}, got {got}",
        path.display()
    )]
    Value {
        /// The file.
        path: PathBuf,
        /// `label`, `weight`, `dense` or `sparse_weights`.
        dataset: &'static str,
        /// Row in this file, from 0.
        row: u64,
        /// Column, from 0.
        column: usize,
        /// The legal range.
        expected: &'static str,
        /// The number found.
        got: String,
    },

    /// The bounds of the bags do not grow.
    #[error(
        "{}: dataset `sparse_offsets`: row {row}, field {field}: bag from {start} to {end} of \
         {values} values: expected offsets that never decrease, from 0 to the number of values",
        path.display()
    )]
    Offsets {
        /// The file.
        path: PathBuf,
        /// Row in this file, from 0.
        row: u64,
        /// Field, from 0.
        field: usize,
        /// Start of the bag.
        start: u64,
        /// End of the bag.
        end: u64,
        /// Length of `sparse_values`.
        values: u64,
    },

    /// Two datasets that must belong together do not.
    #[error(
        "{} and {} differ in {what}: {} has {expected}, {} has {got}; prepare both with one \
         vocabulary",
        first.display(), second.display(), first.display(), second.display()
    )]
    Incompatible {
        /// The file that sets the expectation.
        first: PathBuf,
        /// The file that breaks it.
        second: PathBuf,
        /// What differs.
        what: String,
        /// In the first file.
        expected: String,
        /// In the second file.
        got: String,
    },

    /// The content is not what the fingerprint says.
    #[error(
        "{}: content does not match its fingerprint: the attribute says {expected}, the content \
         gives {got}; the file was changed after it was written",
        path.display()
    )]
    Fingerprint {
        /// The file.
        path: PathBuf,
        /// The attribute `fingerprint`.
        expected: String,
        /// Computed from the content.
        got: String,
    },

    /// Rows handed to the writer do not fit the dataset being written.
    #[error("{}: rows to append: {what}: expected {expected}, got {got}", path.display())]
    Rows {
        /// The file being written.
        path: PathBuf,
        /// Which column.
        what: &'static str,
        /// Length or value that fits.
        expected: String,
        /// Length or value handed in.
        got: String,
    },

    /// A reading order that cannot be.
    #[error("order of reading: {what}: expected {expected}, got {got}")]
    Order {
        /// Which number.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What was asked for.
        got: u64,
    },

    /// The file is another than the one that was opened.
    #[error("{}: changed while it was used: {what}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// How one sees it.
        what: String,
    },

    /// A path that HDF5 cannot be given.
    #[error("{}: expected a path in UTF-8 that ends in a file name", path.display())]
    Path {
        /// The path.
        path: PathBuf,
    },

    /// The system has no thread for the reader.
    #[error("cannot start the reader thread: {source}")]
    Thread {
        /// The system's own words.
        source: Arc<io::Error>,
    },

    /// The reader thread ended without saying why.
    #[error("the reader thread ended before the data did")]
    ReaderLost,
}

impl DatasetError {
    /// An error of the operating system on `path`.
    #[must_use]
    pub fn io(path: &Path, doing: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), doing, source: Arc::new(source) }
    }

    /// An error of the HDF5 library on `object` of `path`.
    pub(crate) fn hdf5(
        path: &Path,
        doing: &'static str,
        object: impl Into<String>,
        error: &hdf5::Error,
    ) -> Self {
        Self::Hdf5 {
            path: path.to_owned(),
            object: object.into(),
            doing,
            reason: error.to_string(),
        }
    }

    /// `object` of `path` is not as the layout says.
    pub(crate) fn mismatch(
        path: &Path,
        object: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Self {
        Self::Mismatch {
            path: path.to_owned(),
            object: object.into(),
            expected: expected.into(),
            got: got.into(),
        }
    }
}

/// The cure for the refusals that have a known one.
fn hint(reason: &str) -> &'static str {
    if reason.contains("Fletcher32") || reason.contains("chunk is damaged") {
        " (the file is damaged: copy or prepare it again)"
    } else if reason.contains("truncated") {
        " (the file is cut short: copy or prepare it again)"
    } else if reason.contains("unable to lock") {
        " (another program is writing it, or the file system has no locks: \
         set HDF5_USE_FILE_LOCKING=FALSE)"
    } else {
        ""
    }
}
