//! The run folder: what every run leaves behind, and nothing of it outside.

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use super::hparams::hyperparameters;
use super::lock::Lock;
use super::metrics::{MetricsWriter, Report};
use super::summary::{self, Status, Summary};
use super::tensorboard::{self, EventWriter};
use super::{config_toml, failure, unix_seconds, write_atomically};
use crate::config::Config;
use crate::error::Error;

/// An open run folder; on rank 0 only.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    lock: Lock,
    metrics: MetricsWriter,
    events: Option<EventWriter>,
}

/// A run folder that is this process's, with all that an earlier run has left in it.
#[derive(Debug)]
pub struct Claim {
    lock: Lock,
}

impl RunFolder {
    /// Makes the folder of a resolved configuration this process's. Nothing else in it changes.
    ///
    /// # Errors
    /// A folder with a finished run and no `run.overwrite`, or one of a run under way
    /// ([`Error::Usage`]), or a system that refuses.
    pub fn claim(config: &Config, host: &str) -> Result<Claim, Error> {
        Self::check(config)?;
        let path = &config.run.dir;
        fs::create_dir_all(path)
            .map_err(|source| Error::file(path, "create the folder", source))?;
        let lock = Lock::take(path, host)?;
        // Another may have come to its end in the meantime.
        Self::check(config)?;
        Ok(Claim { lock })
    }

    /// As [`claim`](Self::claim), for a configuration whose folder has the name that jobs have by
    /// default: where another job writes there, it is one of its own beside it, which is named
    /// after the scheduler's `job`, and found again when that starts anew, or else numbered.
    ///
    /// # Errors
    /// As `claim`.
    pub fn claim_beside(
        config: &mut Config,
        host: &str,
        job: Option<&str>,
    ) -> Result<Claim, Error> {
        let dir = config.run.dir.clone();
        let beside = |name: &dyn core::fmt::Display| {
            let mut path = dir.clone().into_os_string();
            path.push(format!("-{name}"));
            PathBuf::from(path)
        };
        let own = job.map(|job| beside(&job));
        if let Some(own) = own.as_ref().filter(|own| own.exists()) {
            config.move_run(own);
            return Self::claim(config, host);
        }
        let taken = dir.exists() && Lock::try_take(&dir, host)?.is_err();
        if taken {
            let numbered = || (2..).map(|number| beside(&number)).find(|path| !path.exists());
            config.move_run(&own.or_else(numbered).unwrap_or_default());
        }
        Self::claim(config, host)
    }

    /// Waits until whoever has the folder has let go of it, for a while: a process of this job that
    /// was given up, or that the system is still cleaning up behind.
    pub fn wait_until_free(config: &Config, host: &str) {
        let (dir, begun) = (&config.run.dir, Instant::now());
        while dir.exists() && begun.elapsed() < LETTING_GO {
            match Lock::try_take(dir, host) {
                Ok(Err(_)) => std::thread::sleep(Duration::from_millis(10)),
                _ => return,
            }
        }
    }

    /// Writes `config.toml` to the folder and opens the records. Those of an earlier run are
    /// replaced; of one that goes on `from` a step, what was reported up to there is kept.
    /// Checkpoints are left alone.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(
        Claim { lock }: Claim,
        config: &Config,
        host: &str,
        from: Option<u64>,
    ) -> Result<Self, Error> {
        let path = &config.run.dir;
        remove_records(path, from.is_none())?;
        write_atomically(&path.join("config.toml"), config_toml(config)?.as_bytes())?;
        let metrics = path.join("metrics.jsonl");
        let metrics = match from {
            None => MetricsWriter::create(&metrics)?,
            Some(step) => MetricsWriter::go_on(&metrics, step)?,
        };
        let events = config.run.tensorboard.then(|| {
            let mut events = EventWriter::create(path, host, wall_time())?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            events.begin_session(wall_time(), &name, &hyperparameters(config)?)?;
            Ok::<_, Error>(events)
        });
        let events = events.transpose()?;
        Ok(Self { path: path.clone(), lock, metrics, events })
    }

    /// Whether [`RunFolder::claim`] would be allowed to use the folder; touches nothing.
    ///
    /// # Errors
    /// As [`RunFolder::claim`].
    pub fn check(config: &Config) -> Result<(), Error> {
        let path = &config.run.dir;
        if path.exists() && !path.is_dir() {
            return Err(Error::Usage(format!(
                "run.dir = {}: expected a folder, and this is a file",
                path.display()
            )));
        }
        if !config.run.overwrite && Self::holds_a_finished_run(config) {
            return Err(Error::Usage(format!(
                "run.dir = {}: a finished run is there (summary.json); choose another with --set \
                 run.dir=…, or replace it with --set run.overwrite=true",
                path.display()
            )));
        }
        Ok(())
    }

    /// Whether the run in the folder has come to its end: there is nothing to go on from.
    #[must_use]
    pub fn holds_a_finished_run(config: &Config) -> bool {
        let summary = fs::read(config.run.dir.join(summary::NAME)).unwrap_or_default();
        let summary: Option<serde_json::Value> = serde_json::from_slice(&summary).ok();
        summary.is_some_and(|summary| summary["status"] == "done")
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records a report in `metrics.jsonl` and the event file.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn report(&mut self, report: &Report) -> Result<(), Error> {
        self.metrics.write(report)?;
        if !self.lock.is_there() {
            let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(Error::file(&self.path, "write to it any more", gone));
        }
        let Some(events) = &mut self.events else { return Ok(()) };
        let valid = report.valid.as_ref();
        let before = report.progressive.as_ref();
        let scalars = [
            ("train/logloss", report.logloss),
            ("train/examples_per_second", report.examples_per_second),
            ("train/epoch", Some(f64::from(report.epoch))),
            ("sync/gap", report.sync_gap),
            ("sync/rounds_per_second", report.sync_rounds_per_second),
            ("sync/bytes_per_second", report.sync_bytes_per_second),
            ("sync/disagreement", report.disagreement),
            ("sync/token_staleness", report.token_staleness),
            ("sync/version_lag", report.version_lag),
            ("sync/gradients_dropped", report.gradients_dropped.map(|count| count as f64)),
            ("sync/changes", report.changes.map(f64::from)),
            ("lr/dense", report.lr_dense),
            ("lr/sparse", report.lr_sparse),
            ("progressive/auc", before.and_then(|before| before.auc)),
            ("progressive/logloss", before.and_then(|before| before.logloss)),
            ("progressive/normalized_entropy", before.and_then(|it| it.normalized_entropy)),
            ("progressive/calibration", before.and_then(|before| before.calibration)),
            ("valid/auc", valid.and_then(|valid| valid.auc)),
            ("valid/logloss", valid.and_then(|valid| valid.logloss)),
            ("valid/normalized_entropy", valid.and_then(|valid| valid.normalized_entropy)),
            ("valid/calibration", valid.and_then(|valid| valid.calibration)),
            ("valid/gauc", valid.and_then(|valid| valid.gauc)),
        ];
        let scalars: Vec<(&str, f64)> =
            scalars.into_iter().filter_map(|(tag, value)| Some((tag, value?))).collect();
        events.scalars(report.step, report.time.unwrap_or_else(wall_time), &scalars)
    }

    /// Records how a run has ended after `step` steps: `summary.json`, and as curves what it says
    /// of test data.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn finish(&mut self, summary: &Summary, step: u64) -> Result<(), Error> {
        if let Some(events) = &mut self.events {
            let test = summary.test.as_ref();
            let scalars: Vec<(&str, f64)> = [
                ("test/auc", test.and_then(|test| test.auc)),
                ("test/logloss", test.and_then(|test| test.logloss)),
                ("test/normalized_entropy", test.and_then(|test| test.normalized_entropy)),
                ("test/calibration", test.and_then(|test| test.calibration)),
                ("test/gauc", test.and_then(|test| test.gauc)),
            ]
            .into_iter()
            .filter_map(|(tag, value)| Some((tag, value?)))
            .collect();
            events.scalars(step, wall_time(), &scalars)?;
            events.end_session(wall_time(), summary.status == Status::Done)?;
        }
        self.write_summary(summary)
    }

    /// Where its trace goes.
    #[must_use]
    pub fn trace_path(&self) -> PathBuf {
        self.path.join(TRACE)
    }

    /// Writes the first `summary.json`, of a run that has begun, and tells a supervisor where.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn begin(&self, summary: &Summary) -> Result<(), Error> {
        failure::tell_supervisor(&self.path);
        self.write_summary(summary)
    }

    /// Writes `summary.json`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write_summary(&self, summary: &Summary) -> Result<(), Error> {
        summary.write(&self.path.join(summary::NAME))
    }
}

/// For a process to end that was given up: twice the time that it has for that itself (`comm`).
const LETTING_GO: Duration = Duration::from_secs(20);

/// The file of a run's trace.
const TRACE: &str = "trace.json";

/// Removes the records of an earlier run, the summary first: without it the folder is free. Curves
/// only with `all`.
fn remove_records(path: &Path, all: bool) -> Result<(), Error> {
    let remove = |file: &Path| match fs::remove_file(file) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file(file, "remove the earlier run's file", source))
        }
        _ => Ok(()),
    };
    remove(&path.join(summary::NAME))?;
    remove(&path.join(TRACE))?;
    let entries =
        fs::read_dir(path).map_err(|source| Error::file(path, "list the folder", source))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let starts = |prefix| name.to_string_lossy().starts_with(prefix);
        if starts(failure::TEMPORARY) || all && starts(tensorboard::PREFIX) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn wall_time() -> f64 {
    unix_seconds(SystemTime::now())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::record::LEAST;
    use crate::record::summary::EvalFigures;

    fn config(folder: &Path, sets: &[&str]) -> crate::config::Job {
        let dir = format!("run.dir={}", folder.join("run").display());
        let all: Vec<String> =
            LEAST.iter().chain([&dir.as_str()]).chain(sets).map(ToString::to_string).collect();
        Config::load(None, &all).unwrap().resolve(1, 1, 1).unwrap()
    }

    fn create(config: &Config) -> Result<RunFolder, Error> {
        RunFolder::open(RunFolder::claim(config, "host")?, config, "host", None)
    }

    fn files(path: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_run_leaves_its_records_and_is_not_overwritten_by_accident() {
        let folder = tempfile::tempdir().unwrap();
        let job = config(folder.path(), &[]);
        let mut run = create(&job.config).unwrap();
        let valid = Some(EvalFigures { auc: Some(0.7), ..EvalFigures::default() });
        run.report(&Report { step: 3, valid, ..Report::default() }).unwrap();
        let done = Summary { status: Status::Done, ..Summary::new(&job, 1).unwrap() };
        run.write_summary(&done).unwrap();
        let names = files(run.path());
        assert_eq!(names.len(), 5, "{names:?}");
        assert_eq!(
            [&names[0], &names[2], &names[3], &names[4]],
            ["config.toml", "metrics.jsonl", "run.lock", "summary.json"]
        );
        assert!(names[1].starts_with("events.out.tfevents."), "{names:?}");
        let written = Config::load(Some(&run.path().join("config.toml")), &[]).unwrap();
        assert_eq!(written, job.config);

        let error = create(&job.config).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("--set run.overwrite=true"), "{error}");
        drop(run);

        // The later run has one event file, its own, and no summary until it ends.
        let sets = ["run.overwrite=true", "run.tensorboard=false"];
        let again = config(folder.path(), &sets);
        let run = create(&again.config).unwrap();
        assert_eq!(files(run.path()), ["config.toml", "metrics.jsonl", "run.lock"]);
        assert_eq!(fs::read_to_string(run.path().join("metrics.jsonl")).unwrap(), "");
    }

    #[test]
    fn a_file_in_the_way_is_said_so() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("run"), "").unwrap();
        let error = RunFolder::check(&config(folder.path(), &[]).config).unwrap_err();
        assert!(error.to_string().contains("expected a folder"), "{error}");
    }
}
