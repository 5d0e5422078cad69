//! The first rank's records while a run is under way: progress, `metrics.jsonl`, event files.
//!
//! Two threads report: the heartbeat, with what it hears, and the main thread, with evaluations. A
//! report is due at every point of the run (`curve.rs`), however fast these come, and when
//! `run.log_every_s` has passed without one. What a person sees comes more often at first, and on a
//! terminal every second; it changes nothing that is recorded.

use core::time::Duration;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use umbra_core::optim::Schedule;

use crate::config::{Config, SyncMethod};
use crate::error::Error;
use crate::measure::counters::Reading;
use crate::measure::points::Mark;
use crate::record::{EvalFigures, Progress, Report, RunFolder, Summary, say, unix_seconds};
use crate::run::curve::{Curve, sum};
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
    /// Gone when training has ended, or nobody wants to see it.
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
    /// Of that stretch or, between two, the last: training time before it, and when it began.
    stretch: (Duration, SystemTime),
    curve: Curve,
    /// The last step that was reported.
    step: u64,
    /// What was reported, and the training time then.
    last: Counted,
    /// The same of synchronization.
    last_sync: Counted,
    /// What was last shown.
    shown: Counted,
    /// A record that could not be written: reported when the run ends.
    failed: Option<Error>,
}

/// What was counted in so much time of training.
type Counted = (Reading, Duration);

/// What a report is of.
struct At {
    step: u64,
    /// All that was counted, as far as points know it.
    total: Reading,
    /// Training time.
    seconds: Duration,
    time: SystemTime,
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
        let counted = counted_before(plan, step);
        let inner = Inner {
            folder,
            progress: Progress::new(examples(step), examples(plan.steps), every),
            every,
            workers_total: workers_total(plan),
            steps_per_epoch: plan.steps_per_epoch,
            rates,
            rate_factor,
            method: (!plan.job.config.sync.switch.is_off()).then_some((plan.job.method, 0)),
            before: Duration::ZERO,
            since: None,
            stretch: (Duration::ZERO, SystemTime::now()),
            curve: Curve::new(plan, step),
            step,
            last: counted,
            last_sync: counted,
            shown: counted,
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

    /// What the heartbeat thread calls: reports what is due.
    #[must_use]
    pub fn heartbeat(&self) -> HeartbeatReport {
        let recorder = self.clone();
        Box::new(move |beat| {
            recorder.with(|inner| {
                inner.hear(beat.marks.iter().copied(), beat.readings);
                let reading = sum(beat.readings);
                let due = inner.seconds() >= inner.last.1 + inner.every;
                let new = reading.steps > inner.last.0.steps;
                if inner.since.is_some() && (beat.status_asked || due && new) {
                    inner.report_now(beat.readings, Scored::NONE, beat.status_asked);
                }
                inner.show(&reading);
            });
        })
    }

    /// What ranks have counted at the end of a stretch of training, and their marks: reports the
    /// points that are left of it.
    pub fn stretch_ended(&self, marks: impl Iterator<Item = (usize, Mark)>, readings: &[Reading]) {
        self.with(|inner| inner.hear(marks, readings));
    }

    /// The run goes on from `step` by another method, whose workers have begun there.
    pub fn changed(&self, plan: &Plan, step: u64) {
        self.with(|inner| {
            inner.workers_total = workers_total(plan);
            let changes = inner.method.map_or(0, |(_, changes)| changes);
            inner.method = Some((plan.job.method, changes + 1));
            inner.curve = Curve::new(plan, step);
            let steps = step * inner.workers_total;
            for counted in [&mut inner.last, &mut inner.last_sync, &mut inner.shown] {
                counted.0.steps = steps;
            }
        });
    }

    /// The run goes on at `step` on other ranks.
    pub fn goes_on(&self, plan: &Plan, step: u64) {
        self.with(|inner| {
            inner.workers_total = workers_total(plan);
            inner.steps_per_epoch = plan.steps_per_epoch;
            inner.before = inner.seconds();
            inner.since = None;
            inner.curve = Curve::new(plan, step);
            // Steps may have another size now.
            inner.step = step;
            // What lost ranks had counted is gone.
            let (reading, _) = counted_before(plan, step);
            let seconds = inner.before;
            inner.last = (reading, seconds);
            inner.last_sync = inner.last;
            inner.shown = inner.last;
        });
    }

    /// Training starts or stops: evaluation time is not training time.
    pub fn set_training(&self, training: bool) {
        self.with(|inner| {
            inner.before = inner.seconds();
            inner.since = training.then(Instant::now);
            if training {
                inner.stretch = (inner.before, SystemTime::now());
            }
        });
    }

    /// Training time so far.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.with(|inner| inner.seconds().as_secs_f64())
    }

    /// Reports an evaluation.
    pub fn evaluated(&self, readings: &[Reading], figures: EvalFigures) {
        let scored = Scored { valid: Some(figures), ..Scored::NONE };
        self.with(|inner| inner.report_now(readings, scored, true));
    }

    /// Reports progressive validation of a window.
    pub fn scored_before(&self, readings: &[Reading], figures: EvalFigures) {
        let scored = Scored { progressive: Some(figures), ..Scored::NONE };
        self.with(|inner| inner.report_now(readings, scored, true));
    }

    /// Reports what no report has told yet, and takes the progress bar away.
    pub fn end_progress(&self, readings: &[Reading]) {
        self.with(|inner| {
            if sum(readings).steps > inner.last.0.steps {
                inner.report_now(readings, Scored::NONE, true);
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
            inner.folder.finish(summary, inner.step)?;
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

    /// Takes marks, and reports the points that all have passed.
    fn hear(&mut self, marks: impl Iterator<Item = (usize, Mark)>, readings: &[Reading]) {
        marks.for_each(|(rank, mark)| self.curve.hear(rank, mark));
        while let Some(point) = self.curve.point(readings) {
            // A report by the clock was past it: points lie in order of steps.
            if point.step <= self.step {
                continue;
            }
            let since = Duration::from_nanos(point.at_ns);
            let (before, begun) = self.stretch;
            let (seconds, time) = (before + since, begun + since);
            let at = At { step: point.step, total: point.total, seconds, time };
            let ends_epoch = point.step.is_multiple_of(self.steps_per_epoch);
            self.report(&at, &sum(readings), Scored::NONE, ends_epoch);
        }
    }

    /// Reports all that ranks have counted, and with `said` says so.
    fn report_now(&mut self, readings: &[Reading], scored: Scored, said: bool) {
        let total = self.curve.report(readings);
        let step = total.steps / self.workers_total;
        let at = At { step, total, seconds: self.seconds(), time: SystemTime::now() };
        self.report(&at, &total, scored, said);
    }

    /// Reports what is `at` a moment, and of synchronization what is known `now`.
    fn report(&mut self, at: &At, now: &Reading, scored: Scored, said: bool) {
        // A rank may have been past a point when that was not known of all.
        let at = &At { seconds: at.seconds.max(self.last.1), step: at.step.max(self.step), ..*at };
        let now = (*now, self.seconds().max(self.last_sync.1));
        let report = self.between(&self.last, at, (&self.last_sync, &now));
        let report = Report { progressive: scored.progressive, valid: scored.valid, ..report };
        (self.last, self.last_sync, self.step) = ((at.total, at.seconds), now, at.step);
        if let Some(progress) = &mut self.progress {
            progress.report(&report, said);
        }
        if let (Err(error), None) = (self.folder.report(&report), &self.failed) {
            // At once: who looks is to know that nothing is recorded any more.
            say(&format!("umbra: warning: {error}"));
            self.failed = Some(error);
        }
    }

    /// Shows somebody who waits how far it is.
    fn show(&mut self, reading: &Reading) {
        let Some(progress) = &mut self.progress else { return };
        if self.since.is_none() || reading.steps <= self.shown.0.steps || !progress.is_due() {
            progress.tick();
            return;
        }
        let (seconds, time) = (self.seconds(), SystemTime::now());
        let step = reading.steps / self.workers_total;
        let at = At { step, total: *reading, seconds, time };
        let now = (*reading, seconds);
        let report = self.between(&self.shown, &at, (&self.shown, &now));
        self.shown = now;
        if let Some(progress) = &mut self.progress {
            progress.show(&report);
        }
    }

    /// What came between `last` and `at`; of synchronization between two others.
    fn between(&self, last: &Counted, at: &At, sync: (&Counted, &Counted)) -> Report {
        let At { step, total, seconds, time } = at;
        let (last, then) = last;
        let (weight, elapsed) =
            (total.weight_sum - last.weight_sum, (*seconds - *then).as_secs_f64());
        let examples = total.examples.saturating_sub(last.examples);
        let rate = |(base, schedule): &(f64, Schedule)| {
            f64::from(self.rate_factor.get())
                * base
                * f64::from(schedule.factor(step.saturating_sub(1)))
        };
        let ((last_sync, then), (now, time_now)) = sync;
        let rounds = now.rounds.since(last_sync.rounds);
        let of_sync = (*time_now - *then).as_secs_f64();
        let per_second = |n: u64| (of_sync > 0.0 && n > 0).then(|| n as f64 / of_sync);
        let steps = now.steps.saturating_sub(last_sync.steps);
        let gradients = now.gradients.since(last_sync.gradients);
        let all = gradients.counted + gradients.dropped;
        let behind = |sum: u64| (all > 0).then(|| sum as f64 / all as f64);
        Report {
            step: *step,
            examples: total.examples,
            epoch: u32::try_from(step.saturating_sub(1) / self.steps_per_epoch).unwrap_or(u32::MAX),
            seconds: seconds.as_secs_f64(),
            time: Some(unix_seconds(*time)),
            logloss: (weight > 0.0).then(|| (total.loss_sum - last.loss_sum) / weight),
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
            progressive: None,
            valid: None,
        }
    }
}

/// What all ranks have counted when the run of `plan` goes on from `step`: steps alone.
fn counted_before(plan: &Plan, step: u64) -> Counted {
    (Reading { steps: step * workers_total(plan), ..Reading::default() }, Duration::ZERO)
}

/// Workers whose steps are one of the job's: of a replica, one on each of its ranks.
const fn workers_total(plan: &Plan) -> u64 {
    (plan.order.workers_total * plan.roles.dense_partitions) as u64
}
