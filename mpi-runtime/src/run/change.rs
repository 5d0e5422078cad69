//! The same run by another method, and how a run ends.
//!
//! "GBA: a tuning-free approach to switch between synchronous and asynchronous training for
//! recommendation model", arXiv 2205.11048: every hyperparameter stays, and the global batch.
//!
//! All threads and communicators of the method end, and those of the other are made, in the one
//! order of every start. Rows stay where they are; parameters and optimizer state go to the
//! servers, or have come from them when the last stretch ended.
//!
//! Invariants: a change is between two stretches of training, at the same step on all ranks.
//! Nothing is written: a checkpoint that is on its way is waited for.

use core::time::Duration;
use std::time::Instant;

use umbra_core::sync::server::Tally;

use super::Run;
use super::job::heartbeat_report;
use super::plan::Plan;
use super::sections::{Begin, JobState};
use super::session::Session;
use super::stragglers::{self, Stragglers};
use super::trainer_threads::Left;
use crate::comm::traffic::Traffic;
use crate::config::SyncMethod;
use crate::dense::seat::Gaps;
use crate::dense::served::Served;
use crate::error::Error;
use crate::measure::counters::{Reading, RoundReading};
use crate::measure::trace::{Trace, Track};
use crate::record::{self, SyncSwitch, note};
use crate::rows::tables::Partition;
use crate::run::compression::Compressed;

/// What a run leaves to the one that goes on with it by another method.
#[derive(Default)]
pub struct Carried {
    /// Rows of this rank.
    pub(super) partitions: Option<Vec<Partition>>,
    /// The trainer, with the model in the place of its replica.
    pub(super) trainer: Option<Left>,
    /// What was counted.
    pub(super) reading: Reading,
    pub(super) center: RoundReading,
    /// What was sent and received: of rows, of dense parameters.
    pub(super) traffic: [Traffic; 2],
    /// What compression came to.
    pub(super) compressed: Compressed,
    /// What became of gradients, on the rank of the dispatcher.
    pub(super) tally: Option<Tally>,
    pub(super) gaps: Gaps,
    pub(super) trained: Duration,
    pub(super) trace: Option<Trace>,
}

impl Run<'_> {
    /// Ends all threads of the run; returns what it was about, how far it came, and what is left of
    /// it.
    pub fn finish(self) -> (Plan, JobState, Carried) {
        let traffic = [self.embedding_traffic(), self.dense_traffic()];
        let compressed = self.compressed();
        let (reading, center) = (self.reading(), self.counters.center.read());
        let tally = self.sync.served().and_then(Served::tally).cloned().or(self.tally);
        let Self { control, services, heartbeat, trainer, dense, sync, saver, .. } = self;
        let watch = control.watch();
        // Workers' clients go first: partitions serve until nobody can ask.
        let trainer = trainer.map(|side| side.finish(watch));
        if let Some(saver) = saver {
            saver.finish();
        }
        let meet = |what, patient| watch.or_end(control.barrier(what, patient));
        meet("the end of the run", true);
        watch.or_end(services.quiesce(watch));
        meet("the last messages", true);
        let partitions = Some(services.finish());
        heartbeat.finish();
        meet("the end of the threads", false);
        drop((dense, sync));
        let Self { plan, state, gaps, trained, trace, .. } = self;
        let counted = Carried { reading, center, traffic, compressed, tally, ..Carried::default() };
        let left = Carried { partitions, trainer, gaps, trained, trace, ..counted };
        (plan, state, left)
    }

    /// Begins with what another method has left: the model that stands in the place of every
    /// trainer's replica.
    fn go_on(&mut self) -> Result<(), Error> {
        self.begin_at(self.state.step);
        self.serve_again()
    }
}

impl<'w> Session<'w> {
    /// Goes on with the other method. *Collective.*
    pub(super) fn change(mut self, to: SyncMethod) -> Result<Self, Error> {
        let start = Instant::now();
        self.finish_save();
        let Self { world, control, run, .. } = self;
        let (from, folder) = (run.plan.job.method, run.plan.job.config.run.dir.clone());
        let (plan, state, left) = run.finish();
        let step = state.step;
        let begin = Begin { state, worker_steps: vec![], left };
        let (recorder, stragglers) = (self.recorder.as_ref(), self.stragglers.as_ref());
        let why = stragglers.and_then(Stragglers::changed);
        let report = heartbeat_report(recorder, &self.deadline, stragglers, self.signals);
        let started = plan.with_method(to).and_then(|plan| {
            let mut run = Run::start(world, control, plan, self.signals, Some(begin), report)?;
            run.go_on()?;
            Ok(run)
        });
        let run = started.inspect_err(|error| record::fail(&folder, &error.to_string()))?;
        if let Some(recorder) = &self.recorder {
            recorder.changed(&run.plan, step);
        }
        Track::of(run.trace.as_ref(), Trace::RUN).span("change of the method", start.elapsed());
        let reason = why.as_ref().map(stragglers::why);
        let (seconds, method) = (start.elapsed().as_secs_f64(), to.name().to_owned());
        if world.rank == 0 {
            let why = reason.as_deref().map_or(String::new(), |why| format!(": {why}"));
            note(&format!("umbra: step {step}: {} after {}{why}", to.name(), from.name()));
        }
        self.switches.push(SyncSwitch { step, method, seconds, reason });
        Ok(Self { run, ..self })
    }
}
