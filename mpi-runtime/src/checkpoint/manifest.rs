//! The manifest: what is inside a checkpoint.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use umbra_core::model::{Model, Tensor};
use umbra_datasets::Dataset;

use crate::error::Error;
use crate::rows::tables::TableLayout;

/// Version of the layout written.
pub(super) const VERSION: u32 = 1;
/// Name of the manifest.
pub(super) const MANIFEST: &str = "manifest.json";
/// Name of the dense file.
pub(super) const DENSE: &str = "dense.f32";

/// What is inside a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the layout.
    pub version: u32,
    /// Revision of the program that wrote it.
    pub git: String,
    /// The run's configuration, resolved, as TOML.
    pub config: String,
    /// Training steps taken.
    pub steps: u64,
    /// Updates of the dense replica.
    pub updates: u64,
    /// Dense features of the data.
    pub dense_features: usize,
    /// Names of the sparse fields.
    pub sparse_names: Vec<String>,
    /// Rows of every table.
    pub cardinality: Vec<u64>,
    /// Partitions of the run that wrote it.
    pub partitions: u32,
    /// f32s of a row's values.
    pub row_width: usize,
    /// f32s of a row's optimizer state.
    pub row_state_len: usize,
    /// f32s of the replica: parameters, then running statistics.
    pub replica_len: usize,
    /// f32s of the dense optimizer's state.
    pub dense_state_len: usize,
    /// The replica's tensors.
    pub tensors: Vec<TensorEntry>,
    /// Every other file.
    pub files: Vec<FileEntry>,
}

/// A tensor of the replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Its name, "top.0.weight".
    pub name: String,
    /// Rows and columns, row-major.
    pub shape: [usize; 2],
    /// Place of its first f32 in the file; row-major from there.
    pub offset: usize,
}

impl From<Tensor> for TensorEntry {
    fn from(tensor: Tensor) -> Self {
        Self {
            name: tensor.name.to_string(),
            shape: [tensor.rows, tensor.columns],
            offset: tensor.offset,
        }
    }
}

/// A file of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32 (IEEE 802.3) of its contents.
    pub crc32: u32,
}

impl Manifest {
    /// A manifest with no files yet. `progress`: training steps, updates of the replica.
    #[must_use]
    pub fn new(
        git: &str,
        config: String,
        progress: (u64, u64),
        (data, layout, model): (&Dataset, &TableLayout, &Model),
        dense_len: usize,
    ) -> Self {
        let tensors = model.tensors().map(TensorEntry::from);
        Self {
            version: VERSION,
            git: git.to_owned(),
            config,
            steps: progress.0,
            updates: progress.1,
            dense_features: data.dense_features(),
            sparse_names: data.sparse_names().to_vec(),
            cardinality: data.cardinality().to_vec(),
            partitions: layout.partitioning.partitions,
            row_width: layout.width,
            row_state_len: layout.state_len,
            replica_len: model.replica_len(),
            dense_state_len: dense_len - model.replica_len(),
            tensors: tensors.collect(),
            files: vec![],
        }
    }
}

/// Name of the file of a partition.
#[must_use]
pub(super) fn rows_file(partition: u32) -> String {
    format!("rows-{partition:05}.f32")
}

/// What can be wrong with a checkpoint. Exit code 4.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file can't be read or written.
    #[error("checkpoint {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no checkpoint there.
    #[error(
        "{} is no checkpoint: it has no manifest.json (a run keeps its model in \
         RUN/checkpoints/last or RUN/checkpoints/best)", path.display()
    )]
    Missing {
        /// The folder.
        path: PathBuf,
    },
    /// The manifest can't be understood.
    #[error("{}: not a manifest of this program: {message}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What the parser says.
        message: String,
    },
    /// Another layout.
    #[error("{}: checkpoint version {got}; this program reads version {VERSION}", path.display())]
    Version {
        /// The manifest.
        path: PathBuf,
        /// Version found.
        got: u32,
    },
    /// A file has another length than the manifest says.
    #[error(
        "{}: {got} bytes; the manifest says {expected}: the file is cut or torn",
        path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes by the manifest.
        expected: u64,
        /// Bytes found.
        got: u64,
    },
    /// A file has other contents than were written.
    #[error(
        "{}: checksum {got:08x}; the manifest says {expected:08x}: the file is damaged",
        path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// CRC-32 by the manifest.
        expected: u32,
        /// CRC-32 found.
        got: u32,
    },
    /// It does not belong to this data or model.
    #[error("{}: {what} is {got} in the checkpoint and {expected} here", path.display())]
    Mismatch {
        /// The folder.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// Here.
        expected: String,
        /// In the checkpoint.
        got: String,
    },
}

impl From<CheckpointError> for Error {
    fn from(error: CheckpointError) -> Self {
        Self::Checkpoint(Box::new(error))
    }
}
