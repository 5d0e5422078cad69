//! The job of a verb: its file and what the command line sets beside it.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::config::{Config, ConfigError};

/// A job file, in front or behind `-c`, and its settings.
#[derive(Args, Debug)]
pub(super) struct JobArguments {
    /// Job file
    #[arg(value_name = "JOB.toml", group = JOB_FILE)]
    job: Option<PathBuf>,
    /// Job file, as an option
    #[arg(short, long, value_name = "JOB.toml", group = JOB_FILE)]
    config: Option<PathBuf>,
    /// Set a key of the job, overriding the file; may be repeated, the last one wins
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

/// The group of what names the file.
pub(super) const JOB_FILE: &str = "job_file";
/// The option that sets a key, by the name of its field.
pub(super) const SETS: &str = "sets";

impl JobArguments {
    /// The file, if there is one.
    pub(super) fn path(&self) -> Option<&Path> {
        self.job.as_deref().or(self.config.as_deref())
    }

    /// The configuration that they make.
    pub(super) fn config(&self) -> Result<Config, ConfigError> {
        Config::load(self.path(), &self.sets)
    }
}
