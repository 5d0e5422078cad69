//! A run and what is recorded of it: stretches of training, what lies between them, and its end.
//!
//! Invariants: main threads of all ranks take the same turns at the same steps. What is given up
//! when a rank is lost is all that a session does until its figures are there (`to_its_end`).

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use crate::checkpoint::{Checkpoint, Folders};
use crate::comm::loss::RankLost;
use crate::comm::watch::Lost;
use crate::comm::{Comm, loss};
use crate::config::{Save, SyncMethod};
use crate::error::Error;
use crate::launch::signals::Signals;
use crate::launch::world::World;
use crate::record::{RankLoss, Summary, SyncSwitch};
use crate::recovery::local::LocalImages;
use crate::recovery::played::Played;
use crate::recovery::spacing::Spacing;
use crate::run::deadline::Deadline;
use crate::run::due::Due;
use crate::run::job::Outcome;
use crate::run::measures::eval_figures;
use crate::run::reporter::Recorder;
use crate::run::sections::{FIGURES, JobState, numbers_of};
use crate::run::stragglers::Stragglers;
use crate::run::{Run, StretchEnd};
use crate::score::figures::Figures;
use crate::score::progressive::Progressive;
use crate::trainer::Segment;

/// How training ended for now.
enum End {
    /// All of it was done.
    Done,
    /// It was asked to stop.
    Stopped,
    /// It goes on by another method.
    Change(SyncMethod),
}

/// A run and what is recorded of it.
pub(super) struct Session<'w> {
    pub(super) world: &'w World,
    pub(super) control: &'w Comm,
    pub(super) signals: &'w Arc<Signals>,
    pub(super) run: Run<'w>,
    pub(super) recorder: Option<Recorder>,
    pub(super) summary: Summary,
    pub(super) deadline: Deadline,
    /// When the next checkpoint is.
    pub(super) due: Due,
    /// When rows that come first are saved next.
    pub(super) rows_due: Due,
    /// Where what checkpoints take says how far apart they are.
    pub(super) spacing: Option<Spacing>,
    /// What the last one took that was written in the background.
    pub(super) written: Duration,
    /// Failures that it plays.
    pub(super) played: Option<Played>,
    /// Ranks that were lost, and how it went on.
    pub(super) losses: Vec<RankLoss>,
    /// What the run began from.
    pub(super) from: Option<Checkpoint>,
    /// Images of this rank on its node, and when the next one is due.
    pub(super) local: Option<LocalImages>,
    pub(super) local_due: Due,
    pub(super) folders: Folders,
    /// Step of the newest save that was written or begun.
    pub(super) begun: u64,
    /// Step of the newest checkpoint.
    pub(super) saved: u64,
    /// It has all rows.
    pub(super) saved_whole: bool,
    /// Figures of the last evaluation.
    pub(super) valid: [f64; FIGURES],
    /// What this run has scored before it learnt from it.
    pub(super) progressive: Option<Progressive>,
    /// Training, until the last worker of the slowest trainer has ended.
    pub(super) seconds: Duration,
    /// From there to the model that is evaluated and saved.
    pub(super) publishing: Duration,
    /// Changes of the method.
    pub(super) switches: Vec<SyncSwitch>,
    /// On the first rank of a run that changes its method by itself.
    pub(super) stragglers: Option<Stragglers>,
    /// That it changes now.
    pub(super) change_asked: bool,
}

/// Trains what is left to train, on whoever is left, and ends the run. *Collective, main thread
/// only.*
pub(super) fn to_its_end(mut session: Session<'_>) -> Result<Outcome, Error> {
    // While its threads live: nobody else could end them.
    loop {
        let watch = session.control.watch();
        let work = |session: &mut Session<'_>| {
            let ended = match watch.end_if_lost(session.train()) {
                Ok(End::Change(to)) => return Ended::ToChange(to),
                Ok(End::Stopped) => Ok(true),
                Ok(End::Done) => Ok(false),
                Err(error) => Err(error),
            };
            let concluded = watch.end_if_lost(session.conclude());
            Ended::All(Box::new((ended, concluded)))
        };
        let worked = if session.played.is_some() {
            Ok(work(&mut session))
        } else {
            loss::survive(|| work(&mut session))
        };
        match worked {
            Ok(Ended::All(both)) => return session.finish(both.0, both.1),
            Ok(Ended::ToChange(to)) => {
                let watch = Arc::clone(session.world.watch());
                session = watch.end_if_lost(session.change(to))?;
            }
            Err(RankLost) => return session.without_the_lost(),
        }
    }
}

/// How far a session has come.
enum Ended {
    /// It goes on by another method.
    ToChange(SyncMethod),
    /// To its end: whether it was stopped, and what its figures came to.
    All(Box<(Result<bool, Error>, Result<(), Error>)>),
}

impl Session<'_> {
    /// All stretches of training until the method changes, the evaluations between them and after.
    fn train(&mut self) -> Result<End, Error> {
        let plan = &self.run.plan;
        let early_stop = plan.job.config.train.early_stop.clone();
        let (config, steps) = (plan.job.config.clone(), plan.steps);
        let keep_best = plan.keeps_best();
        let factor = early_stop.as_ref().map_or(1.0, |settings| settings.lr_factor);
        loop {
            let JobState { step, evaluated, .. } = self.run.state;
            if evaluated != step && self.run.plan.evaluates_at(step) {
                let stop = self.validate(keep_best, factor)?;
                if stop {
                    break;
                }
            }
            if step > self.begun && step < steps {
                if self.due.is_due(step) {
                    self.save_on_the_way(false)?;
                } else if self.rows_due.is_due(step) {
                    self.save_rows()?;
                }
            }
            self.save_locally()?;
            if step >= steps {
                break;
            }
            let own = self.run.plan.job.method;
            let other = if core::mem::take(&mut self.change_asked) {
                config.sync.methods().find(|method| *method != own)
            } else {
                config.sync.method_at(step).filter(|method| *method != own)
            };
            if let Some(to) = other {
                return Ok(End::Change(to));
            }
            let boundary = self.run.plan.segment_end(step);
            let played = self.played.as_ref().and_then(|played| played.next(step));
            let images = self.local_due.next(step).filter(|_| self.local.is_some());
            let rows = self.rows_due.next(step);
            let cuts = self.due.next(step).into_iter().chain(rows).chain(played).chain(images);
            let end = cuts.fold(boundary, u64::min);
            let ended = self.stretch(Segment { first_step: step, steps: end - step })?;
            self.count_scored_before()?;
            self.due.trained(end - step, ended.trained);
            self.rows_due.trained(end - step, ended.trained);
            self.local_due.trained(end - step, ended.trained);
            // A request that comes with the last step changes nothing: the work is done.
            if ended.stop_asked && (ended.incomplete || end < steps) {
                self.run.state.step = if ended.incomplete { ended.steps } else { end };
                self.save_now()?;
                return Ok(End::Stopped);
            }
            self.change_asked = ended.change_asked;
            let early = ended.incomplete && ended.change_asked;
            self.run.state.step = if early { ended.steps } else { end };
            if let Some(played) = &mut self.played
                && played.play(self.run.state.step)
            {
                // Nobody asks for rows that are on their way back.
                self.control.barrier("rows that come back", true)?;
            }
        }
        let JobState { step, best_step, .. } = self.run.state;
        let restored = keep_best && best_step > 0 && best_step != step && self.has_best()?;
        if keep_best && best_step != step && !restored {
            self.run.state.valid = self.valid;
        }
        if restored {
            let best = self.folders.of(best_step);
            let checkpoint = Checkpoint::open(self.control, &best)?;
            self.run.restore(&checkpoint)?;
            self.run.state.step = best_step;
        }
        if let Some(test) = self.run.plan.test.take() {
            self.summary.test = Some(eval_figures(&self.run.evaluate(&test)?));
            let masked = self.run.evaluate_masked(&test)?;
            self.summary.test_masked = masked.as_ref().map(eval_figures);
            if !restored {
                let replica = self.run.evaluate_first_replica(&test)?;
                self.summary.test_replica = replica.as_ref().map(eval_figures);
            }
        }
        if restored {
            let first = self.world.rank == 0;
            let named = if first { self.folders.name_latest(best_step) } else { Ok(()) };
            self.control.agree(named.map_err(Error::from))?;
        } else if config.checkpoint.save == Save::Last {
            self.save_now()?;
        }
        Ok(End::Done)
    }

    /// Scores the validation data, and draws the consequences. True when training is to end.
    fn validate(&mut self, keep_best: bool, factor: f64) -> Result<bool, Error> {
        let Some(valid) = self.run.plan.valid.take() else { return Ok(false) };
        let figures = self.run.evaluate(&valid);
        self.run.plan.valid = Some(valid);
        let figures = figures?;
        self.evaluated(&figures)?;
        let state = &mut self.run.state;
        state.evaluated = state.step;
        let verdict = state.stopper.observe(&figures);
        self.valid = numbers_of(&eval_figures(&figures));
        // The figures of the model that the run ends with.
        if verdict.improved || !keep_best || state.best_step == 0 {
            state.valid = self.valid;
        }
        if verdict.improved {
            state.best_step = state.step;
            if keep_best {
                self.save_on_the_way(true)?;
            }
        } else {
            #[expect(clippy::cast_possible_truncation, reason = "a factor on f32 rates")]
            state.rate_factor.scale(factor as f32);
        }
        Ok(verdict.stop)
    }

    /// Reports how well the examples of the last stretch were scored before they were learnt from.
    fn count_scored_before(&mut self) -> Result<(), Error> {
        let window = self.run.scored_before()?;
        let Some(window) = window.filter(|window| window.examples() > 0) else { return Ok(()) };
        let readings = self.readings()?;
        if let Some(recorder) = &self.recorder {
            recorder.scored_before(&readings, eval_figures(&window.figures()));
        }
        match &mut self.progressive {
            Some(all) => all.join(&window),
            none => *none = Some(window),
        }
        Ok(())
    }

    /// A stretch of training, timed.
    fn stretch(&mut self, segment: Segment) -> Result<StretchEnd, Error> {
        let start = Instant::now();
        if let Some(recorder) = &self.recorder {
            recorder.set_training(true);
        }
        let stopped = self.run.train(segment);
        let trained = stopped.as_ref().map_or(start.elapsed(), |end| end.trained);
        self.seconds += trained;
        self.publishing += start.elapsed().saturating_sub(trained);
        if let Some(recorder) = &self.recorder {
            recorder.set_training(false);
        }
        let stopped = stopped?;
        let (marks, readings) = (self.run.new_marks()?, self.readings()?);
        if let Some(recorder) = &self.recorder {
            recorder.stretch_ended(marks.into_iter(), &readings);
        }
        Ok(stopped)
    }

    fn evaluated(&self, figures: &Figures) -> Result<(), Lost> {
        let readings = self.readings()?;
        if let Some(recorder) = &self.recorder {
            recorder.evaluated(&readings, eval_figures(figures));
        }
        Ok(())
    }
}
