//! What is not the same in all runs: keys of their configurations, and what else a result depends
//! on.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use toml::{Table, Value};

use super::run::Run;

/// Something that is not the same in all runs.
#[derive(Debug, Serialize)]
pub struct Differing {
    /// The key.
    pub key: String,
    /// Run by run; `None` of one without it.
    pub values: Vec<Option<String>>,
}

/// A configuration key by key.
pub(super) fn flat(table: &Table) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    add("", table, &mut keys);
    keys
}

fn add(before: &str, table: &Table, keys: &mut BTreeMap<String, String>) {
    for (name, value) in table {
        let key = format!("{before}{name}");
        match value {
            Value::Table(inner) => add(&format!("{key}."), inner, keys),
            Value::String(text) => drop(keys.insert(key, text.clone())),
            // Files of data: those who read want names, not TOML.
            Value::Array(values) if values.len() == 1 => {
                let one = values[0].as_str().map_or_else(|| values[0].to_string(), str::to_owned);
                drop(keys.insert(key, one));
            }
            value => drop(keys.insert(key, value.to_string())),
        }
    }
}

/// What differs between runs.
pub(super) fn between(runs: &[Run]) -> Vec<Differing> {
    let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.config.keys()).collect();
    let of_config = keys.into_iter().filter(|key| !PLACES.contains(&key.as_str())).map(|key| {
        let values = runs.iter().map(|run| run.config.get(key).cloned());
        Differing { key: key.clone(), values: values.collect() }
    });
    let of_config = of_config.filter(|it| it.differs_in(|run| !runs[run].config.is_empty()));
    let beside = BESIDE.iter().map(|(name, figure)| {
        let value = |run: &Run| match run.summary.get(figure)? {
            serde_json::Value::String(text) => Some(text.clone()),
            value => Some(value.to_string()),
        };
        Differing { key: (*name).to_owned(), values: runs.iter().map(value).collect() }
    });
    // A run that did not come so far has not said them.
    let beside = beside.filter(|it| it.differs_in(|run| it.values[run].is_some()));
    of_config.chain(beside).collect()
}

impl Differing {
    /// Whether the runs that say something of it say different things.
    fn differs_in(&self, says: impl Fn(usize) -> bool) -> bool {
        let mut said = (0..self.values.len()).filter(|run| says(*run)).map(|run| &self.values[run]);
        let first = said.next();
        first.is_some_and(|first| said.any(|value| value != first))
    }

    /// Its values, each with the runs that have it, in the order of the runs.
    #[must_use]
    pub fn groups(&self) -> Vec<(Option<&str>, Vec<usize>)> {
        let mut groups: Vec<(Option<&str>, Vec<usize>)> = vec![];
        for (run, value) in self.values.iter().enumerate() {
            match groups.iter_mut().find(|(of, _)| *of == value.as_deref()) {
                Some((_, runs)) => runs.push(run),
                None => groups.push((value.as_deref(), vec![run])),
            }
        }
        groups
    }
}

/// Where runs are, not what they are.
const PLACES: [&str; 5] =
    ["run.dir", "run.overwrite", "checkpoint.dir", "checkpoint.local_dir", "checkpoint.resume"];

/// What is no key and decides a result all the same: how it is called, and its place in a summary.
const BESIDE: [(&str, &str); 3] =
    [("(ranks)", "ranks"), ("(program)", "git"), ("(training data)", "data_fingerprint")];
