//! A run's checkpoints: on the way and at its end.
//!
//! Invariants: main threads of all ranks order the same saves in the same order, one at a time. One
//! on the way that can't be written is a warning; the last one, which nobody would go on without,
//! is an error.

use core::time::Duration;
use std::time::Instant;

use umbra_core::kernel;

use super::Run;
use super::session::Session;
use crate::checkpoint::{
    self, After, Extent, Folders, Link, Manifest, Saved, Saver, say_unwritten,
};
use crate::comm::watch::Lost;
use crate::dense::parts::WholeOn;
use crate::error::Error;
use crate::record::{build_hash, note, say, say_saved};
use crate::recovery::planner::Span;
use crate::recovery::played::Played;
use crate::rows::tables::Partition;
use crate::rows::usage::UsageMemory;

impl Run<'_> {
    /// Writes a checkpoint among `folders` while nothing trains. Returns its bytes.
    ///
    /// # Errors
    /// When a file can't be written.
    pub fn save(
        &mut self,
        folders: &Folders,
        manifest: Manifest,
        after: After,
    ) -> Result<u64, Error> {
        let control = self.control;
        self.gather_parts(WholeOn::First)?;
        let written = self.with_contents(|contents, _| {
            checkpoint::write(control, folders, manifest, contents, after)
        });
        self.release_parts();
        written
    }

    /// Takes the image of a checkpoint, and lets it be written while training goes on. False when
    /// this run has no memory for it. The save before must have ended
    /// ([`wait_for_save`](Self::wait_for_save)).
    ///
    /// # Errors
    /// When not all ranks of a replica come in time.
    pub fn save_behind(
        &mut self,
        folders: &Folders,
        manifest: Manifest,
        after: After,
    ) -> Result<bool, Lost> {
        if self.saver.is_some() {
            self.gather_parts(WholeOn::First)?;
        }
        let behind = self.with_contents(|contents, saver| {
            let behind = saver.is_some();
            if let Some(saver) = saver {
                saver.begin(folders, manifest, contents, after);
            }
            behind
        });
        // What is remembered of updates since a save is of played ones, where there are any.
        if self.plan.job.config.recovery.inject.failures.is_none() {
            let partitions = self.services.partitions.iter();
            partitions.filter_map(Partition::usage).for_each(UsageMemory::clear);
        }
        self.release_parts();
        Ok(behind)
    }

    /// The failures that this run plays, from here on. *Not collective.*
    pub(super) fn play_failures(&self) -> Option<Played> {
        let (plan, partitions) = (&self.plan, &self.services.partitions);
        let config = &plan.job.config;
        Played::new(&config.recovery, config.seed, plan.steps, &plan.layout, partitions)
    }

    /// Waits until the checkpoint that is being written is there, or is not; `None` when none is.
    pub fn wait_for_save(&mut self) -> Option<Saved> {
        self.saver.as_mut().and_then(Saver::wait)
    }

    /// Lends all that a checkpoint has of this rank, and what writes it in the background. *Not
    /// collective.*
    pub(super) fn with_contents<T>(
        &mut self,
        use_them: impl FnOnce(&checkpoint::Contents<'_>, Option<&mut Saver>) -> T,
    ) -> T {
        let (model, own_replicas) = (self.plan.model, self.publishes());
        let first = self.plan.roles.trainers.rank_of(0) == self.world.rank;
        let record = self.plan.layout.record();
        let row_precision = self.plan.job.config.checkpoint.row_precision;
        let mut saver = self.saver.take();
        let sections = &self.sections();
        let contents = checkpoint::Contents {
            model: &model,
            sections,
            record,
            row_precision,
            own_replicas,
            first,
        };
        let result = use_them(&contents, saver.as_mut());
        self.saver = saver;
        result
    }
}

impl Session<'_> {
    /// Saves this step, in the background if there is memory for a copy; `best` names it the best.
    /// Training goes on where it can't be written.
    pub(super) fn save_on_the_way(&mut self, best: bool) -> Result<(), Error> {
        let start = Instant::now();
        self.finish_save();
        let step = self.run.state.step;
        let (first, after) = (self.world.rank == 0, self.after(best));
        if self.saved == step && step > 0 && (self.saved_whole || !best) {
            let name = || if best { self.folders.link(Link::Best, step) } else { Ok(()) };
            let named = if first { name() } else { Ok(()) };
            return self.or_warn(self.control.agree(named.map_err(Error::from))).map(drop);
        }
        let manifest = manifest(&self.run)?;
        self.begun = step;
        if !self.run.save_behind(&self.folders, manifest.clone(), after)? {
            let saved = self.run.save(&self.folders, manifest, after);
            if let Some(bytes) = self.or_warn(saved)? {
                self.saved(whole(step, bytes, start));
                if first {
                    say_saved(&self.folders.of(step));
                }
            }
        }
        self.due.saved();
        self.rows_due.saved();
        self.expose(start);
        self.space(start.elapsed())
    }

    /// Saves this step with all rows, and waits for it.
    pub(super) fn save_now(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        self.finish_save();
        let step = self.run.state.step;
        if self.saved != step || step == 0 || !self.saved_whole {
            let manifest = manifest(&self.run)?;
            let bytes = self.run.save(&self.folders, manifest, self.after(false))?;
            self.begun = step;
            self.saved(whole(step, bytes, start));
        }
        self.expose(start);
        Ok(())
    }

    /// Whether the model of the best validation is there. *Collective.*
    pub(super) fn has_best(&mut self) -> Result<bool, Error> {
        self.finish_save();
        let best = self.run.state.best_step;
        let there = self.world.rank == 0 && self.folders.linked(Link::Best) == Some(best);
        let mut there = [u64::from(there)];
        self.control.broadcast(&mut there, "the best checkpoint", false)?;
        if there == [0] && self.world.rank == 0 {
            say("umbra: warning: the best model was not saved; the run keeps the last one");
        }
        Ok(there == [1])
    }

    /// Waits for the save in the background, if one is under way.
    pub(super) fn finish_save(&mut self) {
        if let Some(saved) = self.run.wait_for_save() {
            let figures = self.summary.checkpoint.get_or_insert_default();
            let seconds = saved.took.as_secs_f64();
            if saved.extent == Extent::First {
                let figures = figures.row_saves.get_or_insert_default();
                figures.count += u64::from(saved.bytes.is_some());
                figures.bytes += saved.bytes.unwrap_or(0);
                figures.seconds_background += seconds;
                return;
            }
            *figures.seconds_background.get_or_insert_default() += seconds;
            self.written = saved.took;
            self.saved(saved);
        }
    }

    fn saved(&mut self, saved: Saved) {
        let Saved { step, bytes: Some(bytes), extent, took } = saved else { return };
        (self.saved, self.saved_whole) = (step, extent == Extent::All);
        self.deadline.saved(took);
        let figures = self.summary.checkpoint.get_or_insert_default();
        figures.count += 1;
        *figures.bytes.get_or_insert_default() += bytes;
    }

    fn after(&self, best: bool) -> After {
        After { keep: self.run.plan.job.config.checkpoint.keep, best }
    }

    /// Says how far apart the next checkpoints are, where what they take decides: this one has kept
    /// training for `waited`. *Collective.*
    fn space(&mut self, waited: Duration) -> Result<(), Error> {
        let Some(spacing) = &mut self.spacing else { return Ok(()) };
        let own = [waited, self.written].map(|time| time.as_secs_f64().to_bits());
        let mut all = vec![0; own.len() * self.world.size];
        self.control.all_gather(&own, &mut all, "what a checkpoint took")?;
        let most = |index| {
            let times = all.iter().skip(index).step_by(own.len());
            times.map(|bits| f64::from_bits(*bits)).fold(0.0, f64::max)
        };
        if spacing.measured(most(0), most(1)) {
            self.due.space(spacing.interval());
            let share = self.run.plan.job.config.recovery.priority_share;
            self.rows_due.respace(share * spacing.interval());
            if self.world.rank == 0 {
                note(&format!(
                    "umbra: a checkpoint every {}: training waits {} for one, and it is written \
                     for {}; a failure comes every {}",
                    Span(spacing.interval()),
                    Span(most(0)),
                    Span(most(1)),
                    Span(spacing.mtbf())
                ));
            }
        }
        self.summary.checkpoint.get_or_insert_default().interval_s = Some(spacing.interval());
        Ok(())
    }

    /// Training has waited since `start`.
    pub(super) fn expose(&mut self, start: Instant) {
        let figures = self.summary.checkpoint.get_or_insert_default();
        *figures.seconds_exposed.get_or_insert_default() += start.elapsed().as_secs_f64();
    }

    /// A file that can't be written is a warning.
    fn or_warn<T>(&self, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Err(error) if error.exit_code() == 4 => {
                say_unwritten(&error);
                Ok(None)
            }
            result => result.map(Some),
        }
    }
}

/// One that training has waited for since `start`.
fn whole(step: u64, bytes: u64, start: Instant) -> Saved {
    Saved { step, bytes: Some(bytes), extent: Extent::All, took: start.elapsed() }
}

/// What a checkpoint of this run says of itself.
pub(super) fn manifest(run: &Run<'_>) -> Result<Manifest, Error> {
    let plan = &run.plan;
    let config = plan.job.config.to_toml();
    Ok(Manifest {
        git: build_hash().to_owned(),
        simd: kernel::selected().to_string(),
        config: config
            .map_err(|error| Error::Failure(format!("configuration as TOML: {error}")))?,
        method: plan.job.method.name().to_owned(),
        steps: run.state.step,
        updates: run.updates(),
        trainers: plan.roles.trainers.len(),
        workers: plan.order.workers_total,
        batch_size: plan.order.batch_size,
        lanes: plan.order.lanes_used(),
        ..Manifest::of(&plan.train, &plan.layout)
    })
}
