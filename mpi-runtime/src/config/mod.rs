//! The configuration of a job: TOML file and `--set` arguments to checked types.
//!
//! Map: `key_list/` defines every key, `keys.rs` what one may hold, `users.rs` who has a use for
//! it; `reference/` shows the list to readers and programs; `overrides.rs` takes `--set` apart;
//! `read.rs` merges both into a table and remembers where each value came from; `types.rs`,
//! `embedding.rs`, `sync.rs`, `server.rs`, `switch.rs`, `checkpoint.rs` and `recovery.rs` hold the
//! result;
//! `validate.rs` checks keys against each other; `resolve.rs` adds what only the launch decides;
//! `convert.rs` and `method.rs` make the core's types of the result; `error.rs` says what was
//! wrong, and where it was said.
//!
//! Invariant: a [`Config`] written with [`Config::to_toml`] reads back equal, so the run folder's
//! `config.toml` and a checkpoint's repeat the run.

mod checkpoint;
mod compress;
pub mod convert;
mod embedding;
mod error;
mod every;
mod key_list;
pub mod keys;
mod method;
mod overrides;
mod read;
mod recovery;
pub mod reference;
mod resolve;
mod server;
mod switch;
mod sync;
mod types;
mod users;
mod validate;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Value;

pub use checkpoint::*;
pub use compress::*;
pub use embedding::*;
pub use error::{ConfigError, Origin};
pub use every::{Every, Seconds};
pub use recovery::*;
pub use resolve::Job;
pub use switch::{SwitchConfig, SwitchPolicy};
pub use sync::*;
pub use types::*;

use keys::DefaultValue;
use read::Settings;

impl Config {
    /// Reads a file (none: defaults alone) and the `--set` arguments, later ones winning.
    ///
    /// # Errors
    /// The first thing wrong, with its place and the cure.
    pub fn load(path: Option<&Path>, sets: &[String]) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Self::parse("", Path::new(UNNAMED), sets) };
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.into(), source })?;
        Self::parse(&text, path, sets)
    }

    /// The run folder that a job file has by default.
    #[must_use]
    pub fn default_dir(path: Option<&Path>) -> PathBuf {
        default_dir(path.unwrap_or(Path::new(UNNAMED))).into()
    }

    /// Another run folder; its checkpoints move with it if they are in it.
    pub fn move_run(&mut self, dir: &Path) {
        if self.checkpoint.dir == self.run.dir.join(CHECKPOINTS) {
            self.checkpoint.dir = dir.join(CHECKPOINTS);
        }
        self.run.dir = dir.to_owned();
    }

    /// Like [`Config::load`] with the file's text in hand; `path` names it in messages and gives
    /// the default run folder.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, path: &Path, sets: &[String]) -> Result<Self, ConfigError> {
        let (config, settings) = Self::read(text, path, sets)?;
        config.check_unused().map_err(|error| error.locate(|key| settings.origin(key)))?;
        Ok(config)
    }

    /// The configuration that a checkpoint was saved with. What nobody used then does no harm now.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn saved(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::read(text, path, &[]).map(|(config, _)| config)
    }

    /// The same job by `method`, with the defaults of that in `[sync]`.
    ///
    /// # Errors
    /// Why the job can't be by that method; a path that is not UTF-8.
    pub fn by_method(&self, method: SyncMethod) -> Result<Self, String> {
        let text = self.to_toml().map_err(|error| error.to_string())?;
        let mut table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
        let sync = toml::Table::from_iter([("method".to_owned(), method.name().into())]);
        table.insert("sync".to_owned(), Value::Table(sync));
        // Of keys that are refused it is not said where: these lines are in no file.
        let (mut settings, nowhere) = (Settings::default(), Path::new(UNNAMED));
        let config = settings.file(&table.to_string(), nowhere);
        let config = config.and_then(|()| Self::of(&mut settings, nowhere));
        config.map_err(|error| error.to_string())
    }

    fn read(text: &str, path: &Path, sets: &[String]) -> Result<(Self, Settings), ConfigError> {
        let mut settings = Settings::default();
        settings.file(text, path)?;
        for argument in sets {
            settings.argument(argument)?;
        }
        require(&settings)?;
        let config = Self::of(&mut settings, path);
        let config = config.map_err(|error| error.locate(|key| settings.origin(key)))?;
        Ok((config, settings))
    }

    /// That of `settings` and the defaults beside them; of what is refused nobody says yet where
    /// it stands.
    fn of(settings: &mut Settings, path: &Path) -> Result<Self, ConfigError> {
        fill(settings, path);
        let config = Self::deserialize(Value::Table(settings.table()))?;
        config.validate()?;
        Ok(config)
    }

    /// The configuration as TOML, every default written out but a checkpoint folder that follows
    /// from the run's: who repeats the run in another folder must not go on from this one's.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let mut written = self.clone();
        if written.checkpoint.dir == written.run.dir.join(CHECKPOINTS) {
            written.checkpoint.dir = PathBuf::new();
        }
        toml::to_string(&written)
    }
}

/// What a job without a file is named after.
const UNNAMED: &str = "job.toml";
/// Where the checkpoints of a run are, in its folder.
const CHECKPOINTS: &str = "checkpoints";

/// Keys that have no default, at all or beside what other keys hold.
fn require(settings: &Settings) -> Result<(), ConfigError> {
    for key in keys::keys().filter(|key| settings.of(key.path).is_none()) {
        let expected = match key.default {
            DefaultValue::Required => {
                let early_stop = key.section() == EARLY_STOP;
                let is_used = !early_stop || settings.has_section(EARLY_STOP);
                is_used.then(|| key.kind.expected())
            }
            DefaultValue::By { key: other, else_required: true, .. } => {
                let is_open = key.default_beside(|path| settings.of(path)).is_none();
                let name = settings.of(other).map(ToString::to_string).unwrap_or_default();
                let expected = key.kind.expected();
                is_open.then(|| format!("{expected}, since {other} = {name} has no default of it"))
            }
            _ => None,
        };
        if let Some(expected) = expected {
            return Err(ConfigError::Missing { key: key.path, expected });
        }
    }
    let empty = settings.of("data.train").and_then(Value::as_array).is_some_and(Vec::is_empty);
    if empty {
        let error = ConfigError::value("data.train", "[]", "at least one file");
        return Err(error.locate(|key| settings.origin(key)));
    }
    Ok(())
}

/// The one section that is off when it is not there.
const EARLY_STOP: &str = "train.early_stop";

/// The run folder of a job file at `path`.
fn default_dir(path: &Path) -> String {
    let stem = path.file_stem().map_or_else(|| "job".into(), |stem| stem.to_string_lossy());
    format!("runs/{stem}")
}

/// Defaults that depend on other keys.
fn fill(settings: &mut Settings, path: &Path) {
    settings.fallback("run.dir", |_| default_dir(path).into());
    settings.fallback("checkpoint.dir", |settings| {
        let run = settings.of("run.dir").and_then(Value::as_str).unwrap_or_default();
        Value::String(Path::new(run).join(CHECKPOINTS).to_string_lossy().into_owned())
    });
    settings.fallback("train.eval_batch_size", |settings| {
        settings.of("train.batch_size").cloned().unwrap_or(Value::Integer(128))
    });
    settings.fallback("model.bottom", |settings| {
        let is_dlrm = settings.of("model.kind").and_then(Value::as_str) == Some("dlrm");
        let default = keys::find("model.embedding_dim").and_then(keys::Key::value);
        let dim = settings.of("model.embedding_dim").cloned().or(default);
        Value::Array(dim.filter(|_| is_dlrm).map_or_else(Vec::new, |dim| vec![BOTTOM.into(), dim]))
    });
    // Their sections have no other default.
    let by_name = keys::keys().filter(|key| matches!(key.default, DefaultValue::By { .. }));
    for key in
        ["optim.dense.kind", "optim.sparse.kind"].into_iter().filter_map(keys::find).chain(by_name)
    {
        if let Some(value) = key.default_beside(|path| settings.of(path)) {
            settings.fallback(key.path, |_| value);
        }
    }
}

/// Width of the first of two layers of DLRM's bottom MLP.
const BOTTOM: i64 = 64;

#[cfg(test)]
mod key_tests;
#[cfg(test)]
mod tests;
