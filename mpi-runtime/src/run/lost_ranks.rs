//! A run that goes on without ranks that were lost, inside the job.
//!
//! "CPR: understanding and improving failure tolerant training for deep learning recommendation
//! with partial recovery", arXiv 2011.02999: ranks that did not fail keep what they have, and only
//! the rows of the lost ones come back from a checkpoint.
//!
//! Everything that a rank does between two agreements is given up on all of them (`comm::loss`).
//! Those left keep their rows, replicas and optimizer state, find each other in a new world, deal
//! out what the others had (`Roles::of_those`), and begin a stretch of training where they are
//! (`take_over.rs`). A trainer's replica has whole steps only.
//!
//! Invariants: the main threads of all ranks are here together, and no other thread of theirs uses
//! MPI. One more rank that is lost meanwhile ends the job, as where the library can't go on: it is
//! started again from its checkpoint (`umbra launch`).

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use super::Run;
use super::change::Carried;
use super::going_on::{self, Kept};
use super::job::{Outcome, heartbeat_report};
use super::plan::Plan;
use super::reporter::Recorder;
use super::sections::{Begin, JobState};
use super::session::{Session, to_its_end};
use super::stragglers::Stragglers;
use crate::checkpoint::{Checkpoint, Folders};
use crate::comm::Comm;
use crate::config::RecoveryMode;
use crate::dense::served::{Remains, Served};
use crate::error::Error;
use crate::launch::world::World;
use crate::record::{RankLoss, RunFolder, note};
use crate::recovery::local::LocalImages;
use crate::rows::tables::Partition;

/// What a rank has left of a run that it gave up.
struct Left {
    plan: Plan,
    state: JobState,
    carried: Carried,
    /// On a rank that has something of servers.
    served: Option<Remains>,
    /// Steps that its workers have made, in steps of the data: the most of any, and the mean.
    made: Option<(u64, f64)>,
}

impl Run<'_> {
    /// Ends all threads of a run in which a rank was lost. *Not collective.*
    fn abandon(mut self) -> Result<Left, Error> {
        let traffic = [self.embedding_traffic(), self.dense_traffic()];
        let compressed = self.compressed();
        let (reading, center) = (self.reading(), self.counters.center.read());
        let served = self.sync.served();
        let tally = served.and_then(Served::tally).cloned();
        let tally = tally.or(self.tally.take());
        let (remains, is_served) = (served.map(|served| served.remains()), served.is_some());
        let made = self.trainer.is_some().then(|| self.made(is_served));
        let Self { control, services, heartbeat, trainer, dense, sync, saver, .. } = self;
        let trainer = trainer.map(|side| side.abandon(control.watch())).transpose()?;
        if let Some(saver) = saver {
            saver.finish();
        }
        let partitions = Some(services.abandon());
        heartbeat.finish();
        drop((dense, sync));
        let Self { plan, state, gaps, trained, trace, .. } = self;
        let counted = Carried { reading, center, traffic, compressed, tally, ..Carried::default() };
        let carried = Carried { partitions, trainer, gaps, trained, trace, ..counted };
        Ok(Left { plan, state, carried, served: remains, made })
    }

    /// How far the workers of this rank are, in steps of the data.
    fn made(&self, is_served: bool) -> (u64, f64) {
        let steps = || self.counters.worker_steps().map(|steps| steps.load(Relaxed));
        let mean = steps().sum::<u64>() as f64 / steps().count().max(1) as f64;
        if is_served {
            // Workers make as many steps as they can, each of one batch of a stream.
            let share = self.plan.workers() as f64 / self.plan.order.workers_total as f64;
            return (whole(mean * share), mean * share);
        }
        (steps().max().unwrap_or(0), mean)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of steps")]
const fn whole(steps: f64) -> u64 {
    steps as u64
}

impl Session<'_> {
    /// Goes on to the end of the run on the ranks that are left. *Collective over those; main
    /// thread only.*
    ///
    /// # Errors
    /// As a run does. The job ends where those left can't go on.
    pub(super) fn without_the_lost(self) -> Result<Outcome, Error> {
        let begun = Instant::now();
        let Self { world, .. } = self;
        let alone = world.watch().clone();
        let end = |error: Error| -> ! { alone.end_job(error.exit_code(), &error) };
        let Self { run, recorder, losses, .. } = self;
        let mut losses = losses;
        // What the first step after the last loss was is known by now.
        if let (Some(last), Some(side)) = (losses.last_mut(), &run.trainer) {
            last.next_step_unix = side.shared.first_step.get();
        }
        let left = run.abandon().unwrap_or_else(|error| end(error));
        let (world, control, before) = world.left().unwrap_or_else(|error| end(error));
        let end = |error: Error| -> ! { world.watch().end_job(error.exit_code(), &error) };
        let size = self.world.size;
        let lost: Vec<usize> = (0..size).filter(|rank| !before.contains(rank)).collect();
        if let Err(error) = may_go_on(&before, &lost, size) {
            end(error);
        }
        let shared = Shared {
            signals: self.signals,
            deadline: &self.deadline,
            folders: &self.folders,
            from: self.from.as_ref(),
        };
        let went_on = go_on(&world, &control, left, (&before, &lost), &shared, recorder);
        let (run, recorder, stragglers, mut loss) = went_on.unwrap_or_else(|error| end(error));
        // Ranks have other numbers now: images of before are nobody's.
        if let Some(local) = &self.local {
            local.clear();
        }
        let local = LocalImages::open(&world, &control, &run.plan.job.config, true);
        let local = local.unwrap_or_else(|error| end(error));
        loss.seconds = begun.elapsed().as_secs_f64();
        if world.rank == 0 {
            note(&format!("umbra: {}", loss.says(world.size)));
        }
        losses.push(loss);
        let (summary, mut due, mut rows_due) = (self.summary, self.due, self.rows_due);
        let mut local_due = self.local_due;
        // Whatever ranks decide by must be the same on all of them, wherever they were given up.
        due.begin_again(run.plan.job.global_batch() as u64);
        rows_due.begin_again(run.plan.job.global_batch() as u64);
        local_due.begin_again(run.plan.job.global_batch() as u64);
        let spacing = run.plan.job.config.spacing(run.plan.roles.embedding_ps.len());
        if let Some(spacing) = &spacing {
            due.space(spacing.interval());
            rows_due.respace(run.plan.job.config.recovery.priority_share * spacing.interval());
        }
        let valid = run.state.valid;
        let session = Session {
            world: &world,
            control: &control,
            run,
            recorder,
            summary,
            losses,
            stragglers,
            signals: self.signals,
            deadline: self.deadline,
            due,
            rows_due,
            local,
            local_due,
            spacing,
            written: Duration::ZERO,
            played: None,
            folders: self.folders,
            from: self.from,
            // Steps have other numbers now.
            begun: 0,
            saved: 0,
            saved_whole: true,
            valid,
            progressive: self.progressive,
            seconds: self.seconds,
            publishing: self.publishing,
            switches: self.switches,
            change_asked: false,
        };
        to_its_end(session)
    }
}

/// Those left are the job: more than half of it, or the half with its first rank. Where a network
/// is parted, the other part ends.
fn may_go_on(left: &[usize], lost: &[usize], size: usize) -> Result<(), Error> {
    if lost.is_empty() {
        return Err(Error::Failure("a call of MPI failed, and all ranks are there".to_owned()));
    }
    let half = 2 * left.len() == size && left.contains(&0);
    if 2 * left.len() > size || half {
        return Ok(());
    }
    Err(Error::Failure(format!(
        "{} of {size} ranks were lost: those left can't know that they are the job",
        lost.len()
    )))
}

/// What of a session a run goes on with.
struct Shared<'a> {
    signals: &'a Arc<crate::launch::signals::Signals>,
    deadline: &'a super::deadline::Deadline,
    folders: &'a Folders,
    /// What the run began from.
    from: Option<&'a Checkpoint>,
}

type WentOn<'w> = (Run<'w>, Option<Recorder>, Option<Stragglers>, RankLoss);

/// Starts the run again on the ranks `left` of those before, without the `lost`. *Collective.*
fn go_on<'w>(
    world: &'w World,
    control: &'w Comm,
    remains: Left,
    (left, lost): (&[usize], &[usize]),
    shared: &Shared<'_>,
    recorder: Option<Recorder>,
) -> Result<WentOn<'w>, Error> {
    let Left { plan, mut state, mut carried, served, made } = remains;
    let served = served.unwrap_or_default();
    let (bsp, batch_before) = (plan.synchronous(), plan.job.global_batch() as u64);
    let partitions_of = |rank: &usize| plan.roles.partitions_of(*rank).collect::<Vec<u32>>();
    let mut lost_partitions: Vec<u32> = lost.iter().flat_map(partitions_of).collect();
    lost_partitions.sort_unstable();
    // In the steps of those before, then in examples, which mean the same to all.
    let (most, mean) = made.map_or((0, 0), |(most, mean)| (1 + most, mean.to_bits()));
    // A rank that was given up between two stretches may not have counted the last one.
    let own = [most, mean, state.step];
    let mut all = vec![0; own.len() * control.size()];
    control.all_gather(&own, &mut all, "steps that were made")?;
    let workers = || all.chunks(own.len()).filter(|rank| rank[0] > 0);
    let steps = if bsp {
        workers().map(|rank| rank[0] - 1).max().unwrap_or(0)
    } else {
        let sum: f64 = workers().map(|rank| f64::from_bits(rank[1])).sum();
        whole(sum / workers().count().max(1) as f64)
    };
    let counted = all.chunks(own.len()).map(|rank| rank[2]).max().unwrap_or(0);
    let steps = steps.max(counted);
    let examples = steps * batch_before;
    let plan = control.agree(plan.of_those(left))?;
    let step = (examples / plan.job.global_batch() as u64).min(plan.steps);
    let total = plan.steps * plan.job.global_batch() as u64;

    let everybody = plan.job.config.recovery.mode == Some(RecoveryMode::Full);
    let found = if control.rank() == 0 {
        let newest = going_on::newest(shared.folders, &mut vec![])?;
        match newest {
            Some(newest) if !everybody => newest.with_row_saves(u64::MAX).map(Some),
            Some(newest) => Ok(Some(newest)),
            None => shared.from.map(Checkpoint::again).transpose(),
        }
    } else {
        Ok(None)
    };
    let found: Option<Checkpoint> = control.agree(found.map_err(Error::from))?;
    let mut there = [u64::from(found.is_some())];
    control.broadcast(&mut there, "the checkpoint with lost rows", false)?;
    let checkpoint = (there == [1]).then(|| Checkpoint::tell(control, found)).transpose()?;
    let step = match (&checkpoint, everybody) {
        (Some(checkpoint), true) => going_on::step_here(&plan, checkpoint),
        (None, true) => 0,
        (_, false) => step,
    };
    state.step = step;

    let partitions = carried.partitions.take().unwrap_or_default();
    let partitions = own_partitions(partitions, &plan, world.rank);
    carried.partitions = Some(control.agree(partitions)?);
    let rate_factor = state.rate_factor.clone();
    let recorder = match recorder {
        Some(recorder) => Some(recorder),
        None if world.rank == 0 => Some(record_again(&plan, &world.host, rate_factor, step)?),
        None => None,
    };
    let stragglers = if world.rank == 0 { Stragglers::new(&plan) } else { None };
    let report =
        heartbeat_report(recorder.as_ref(), shared.deadline, stragglers.as_ref(), shared.signals);
    let begin = Begin { state, worker_steps: vec![], left: carried };
    let mut run = Run::start(world, control, plan, shared.signals, Some(begin), report)?;
    run.take_job_state(true)?;
    run.state.step = step;
    let mut bytes_read = 0;
    match (&checkpoint, everybody) {
        (Some(checkpoint), true) => {
            run.resume(checkpoint, step, Kept::Model)?;
        }
        (Some(checkpoint), false) => {
            bytes_read = run.read_lost(checkpoint, &lost_partitions)?;
            run.take_over(Some(&served), step)?;
        }
        (None, true) => {
            return Err(Error::Failure("there is no checkpoint to go back to".to_owned()));
        }
        // Lost rows are as they were at the beginning.
        (None, false) => run.take_over(Some(&served), step)?,
    }
    if let Some(side) = &mut run.trainer {
        side.shared.first_step.forget();
    }
    if let Some(recorder) = &recorder {
        recorder.goes_on(&run.plan, step);
    }
    let saved = checkpoint.as_ref().map(|checkpoint| {
        let manifest = &checkpoint.manifest;
        (manifest.steps, manifest.steps * manifest.global_batch())
    });
    let share = lost_partitions.len() as f64 / f64::from(run.plan.roles.partitions);
    let since = examples.saturating_sub(saved.map_or(0, |(_, examples)| examples));
    let loss = RankLoss {
        ranks: lost.to_vec(),
        step,
        from_step: saved.map(|(step, _)| step),
        row_saves: checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.row_saves().len()),
        partitions: lost_partitions,
        pls: if everybody { 0.0 } else { share * since as f64 / total.max(1) as f64 },
        bytes_read,
        ..RankLoss::default()
    };
    Ok((run, recorder, stragglers, loss))
}

/// This rank's partitions: those that it has, and with initial values those that are new to it.
fn own_partitions(
    mut held: Vec<Partition>,
    plan: &Plan,
    rank: usize,
) -> Result<Vec<Partition>, Error> {
    for number in plan.roles.partitions_of(rank) {
        if held.iter().all(|partition| partition.number != number) {
            let new =
                Partition::initialized(number, &plan.layout, &plan.model, plan.job.config.seed);
            held.push(new.map_err(|error| Error::Launch(error.to_string()))?);
        }
    }
    held.sort_unstable_by_key(|partition| partition.number);
    Ok(held)
}

/// The records of a run whose first rank was lost, taken up by the one that is the first now.
fn record_again(
    plan: &Plan,
    host: &str,
    rate_factor: crate::state::RateFactor,
    step: u64,
) -> Result<Recorder, Error> {
    let config = &plan.job.config;
    // A process that was killed has its locks until the system has cleaned up behind it.
    RunFolder::wait_until_free(config, host);
    let claim = RunFolder::claim(config, host)?;
    let folder = RunFolder::open(claim, config, host, Some(step))?;
    Ok(Recorder::new(folder, plan, rate_factor, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_half_is_the_job_or_the_half_with_the_first_rank() {
        for (left, size, goes_on) in [
            (&[0, 2, 3][..], 4, true),
            (&[0, 3], 4, true),
            (&[1, 3], 4, false),
            (&[1, 2, 3], 5, true),
            (&[0, 1], 5, false),
            (&[0], 2, true),
            (&[1], 2, false),
            // A call has failed, and not for the loss of a rank.
            (&[0, 1], 2, false),
        ] {
            let lost: Vec<usize> = (0..size).filter(|rank| !left.contains(rank)).collect();
            assert_eq!(may_go_on(left, &lost, size).is_ok(), goes_on, "{left:?} of {size}");
        }
    }
}
