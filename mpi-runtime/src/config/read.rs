//! File and `--set` arguments to a checked table, with the origin of every value kept.
//!
//! Later settings replace earlier ones: the file first, then each `--set` in order.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Table, Value};

use super::error::{ConfigError, Origin};
use super::keys::{self, Kind};
use super::overrides;

/// Values that have passed the key table.
#[derive(Default)]
pub(super) struct Settings {
    values: BTreeMap<&'static str, (Value, Origin)>,
}

impl Settings {
    /// Reads TOML text; `path` is for messages.
    pub(super) fn file(&mut self, text: &str, path: &Path) -> Result<(), ConfigError> {
        let lines = Lines { path, text };
        let document = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            at: lines.origin(error.span().map_or(0, |span| span.start)),
            message: error.message().into(),
        })?;
        self.entries("", document.into_inner(), &lines)
    }

    /// Reads one `--set` argument.
    pub(super) fn argument(&mut self, argument: &str) -> Result<(), ConfigError> {
        let setting = overrides::parse(argument)?;
        let origin = Origin::Set(argument.into());
        self.value(&setting.key, setting.value, &origin)
    }

    /// Sets a key that has none.
    pub(super) fn fallback(&mut self, key: &'static str, value: impl FnOnce(&Self) -> Value) {
        if !self.values.contains_key(key) {
            let value = value(self);
            self.values.insert(key, (value, Origin::Implied));
        }
    }

    /// The value of a key.
    pub(super) fn of(&self, key: &str) -> Option<&Value> {
        self.values.get(key).map(|(value, _)| value)
    }

    /// Where a key was given.
    pub(super) fn origin(&self, key: &str) -> Option<Origin> {
        self.values.get(key).map(|(_, origin)| origin.clone())
    }

    /// Whether any key below a section was given.
    pub(super) fn has_section(&self, section: &str) -> bool {
        self.values
            .keys()
            .any(|key| key.strip_prefix(section).is_some_and(|rest| rest.starts_with('.')))
    }

    /// The values as one nested table.
    pub(super) fn table(&self) -> Table {
        let mut root = Table::new();
        for (path, (value, _)) in &self.values {
            let (sections, name) = path.rsplit_once('.').unwrap_or(("", path));
            let mut table = &mut root;
            for section in sections.split('.').filter(|section| !section.is_empty()) {
                let next = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
                let Value::Table(next) = next else { unreachable!("a section is never a key") };
                table = next;
            }
            let value = match (keys::find(path).map(|key| key.kind), value) {
                (Some(Kind::Files), Value::String(_)) => Value::Array(vec![value.clone()]),
                _ => value.clone(),
            };
            table.insert(name.into(), value);
        }
        root
    }

    /// A table of the file, walked so that every key has its own line.
    fn entries(
        &mut self,
        section: &str,
        table: DeTable<'_>,
        lines: &Lines<'_>,
    ) -> Result<(), ConfigError> {
        let mut entries: Vec<_> = table.into_iter().collect();
        // The first mistake in the file is the one reported.
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let name = key.get_ref();
            let path =
                if section.is_empty() { name.to_string() } else { format!("{section}.{name}") };
            let span = value.span();
            match value.into_inner() {
                DeValue::Table(table) if keys::is_section(&path) => {
                    self.entries(&path, table, lines)?;
                }
                value => {
                    let value = ValueDeserializer::from(Spanned::new(span, value));
                    let origin = lines.origin(key.span().start);
                    self.value(&path, Value::deserialize(value)?, &origin)?;
                }
            }
        }
        Ok(())
    }

    /// Checks a value against the key table and keeps it.
    fn value(&mut self, path: &str, value: Value, origin: &Origin) -> Result<(), ConfigError> {
        let Some(key) = keys::find(path) else {
            return match (keys::is_section(path), value) {
                (true, Value::Table(table)) => {
                    for (name, value) in table {
                        self.value(&format!("{path}.{name}"), value, origin)?;
                    }
                    Ok(())
                }
                (true, value) => Err(ConfigError::Section {
                    at: origin.clone(),
                    section: path.into(),
                    got: value.to_string(),
                    members: keys::members(path),
                }),
                (false, value) => Err(ConfigError::Unknown {
                    at: origin.clone(),
                    key: path.into(),
                    nearest: keys::nearest(path, value.is_table()),
                }),
            };
        };
        match key.kind.check(&value) {
            Ok(()) => {
                self.values.insert(key.path, (value, origin.clone()));
                Ok(())
            }
            Err(expected) => Err(ConfigError::Value {
                at: origin.clone(),
                key: key.path,
                got: value.to_string(),
                expected,
            }),
        }
    }
}

/// A file's text, to turn offsets into lines.
struct Lines<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Lines<'_> {
    fn origin(&self, offset: usize) -> Origin {
        Origin::File { path: self.path.into(), line: line(self.text, offset) }
    }
}

/// Line of a byte offset, from 1.
fn line(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|&&byte| byte == b'\n').count()
}
