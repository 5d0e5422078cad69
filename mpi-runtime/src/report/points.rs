//! `metrics.jsonl` as columns: what a run has reported, point by point.
//!
//! Invariants: all columns have as many entries as there are points; steps, examples and seconds
//! never fall, which a chart needs. A column that no point has is not there.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::run::rounded;

/// What a run has reported, by name of the figure.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Points {
    columns: BTreeMap<String, Vec<Option<f64>>>,
}

impl Points {
    /// The points in the text of a file, with how many of its lines were none, and whether the last
    /// one was cut short.
    pub(super) fn parse(text: &str) -> (Self, usize, bool) {
        let (mut rows, mut damaged): (Vec<Map<String, Value>>, usize) = (vec![], 0);
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let Ok(row) = serde_json::from_str::<Map<String, Value>>(line) else {
                damaged += 1;
                continue;
            };
            // Steps that are made again replace those of before.
            if let Some(step) = number(&row, "step") {
                rows.retain(|earlier| number(earlier, "step").is_none_or(|of| of <= step));
            }
            rows.push(row);
        }
        // A whole line ends with one.
        let cut = damaged > 0 && !text.ends_with('\n');
        let mut points = Self::of(&rows);
        COUNTED.iter().for_each(|name| points.carry_on(name));
        (points, damaged - usize::from(cut), cut)
    }

    fn of(rows: &[Map<String, Value>]) -> Self {
        let names = COUNTED.iter().chain(MEASURED).map(|name| (*name).to_owned());
        let scored = ["valid", "progressive"]
            .into_iter()
            .flat_map(|section| SCORED.iter().map(move |name| format!("{section}.{name}")));
        let columns = names.chain(scored).filter_map(|name| {
            let column: Vec<_> = rows.iter().map(|row| number(row, &name)).collect();
            column.iter().any(Option::is_some).then_some((name, column))
        });
        Self { columns: columns.collect() }
    }

    /// Counts of a run that went on begin anew: they are added to those of before.
    fn carry_on(&mut self, name: &str) {
        let Some(column) = self.columns.get_mut(name) else { return };
        let (mut before, mut last) = (0.0, 0.0);
        for value in column.iter_mut().flatten() {
            if *value + before < last {
                before = last;
            }
            *value += before;
            last = *value;
        }
    }

    /// Means over neighbours, so that of `runs` runs there are no more points than a page can hold.
    pub(super) fn thin(&mut self, runs: usize) {
        let most = (POINTS_ALL / runs.max(1)).clamp(POINTS_LEAST, POINTS_MAX);
        let together = self.len().div_ceil(most).max(1);
        for (name, column) in &mut self.columns {
            let is_mean = MEASURED.contains(&name.as_str());
            let merged = column.chunks(together).map(|chunk| {
                let there = chunk.iter().flatten();
                let value = if is_mean {
                    let count = there.clone().count() as f64;
                    (count > 0.0).then(|| there.sum::<f64>() / count)
                } else {
                    there.last().copied()
                };
                if COUNTED.contains(&name.as_str()) { value } else { value.map(rounded) }
            });
            *column = merged.collect();
        }
    }

    /// How many points there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.values().next().map_or(0, Vec::len)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last value of a figure.
    #[must_use]
    pub fn last(&self, name: &str) -> Option<f64> {
        self.columns.get(name)?.iter().rev().find_map(|value| *value)
    }
}

/// A figure of a point; `valid.auc` is one within another.
fn number(row: &Map<String, Value>, name: &str) -> Option<f64> {
    let (section, inner) = name.split_once('.').map_or((name, None), |(a, b)| (a, Some(b)));
    let value = row.get(section)?;
    inner.map_or(value, |inner| &value[inner]).as_f64()
}

/// Figures that only grow.
const COUNTED: &[&str] = &["step", "examples", "seconds", "time", "epoch"];

/// Figures since the last report.
const MEASURED: &[&str] = &[
    "logloss",
    "examples_per_second",
    "lr_dense",
    "lr_sparse",
    "sync_gap",
    "sync_rounds_per_second",
    "sync_bytes_per_second",
    "disagreement",
    "token_staleness",
    "version_lag",
    "gradients_dropped",
];

/// Figures of scored data.
const SCORED: &[&str] = &["auc", "logloss", "normalized_entropy", "calibration", "gauc"];

/// Points of a run at most: more than a screen has columns.
const POINTS_MAX: usize = 2000;

/// Points of all runs, about: a page of some megabytes.
const POINTS_ALL: usize = 40_000;

/// Points that are left of a run, however many there are.
const POINTS_LEAST: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn column(points: &Points, name: &str) -> Vec<Option<f64>> {
        points.columns.get(name).cloned().unwrap_or_default()
    }

    #[test]
    fn what_is_cut_is_counted_and_the_rest_is_read() {
        let text = "{\"step\":1,\"new\":{\"a\":[1]},\"logloss\":null}\nnoise\n\n\
                    {\"step\":3,\"valid\":{\"auc\":0.75}}\n{\"step\":4,\"exa";
        let (points, damaged, cut) = Points::parse(text);
        assert_eq!((damaged, cut), (1, true));
        assert_eq!(column(&points, "step"), [Some(1.0), Some(3.0)]);
        assert_eq!(column(&points, "valid.auc"), [None, Some(0.75)]);
        assert_eq!(points.columns.len(), 2);
        assert!(Points::parse("").0.is_empty());
    }

    #[test]
    fn a_run_that_went_on_counts_on() {
        let rows = [(1, 10, 0.5), (2, 20, 1.0), (9, 90, 4.5), (3, 10, 0.25), (4, 20, 0.5)];
        let text: String = rows
            .iter()
            .map(|(step, examples, seconds)| {
                format!("{{\"step\":{step},\"examples\":{examples},\"seconds\":{seconds}}}\n")
            })
            .collect();
        let (points, ..) = Points::parse(&text);
        assert_eq!(column(&points, "step"), [1.0, 2.0, 3.0, 4.0].map(Some));
        assert_eq!(column(&points, "examples"), [10.0, 20.0, 30.0, 40.0].map(Some));
        assert_eq!(column(&points, "seconds"), [0.5, 1.0, 1.25, 1.5].map(Some));
    }

    #[test]
    fn long_runs_are_thinned_by_means() {
        let text: String = (0..5000)
            .map(|step| {
                let valid = if step == 2 { ",\"valid\":{\"auc\":0.5}" } else { "" };
                format!("{{\"step\":{step},\"logloss\":{}{valid}}}\n", step % 3)
            })
            .collect();
        let (mut points, ..) = Points::parse(&text);
        points.thin(1);
        assert_eq!(points.len(), 1667);
        assert_eq!(column(&points, "step")[..2], [Some(2.0), Some(5.0)]);
        assert_eq!(column(&points, "logloss")[..2], [Some(1.0), Some(1.0)]);
        assert_eq!(column(&points, "valid.auc")[..2], [Some(0.5), None]);
        assert_eq!(points.last("step"), Some(4999.0));
        points.thin(1000);
        assert_eq!((points.len(), points.last("step")), (99, Some(4999.0)));
    }
}
