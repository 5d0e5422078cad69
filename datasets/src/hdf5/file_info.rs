//! What is known of a file once its structure has been checked.

use std::path::PathBuf;

use super::stamp::Stamp;
use crate::DatasetError;

/// How the sparse values of a file are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sparse {
    /// No fields at all.
    None,
    /// `sparse` u32 `[N, S]`.
    OneHot,
    /// `sparse_values` u32 `[values]`, `sparse_offsets` u64 `[N·S + 1]`.
    Bags {
        /// Length of `sparse_values`.
        values: u64,
    },
}

/// A file whose structure is as the layout says.
#[derive(Clone, Debug)]
pub(crate) struct FileInfo {
    pub(crate) path: PathBuf,
    /// What it was when its structure was checked.
    pub(crate) stamp: Stamp,
    /// Attribute `umbra_version`.
    pub(crate) version: u64,
    pub(crate) rows: u64,
    pub(crate) dense_features: usize,
    pub(crate) dense_names: Option<Vec<String>>,
    pub(crate) sparse_names: Option<Vec<String>>,
    pub(crate) cardinality: Vec<u64>,
    pub(crate) transform: String,
    /// Hash of the key list of every field, 0 without one; `None` where the file does not say.
    pub(crate) vocabulary: Option<Vec<u64>>,
    pub(crate) fingerprint: Option<String>,
    pub(crate) sparse: Sparse,
    pub(crate) has_label: bool,
    pub(crate) has_weight: bool,
    pub(crate) has_group: bool,
    /// There is `sparse_weights` f32 `[values]`.
    pub(crate) has_value_weights: bool,
    /// Most sparse values in one row.
    pub(crate) values_per_row_max: u64,
    /// Rows in a chunk of the widest dataset: the unit in which reading is cheap.
    pub(crate) chunk_rows: u64,
    /// No chunk needs the filters of the library.
    pub(crate) direct: bool,
    /// Size of the largest chunk, uncompressed, in bytes; 0 when nothing is chunked.
    pub(crate) chunk_bytes: usize,
}

impl FileInfo {
    /// The file is still the one that this was taken from.
    pub(crate) fn unchanged(&self) -> Result<(), DatasetError> {
        self.stamp.check(&self.path)
    }
}
