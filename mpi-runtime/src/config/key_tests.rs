//! The table of keys against the types and the checks: every default, every use.
//!
//! Jobs are made of the table itself: what a key is used by says what must be set for it.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use toml::{Table, Value};

use super::keys::{DefaultValue, Key, Kind, Use, find, keys};
use super::users::{at, same};
use super::{Config, ConfigError};

/// Settings by key, as on the command line.
type Sets = BTreeMap<String, String>;

/// What a job must have, and names without which nothing is known of other keys.
const LEAST: &[(&str, &str)] = &[("data.train", "a.h5"), ("model.kind", "dlrm")];

/// What the table does not say: values that others must go with.
const ALSO: &[(&str, &[(&str, &str)])] = &[
    ("train.early_stop.", &[("train.early_stop.patience", "2")]),
    ("roles.embedding_ps", &[("roles.trainers", "2")]),
    ("roles.layout", &[("roles.trainers", "2"), ("roles.embedding_ps", "2")]),
    ("recovery.priority", &[("checkpoint.every", "100"), ("recovery.mode", "partial")]),
    ("sync.switch.to", &[("sync.switch.at", "[5]")]),
    (
        "recovery.inject.failures",
        &[
            ("recovery.mode", "cpr"),
            ("recovery.mtbf_s", "100"),
            ("recovery.save_s", "1"),
            ("recovery.load_s", "1"),
            ("recovery.reschedule_s", "1"),
            ("recovery.inject.job_s", "1000"),
        ],
    ),
];

/// Values that are in range and yet not taken alone.
const SAMPLES: &[(&str, &str)] = &[
    ("model.bottom", "[8, 16]"),
    ("checkpoint.save", "none"),
    ("sync.switch.to", "gba"),
    ("sync.switch.leave_above", "2"),
    ("sync.switch.return_below", "0.5"),
];

fn parse(sets: &Sets) -> Result<Config, ConfigError> {
    let arguments: Vec<String> = sets.iter().map(|(key, value)| format!("{key}={value}")).collect();
    Config::parse("", Path::new("small.toml"), &arguments)
}

fn table(config: &Config) -> Table {
    Table::try_from(config).unwrap()
}

fn least() -> Sets {
    // Some optimizers have no default of a rate.
    let rates = [("optim.dense.lr", "0.1"), ("optim.sparse.lr", "0.1")];
    let sets = LEAST.iter().chain(&rates);
    sets.map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

/// A value that is not the key's default.
fn sample(key: &Key) -> String {
    if let Some((_, value)) = SAMPLES.iter().find(|(path, _)| *path == key.path) {
        return (*value).into();
    }
    let candidates: Vec<String> = match key.kind {
        Kind::Integer { .. } | Kind::Number { .. } => {
            ["2", "3", "0.5", "0.25", "1"].map(String::from).into()
        }
        Kind::Every | Kind::Seconds => vec!["60".into()],
        Kind::Flag => vec!["true".into(), "false".into()],
        Kind::Path => vec!["some/path".into()],
        Kind::Files => vec!["some.h5".into()],
        Kind::Widths => vec!["[8]".into()],
        Kind::Steps => vec!["[5]".into()],
        Kind::Groups => vec!["[[\"a\", \"b\"]]".into()],
        Kind::NamedWidths => vec!["{ a = 8 }".into()],
        Kind::Name { built } => built.iter().map(|name| (*name).into()).collect(),
    };
    let fits = |text: &&String| {
        let value = text.parse().unwrap_or_else(|_| Value::String((*text).clone()));
        let is_default = key.value().is_some_and(|default| same(&default, &value));
        key.kind.check(&value).is_ok() && !is_default
    };
    candidates.iter().find(fits).unwrap().clone()
}

/// Sets what the table does not say.
fn go_with(key: &Key, sets: &mut Sets) {
    for (_, others) in ALSO.iter().filter(|(path, _)| key.path.starts_with(path)) {
        sets.extend(others.iter().map(|(key, value)| ((*key).into(), (*value).into())));
    }
}

/// Sets what the table says that `key` is used by, and what goes with that.
fn enable(key: &Key, sets: &mut Sets) {
    go_with(key, sets);
    for it in key.used_by {
        let (path, value) = match it {
            Use::Given(paths) => (paths[0], sample(find(paths[0]).unwrap())),
            _ => (it.key().unwrap(), it.names()[0].into()),
        };
        if sets.contains_key(path) && path != "model.kind" {
            continue;
        }
        sets.insert(path.into(), value);
        enable(find(path).unwrap(), sets);
    }
    if sets.get("sync.switch.policy").is_some_and(|policy| policy == "stragglers") {
        sets.remove("sync.switch.at");
    }
}

/// What some kinds of played failures must have.
fn complete(sets: &mut Sets) {
    let needed = match sets.get("recovery.inject.failures").map(String::as_str) {
        Some("gamma") => ("recovery.inject.failure_shape", "0.8"),
        Some("steps") => ("recovery.inject.failure_steps", "[5]"),
        _ => return,
    };
    sets.entry(needed.0.into()).or_insert_with(|| needed.1.into());
}

/// The least job that uses a key, without the key itself.
fn enabled(key: &Key) -> Sets {
    let mut sets = least();
    enable(key, &mut sets);
    if !LEAST.iter().any(|(path, _)| *path == key.path) {
        sets.remove(key.path);
    }
    sets
}

fn with(mut sets: Sets, key: &Key, value: &str) -> Sets {
    sets.insert(key.path.into(), value.into());
    sets
}

/// The table and the types name the same keys and the same words.
#[test]
fn every_key_is_taken_where_it_is_used() {
    for key in keys() {
        let values: Vec<String> = match key.kind {
            Kind::NamedWidths => vec!["{ a = 8 }".into()],
            Kind::Name { built } => built.iter().map(|name| (*name).into()).collect(),
            _ => vec![sample(key)],
        };
        for value in values {
            let mut sets = with(enabled(key), key, &value);
            match (key.path, &*value) {
                ("sync.switch.to", "bsp") => _ = sets.insert("sync.method".into(), "gba".into()),
                ("sync.switch.policy", "stragglers") => _ = sets.remove("sync.switch.at"),
                ("recovery.mode", "full") => {}
                ("checkpoint.save", "best") => _ = sets.insert("data.valid".into(), "v.h5".into()),
                _ => {}
            }
            complete(&mut sets);
            let config = parse(&sets).unwrap_or_else(|error| panic!("{sets:?}: {error}"));
            let written = table(&config);
            // The other sections are left out where they are as they were.
            if key.value().is_none_or(|default| value != default.as_str().unwrap_or_default()) {
                assert!(at(&written, key.path).is_some(), "{} has no field", key.path);
            }
            let mut paths = vec![];
            collect("", &written, &mut paths);
            for path in paths {
                assert!(find(&path).is_some(), "{path} is a field but not in the table");
            }
        }
    }
}

fn collect(prefix: &str, table: &Table, into: &mut Vec<String>) {
    for (name, value) in table {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(table) if find(&path).is_none() => collect(&path, table, into),
            _ => into.push(path),
        }
    }
}

/// Without what it is used by, a key is refused.
#[test]
fn every_key_is_refused_where_nobody_uses_it() {
    let mut refused = 0;
    for key in keys() {
        for (number, it) in key.used_by.iter().enumerate() {
            let names = it.names();
            // What decides, as it must not be; of given keys: they are not.
            let others: Vec<Option<(&str, String)>> = match it.key().and_then(find) {
                None => vec![None],
                Some(other) => {
                    let all: Vec<&str> = match other.kind {
                        Kind::Name { built } => built.into(),
                        _ => vec!["true", "false"],
                    };
                    let all = all.into_iter().filter(|name| !names.contains(name));
                    all.map(|name| Some((other.path, name.to_owned()))).collect()
                }
            };
            assert!(!others.is_empty(), "{}: everybody uses it", key.path);
            for other in others {
                let mut sets = least();
                go_with(key, &mut sets);
                for name in names.iter().filter(|_| other.is_none()) {
                    sets.remove(*name);
                }
                for (rest, it) in key.used_by.iter().enumerate() {
                    if let (false, Some(path)) = (rest == number, it.key()) {
                        sets.insert(path.into(), it.names()[0].into());
                    }
                }
                if let Some((path, name)) = &other {
                    enable(find(path).unwrap(), &mut sets);
                    sets.insert((*path).into(), name.clone());
                    complete(&mut sets);
                }
                let sets = with(sets, key, &sample(key));
                let error = match parse(&sets) {
                    Ok(_) => panic!("{} is of no use and taken: {sets:?}", key.path),
                    Err(error) => error.to_string(),
                };
                // Another check may be first, and then names what is not there.
                let named =
                    error.contains(key.path) || names.iter().any(|name| error.contains(name));
                assert!(named, "{sets:?}: {error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 300, "{refused}");
}

/// What a key holds that is not given: what the table says.
#[test]
fn every_default_in_the_table_is_that_of_a_job() {
    let read = |sets: &Sets| parse(sets).unwrap_or_else(|error| panic!("{sets:?}: {error}"));
    for key in keys() {
        let path = key.path;
        match key.default {
            DefaultValue::Value(text) => {
                let value = key.value().unwrap_or_else(|| panic!("{path}: {text} is no TOML"));
                assert_eq!(key.kind.check(&value), Ok(()), "{path}");
                // Sections that are as they were are not written.
                let mut sets = enabled(key);
                if path.starts_with("recovery.") {
                    sets.entry("recovery.mode".into()).or_insert_with(|| "partial".into());
                }
                if path == "recovery.inject.lost_shards" {
                    sets.insert("recovery.inject.stop_step".into(), "5".into());
                }
                let written = table(&read(&sets));
                let found = at(&written, path).unwrap_or_else(|| panic!("{path}: {sets:?}"));
                assert!(same(found, &value), "{path} is {found}, the table says {text}");
            }
            DefaultValue::By { key: other, cases, else_required } => {
                let Kind::Name { built } = find(other).unwrap().kind else { unreachable!() };
                for name in built {
                    let mut sets = with(least(), find(other).unwrap(), name);
                    sets.remove(path);
                    let case = cases.iter().find(|(names, _)| names.contains(name));
                    let expected = match case {
                        Some((_, value)) => *value,
                        None if else_required => {
                            let error = parse(&sets).unwrap_err().to_string();
                            assert!(error.contains(&format!("`{path}` is missing")), "{error}");
                            continue;
                        }
                        None => key.idle,
                    };
                    let found = at(&table(&read(&sets)), path).cloned();
                    let expected = expected.parse::<Value>().ok();
                    let equal = match (&found, &expected) {
                        (Some(found), Some(expected)) => same(found, expected),
                        (found, expected) => found == expected,
                    };
                    assert!(equal, "{path}: {found:?} with {name}, the table says {expected:?}");
                }
            }
            DefaultValue::Derived(cases) => {
                for case in cases.iter().filter(|case| !case.value.is_empty()) {
                    let mut sets = least();
                    for set in case.sets {
                        let (key, value) = set.split_once('=').unwrap();
                        sets.insert(key.into(), value.into());
                    }
                    let job = read(&sets).resolve(case.ranks, case.ranks, 2 * case.ranks).unwrap();
                    let written = table(&job.config);
                    let expected: Value = case.value.parse().unwrap();
                    let found = at(&written, path).unwrap_or_else(|| panic!("{path}: {sets:?}"));
                    assert!(same(found, &expected), "{path}: {found}, the table says {expected}");
                    if expected.is_integer() && path != "train.eval_batch_size"
                        || expected.is_float()
                    {
                        let is_said = case.says.contains(case.value);
                        let counts =
                            case.says.contains("all ranks") || case.says.contains("workers of all");
                        assert!(is_said || counts, "{path}: {} and {expected}", case.says);
                    }
                }
            }
            DefaultValue::Nothing(_) => {
                let found = at(&table(&read(&least())), path).cloned();
                assert_eq!(found, None, "{path}");
            }
            DefaultValue::Required => {
                let mut sets = enabled(key);
                sets.remove(path);
                if path.starts_with("train.early_stop") {
                    sets.insert("train.early_stop.min_delta".into(), "0.5".into());
                }
                let error = parse(&sets).unwrap_err().to_string();
                assert!(error.contains(&format!("`{path}` is missing")), "{error}");
            }
        }
    }
}

/// What a run took for every key is taken again, whoever has a use for it.
#[test]
fn a_resolved_configuration_of_anybody_is_taken_again() {
    let name = |path: &str| match find(path).unwrap().kind {
        Kind::Name { built } => built,
        _ => unreachable!(),
    };
    let mut resolved = 0;
    for deciding in ["sync.method", "model.kind", "optim.dense.kind", "optim.sparse.kind"] {
        for value in name(deciding) {
            let mut sets = with(least(), find(deciding).unwrap(), value);
            for lr in ["optim.dense.lr", "optim.sparse.lr"] {
                sets.insert(lr.into(), "0.1".into());
            }
            let ranks = if *value == "none" { 1 } else { 4 };
            let config = parse(&sets).unwrap().resolve(ranks, ranks, 2 * ranks).unwrap().config;
            let text = config.to_toml().unwrap();
            let again = Config::parse(&text, Path::new("config.toml"), &[]);
            let again = again.unwrap_or_else(|error| panic!("{sets:?}: {error}"));
            assert_eq!(again, config);
            resolved += 1;
        }
    }
    assert!(resolved > 30, "{resolved}");
}

/// Every job may have a key that the table says is used by all.
#[test]
fn keys_of_all_are_taken_by_all() {
    let deciding = [find("sync.method").unwrap(), find("model.kind").unwrap()];
    for key in keys().filter(|key| key.used_by.is_empty()) {
        for other in deciding.into_iter().filter(|other| other.path != key.path) {
            let Kind::Name { built } = other.kind else { unreachable!() };
            // One trainer is none for `roles`.
            for name in built.iter().filter(|name| **name != "none") {
                let sets = with(with(enabled(key), key, &sample(key)), other, name);
                if let Err(error) = parse(&sets) {
                    panic!("{} with {name}: {error}", key.path);
                }
            }
        }
    }
}
