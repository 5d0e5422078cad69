//! The first rank's records while a run is under way: progress, `metrics.jsonl`, event files.
//!
//! Two threads report: the heartbeat, with what it hears, and the main thread, with evaluations.

use core::time::Duration;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use umbra_core::optim::Schedule;

use crate::config::{Config, SyncMethod};
use crate::error::Error;
use crate::measure::counters::Reading;
use crate::record::{EvalFigures, Progress, Report, RunFolder, Summary, say};
use crate::run::heartbeat::Report as HeartbeatReport;
use crate::run::plan::Plan;
use crate::state::RateFactor;

/// Records of a run; shared by the threads that report.
#[derive(Clone)]
pub struct Recorder {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    folder: RunFolder,
    progress: Option<Progress>,
    every: Duration,
    workers_total: u64,
    steps_per_epoch: u64,
    /// Learning rates on the plateau and their schedules: dense, sparse.
    rates: [(f64, Schedule); 2],
    rate_factor: RateFactor,
    /// The method in use and changes so far, of a run that changes it.
    method: Option<(SyncMethod, u32)>,
    /// Training time before the stretch in hand, and its start.
    before: Duration,
    since: Option<Instant>,
    /// The last reading reported, and the training time then.
    last: (Reading, Duration),
    /// A record that could not be written: reported when the run ends.
    failed: Option<Error>,
}

impl Recorder {
    /// Opens the records in `folder`, of a run that goes on from `step`. `rate_factor` is its own.
    #[must_use]
    pub fn new(folder: RunFolder, plan: &Plan, rate_factor: RateFactor, step: u64) -> Self {
        let Config { run, optim, .. } = &plan.job.config;
        let every = Duration::from_secs_f64(run.log_every_s);
        let examples =
            |steps| plan.train.rows().saturating_mul(steps).div_ceil(plan.steps_per_epoch);
        let rates = [&optim.dense, &optim.sparse]
            .map(|section| (section.lr, crate::config::convert::rate(section).schedule));
        let inner = Inner {
            folder,
            progress: Some(Progress::new(examples(step), examples(plan.steps), every)),
            every,
            workers_total: workers_total(plan),
            steps_per_epoch: plan.steps_per_epoch,
            rates,
            rate_factor,
            method: (!plan.job.config.sync.switch.is_off()).then_some((plan.job.method, 0)),
            before: Duration::ZERO,
            since: None,
            last: (Reading::default(), Duration::ZERO),
            failed: None,
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// The run begins: until it ends, `summary` says so.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn begin(&self, summary: &Summary) -> Result<(), Error> {
        self.with(|inner| inner.folder.begin(summary))
    }

    /// What the heartbeat thread calls: reports when a report is due.
    #[must_use]
    pub fn heartbeat(&self) -> HeartbeatReport {
        let recorder = self.clone();
        Box::new(move |beat| {
            let sum = |sum: Reading, own: &Reading| sum.plus(*own);
            let reading = beat.readings.iter().fold(Reading::default(), sum);
            recorder.with(|inner| {
                let due = inner.seconds() >= inner.last.1 + inner.every;
                let new = reading.steps > inner.last.0.steps;
                if inner.since.is_some() && (beat.status_asked || due && new) {
                    inner.report(reading, Scored::NONE);
                }
            });
        })
    }

    /// The run goes on from `step` by another method, whose workers have begun there.
    pub fn changed(&self, plan: &Plan, step: u64) {
        self.with(|inner| {
            inner.workers_total = workers_total(plan);
            let changes = inner.method.map_or(0, |(_, changes)| changes);
            inner.method = Some((plan.job.method, changes + 1));
            inner.last.0.steps = step * inner.workers_total;
        });
    }

    /// The run goes on at `step` on other ranks.
    pub fn goes_on(&self, plan: &Plan, step: u64) {
        self.with(|inner| {
            inner.workers_total = workers_total(plan);
            inner.steps_per_epoch = plan.steps_per_epoch;
            inner.before = inner.seconds();
            inner.since = None;
            // What lost ranks had counted is gone.
            inner.last.0 = Reading { steps: step * inner.workers_total, ..Reading::default() };
        });
    }

    /// Training starts or stops: evaluation time is not training time.
    pub fn set_training(&self, training: bool) {
        self.with(|inner| {
            inner.before = inner.seconds();
            inner.since = training.then(Instant::now);
        });
    }

    /// Training time so far.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.with(|inner| inner.seconds().as_secs_f64())
    }

    /// Reports an evaluation.
    pub fn evaluated(&self, reading: Reading, figures: EvalFigures) {
        self.with(|inner| inner.report(reading, Scored { valid: Some(figures), ..Scored::NONE }));
    }

    /// Reports progressive validation of a window.
    pub fn scored_before(&self, reading: Reading, figures: EvalFigures) {
        let scored = Scored { progressive: Some(figures), ..Scored::NONE };
        self.with(|inner| inner.report(reading, scored));
    }

    /// Reports what no report has told yet, and takes the progress bar away.
    pub fn end_progress(&self, reading: Reading) {
        self.with(|inner| {
            if reading.steps > inner.last.0.steps {
                inner.report(reading, Scored::NONE);
            }
            if let Some(progress) = inner.progress.take() {
                progress.finish();
            }
        });
    }

    /// Where the trace of the run goes.
    #[must_use]
    pub fn trace_path(&self) -> PathBuf {
        self.with(|inner| inner.folder.trace_path())
    }

    /// Writes the summary.
    ///
    /// # Errors
    /// When it, or an earlier record, could not be written.
    pub fn finish(&self, summary: &Summary) -> Result<(), Error> {
        self.with(|inner| {
            inner.folder.write_summary(summary)?;
            inner.failed.take().map_or(Ok(()), Err)
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What was scored just before a report.
struct Scored {
    progressive: Option<EvalFigures>,
    valid: Option<EvalFigures>,
}

impl Scored {
    const NONE: Self = Self { progressive: None, valid: None };
}

impl Inner {
    fn seconds(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn report(&mut self, reading: Reading, scored: Scored) {
        let seconds = self.seconds();
        let (last, then) = self.last;
        let (weight, elapsed) =
            (reading.weight_sum - last.weight_sum, (seconds - then).as_secs_f64());
        let examples = reading.examples.saturating_sub(last.examples);
        let step = reading.steps / self.workers_total;
        let rate = |(base, schedule): &(f64, Schedule)| {
            f64::from(self.rate_factor.get())
                * base
                * f64::from(schedule.factor(step.saturating_sub(1)))
        };
        let rounds = reading.rounds.since(last.rounds);
        let per_second = |n: u64| (elapsed > 0.0 && n > 0).then(|| n as f64 / elapsed);
        let steps = reading.steps.saturating_sub(last.steps);
        let gradients = reading.gradients.since(last.gradients);
        let all = gradients.counted + gradients.dropped;
        let behind = |sum: u64| (all > 0).then(|| sum as f64 / all as f64);
        let report = Report {
            step,
            examples: reading.examples,
            epoch: u32::try_from(step.saturating_sub(1) / self.steps_per_epoch).unwrap_or(u32::MAX),
            seconds: seconds.as_secs_f64(),
            logloss: (weight > 0.0).then(|| (reading.loss_sum - last.loss_sum) / weight),
            examples_per_second: (elapsed > 0.0 && examples > 0).then(|| examples as f64 / elapsed),
            lr_dense: Some(rate(&self.rates[0])),
            lr_sparse: Some(rate(&self.rates[1])),
            sync_gap: (rounds.round_ns > 0 && rounds.rounds > 0)
                .then(|| steps as f64 / rounds.rounds as f64),
            sync_rounds_per_second: per_second(rounds.rounds),
            sync_bytes_per_second: per_second(rounds.bytes),
            disagreement: (rounds.disagreements > 0)
                .then(|| rounds.disagreement / rounds.disagreements as f64),
            method: self.method.map(|(method, _)| method.name().to_owned()),
            changes: self.method.map(|(_, changes)| changes),
            token_staleness: behind(gradients.staleness),
            version_lag: behind(gradients.lag),
            gradients_dropped: (all > 0).then_some(gradients.dropped),
            progressive: scored.progressive,
            valid: scored.valid,
        };
        self.last = (reading, seconds);
        if let Some(progress) = &mut self.progress {
            progress.report(&report);
        }
        if let (Err(error), None) = (self.folder.report(&report), &self.failed) {
            // At once: who looks is to know that nothing is recorded any more.
            say(&format!("umbra: warning: {error}"));
            self.failed = Some(error);
        }
    }
}
/// Workers whose steps are one of the job's: of a replica, one on each of its ranks.
const fn workers_total(plan: &Plan) -> u64 {
    (plan.order.workers_total * plan.roles.dense_partitions) as u64
}
