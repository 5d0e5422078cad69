//! A run under way: the threads and memory of this rank, and what the main threads do together.
//!
//! Main threads of all ranks make the same calls in the same order; between them, trainers' workers
//! train on their own. *Every method here is collective over all ranks unless it says otherwise.*

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;
use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::unbounded;
use umbra_core::sync::LocalSgd;
use umbra_datasets::{Dataset, Pipeline};

use crate::batches::Batches;
use crate::bsp::{Bsp, DenseLink, add_trainers};
use crate::checkpoint::{self, Checkpoint, Dense, Manifest};
use crate::comm::Comm;
use crate::config::{BatchNormScope, SyncMethod};
use crate::counters::{Reading, WorkerCounters};
use crate::driver::{GateKeeper, Surroundings, drive};
use crate::error::Error;
use crate::heartbeat::{Heartbeat, Pulse, Report};
use crate::plan::Plan;
use crate::scores::{Figures, Scores};
use crate::scoring::{Share, score};
use crate::services::{ServiceConfig, Services};
use crate::signals::Signals;
use crate::trainer::{Gate, Method, Segment, Trainer, Worker};
use crate::watch::Watch;
use crate::world::World;

/// What the trainers' dense communicator threads did.
#[derive(Clone, Copy, Debug, Default)]
pub struct DenseTraffic {
    /// Synchronization rounds.
    pub rounds: u64,
    /// Bytes sent by this rank.
    pub bytes: u64,
}

/// How a stretch of training ended; equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StretchEnd {
    /// Some rank was asked to stop.
    pub stop_asked: bool,
    /// Some trainer made fewer steps than the stretch has.
    pub incomplete: bool,
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
    trainer: Option<TrainerSide>,
    counters: Arc<[WorkerCounters]>,
    dense: Option<Comm>,
    /// What went over the dense communicator so far.
    pub dense_traffic: DenseTraffic,
    signals: Arc<Signals>,
    watch: Arc<Watch>,
}

struct TrainerSide {
    shared: Trainer,
    workers: Vec<Worker>,
    /// Loss of every step over the global batch, where the method knows it (`bsp`).
    losses: Vec<f64>,
    /// The reader.
    pipeline: Option<Pipeline>,
}

impl<'w> Run<'w> {
    /// Makes communicators, tables, replica and threads. With `training`, also opens the training
    /// data for reading. `report` is used on the first rank. Main thread only.
    ///
    /// # Errors
    /// When a thread can't be started or the data can't be read; with several ranks that ends the
    /// job, since threads of the others already use MPI.
    pub fn start(
        world: &'w World,
        control: &'w Comm,
        plan: Plan,
        signals: &Arc<Signals>,
        training: bool,
        report: Option<Report>,
    ) -> Result<Self, Error> {
        let run = Self::start_here(world, control, plan, signals, training, report);
        if let (Err(error), true) = (&run, world.size > 1) {
            control.watch().end_job(error.exit_code(), error);
        }
        // Large tables take long to fill, and not equally long on all ranks.
        control.barrier("the start of the run", true);
        run
    }

    fn start_here(
        world: &'w World,
        control: &'w Comm,
        plan: Plan,
        signals: &Arc<Signals>,
        training: bool,
        report: Option<Report>,
    ) -> Result<Self, Error> {
        let config = &plan.job.config;
        let watch = world.watch(Duration::from_secs(config.run.watchdog_s));
        // The fixed order: dense, embedding, heartbeat; control was made before.
        let alone = world.size == 1;
        let all = world.communicator(&watch);
        let dense = all.subset(plan.roles.trainers.clone());
        let embedding = (!alone).then(|| world.communicator(&watch));
        let heartbeats = (!alone).then(|| world.communicator(&watch));
        let trains = plan.roles.trainers.contains(&world.rank);
        let service = ServiceConfig {
            rank: world.rank,
            roles: &plan.roles,
            layout: &plan.layout,
            workers: plan.workers_per_trainer(),
            synchronous: plan.synchronous(),
            permits: config.embedding.prefetch + 1,
            local: plan.local,
            watch: &watch,
        };
        let started = Services::start(&service, &plan.model, config.seed, embedding);
        let (services, clients) = started.map_err(|error| no_resources(&error))?;
        let workers = if trains { plan.workers_per_trainer() } else { 0 };
        let counters: Arc<[WorkerCounters]> = (0..workers).map(|_| Default::default()).collect();
        let heartbeat = Heartbeat::start(Pulse {
            counters: Arc::clone(&counters),
            trainers: plan.roles.trainers.clone(),
            comm: heartbeats,
            watch: Arc::clone(&watch),
            report,
            signals: Arc::clone(signals),
        })
        .map_err(|error| no_resources(&error))?;
        let trainer = if trains {
            Some(TrainerSide::new(&plan, world.rank, clients, training, signals, &watch)?)
        } else {
            None
        };
        let (signals, dense_traffic) = (Arc::clone(signals), DenseTraffic::default());
        Ok(Self {
            world,
            control,
            plan,
            services,
            heartbeat,
            trainer,
            counters,
            dense,
            dense_traffic,
            signals,
            watch,
        })
    }

    /// Trains `segment` and meets the other ranks.
    ///
    /// # Errors
    /// When the data can't be read.
    pub fn train(&mut self, segment: Segment) -> Result<StretchEnd, Error> {
        self.heartbeat.set_training(true);
        let outcome = match &mut self.trainer {
            Some(side) => side.train(self.dense.as_mut(), &self.plan, segment, &self.counters),
            None => Ok((false, DenseTraffic::default())),
        };
        if let (Err(error), true) = (&outcome, self.world.size > 1) {
            // The others wait for this rank's gradients or rows: only ending the job frees them.
            self.watch.end_job(error.exit_code(), error);
        }
        self.control.barrier("the end of a stretch of training", true);
        self.heartbeat.set_training(false);
        let (stopped, traffic) = outcome?;
        self.dense_traffic.rounds += traffic.rounds;
        self.dense_traffic.bytes += traffic.bytes;
        let stop = stopped || self.signals.stop_requested().is_some();
        let due = (segment.first_step + segment.steps) * self.counters.len() as u64;
        let own = [u64::from(stop), u64::from(self.reading().steps < due)];
        let mut all = vec![0; 2 * self.world.size];
        self.control.all_gather(&own, &mut all, "the agreement to go on");
        Ok(StretchEnd {
            stop_asked: all.iter().step_by(2).any(|word| *word != 0),
            incomplete: all.iter().skip(1).step_by(2).any(|word| *word != 0),
        })
    }

    /// Scores a dataset; this trainer's share of the scores.
    ///
    /// # Errors
    /// When the data can't be read, on every rank.
    pub fn score(&mut self, dataset: &Dataset) -> Result<Scores, Error> {
        let (config, roles) = (&self.plan.job.config, &self.plan.roles);
        let scores = match &mut self.trainer {
            None => Ok(Scores::default()),
            Some(side) => score(
                &side.shared,
                &mut side.workers[..self.plan.job.worker_threads],
                dataset,
                Share {
                    trainer: self.world.rank - roles.trainers.start,
                    trainers: roles.trainers.len(),
                    batch_size: config.train.eval_batch_size,
                    prefetch: config.data.prefetch_batches,
                },
            ),
        };
        self.control.barrier("the end of an evaluation", true);
        self.world.agree(self.control, scores)
    }

    /// Scores a dataset; the figures over all of it, equal on all ranks.
    ///
    /// # Errors
    /// When the data can't be read, or a score is not a number.
    pub fn evaluate(&mut self, dataset: &Dataset) -> Result<Figures, Error> {
        let scores = self.score(dataset)?;
        let figures = scores.figures(self.control).map_err(|error| {
            Error::Failure(format!(
                "evaluation: {error}; lower the learning rates, or warm up with \
                 optim.dense.warmup_steps"
            ))
        });
        // All ranks have the same error: one of them speaks.
        self.world.agree(self.control, figures)
    }

    /// Lowers both learning rates by `factor`.
    pub fn scale_rates(&self, factor: f32) {
        if let Some(side) = &self.trainer {
            let now = f32::from_bits(side.shared.rate_factor.load(Relaxed));
            side.shared.rate_factor.store((now * factor).to_bits(), Relaxed);
        }
    }

    /// Learning rates of dense parameters and rows at `step`; `None` on a rank that does not train.
    #[must_use]
    pub fn rates(&self, step: u64) -> Option<(f32, f32)> {
        self.trainer.as_ref().map(|side| side.shared.rates(step))
    }

    /// Writes the model to `dir`. Returns its bytes.
    ///
    /// # Errors
    /// When a file can't be written.
    pub fn save(&self, dir: &Path, manifest: Manifest) -> Result<u64, Error> {
        let (replica, state): (&[AtomicU32], &[AtomicU32]) = match &self.trainer {
            Some(side) => (&side.shared.replica, &side.shared.state),
            None => (&[], &[]),
        };
        let dense = Dense { model: &self.plan.model, replica, state };
        let contents =
            checkpoint::Contents { manifest, dense, partitions: &self.services.partitions };
        checkpoint::write(self.world, self.control, dir, contents)
    }

    /// Reads the model from `checkpoint` on every rank.
    ///
    /// # Errors
    /// When it does not fit or is damaged.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), Error> {
        let read = || -> Result<(), checkpoint::CheckpointError> {
            if let Some(TrainerSide { shared, .. }) = &self.trainer {
                let Trainer { model, replica, state, .. } = shared;
                checkpoint.read_dense(Dense { model, replica, state })?;
                shared.updates.store(checkpoint.manifest.updates, Relaxed);
            }
            checkpoint.read_rows(&self.plan.layout, &self.services.partitions)
        };
        let read = read();
        self.control.barrier("reading of a checkpoint", true);
        self.world.agree(self.control, read.map_err(Error::from))
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

    /// Counters of this rank's workers. *Not collective.*
    #[must_use]
    pub fn reading(&self) -> Reading {
        Reading::of(&self.counters)
    }

    /// Bytes of embedding messages this rank sent. *Not collective.*
    #[must_use]
    pub fn embedding_bytes_sent(&self) -> u64 {
        self.services.bytes_sent()
    }

    /// Ends all threads of the run.
    pub fn finish(self) {
        let Self { control, services, heartbeat, trainer, dense, .. } = self;
        // Workers' clients go first: partitions serve until nobody can ask.
        if let Some(TrainerSide { workers, pipeline, .. }) = trainer {
            drop(workers);
            // The reader must be out of HDF5 before the process ends.
            if let Some(pipeline) = pipeline {
                pipeline.join();
            }
        }
        control.barrier("the end of the run", true);
        services.quiesce(control.watch());
        control.barrier("the last messages", true);
        services.finish();
        heartbeat.finish();
        control.barrier("the end of the threads", false);
        drop(dense);
    }
}

impl TrainerSide {
    fn new(
        plan: &Plan,
        rank: usize,
        clients: Vec<crate::embedding_client::Client>,
        training: bool,
        signals: &Arc<Signals>,
        watch: &Arc<Watch>,
    ) -> Result<Self, Error> {
        let config = &plan.job.config;
        let shared = Trainer::new(plan.model, config, signals, watch)?;
        let first = (rank - plan.roles.trainers.start) * plan.workers_per_trainer();
        let (pipeline, batches) = if training {
            let workers = first..first + plan.workers_per_trainer();
            let prefetch = config.data.prefetch_batches;
            let epochs = 0..config.train.epochs;
            let (pipeline, batches) =
                Pipeline::train(&plan.train, &plan.order, workers, epochs, prefetch)?;
            (
                Some(pipeline),
                batches.into_iter().map(|batches| Some(Batches::Read(batches))).collect(),
            )
        } else {
            (None, (0..clients.len()).map(|_| None).collect::<Vec<_>>())
        };
        let workers = clients
            .into_iter()
            .zip(batches)
            .enumerate()
            .map(|(local, (client, batches))| Worker {
                local,
                batches,
                client,
                buffers: plan.step_buffers(local),
            })
            .collect();
        Ok(Self { shared, workers, losses: vec![], pipeline })
    }

    /// Runs the workers, and beside them the dense communicator thread that the method needs.
    /// *Collective over the trainers as far as the method is.*
    fn train(
        &mut self,
        dense: Option<&mut Comm>,
        plan: &Plan,
        segment: Segment,
        counters: &[WorkerCounters],
    ) -> Result<(bool, DenseTraffic), Error> {
        let count = self.workers.len();
        let Self { shared, workers, losses, .. } = self;
        let others = dense.as_ref().is_some_and(|comm| comm.size() > 1);
        match (plan.job.method, dense) {
            (SyncMethod::Bsp, Some(comm)) => {
                let global_norm = plan.job.config.sync.batch_norm == BatchNormScope::Global;
                let (jobs, jobs_out) = unbounded();
                let (done_in, done) = unbounded();
                let link = others.then_some(DenseLink { jobs, done });
                let sizes = (count, plan.slices);
                let bsp =
                    Bsp::new(sizes, plan.job.worker_threads, link, global_norm, &shared.watch);
                let before = losses.len();
                let (stopped, bytes) = std::thread::scope(|scope| {
                    let adder = others
                        .then(|| scope.spawn(move || add_trainers(comm, &jobs_out, &done_in)));
                    let method = Method::Bsp { bsp: &bsp };
                    let stopped = run_workers(shared, workers, method, segment, counters);
                    let stalled = Reading { sync_ns: bsp.stalled_ns(), ..Reading::default() };
                    counters.iter().for_each(|counters| counters.add(&stalled));
                    losses.append(&mut bsp.close());
                    (stopped, adder.map_or(0, |thread| thread.join().unwrap_or(0)))
                });
                let rounds = if others { (losses.len() - before) as u64 } else { 0 };
                Ok((stopped?, DenseTraffic { rounds, bytes }))
            }
            (SyncMethod::LocalSgd, Some(comm)) if others => {
                let (knock, knocks) = unbounded();
                let (opens, open) = unbounded();
                let every = plan.job.config.sync.every;
                let (stopped, traffic) = std::thread::scope(|scope| {
                    let gate = Gate::new(count, knock, open, &shared.watch);
                    let replica = &shared.replica;
                    let driver = scope.spawn(move || {
                        let mut staging = vec![0.0; replica.len()];
                        let mut protocol = LocalSgd::new(&mut staging);
                        let gate = GateKeeper { knocks, opens };
                        drive(&mut protocol, Surroundings { comm, mailbox: None, replica, gate })
                    });
                    let method = Method::LocalSgd { gate: &gate, every };
                    let stopped = run_workers(shared, workers, method, segment, counters);
                    drop(gate);
                    (
                        stopped,
                        driver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                    )
                });
                let traffic = traffic.map_err(|error| Error::Failure(error.to_string()))?;
                Ok((stopped?, DenseTraffic { rounds: traffic.rounds, bytes: traffic.bytes }))
            }
            _ => {
                let stopped = run_workers(shared, workers, Method::Alone, segment, counters)?;
                Ok((stopped, DenseTraffic::default()))
            }
        }
    }
}

/// Runs every worker on a thread of its own. True when one of them was asked to stop.
fn run_workers(
    trainer: &Trainer,
    workers: &mut [Worker],
    method: Method<'_>,
    segment: Segment,
    counters: &[WorkerCounters],
) -> Result<bool, Error> {
    let together = workers.len() > 1 && !matches!(method, Method::Alone);
    let train = |worker: &mut Worker, counters: &WorkerCounters| {
        let result = worker.train(trainer, method, segment, counters);
        if let (Err(error), true) = (&result, together) {
            // The other workers would wait for this one at the next meeting.
            trainer.watch.end_job(error.exit_code(), error);
        }
        result
    };
    let train = &train;
    let results: Vec<Result<bool, Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .zip(counters)
            .map(|(worker, counters)| scope.spawn(move || train(worker, counters)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let mut stopped = false;
    for result in results {
        stopped |= result?;
    }
    Ok(stopped)
}

fn no_resources(error: &std::io::Error) -> Error {
    Error::Launch(format!("{error}; the system gives no more memory or threads (`ulimit -a`)"))
}
