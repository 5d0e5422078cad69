//! Everything a verb can fail with, and the exit code each failure has.
//!
//! Codes (the contract of the program): 1 failure · 2 bad usage or configuration · 3 bad data ·
//! 4 bad checkpoint · 5 bad launch or resources · 75 stopped on request after a complete
//! checkpoint · 128 + n stopped by signal n with nothing to keep. A message says what was wrong,
//! where, what was expected and how to mend it; `main` prints it once, from one rank.
//!
//! This file knows no other: each part of the runtime turns its own errors into these.

use std::io;
use std::path::{Path, PathBuf};

use umbra_datasets::DatasetError;
use umbra_datasets::output::OutputError;

/// The cause of an error, in the words of the part that found it.
type Cause = Box<dyn core::error::Error + Send + Sync>;

/// A verb that did not reach its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An output that cannot be written, or would harm what is there.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// An argument or a combination of arguments that cannot be.
    #[error("{0}")]
    Usage(String),
    /// A configuration that cannot be used.
    #[error(transparent)]
    Config(Cause),
    /// A dataset that cannot be read or does not fit the model.
    #[error("{0}")]
    Data(String),
    /// A dataset that cannot be read, written or used.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// A checkpoint that is incomplete, damaged or of another model.
    #[error(transparent)]
    Checkpoint(Cause),
    /// Ranks, threads or memory that are not what the job needs.
    #[error("{0}")]
    Launch(String),
    /// A file of ours that the system would not read or write.
    #[error("{}: cannot {doing}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was attempted.
        doing: &'static str,
        /// The system's own words.
        source: io::Error,
    },
    /// Anything else that ended the work.
    #[error("{0}")]
    Failure(String),
    /// Asked to stop before the work was done, and saved.
    #[error(
        "stopped {} after step {step}; saved in {}: the same command goes on from there",
        if *signal == libc::SIGALRM {
            "before its time is over".to_owned()
        } else {
            format!("by signal {signal}")
        },
        checkpoint.display()
    )]
    Stopped {
        /// The signal's number; SIGALRM of a run whose time was over.
        signal: i32,
        /// Steps done.
        step: u64,
        /// The checkpoint.
        checkpoint: PathBuf,
    },
    /// Asked to stop before there was anything to keep.
    #[error("stopped by signal {signal}: nothing was written")]
    Interrupted {
        /// The signal's number.
        signal: u8,
    },
    /// A wait for other ranks or threads that was given up: the job cannot go on without them.
    #[error(transparent)]
    Lost(Cause),
    /// What only some ranks find of their files.
    #[error(
        "{source} (so on {whose} alone of {ranks} ranks: is it a file of that node? files of a job \
         must be on a file system that all nodes share, or the same on each)"
    )]
    OfSome {
        /// What they find.
        source: Box<Self>,
        /// Ranks and hosts.
        whose: String,
        /// All ranks.
        ranks: usize,
    },
    /// Another rank failed and speaks for all.
    #[error("rank {rank} failed with exit code {code}")]
    Elsewhere {
        /// The rank that prints its message.
        rank: usize,
        /// The exit code all ranks leave with.
        code: u8,
    },
}

/// Exit code of a run that was asked to stop and can go on: EX_TEMPFAIL of sysexits.h.
pub const REQUEUE: u8 = 75;

impl Error {
    /// The exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Failure(_) | Self::File { .. } | Self::Lost(_) => 1,
            Self::Usage(_) | Self::Config(_) | Self::Output(_) => 2,
            Self::Data(_) | Self::Dataset(_) => 3,
            Self::Checkpoint(_) => 4,
            Self::Launch(_) => 5,
            Self::Stopped { .. } => REQUEUE,
            Self::Interrupted { signal } => 128 + *signal,
            Self::Elsewhere { code, .. } => *code,
            Self::OfSome { source, .. } => source.exit_code(),
        }
    }

    /// Whether another rank prints the message.
    #[must_use]
    pub const fn is_silent(&self) -> bool {
        matches!(self, Self::Elsewhere { .. })
    }

    /// The system refused something on a file of ours.
    pub fn file(path: &Path, doing: &'static str, source: io::Error) -> Self {
        Self::File { path: path.into(), doing, source }
    }
}
