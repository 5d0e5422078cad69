//! `metrics.jsonl`: one JSON object per report, one line each, flushed, so that a run that is cut
//! short keeps what it has measured.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::summary::EvalFigures;
use super::write_atomically;
use crate::error::Error;

/// What is known at one moment of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Steps done by one worker since the start.
    pub step: u64,
    /// Examples trained on since the start, over all trainers.
    pub examples: u64,
    /// Epoch, from 0.
    pub epoch: u32,
    /// Seconds of training since the start.
    pub seconds: f64,
    /// When that was, seconds since 1970; absent from lines of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<f64>,
    /// Training log loss since the last report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logloss: Option<f64>,
    /// Speed since the last report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub examples_per_second: Option<f64>,
    /// Learning rate of dense parameters, schedule applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_dense: Option<f64>,
    /// Learning rate of embedding rows, schedule applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_sparse: Option<f64>,
    /// Steps of a trainer's workers between its rounds since the last report, mean over trainers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_gap: Option<f64>,
    /// Rounds of all trainers per second since the last report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_rounds_per_second: Option<f64>,
    /// Bytes of dense parameters sent per second since the last report, over all ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_bytes_per_second: Option<f64>,
    /// Distance of replicas from what they move towards, over their norm, since the last report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disagreement: Option<f64>,
    /// The method in use, of a run that changes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Changes of the method so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<u32>,
    /// Parameter servers: steps that tokens of gradients were behind since the last report, mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_staleness: Option<f64>,
    /// Parameter servers: versions between reading and updating since the last report, mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_lag: Option<f64>,
    /// Parameter servers: gradients thrown away since the last report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gradients_dropped: Option<u64>,
    /// Progressive validation of a window that has just ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progressive: Option<EvalFigures>,
    /// Validation, when it has just been done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<EvalFigures>,
}

/// Writer of `metrics.jsonl`.
#[derive(Debug)]
pub struct MetricsWriter {
    file: File,
    path: PathBuf,
}

impl MetricsWriter {
    /// Creates or empties the file.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let file = File::create(path).map_err(|source| Error::file(path, "create it", source))?;
        Ok(Self { file, path: path.into() })
    }

    /// Keeps the reports up to step `step`, and goes on behind them.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn go_on(path: &Path, step: u64) -> Result<Self, Error> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.map_err(|source| Error::file(path, "read it", source))?,
        };
        let before = |line: &&str| {
            serde_json::from_str::<Report>(line).is_ok_and(|report| report.step <= step)
        };
        let kept: String = text.lines().filter(before).flat_map(|line| [line, "\n"]).collect();
        write_atomically(path, kept.as_bytes())?;
        let file = File::options().append(true).open(path);
        let file = file.map_err(|source| Error::file(path, "open it", source))?;
        Ok(Self { file, path: path.into() })
    }

    /// Appends a report, whole and at once.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write(&mut self, report: &Report) -> Result<(), Error> {
        let mut line = serde_json::to_string(report)
            .map_err(|error| Error::Failure(format!("metrics.jsonl: {error}")))?;
        line.push('\n');
        let written = self.file.write_all(line.as_bytes());
        written.map_err(|source| Error::file(&self.path, "write to it", source))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_goes_on_keeps_what_was_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let report = |step| Report { step, ..Report::default() };
        let mut writer = MetricsWriter::go_on(&path, 0).unwrap();
        [1, 5, 9].iter().for_each(|step| writer.write(&report(*step)).unwrap());
        // The last line was cut short.
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + "{\"step\":2").unwrap();
        MetricsWriter::go_on(&path, 5).unwrap().write(&report(7)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let steps = text.lines().map(|line| serde_json::from_str::<Report>(line).unwrap().step);
        assert_eq!(steps.collect::<Vec<_>>(), [1, 5, 7]);
    }

    #[test]
    fn every_report_is_one_line_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::create(&path).unwrap();
        let first = Report { step: 1, examples: 256, logloss: Some(0.5), ..Report::default() };
        writer.write(&first).unwrap();
        // The writer is still open: a reader sees the line all the same.
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "{\"step\":1,\"examples\":256,\"epoch\":0,\"seconds\":0.0,\"logloss\":0.5}\n"
        );
        let valid = Some(EvalFigures { examples: 9, auc: Some(0.75), ..EvalFigures::default() });
        writer.write(&Report { step: 2, valid: valid.clone(), ..Report::default() }).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let second: Report = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
        assert_eq!((second.step, second.valid), (2, valid));
    }
}
