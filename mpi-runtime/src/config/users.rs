//! Who has a use for a key: as data, for those who read about it, and as a check.
//!
//! A key that a job has no use for is refused: somebody meant something by it. Its default is
//! taken, since a resolved configuration has every key.

use serde::de::Error as _;
use toml::{Table, Value};

use super::error::ConfigError;
use super::keys::{Key, Kind, find, keys};
use super::sync::SyncMethod;
use super::types::Config;

/// What must hold for a job to have a use for a key.
#[derive(Clone, Copy)]
pub enum Use {
    /// Another key holds one of these names; of a flag `true` or `false`.
    Names {
        /// The other key.
        key: &'static str,
        /// What it may hold.
        names: &'static [&'static str],
    },
    /// A method that the job trains by is one of those for which this is true.
    Methods(fn(SyncMethod) -> bool),
    /// One of these keys is given.
    Given(&'static [&'static str]),
}

impl Use {
    /// The key that decides, where a single one does.
    #[must_use]
    pub fn key(&self) -> Option<&'static str> {
        match *self {
            Self::Names { key, .. } => Some(key),
            Self::Methods(_) => Some("sync.method"),
            Self::Given(_) => None,
        }
    }

    /// Names that the deciding key may hold.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        match *self {
            Self::Names { key, names } => {
                names.iter().copied().filter(|name| may_be(key, name)).collect()
            }
            Self::Methods(uses) => {
                let methods = SyncMethod::ALL.into_iter().filter(|method| uses(*method));
                methods.map(SyncMethod::name).collect()
            }
            Self::Given(keys) => keys.into(),
        }
    }

    /// Whether it holds for a configuration, which is `table` as TOML.
    fn holds(&self, config: &Config, table: &Table) -> bool {
        match *self {
            Self::Names { key, names } => {
                at(table, key).is_some_and(|value| names.contains(&&*word(value)))
            }
            Self::Methods(uses) => config.sync.methods().any(uses),
            Self::Given(keys) => keys.iter().any(|key| at(table, key).is_some()),
        }
    }
}

impl Config {
    /// Keys that are set and that nobody has a use for.
    pub(super) fn check_unused(&self) -> Result<(), ConfigError> {
        let table = Table::try_from(self)
            .map_err(|error| ConfigError::Types(toml::de::Error::custom(error)))?;
        for key in keys() {
            let Some(value) = at(&table, key.path).filter(|value| !is_idle(key, value)) else {
                continue;
            };
            if let Some(missed) = key.used_by.iter().find(|it| !it.holds(self, &table)) {
                return Err(ConfigError::value(key.path, value, expected(missed, &table)));
            }
        }
        Ok(())
    }
}

/// What a job must have to use a key, as the end of "expected …".
fn expected(missed: &Use, table: &Table) -> String {
    let quote = |names: &[&str]| {
        let quoted: Vec<String> = names.iter().map(|name| literal(name)).collect();
        quoted.join(", ")
    };
    let Some(key) = missed.key() else {
        return format!("{} beside it", missed.names().join(" or "));
    };
    let one_of = if missed.names().len() > 1 { "one of " } else { "" };
    let names = quote(&missed.names());
    let got = at(table, key).map_or_else(|| "none".into(), ToString::to_string);
    format!("{key} to be {one_of}{names}: {key} = {got} has no use for it")
}

/// Whether a key may hold a name: dense parameters have not all optimizers of rows.
pub(super) fn may_be(key: &str, name: &str) -> bool {
    find(key).is_some_and(|key| match key.kind {
        Kind::Name { built } => built.contains(&name),
        _ => matches!(name, "true" | "false"),
    })
}

/// A name as TOML: true and false are no strings.
fn literal(name: &str) -> String {
    if matches!(name, "true" | "false") { name.into() } else { format!("\"{name}\"") }
}

/// Whether a key holds what it holds in a job that does not use it.
fn is_idle(key: &Key, value: &Value) -> bool {
    let idle = if key.idle.is_empty() { key.value() } else { key.idle.parse().ok() };
    idle.is_some_and(|idle| same(&idle, value))
}

/// Equal, whether a number is written as an integer or not.
pub(super) fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Integer(whole), Value::Float(x)) | (Value::Float(x), Value::Integer(whole)) => {
            (*whole as f64).to_bits() == x.to_bits()
        }
        _ => one == other,
    }
}

/// What a table holds at a dotted path.
pub(super) fn at<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
    let sections = section.split('.').filter(|section| !section.is_empty());
    let mut table = table;
    for section in sections {
        table = table.get(section)?.as_table()?;
    }
    table.get(name)
}

/// A name or a flag as a word.
fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}
