//! A run under way: the threads and memory of this rank, and what the main threads do together.
//!
//! Main threads of all ranks make the same calls in the same order; between them, trainers' workers
//! train on their own. *Every method here is collective over all ranks unless it says otherwise.*
//!
//! Map: `job.rs` how a run begins, `session.rs` from there to its end, `measures.rs` what it
//! measured and its summary · `plan.rs`, `prediction.rs` what it will be, `first_batches.rs` from
//! what its data have, `tables.rs` its model and tables, `shared_tables.rs` whose these are,
//! `placement.rs` where,
//! `pool_choice.rs` who pools, `in_place.rs` which rows nobody asks for · `trainer_threads.rs` a
//! trainer's replica and threads, `replica_parts.rs` its part of a replica of several ranks ·
//! `compression.rs` what is compressed, and what it came to · `scoring.rs` how well the model
//! scores · `publish.rs` the model that is evaluated and saved · `sections.rs` everything that a
//! run goes on from, `going_on.rs` what of it is kept, `saves.rs` its checkpoints ·
//! `warm_start.rs` a new run with a saved model · `change.rs` the same run by another method,
//! `stragglers.rs` when, `lost_ranks.rs` the same run without ranks that were lost,
//! `local_images.rs` and one that is started again where it was, `take_over.rs` with what model ·
//! `due.rs` when a checkpoint is due, `deadline.rs` when a run stops by itself · `early_stop.rs`,
//! `evaluate.rs`, `heartbeat.rs`, `reporter.rs`, `curve.rs` its points, `header.rs` what it begins
//! with.

pub mod change;
mod compression;
mod curve;
mod deadline;
mod due;
pub mod early_stop;
pub mod evaluate;
mod first_batches;
pub mod going_on;
mod header;
pub mod heartbeat;
mod in_place;
pub mod job;
mod local_images;
mod lost_ranks;
pub mod measures;
mod memory;
pub mod placement;
pub mod plan;
pub mod pool_choice;
pub mod prediction;
mod publish;
mod replica_parts;
pub mod reporter;
mod row_saves;
pub mod sameness;
mod saves;
mod scoring;
pub mod sections;
mod session;
pub mod shared_tables;
pub mod stragglers;
pub mod tables;
mod take_over;
mod trainer_threads;
pub mod warm_start;

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::Arc;

use umbra_core::sync::Published;
use umbra_core::sync::server::Tally;

use crate::checkpoint::{Image, Rotation, Saver};
use crate::comm::Comm;
use crate::comm::traffic::Traffic;
use crate::comm::watch::Watch;
use crate::dense::coding_trial::Trial;
use crate::dense::parts::Parts;
use crate::dense::replica_sync::DenseSync;
use crate::dense::seat::Gaps;
use crate::dense::served::ServedStretch;
use crate::error::Error;
use crate::launch::signals::Signals;
use crate::launch::world::World;
use crate::measure::counters::{Counters, Reading};
use crate::measure::points::Mark;
use crate::measure::trace::Trace;
use crate::rows::router;
use crate::rows::servers::{ServiceConfig, ServiceError, Services};
use crate::run::compression::Compressed;
use crate::run::heartbeat::{Heartbeat, Pulse, Report};
use crate::run::plan::Plan;
use crate::run::sections::{Begin, JobState};
use crate::trainer::Segment;
use trainer_threads::{Around, TrainerThreads};

/// How a stretch of training ended; equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StretchEnd {
    /// Some rank was asked to stop.
    pub stop_asked: bool,
    /// The first rank was asked to change the method.
    pub change_asked: bool,
    /// Some trainer made fewer steps than the stretch has.
    pub incomplete: bool,
    /// Training until the last worker of the slowest trainer had ended.
    pub trained: Duration,
    /// Steps that every worker has made since the beginning of the run.
    pub steps: u64,
}

/// A run on this rank.
pub struct Run<'w> {
    world: &'w World,
    control: &'w Comm,
    /// What is run.
    pub plan: Plan,
    services: Services,
    heartbeat: Heartbeat,
    /// `None` on a rank that only holds rows.
    trainer: Option<TrainerThreads>,
    counters: Arc<Counters>,
    /// Marks of this rank that the first rank has.
    marks_told: usize,
    /// How far the job is.
    pub state: JobState,
    dense: Option<Comm>,
    sync: DenseSync,
    /// Whether compression pays, where that was tried.
    trial: Option<Trial>,
    /// Where checkpoints are written while it trains.
    saver: Option<Saver>,
    /// Steps between rounds so far.
    pub gaps: Gaps,
    /// Training so far, until this trainer's last worker had ended.
    pub trained: Duration,
    /// What was sent and received by another method before: of rows, of dense parameters.
    before: [Traffic; 2],
    /// What compression came to by another method before.
    compressed_before: Compressed,
    /// What became of gradients by another method before, on the rank of the dispatcher.
    tally: Option<Tally>,
    /// What the threads of this rank did when.
    pub trace: Option<Trace>,
    signals: Arc<Signals>,
    watch: Arc<Watch>,
}

impl<'w> Run<'w> {
    /// Makes communicators, tables, replica and threads. With `training`, where a job begins, also
    /// opens the training data for reading. `report` is used on the first rank. Main thread only.
    ///
    /// # Errors
    /// When a thread can't be started or the data can't be read; with several ranks that ends the
    /// job, since threads of the others already use MPI.
    pub fn start(
        world: &'w World,
        control: &'w Comm,
        plan: Plan,
        signals: &Arc<Signals>,
        training: Option<Begin>,
        report: Option<Report>,
    ) -> Result<Self, Error> {
        let run = Self::start_here(world, control, plan, signals, training, report);
        if let (Err(error), true) = (&run, world.size > 1) {
            control.watch().end_job(error.exit_code(), error);
        }
        // Large tables take long to fill, and not equally long on all ranks.
        control.barrier("the start of the run", true)?;
        run
    }

    fn start_here(
        world: &'w World,
        control: &'w Comm,
        mut plan: Plan,
        signals: &Arc<Signals>,
        mut training: Option<Begin>,
        report: Option<Report>,
    ) -> Result<Self, Error> {
        let before = training.as_mut().map(|begin| core::mem::take(&mut begin.left));
        let before = before.unwrap_or_default();
        let watch = Arc::clone(world.watch());
        let config = &plan.job.config;
        let alone = world.size == 1;
        let trains = plan.roles.trainers.contains(world.rank);
        let workers = if trains { plan.workers_per_trainer() } else { 0 };
        let instances = plan.instances();
        let threads = instances.of_a_trainer();
        let counters = Counters::new(workers, threads, instances.slices, plan.points());
        let counters = Arc::new(counters.after(before.reading, before.center));
        // The fixed order: heartbeat, dense, parts of a replica, embedding by link, slices,
        // checkpoints; control was made before.
        // Hearts beat before anything that takes long: a rank that stops while others make
        // communicators with it or fill their tables is missed.
        let heartbeats = if alone { None } else { Some(world.communicator(&watch)?) };
        let heartbeat = Heartbeat::start(Pulse {
            counters: Arc::clone(&counters),
            trainers: plan.roles.trainers.clone(),
            comm: heartbeats,
            watch: Arc::clone(&watch),
            report,
            signals: Arc::clone(signals),
            // Two, since the first may be the one that is gone.
            folder: (training.is_some() && world.rank < 2).then(|| config.run.dir.clone()),
        })
        .map_err(|error| no_resources(&error))?;
        // Trainers of the same part of a replica: all of them, where replicas are whole.
        let part = plan.roles.part_of(world.rank).map(|of| of.part);
        let dense = world.communicator(&watch)?.split(part)?;
        let of_replica = if plan.roles.dense_partitions > 1 {
            world.communicator(&watch)?.split(plan.roles.replica_of(world.rank))?
        } else {
            None
        };
        let links = if alone { 0 } else { config.embedding.links };
        let embedding: Vec<Comm> =
            (0..links).map(|_| world.communicator(&watch)).collect::<Result<_, _>>()?;
        let trial = match training {
            Some(_) => plan.try_compression(control, dense.as_ref())?,
            None => None,
        };
        let config = &plan.job.config;
        let mut initial = vec![0.0; plan.model.replica_len()];
        plan.model.initialize(config.seed, &mut initial);
        let parameters = plan.model.parameters_len();
        let model = (&*initial, parameters);
        let all = plan.workers_per_trainer();
        let method = (plan.method(), config.sync.poll_us);
        let mut sync = DenseSync::new(world, method, &plan.roles, all, model, &watch)
            .map_err(|error| Error::Launch(error.to_string()))?;
        drop(initial);
        if let Some(coding) = plan.coding() {
            sync.code(coding, &plan.model, plan.roles.trainers.number_of(world.rank));
        }
        if let (Some(served), Some(tally)) = (sync.served_mut(), &before.tally) {
            served.count_on(tally);
        }
        let saves = training.is_some() && plan.saves_in_background();
        let saves = saves.then(|| world.communicator(&watch)).transpose()?;
        let first_step = training.as_ref().map_or(0, |begin| begin.state.step);
        let service = ServiceConfig {
            // The plan refuses runs of more steps.
            first_step: u32::try_from(first_step).unwrap_or(u32::MAX),
            rank: world.rank,
            roles: &plan.roles,
            layout: &plan.layout,
            workers: plan.workers_per_trainer(),
            synchronous: plan.synchronous(),
            tokens: plan.tokens(),
            permits: config.embedding.prefetch + 1,
            local: plan.local,
            pooled: config.pooled(),
            reach: plan.reach(control, &world.host),
            watch: &watch,
        };
        let started =
            Services::start(&service, &plan.model, config.seed, embedding, before.partitions);
        let (services, clients) = started.map_err(|error| match error {
            ServiceError::Resources(error) => no_resources(&error),
            ServiceError::Lost(lost) => lost.into(),
            ServiceError::Workers { .. } => Error::Launch(error.to_string()),
        })?;
        let names = (0..workers).map(|worker| format!("worker {worker}"));
        let names = names.chain((0..threads).map(|thread| format!("synchronization {thread}")));
        let names = names.chain(["center".to_owned(), Trace::RUN.to_owned()]);
        let trace = before.trace.or_else(|| config.run.trace.then(|| Trace::new([])));
        let trace = trace.map(|trace| trace.with(names));
        let trainer = if trains {
            let mut side = TrainerThreads::new(
                &plan,
                world.rank,
                clients,
                training.as_ref(),
                (signals, &watch),
                before.trainer,
                of_replica,
            )?;
            if let Some(Begin { state, .. }) = &training {
                side.shared.rate_factor = state.rate_factor.clone();
            }
            Some(side)
        } else {
            None
        };
        let state = training.map_or_else(|| JobState::new(None), |begin| begin.state);
        let signals = Arc::clone(signals);
        let mut run = Self {
            world,
            control,
            plan,
            services,
            heartbeat,
            trainer,
            counters,
            marks_told: 0,
            state,
            dense,
            sync,
            trial,
            saver: None,
            gaps: before.gaps,
            trained: before.trained,
            before: before.traffic,
            compressed_before: before.compressed,
            tally: before.tally,
            trace,
            signals,
            watch,
        };
        if let Some(comm) = saves {
            let image = run.with_contents(|contents, _| Image::for_contents(contents));
            let rotation = Rotation::new(run.plan.job.config.checkpoint.full_every);
            let saver = image.and_then(|image| Saver::start(comm, image, rotation));
            run.saver = Some(saver.map_err(|error| no_resources(&error))?);
        }
        Ok(run)
    }

    /// Trains `segment` and meets the other ranks.
    ///
    /// # Errors
    /// When the data can't be read.
    pub fn train(&mut self, segment: Segment) -> Result<StretchEnd, Error> {
        self.counters.points.begin_stretch();
        self.heartbeat.set_training(true);
        let Self { sync, counters, trace, dense, plan, state, services, .. } = self;
        let outcome = match (&mut self.trainer, dense) {
            (Some(side), Some(dense)) => {
                let (trace, rows) = (trace.as_ref(), services.router());
                let around = Around { sync, counters, trace, rows };
                side.train(dense, plan, segment, around)
            }
            _ => {
                let stretch = ServedStretch {
                    steps: (segment.first_step, segment.first_step + segment.steps),
                    rate_factor: state.rate_factor.get(),
                };
                let rows = (stretch, services.router());
                let served = sync.run(None, counters, trace.as_ref(), &plan.pins, rows, |_| ());
                served.map(|_| (false, Duration::ZERO, Gaps::new()))
            }
        };
        if let (Err(error), true) = (&outcome, self.world.size > 1) {
            // The others wait for this rank's gradients or rows: only ending the job frees them.
            self.watch.end_job(error.exit_code(), error);
        }
        self.control.barrier("the end of a stretch of training", true)?;
        self.heartbeat.set_training(false);
        let (_, trained, gaps) = outcome?;
        self.trained += trained;
        for (gap, count) in gaps {
            *self.gaps.entry(gap).or_default() += count;
        }
        self.publish()?;
        let stop = self.signals.stop_requested().is_some();
        let change = self.signals.take_change_request();
        let due = (segment.first_step + segment.steps) * self.counters.workers.len() as u64;
        let made = self.counters.worker_steps().map(|steps| steps.load(Relaxed)).min();
        let mut incomplete = self.reading().steps < due;
        let (trained, mut made) = (nanoseconds(trained), made.unwrap_or(u64::MAX));
        if let Some(served) = self.sync.served() {
            // Workers make as many steps as they can; how far the data is the dispatcher knows.
            made = served.reached().map_or(u64::MAX, |reached| reached.step);
            incomplete = made < segment.first_step + segment.steps;
        }
        let own = [u64::from(stop), u64::from(incomplete), trained, made, u64::from(change)];
        let mut all = vec![0; own.len() * self.world.size];
        self.control.all_gather(&own, &mut all, "the agreement to go on")?;
        let steps = all.chunks(own.len()).map(|rank| rank[3]).min().unwrap_or(0);
        if self.is_served() {
            // Workers that were handed the last batches earlier are past all of them too.
            self.counters.reach(steps);
        }
        Ok(StretchEnd {
            stop_asked: all.chunks(own.len()).any(|rank| rank[0] != 0),
            change_asked: all.chunks(own.len()).any(|rank| rank[4] != 0),
            incomplete: all.chunks(own.len()).any(|rank| rank[1] != 0),
            trained: Duration::from_nanos(
                all.chunks(own.len()).map(|rank| rank[2]).max().unwrap_or(0),
            ),
            steps,
        })
    }

    /// The marks of all ranks that are new since the last call, with their ranks. *Collective,
    /// between stretches of training.*
    fn new_marks(&mut self) -> Result<Vec<(usize, Mark)>, Error> {
        self.counters.tell();
        let new = self.counters.marks(self.marks_told);
        self.marks_told += new.len();
        let own: Vec<u64> = new.iter().flat_map(Mark::to_words).collect();
        let ranks = self.control.all_gather_varied(&own, "points of the run")?;
        let of_rank = |(rank, words): (usize, &Vec<u64>)| {
            let marks = words.as_chunks().0.iter();
            marks.map(|mark| (rank, Mark::from_words(*mark))).collect::<Vec<_>>()
        };
        Ok(ranks.iter().enumerate().flat_map(of_rank).collect())
    }

    /// Whether the model that is evaluated and saved is another than a trainer's own replica, or a
    /// round made it. *Not collective.*
    #[must_use]
    pub fn publishes(&self) -> bool {
        self.sync.served().is_none()
            && (self.sync.has_rounds() || self.sync.published() != Published::Replica)
    }

    /// Learning rates of dense parameters and rows at `step`; `None` on a rank that does not train.
    #[must_use]
    pub fn rates(&self, step: u64) -> Option<(f32, f32)> {
        self.trainer.as_ref().map(|side| side.shared.rates(step))
    }

    /// How far this trainer's replica was from the mean of all, over its norm, when the mean was
    /// last taken. *Not collective.*
    #[must_use]
    pub fn distance_to_mean(&self) -> Option<f64> {
        self.trainer.as_ref()?.distance
    }

    /// Updates of the dense replica so far. *Not collective.*
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.trainer.as_ref().map_or(0, |side| side.shared.updates.load(Relaxed))
    }

    /// Loss of every step over the global batch, where the method knows it. *Not collective.*
    #[must_use]
    pub fn step_losses(&self) -> &[f64] {
        self.trainer.as_ref().map_or(&[], |side| &side.losses)
    }

    /// Processor time of this rank's center, nanoseconds. *Not collective.*
    #[must_use]
    pub fn center_busy_ns(&self) -> u64 {
        self.counters.center.read().busy_ns
    }

    /// Counters of this rank. *Not collective.*
    #[must_use]
    pub fn reading(&self) -> Reading {
        Reading::of(&self.counters)
    }

    /// Embedding messages of this rank. *Not collective.*
    #[must_use]
    pub fn embedding_traffic(&self) -> Traffic {
        let router::Traffic { sent, received } = self.services.traffic();
        let now = Traffic {
            messages_sent: sent.messages,
            bytes_sent: sent.bytes,
            messages_received: received.messages,
            bytes_received: received.bytes,
        };
        self.before[0].plus(now)
    }

    /// What this rank sent and received so that dense replicas stay together. *Not collective;
    /// nothing trains meanwhile.*
    #[must_use]
    pub fn dense_traffic(&self) -> Traffic {
        let summed = self.dense.as_ref().map_or(Traffic::default(), Comm::traffic);
        let parts = self.trainer.as_ref().and_then(TrainerThreads::parts);
        let crossed = parts.map_or(Traffic::default(), Parts::traffic);
        self.before[1].plus(summed).plus(crossed).plus(self.sync.posted())
    }
}

fn no_resources(error: &std::io::Error) -> Error {
    Error::Launch(format!("{error}; the system gives no more memory or threads (`ulimit -a`)"))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
