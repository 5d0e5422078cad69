//! The records of one run, as they are: `summary.json`, `config.toml`, `metrics.jsonl`,
//! `trace.json`.
//!
//! Invariants: any of them may be missing, damaged or of another version; a figure that is not
//! there is `None`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, ErrorKind};
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::activity::Activity;
use super::differing::flat;
use super::points::Points;

/// What a run has left behind.
#[derive(Debug, Serialize)]
pub struct Run {
    /// What tells it from the others.
    pub name: String,
    /// Its folder.
    pub path: String,
    /// What of its records could not be read, or has to be known to read them.
    pub notes: Vec<String>,
    /// Its summary; null without one.
    pub summary: Value,
    /// Its configuration, key by key.
    pub config: BTreeMap<String, String>,
    /// What it has reported.
    pub points: Points,
    /// What its threads did, if it was traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
}

impl Run {
    /// Reads the records in `folder`, of one of `runs` runs.
    pub(super) fn read(name: String, folder: &Path, runs: usize) -> Self {
        let mut notes = vec![];
        let mut text = |file: &str| match fs::read(folder.join(file)) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                notes.push(format!("there is no {file}"));
                None
            }
            Err(error) => {
                notes.push(format!("{file} cannot be read: {error}"));
                None
            }
        };
        let [summary, config, metrics] =
            ["summary.json", "config.toml", "metrics.jsonl"].map(&mut text);
        let summary: Value = summary.map_or(Value::Null, |text| {
            serde_json::from_str(&text).unwrap_or_else(|_| {
                notes.push("summary.json is damaged".into());
                Value::Null
            })
        });
        let config = config.map_or_else(BTreeMap::new, |text| {
            text.parse::<toml::Table>().map(|table| flat(&table)).unwrap_or_else(|_| {
                notes.push("config.toml is damaged".into());
                BTreeMap::new()
            })
        });
        let (mut points, damaged, cut) = Points::parse(&metrics.unwrap_or_default());
        points.thin(runs);
        if damaged > 0 {
            notes.push(format!("lines of metrics.jsonl that are damaged: {damaged}"));
        }
        if cut {
            notes.push("the last line of metrics.jsonl is cut short".into());
        }
        let activity = File::open(folder.join("trace.json"))
            .ok()
            .and_then(|file| Activity::read(BufReader::new(file)));
        let path = folder.display().to_string();
        let mut run = Self { name, path, notes, summary, config, points, activity };
        run.explain();
        run
    }

    /// Adds what has to be known of its figures.
    fn explain(&mut self) {
        if let Some(reason) = self.text("reason") {
            self.notes.push(reason.to_owned());
        }
        if let Some(step) = self.figure("from_step") {
            self.notes.push(format!(
                "went on from step {step}: examples, seconds and bytes are those since then"
            ));
        }
        if self.summary["virtual"] == true {
            self.notes.push("simulated: its seconds are virtual".into());
        }
        if self.status() == "running" {
            self.notes.push("figures so far: it runs, or was killed with nobody to say so".into());
        }
    }

    /// A number of the summary, by the names that lead to it, with dots.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.at(name)?.as_f64()
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.at(name)?.as_str()
    }

    fn at(&self, name: &str) -> Option<&Value> {
        name.split('.').try_fold(&self.summary, |value, name| value.get(name))
    }

    /// How it ended: done, stopped, failed, running, or unknown.
    #[must_use]
    pub fn status(&self) -> &str {
        self.text("status").unwrap_or("unknown")
    }

    /// `sync.method`.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        self.text("sync.method").or_else(|| self.config.get("sync.method").map(String::as_str))
    }

    /// A count of the summary, or of the last report of a run that has not come to its end.
    #[must_use]
    pub fn so_far(&self, name: &str) -> Option<f64> {
        self.figure(name).or_else(|| self.points.last(name))
    }

    /// Bytes that all ranks have sent.
    #[must_use]
    pub fn bytes(&self) -> Option<f64> {
        let kinds = ["wire.dense_bytes", "wire.embedding_bytes", "wire.control_bytes"];
        kinds.iter().filter_map(|kind| self.figure(kind)).reduce(|a, b| a + b)
    }
}

/// With as many digits as anybody looks at: pages are sent by mail.
pub(super) fn rounded(value: f64) -> f64 {
    format!("{value:.6e}").parse().unwrap_or(value)
}
