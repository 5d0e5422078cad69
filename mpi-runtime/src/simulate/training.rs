//! Every trainer of a virtual cluster in one process: its replica and its workers, over one table
//! of rows.
//!
//! Invariants: a step is a worker's own `train`, of one step; whose turn it is, the simulator says.
//! Each worker has a reader of its own, so that one that runs ahead never waits for what another
//! has not taken. Under `bsp` a worker thread makes all its slices of the global batch when its
//! step ends (`global_batch.rs`), and a partition's thread takes their pushes as on real ranks.

use core::sync::atomic::AtomicU32;
use std::sync::Arc;

use umbra_core::dense::replica::{load, load_finite, store};
use umbra_core::sim::{self, Job, Simulated, Step, Training, simulate};
use umbra_core::sync::reduction::{TAIL, add, conclude, contribute, slice, sum_into_first};
use umbra_core::sync::{Published, Rounds};
use umbra_datasets::{Dataset, Pipeline, train_on_request};

use super::defect;
use super::failures::Failures;
use super::global_batch::{GlobalBatch, update};
use crate::comm::Comm;
use crate::comm::watch::Watch;
use crate::dense::replica_sync::StepEnd;
use crate::error::Error;
use crate::launch::roles::Roles;
use crate::launch::signals::Signals;
use crate::measure::counters::{Reading, WorkerCounters};
use crate::measure::trace::Track;
use crate::rows::client::Client;
use crate::rows::near::Reach;
use crate::rows::servers::{ServiceConfig, Services};
use crate::rows::tables::{Partition, TableLayout};
use crate::run::plan::Plan;
use crate::score::figures::{Figures, FiguresError};
use crate::trainer::batches::{Batches, STREAMS_OF_A_WORKER};
use crate::trainer::pass::{Share, score};
use crate::trainer::{Segment, Trainer, Worker};

/// The trainers of a virtual cluster.
pub(super) struct Learners {
    pub(super) trainers: Vec<Trainer>,
    /// Trainer by trainer; under `bsp` a slice of the global batch each.
    pub(super) workers: Vec<Worker>,
    pub(super) counters: Vec<WorkerCounters>,
    pipelines: Vec<Pipeline>,
    pub(super) services: Services,
    /// How rows are laid out.
    layout: TableLayout,
    /// Workers of a trainer.
    pub(super) of_trainer: usize,
    /// Workers of a thread: more than one where slices are.
    of_thread: usize,
}

/// What training came to.
pub(super) struct Learned {
    /// Sums over all workers.
    pub(super) reading: Reading,
    /// Figures of `data.valid`.
    pub(super) valid: Option<Figures>,
    /// Figures of `data.test`.
    pub(super) test: Option<Figures>,
    /// The same of the first trainer's own replica, where the model is another.
    pub(super) test_replica: Option<Figures>,
}

impl Learners {
    /// All trainers of `plan` before their first step.
    ///
    /// # Errors
    /// No memory, or data that can't be read.
    pub(super) fn new(plan: &Plan, watch: &Arc<Watch>) -> Result<Self, Error> {
        let (config, of_trainer) = (&plan.job.config, plan.workers_per_trainer());
        let signals = Arc::new(Signals::none());
        let inject = &config.recovery.inject;
        let trainer = |number: usize| {
            let mut trainer = Trainer::new(plan.model, config, &signals, watch)?;
            trainer.nan_step = inject.nan_step.filter(|_| inject.nan_trainer == Some(number));
            Ok(trainer)
        };
        let trainers: Vec<Trainer> =
            (0..plan.job.trainers).map(trainer).collect::<Result<_, Error>>()?;
        let layout = plan.layout.dealt_to(1).map_err(|error| Error::Data(error.to_string()))?;
        let all = plan.job.trainers * of_trainer;
        let service = ServiceConfig {
            first_step: 0,
            rank: 0,
            roles: &Roles::collocated(1, 0, 1),
            layout: &layout,
            workers: all,
            synchronous: plan.synchronous(),
            tokens: plan.tokens(),
            permits: 1,
            local: !plan.synchronous() && !plan.job.method.is_served(),
            pooled: None,
            reach: Reach::Nowhere,
            watch,
        };
        let (services, clients) = Services::start(&service, &plan.model, config.seed, vec![], None)
            .map_err(|error| Error::Launch(format!("rows of the tables: {error}")))?;
        let (pipelines, batches) = batches(plan, all)?;
        let worker = |(number, (client, batches)): (usize, (Client, Batches))| {
            let local = number % of_trainer;
            let (buffers, batches) = (plan.step_buffers(local, None), Some(batches));
            Worker { local, batches, client, buffers, parts: None, progressive: None }
        };
        let workers: Vec<Worker> =
            clients.into_iter().zip(batches).enumerate().map(worker).collect();
        let counters = workers.iter().map(|_| WorkerCounters::default()).collect();
        let of_thread = of_trainer / plan.job.worker_threads;
        Ok(Self { trainers, workers, counters, pipelines, services, layout, of_trainer, of_thread })
    }

    /// The rows, and how they are laid out.
    pub(super) fn rows(&self) -> (&TableLayout, &[Partition]) {
        (&self.layout, &self.services.partitions)
    }

    /// Trains on `cluster`, and plays `failures`.
    ///
    /// # Errors
    /// Data that can't be read.
    pub(super) fn train(
        &mut self,
        cluster: &sim::Cluster,
        job: &Job<'_>,
        mut failures: Option<&mut Failures>,
        trace: bool,
    ) -> Result<Simulated, Error> {
        match job.method.rounds {
            Rounds::EveryStep => return self.train_together(cluster, job, failures, trace),
            Rounds::Handed => return self.train_handed(cluster, job, failures, trace),
            _ => {}
        }
        let Self { trainers, workers, counters, of_trainer, .. } = self;
        let replicas: Vec<&[AtomicU32]> =
            trainers.iter().map(|trainer| &*trainer.replica).collect();
        let mut wrong = None;
        let mut step = |Step { trainer, worker, number, .. }: Step<'_>| {
            let index = trainer * *of_trainer + worker;
            let segment = Segment { first_step: number, steps: 1 };
            let (counters, track) = (&counters[index], Track::of(None, ""));
            let trainer = &trainers[trainer];
            // After the first error the rest of the simulation only has to end.
            if wrong.is_none()
                && let Err(error) =
                    workers[index].train(trainer, StepEnd::Free, segment, counters, track)
            {
                wrong = Some(error);
            }
            if let Some(failures) = &mut failures {
                failures.step();
            }
        };
        let update = &mut |_| {};
        let training = Training {
            replicas: &replicas,
            gradients: &[],
            step: &mut step,
            update,
            rows: &mut |_| {},
        };
        let simulated = simulate(cluster, job, training, trace).map_err(defect);
        wrong.map_or(simulated, Err)
    }

    /// Trains with one update a step.
    fn train_together(
        &mut self,
        cluster: &sim::Cluster,
        job: &Job<'_>,
        mut failures: Option<&mut Failures>,
        trace: bool,
    ) -> Result<Simulated, Error> {
        let Self { trainers, workers, counters, of_trainer, of_thread, .. } = self;
        let (slices, elements) = (workers.len(), trainers[0].replica.len());
        let replicas: Vec<&[AtomicU32]> =
            trainers.iter().map(|trainer| &*trainer.replica).collect();
        let sums: Vec<Vec<AtomicU32>> = trainers
            .iter()
            .map(|_| (0..elements).map(|_| AtomicU32::default()).collect())
            .collect();
        let gradients: Vec<&[AtomicU32]> = sums.iter().map(Vec::as_slice).collect();
        let mut batch = GlobalBatch::new(trainers, workers, counters, &sums);
        let mut made = Ok(());
        let mut step = |Step { trainer, worker, number, .. }: Step<'_>| {
            let first = trainer * *of_trainer + worker * *of_thread;
            if let Some(failures) = failures.as_mut().filter(|it| it.is_due(number)) {
                // All have made the steps before.
                made = core::mem::replace(&mut made, Ok(())).and_then(|()| batch.settle());
                failures.reach(number);
            }
            // After the first error the rest of the simulation only has to end.
            if made.is_ok() {
                made = batch.make(trainer, first..first + *of_thread, number);
            }
        };
        let (mut updates, mut scratch) = (vec![0; trainers.len()], vec![0.0; elements]);
        let mut update = |trainer: usize| {
            let count: &mut u64 = &mut updates[trainer];
            update(&trainers[trainer], &sums[trainer], slices, *count, &mut scratch);
            *count += 1;
        };
        let training = Training {
            replicas: &replicas,
            gradients: &gradients,
            step: &mut step,
            update: &mut update,
            rows: &mut |_| {},
        };
        let simulated = simulate(cluster, job, training, trace).map_err(defect);
        made?;
        let simulated = simulated?;
        batch.settle()?;
        if let Some(failures) = failures {
            failures.reach(u64::MAX);
        }
        Ok(simulated)
    }

    /// What was learned: figures of the model that the method ends with.
    ///
    /// # Errors
    /// Data that can't be read, or a score that is not a number.
    pub(super) fn learned(
        &mut self,
        plan: &Plan,
        job: &Job<'_>,
        simulated: &Simulated,
        control: &Comm,
    ) -> Result<Learned, Error> {
        let readings = self.counters.iter().map(WorkerCounters::read);
        let reading = readings.fold(Reading::default(), Reading::plus);
        let mut own = vec![0.0; self.trainers[0].replica.len()];
        load(&self.trainers[0].replica, &mut own);
        let (model, apart) = match job.method.published(self.trainers.len()) {
            Published::Replica | Published::First => (own.clone(), false),
            Published::Center => (simulated.center.clone(), true),
            Published::Mean => (self.mean(), true),
        };
        store(&self.trainers[0].replica, &model);
        let valid = self.figures(plan, plan.valid.as_ref(), control)?;
        let test = self.figures(plan, plan.test.as_ref(), control)?;
        store(&self.trainers[0].replica, &own);
        let test_replica = match &plan.test {
            Some(data) if apart => self.figures(plan, Some(data), control)?,
            _ => None,
        };
        Ok(Learned { reading, valid, test, test_replica })
    }

    /// The mean of all replicas that are finite.
    fn mean(&self) -> Vec<f32> {
        let term = |trainer: &Trainer| {
            let mut staging = vec![0.0; trainer.replica.len() + TAIL];
            let finite = load_finite(&trainer.replica, slice(&mut staging));
            contribute(&mut staging, if finite { 1.0 } else { 0.0 }, 1);
            staging
        };
        let mut terms: Vec<Vec<f32>> = self.trainers.iter().map(term).collect();
        sum_into_first(&mut terms, |to, from| add(to, from));
        let mut mean = terms.swap_remove(0);
        conclude(&mut mean, None);
        slice(&mut mean).to_vec()
    }

    /// Figures of the first trainer's replica.
    fn figures(
        &mut self,
        plan: &Plan,
        dataset: Option<&Dataset>,
        control: &Comm,
    ) -> Result<Option<Figures>, Error> {
        let Some(dataset) = dataset else { return Ok(None) };
        let share = Share {
            trainer: 0,
            trainers: 1,
            batch_size: plan.job.config.train.eval_batch_size,
            reading: plan.job.config.data.reading(),
            masked: false,
        };
        // A worker of each thread has room for the batches of an evaluation, and they are the
        // first.
        let workers = &mut self.workers[..self.of_trainer / self.of_thread];
        let scores = score(&self.trainers[0], workers, dataset, share)?;
        let figures = scores.figures(control);
        figures.map(Some).map_err(|error| match error {
            FiguresError::Lost(lost) => lost.into(),
            FiguresError::Metric(error) => {
                Error::Failure(format!("evaluation: {error}; lower the learning rates"))
            }
        })
    }

    /// Ends the readers.
    pub(super) fn finish(self) {
        drop(self.workers);
        self.pipelines.into_iter().for_each(Pipeline::join);
        self.services.finish();
    }
}

/// The batches of all workers, and who reads them: for each somebody of its own, but where workers
/// ask for any batch.
fn batches(plan: &Plan, workers: usize) -> Result<(Vec<Pipeline>, Vec<Batches>), Error> {
    let (config, data, order) = (&plan.job.config, &plan.train, &plan.order);
    let (epochs, reading) = (0..config.train.epochs, config.data.reading());
    if plan.job.method.is_served() {
        let streams = STREAMS_OF_A_WORKER * workers;
        let (pipeline, batches) = train_on_request(data, order, workers, epochs, streams, reading)?;
        return Ok((vec![pipeline], batches.into_iter().map(Batches::Requested).collect()));
    }
    let (mut pipelines, mut all) = (vec![], vec![]);
    for worker in 0..workers {
        let (pipeline, batches) =
            Pipeline::train(data, order, worker..worker + 1, epochs.clone(), reading)?;
        pipelines.push(pipeline);
        all.extend(batches.into_iter().map(Batches::Read));
    }
    Ok((pipelines, all))
}
