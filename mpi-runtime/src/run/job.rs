//! A training run from start to end.

use core::time::Duration;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use umbra_core::kernel::multiplies_halves;

use crate::checkpoint::{Checkpoint, Folders, Manifest};
use crate::comm::{self, Comm, loss};
use crate::config::{Config, Every, Precision, RecoveryMode, Seconds};
use crate::error::Error;
use crate::launch::environment::{self, Cores};
use crate::launch::processor::{Pins, check_cores};
use crate::launch::signals::Signals;
use crate::launch::world::World;
use crate::record::{self, RunFolder, Summary, note, say};
use crate::recovery::local::LocalImages;
use crate::run::deadline::Deadline;
use crate::run::due::Due;
use crate::run::going_on::{self, Kept};
use crate::run::header::Header;
use crate::run::heartbeat::Report;
use crate::run::plan::Plan;
use crate::run::prediction::Prediction;
use crate::run::reporter::Recorder;
use crate::run::sameness;
use crate::run::sections::{Begin, JobState};
use crate::run::session::{Session, to_its_end};
use crate::run::stragglers::Stragglers;
use crate::run::{Run, local_images, warm_start};

/// What a training run came to.
pub enum Outcome {
    /// A dry run: the plan, and on the first rank what all are going to send and hold.
    Planned(Box<Plan>, Option<Prediction>),
    /// A run that ended well; its folder and the summary on the first rank.
    Trained(Option<(PathBuf, Box<Summary>)>),
}

/// What to do with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Train.
    Train {
        /// The run folder has the name that jobs have by default: another will do.
        by_default: bool,
    },
    /// Plan it on so many ranks, whatever the launch has; on the launch's without a number.
    Plan(Option<usize>),
}

/// Trains, or plans. *Collective over all ranks, main thread only.*
///
/// # Errors
/// The same exit code on every rank; one of them has the message.
pub fn train(
    world: &World,
    control: &Comm,
    config: Config,
    signals: &Arc<Signals>,
    task: Task,
) -> Result<Outcome, Error> {
    let dry_run = matches!(task, Task::Plan(_));
    let ranks = if let Task::Plan(Some(ranks)) = task { ranks } else { world.size };
    let mut plan = plan(world, control, config, ranks)?;
    control.agree(plan.train.check_labels().map_err(Error::from))?;
    if ranks == world.size && plan.roles.trainers.contains(world.rank) {
        control.agree(check_cores(&Cores::allowed(), plan.job.worker_threads, &world.host))?;
    } else {
        control.agree(Ok(()))?;
    }
    plan.place_tables(control, ranks)?;
    if plan.layout.owners().is_some() && ranks == world.size {
        let own = plan.node_of.get(world.rank);
        let on_node = plan.node_of.iter().filter(|node| Some(*node) == own).count();
        control.agree(plan.check_memory(world.rank, on_node.max(1)))?;
    }
    plan.choose_pooling(control, ranks)?;
    let first = world.rank == 0;
    if dry_run {
        // What is planned for other ranks does not start here.
        let here = first && matches!(task, Task::Plan(None));
        let free = if here { RunFolder::check(&plan.job.config) } else { Ok(()) };
        control.agree(free)?;
        let predicts = first && plan.roles.dense_partitions == 1;
        let prediction = predicts.then(|| Prediction::new(&plan, ranks, control.watch()));
        let prediction = control.agree(prediction.transpose())?;
        return Ok(Outcome::Planned(Box::new(plan), prediction));
    }
    let elsewhere = if first { warm_start::is_elsewhere(&plan.job.config) } else { Ok(()) };
    control.agree(elsewhere)?;
    // Before anything of an earlier run is looked at, or removed: it may not have ended.
    let wanted = plan.job.config.run.dir.clone();
    let job = environment::scheduled_job(&|name| std::env::var(name).ok());
    let config = &mut plan.job.config;
    if first && std::env::var_os(record::NOTE).is_some() {
        // Started again: of the last start a process may be left that was given up.
        RunFolder::wait_until_free(config, &world.host);
    }
    let claim = || match task {
        Task::Train { by_default: true } => {
            RunFolder::claim_beside(config, &world.host, job.as_deref())
        }
        _ => RunFolder::claim(config, &world.host),
    };
    let claim = control.agree(first.then(claim).transpose())?;
    let dir = plan.job.config.run.dir.as_os_str().as_encoded_bytes();
    let dirs = control.all_gather_varied(dir, "the run folder")?;
    plan.job.config.move_run(OsStr::from_bytes(&dirs[0]).as_ref());
    let dir = &plan.job.config.run.dir;
    if first && *dir != wanted {
        let (wanted, dir) = (wanted.display(), dir.display());
        note(&format!("umbra: another job writes to {wanted}; the run folder is {dir}"));
    }
    let from = going_on::find(control, &plan.job.config)?;
    if let Some(method) = from.as_ref().and_then(|from| going_on::method_of(&plan, from)) {
        plan = control.agree(plan.with_method(method))?;
    }
    let pooling = from.as_ref().map_or(Ok(()), |from| plan.keep_pooling(&from.manifest));
    control.agree(pooling)?;
    if let (Some(placed), true) = (&plan.placed, first) {
        note(&format!("umbra: embedding.placement: {placed}"));
    }
    if let (Some(choice), true) = (&plan.pool_choice, first) {
        note(&format!("umbra: embedding.pool_at: {choice}"));
    }
    let fits = from.as_ref().map(|checkpoint| going_on::kept(&plan, checkpoint)).transpose();
    let kept = control.agree(fits.map_err(Error::from))?;
    let warm = if from.is_none() { warm_start::find(control, &plan)? } else { None };
    let step = from.as_ref().map_or(0, |checkpoint| going_on::step_here(&plan, checkpoint));
    let config = &plan.job.config;
    let mut local = LocalImages::open(world, control, config, from.is_none())?;
    let images = match (&local, &from) {
        (Some(local), Some(_)) if config.checkpoint.resume == going_on::AUTO => {
            let fits = |image: &Manifest| local_images::fits(&plan, image);
            local.find(control, config.recovery.mode, step, fits)?
        }
        _ => None,
    };
    if let (Some(before), Some(_), None) = (&local, &from, &images) {
        // Those that it does not go on from are another past's, and must not come back.
        before.clear();
        local = LocalImages::open(world, control, config, true)?;
    }
    let shared_step = step;
    let step = images.as_ref().map_or(step, |images| images.step);
    let mut state = JobState::new(plan.job.config.train.early_stop.clone());
    state.step = step;
    let of_steps = from.as_ref().filter(|_| images.is_none());
    let worker_steps = worker_steps(world, &plan, of_steps, kept);
    let begin = Begin::anew(state, control.agree(worker_steps)?);
    let begun = from.as_ref().map(|_| step);
    let open = |claim| RunFolder::open(claim, &plan.job.config, &world.host, begun);
    let folder = control.agree(claim.map(open).transpose())?;
    let rate_factor = begin.state.rate_factor.clone();
    let recorder = folder.map(|folder| Recorder::new(folder, &plan, rate_factor, step));
    let mut summary = Summary::new(&plan.job, world.size)?;
    summary.from_step = begun;
    let begun = recorder.as_ref().map(|recorder| recorder.begin(&summary)).transpose();
    control.agree(begun)?;
    // Whichever rank ends the job says why, where it reaches the folder.
    let dir = plan.job.config.run.dir.clone();
    comm::on_end(move |why| record::fail(&dir, why));
    let limit = plan.job.config.run.max_time.map(|Seconds(time)| Duration::from_secs_f64(time));
    let deadline =
        Deadline::new(limit, environment::scheduled_end(&|name| std::env::var(name).ok()));
    if first {
        let (plan, loudness) = (&plan, record::loudness());
        note(&Header { plan, world, from: summary.from_step, limit, loudness }.to_string());
    }
    let stragglers = if first { Stragglers::new(&plan) } else { None };
    let report = heartbeat_report(recorder.as_ref(), &deadline, stragglers.as_ref(), signals);
    let spacing = plan.job.config.spacing(plan.roles.embedding_ps.len());
    let every = spacing.map(|spacing| Every::Seconds(spacing.interval()));
    let every = every.or(plan.job.config.checkpoint.every);
    let due = Due::new(every, plan.job.global_batch() as u64);
    let rows_due = Due::new(plan.job.config.rows_every(every), plan.job.global_batch() as u64);
    let local_every = plan.job.config.checkpoint.local_every;
    let local_due = Due::new(local_every, plan.job.global_batch() as u64);
    let folders = Folders::new(plan.job.config.checkpoint.dir.clone());
    // Of what this run does not go on from none may come back.
    let last = images.as_ref().map_or(0, |images| images.step);
    let gone = if first { folders.of_rows().remove(|step| step > last) } else { Ok(()) };
    control.agree(gone.map_err(Error::from))?;
    // By its name, which all ranks know alike.
    let own = |checkpoint: &&Checkpoint| checkpoint.dir() == folders.of(shared_step);
    let saved = from.as_ref().filter(own).map_or(0, |_| shared_step);
    let saved_whole = from.as_ref().is_none_or(|from| from.manifest.base.is_none());
    let mut run = Run::start(world, control, plan, signals, Some(begin), report)?;
    let mut losses = vec![];
    if let (Some(images), Some(shared), Some(local)) = (&images, &from, &local) {
        let reading = Instant::now();
        let resumed = run.resume_from_images(images, shared, local.alone());
        let loss = match control.watch().end_if_lost(resumed) {
            Ok(loss) => loss,
            Err(error) => {
                run.finish();
                return Err(error);
            }
        };
        summary.resume_seconds = Some(reading.elapsed().as_secs_f64());
        if first {
            let (step, steps) = (images.step, run.plan.steps);
            note(&format!("umbra: going on from local images, step {step} of {steps}"));
            if !loss.ranks.is_empty() {
                note(&format!("umbra: {}", loss.says(world.size)));
            }
        }
        if !loss.ranks.is_empty() {
            losses.push(loss);
        }
    } else if let (Some(checkpoint), Some(kept)) = (&from, kept) {
        let reading = Instant::now();
        let kept = match control.watch().end_if_lost(run.resume(checkpoint, step, kept)) {
            Ok(kept) => kept,
            Err(error) => {
                // Its threads must have ended before MPI does.
                run.finish();
                return Err(error);
            }
        };
        summary.resume_seconds = Some(reading.elapsed().as_secs_f64());
        // A save that was cut short may have left names that lead elsewhere.
        let named = if first && saved > 0 { folders.name_latest(step) } else { Ok(()) };
        if let Err(error) = control.agree(named.map_err(Error::from)) {
            run.finish();
            return Err(error);
        }
        if saved == 0 {
            // It is another run's, or one with steps of another size: what its evaluations said,
            // and the step of the best, is not about this one.
            run.state.forget_evaluations(run.plan.job.config.train.early_stop.clone());
        }
        if first {
            let (dir, steps) = (checkpoint.dir().display(), run.plan.steps);
            note(&format!("umbra: going on from {dir}, step {step} of {steps}: {}", kept.says()));
        }
    }
    if let Some(checkpoint) = &warm {
        let taken = match control.watch().end_if_lost(run.warm_start(checkpoint)) {
            Ok(taken) => taken,
            Err(error) => {
                run.finish();
                return Err(error);
            }
        };
        if first {
            let (dir, rows) = (checkpoint.dir().display(), run.plan.layout.numbering().rows());
            let new = u64::from(rows) - taken;
            note(&format!(
                "umbra: begins with the model of {dir}: {taken} rows, and {new} new ones"
            ));
        }
    }
    let valid = run.state.valid;
    let played = run.play_failures();
    if let (Some(played), true) = (&played, first) {
        note(&format!("umbra: plays failures: {}", played.plan));
    }
    if first && world.size > 1 && played.is_none() {
        say_what_becomes_of_losses(&run.plan.job.config);
    }
    let session = Session {
        world,
        control,
        signals,
        run,
        recorder,
        summary,
        deadline,
        due,
        spacing,
        written: Duration::ZERO,
        played,
        losses,
        local,
        local_due,
        rows_due,
        from: from.or(warm),
        folders,
        begun: saved,
        saved,
        saved_whole,
        valid,
        progressive: None,
        seconds: Duration::ZERO,
        publishing: Duration::ZERO,
        switches: vec![],
        stragglers,
        change_asked: false,
    };
    to_its_end(session)
}

/// Says what a lost rank will mean here: to all who may go on without it, and to those who asked.
fn say_what_becomes_of_losses(config: &Config) {
    let asked = matches!(config.recovery.mode, Some(RecoveryMode::Partial | RecoveryMode::Cpr));
    if loss::is_survivable() {
        note("umbra: a rank that is lost is gone on without, inside the job");
    } else if let Some(local) = &config.checkpoint.local_dir {
        note(&format!(
            "umbra: a rank that is lost ends the job; started again (umbra launch), it goes on \
             from the images in {}",
            local.display()
        ));
    } else if asked {
        say("umbra: warning: a rank that is lost ends the job, and all go back to the newest \
             checkpoint: this launch of MPI survives no loss, and there are no images on the nodes \
             (checkpoint.local_dir)");
    }
}

/// What the first rank's heart does at a beat: reports, stops the run in time, looks after
/// stragglers.
pub(super) fn heartbeat_report(
    recorder: Option<&Recorder>,
    deadline: &Deadline,
    stragglers: Option<&Stragglers>,
    signals: &Arc<Signals>,
) -> Option<Report> {
    let report = stop_in_time(recorder?.heartbeat(), deadline, Arc::clone(signals));
    Some(match stragglers {
        Some(stragglers) => stragglers.beside(report, Arc::clone(signals)),
        None => report,
    })
}

/// Asks for a stop when the time has come; the first rank's heart beats a few times a second.
fn stop_in_time(mut report: Report, deadline: &Deadline, signals: Arc<Signals>) -> Report {
    let deadline = deadline.clone();
    Box::new(move |beat| {
        if deadline.has_come() {
            signals.request_stop(libc::SIGALRM);
        }
        report(beat);
    })
}

/// Steps that each worker of this rank's trainer had made.
fn worker_steps(
    world: &World,
    plan: &Plan,
    from: Option<&Checkpoint>,
    kept: Option<Kept>,
) -> Result<Vec<u64>, Error> {
    let trainer = plan.roles.trainers.number_of(world.rank);
    match (from, trainer, kept) {
        (Some(checkpoint), Some(trainer), Some(Kept::Replicas)) => {
            Ok(checkpoint.worker_steps(trainer)?.unwrap_or_default())
        }
        _ => Ok(vec![]),
    }
}

/// Resolves a configuration on `ranks` ranks and opens every input. Whether it fits is seen only of
/// the ranks there are. *Collective.*
pub(crate) fn plan(
    world: &World,
    control: &Comm,
    config: Config,
    ranks: usize,
) -> Result<Plan, Error> {
    let facts = world.node_facts(control, &Cores::allowed())?;
    let job = control.agree(config.resolve(ranks, facts.ranks, facts.cores))?;
    control.watch().set_limit(job.config.run.watchdog());
    if world.rank == 0 {
        job.warnings.iter().for_each(|warning| say(&format!("umbra: warning: {warning}")));
        if job.config.train.precision == Precision::Bf16 && !multiplies_halves() {
            let cure = "this processor has no fast instructions for it: f32 is faster here";
            say(&format!("umbra: warning: train.precision = \"bf16\": {cure}"));
        }
    }
    let plan = Plan::new(job, ranks).and_then(|mut plan| {
        if ranks != world.size {
            return Ok(plan);
        }
        plan.check_memory(world.rank, facts.ranks)?;
        plan.node_of.clone_from(&facts.node_of);
        plan.hosts.clone_from(&facts.hosts);
        // Alone on their nodes, ranks keep their rows to themselves, in huge pages.
        plan.layout.lent &= facts.ranks > 1;
        let trains = plan.roles.trainers.contains(world.rank);
        if plan.job.config.train.pin_workers && trains {
            plan.pins = Pins::new(&Cores::allowed(), plan.job.worker_threads, &facts)?;
        }
        Ok(plan)
    });
    sameness::agree_on_files(world, control, plan)
}
