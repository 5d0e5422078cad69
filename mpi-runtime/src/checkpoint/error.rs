//! What can be wrong with a checkpoint. Exit code 4.

use std::io;
use std::path::{Path, PathBuf};

use super::manifest::VERSION;
use super::part::Part;
use crate::error::Error;

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
        "{} is no checkpoint: neither it nor a folder that it names has a manifest.json (a run \
         keeps its model in RUN/checkpoints)", path.display()
    )]
    Missing {
        /// The folder.
        path: PathBuf,
    },
    /// There are some, none of them whole.
    #[error(
        "{}: no checkpoint here is whole; train from the beginning with --set run.overwrite=true",
        path.display()
    )]
    NoneWhole {
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
    /// A part of a file has other contents than were written.
    #[error(
        "{}: {part} has checksum {got:08x}; the manifest says {expected:08x}: the file is damaged",
        path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Which part.
        part: Part,
        /// CRC-32 by the manifest.
        expected: u32,
        /// CRC-32 found.
        got: u32,
    },
    /// A list of rows is in no order, or longer than there are rows.
    #[error("{}: {part} does not list rows in their order", path.display())]
    Unordered {
        /// The file.
        path: PathBuf,
        /// Which part.
        part: Part,
    },
    /// It has only the rows that changed since another one, which is not there as it was.
    #[error(
        "{}: it has the rows that changed since {}, and that is {}",
        path.display(), base.display(), if *another { "another one now" } else { "not there" }
    )]
    Base {
        /// The folder.
        path: PathBuf,
        /// That of the other one.
        base: PathBuf,
        /// There is one.
        another: bool,
    },
    /// A table here has fewer rows than the one it would take them from.
    #[error(
        "{}: field {field} `{name}` has {written} rows in the checkpoint and {here} here: a \
         vocabulary may only grow, at its end", path.display()
    )]
    Shrunk {
        /// The folder.
        path: PathBuf,
        /// Which.
        field: usize,
        /// Its name.
        name: String,
        /// Rows here.
        here: u64,
        /// Rows in the checkpoint.
        written: u64,
    },
    /// The keys behind the ids of a table here are not those of the one it would take rows from,
    /// with new ones behind them.
    #[error("{}: field {field} `{name}`: {why}", path.display())]
    OtherKeys {
        /// The folder.
        path: PathBuf,
        /// Which.
        field: usize,
        /// Its name.
        name: String,
        /// What is known of it.
        why: &'static str,
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

/// What the system would not do with `path`.
pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> CheckpointError + '_ {
    |source| CheckpointError::Io { path: path.to_owned(), source }
}
