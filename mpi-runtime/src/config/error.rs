//! What can be wrong with a configuration, and where it was said.

use std::io;
use std::path::PathBuf;

use crate::error::Error;

/// Where a key got its value: what an error message points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of the configuration file, counted from 1.
    File {
        /// The file as the user named it.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// A `--set` argument, as typed.
    Set(String),
    /// A default, or a value that only the launch decides.
    Implied,
}

impl core::fmt::Display for Origin {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Set(argument) => write!(f, "--set {argument}"),
            Self::Implied => f.write_str("configuration"),
        }
    }
}

/// A configuration that cannot be used. Exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Unreadable {
        /// The file as the user named it.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not TOML.
    #[error("{at}: not valid TOML: {message}")]
    Syntax {
        /// Where the parser stopped.
        at: Origin,
        /// What it says.
        message: String,
    },
    /// `--set` without KEY=VALUE.
    #[error("--set {argument}: expected KEY=VALUE, for example --set optim.dense.lr=0.01")]
    Override {
        /// The argument as typed.
        argument: String,
    },
    /// A key that does not exist.
    #[error("{at}: unknown key `{key}`; the nearest known key is `{nearest}`")]
    Unknown {
        /// Where it stands.
        at: Origin,
        /// The whole dotted key.
        key: String,
        /// The known key closest to it.
        nearest: &'static str,
    },
    /// A value of the wrong type or out of range, or one that contradicts another key.
    #[error("{at}: `{key} = {got}`: expected {expected}")]
    Value {
        /// Where it stands.
        at: Origin,
        /// The whole dotted key.
        key: &'static str,
        /// The value as TOML.
        got: String,
        /// What would be accepted.
        expected: String,
    },
    /// A value where a section belongs.
    #[error("{at}: `{section} = {got}`: `{section}` is a section; its keys are {members}")]
    Section {
        /// Where it stands.
        at: Origin,
        /// The section, dotted.
        section: String,
        /// The value as TOML.
        got: String,
        /// The names in it.
        members: String,
    },
    /// A key that has no default and was not given.
    #[error("`{key}` is missing: give {expected}, in the file or with --set {key}=…")]
    Missing {
        /// The whole dotted key.
        key: &'static str,
        /// What it takes.
        expected: String,
    },
    /// The checked table does not fit the types: the key table and the types disagree.
    #[error("configuration: {0}")]
    Types(#[from] toml::de::Error),
}

impl ConfigError {
    /// A contradiction found after reading; [`ConfigError::locate`] says later where it stands.
    pub(super) fn value(
        key: &'static str,
        got: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self::Value { at: Origin::Implied, key, got: got.to_string(), expected: expected.into() }
    }

    /// Fills in where the key of a [`ConfigError::Value`] was given.
    pub(super) fn locate(mut self, origin_of: impl Fn(&str) -> Option<Origin>) -> Self {
        if let Self::Value { at, key, .. } = &mut self
            && let Some(origin) = origin_of(key)
        {
            *at = origin;
        }
        self
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(Box::new(error))
    }
}
