//! What a step takes by each method, before anything starts.
//!
//! A worker's own part, forward and backward of a batch, is measured here, on the first batches of
//! the data; what it waits for passes in virtual time (`umbra simulate`), on nodes alike. The
//! job's method has the job's keys, the others have their defaults.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use umbra_core::model::{Gradients, Input, StepKey};
use umbra_core::sparse::{coalesce, heads_len};
use umbra_datasets::{Pipeline, TrainOrder};

use super::Virtual;
use super::cluster::ClusterFile;
use crate::comm::Comm;
use crate::config::{Config, Inject, Layout, SyncMethod};
use crate::error::Error;
use crate::launch::processor::thread_time;
use crate::launch::signals::Signals;
use crate::rows::strips::CutBags;
use crate::run::plan::Plan;
use crate::trainer::Trainer;
use crate::trainer::batches::next_read;
use crate::trainer::buffers::StepBuffers;

/// Steps of a worker in virtual time.
const STEPS: u64 = 200;

/// Workers that servers are planned with: every push passes every other's, in virtual time too.
const SERVED_WORKERS_MAX: usize = 256;

/// Processor time that batches are trained for, and how many there are at least.
const MEASURED: Duration = Duration::from_millis(300);
const BATCHES_MIN: usize = 3;

/// Of a job, what a step takes by each method.
pub struct StepTimes {
    /// Examples of a worker's step, and the seconds that it computes.
    batch: usize,
    compute_seconds: f64,
    /// Bytes per second of a node's link in each direction, and microseconds of latency.
    link: (f64, f64),
    /// The job's method comes first.
    methods: Vec<(SyncMethod, Result<Pace, String>)>,
}

/// How fast a method is.
struct Pace {
    step_seconds: f64,
    examples_per_second: f64,
    /// Shares of the time that workers wait for rows, and for other trainers.
    waits: [f64; 2],
}

impl StepTimes {
    /// Of the job `config`, whose plan is `plan`, on links of so many bytes per second and
    /// microseconds. *Not collective*; `control` is of this process alone.
    ///
    /// # Errors
    /// Data that can't be read, no memory for a replica, a link that can't be.
    pub fn new(
        plan: &Plan,
        config: &Config,
        link: (f64, f64),
        control: &Comm,
    ) -> Result<Self, Error> {
        let job = &plan.job;
        let batch = job.config.train.batch_size;
        let (compute_seconds, distinct) = compute(plan, control)?;
        let embedding_ps = match job.config.roles.layout {
            Layout::Collocated => 0,
            Layout::Separate => job.embedding_ps,
        };
        let example_us = compute_seconds * 1e6 / batch as f64;
        let nodes = (job.trainers, embedding_ps);
        let mut file = ClusterFile::alike(nodes, link, example_us, distinct)?;
        file.steps = Some(STEPS);
        let alone = job.trainers == 1;
        let others = SyncMethod::ALL.into_iter().filter(|method| {
            let meant = !matches!(method, SyncMethod::Auto | SyncMethod::None);
            meant && !alone && *method != job.method
        });
        let workers = job.trainers * job.worker_threads;
        let too_many = |method: SyncMethod| method.is_served() && workers > SERVED_WORKERS_MAX;
        let pace_of = |method: SyncMethod| {
            if too_many(method) {
                return Err(format!(
                    "{workers} workers on servers take minutes, at most {SERVED_WORKERS_MAX} are \
                     planned; umbra simulate has no such bound"
                ));
            }
            let mut config =
                if method == job.method { config.clone() } else { config.by_method(method)? };
            config.train.worker_threads = Some(job.worker_threads);
            config.recovery.inject = Inject::default();
            Pace::new(config, &file, control).map_err(|error| error.to_string())
        };
        let mut methods = vec![(job.method, pace_of(job.method))];
        // What is not simulated of the job's method is of no other.
        if methods[0].1.is_ok() || too_many(job.method) {
            methods.extend(others.map(|method| (method, pace_of(method))));
        }
        Ok(Self { batch, compute_seconds, link, methods })
    }
}

impl Pace {
    fn new(config: Config, file: &ClusterFile, control: &Comm) -> Result<Self, Error> {
        let simulated =
            Virtual::plan(config, file, file.trainers)?.run(control, control.watch())?;
        let summary = simulated.summary;
        let seconds = summary.seconds.unwrap_or(0.0).max(f64::MIN_POSITIVE);
        let wait = summary.wait.unwrap_or_default();
        Ok(Self {
            step_seconds: seconds / STEPS as f64,
            examples_per_second: summary.examples_per_second.unwrap_or(0.0),
            waits: [wait.embedding_seconds, wait.sync_seconds]
                .map(|waited| waited.unwrap_or(0.0) / seconds),
        })
    }
}

/// Seconds that a worker of `plan` computes in a step, and the share of a batch's ids that are
/// distinct rows. Of processor time the least: what else the machine does is not the job's.
fn compute(plan: &Plan, control: &Comm) -> Result<(f64, f64), Error> {
    let (model, layout, watch) = (&plan.model, &plan.layout, control.watch());
    let trainer = Trainer::new(*model, &plan.job.config, &Arc::new(Signals::none()), watch)?;
    let batch_size = plan.job.config.train.batch_size;
    let order = TrainOrder { workers_total: 1, batch_size, ..plan.order };
    let (pipeline, mut workers) = Pipeline::train(&plan.train, &order, 0..1, 0..1, 4)?;
    // A batch may be longer than those of the job's slices.
    let values_max = batch_size * plan.rows_per_example();
    let mut buffers = StepBuffers::new(model, batch_size, values_max);
    let (mut heads, mut unique, mut slot) = (vec![], vec![], vec![]);
    let mut cut = CutBags::default();
    let (mut least, mut all, mut batches) = (f64::INFINITY, Duration::ZERO, 0);
    let (mut distinct, mut ids) = (0, 0);
    while all < MEASURED || batches < BATCHES_MIN {
        let Some(batch) = next_read(&mut workers[0], watch)? else { break };
        let mut lent = batch.batch();
        cut.fill(layout.strips(), lent.bags);
        lent.bags = cut.instead(lent.bags);
        let (values, bags) = (lent.bags.values.len(), lent.bags);
        heads.resize(heads_len(values), 0);
        unique.resize(values, 0);
        slot.resize(values, 0);
        let found = coalesce(bags, layout.numbering(), &mut heads, &mut unique, &mut slot);
        let rows = vec![0.0; found * layout.width];
        let input = Input {
            batch: lent,
            rows: &rows,
            slot: &slot,
            strips: cut.strips(),
            named_once: false,
        };
        let start = thread_time();
        let mut out = Gradients {
            parameters: &mut buffers.contribution.gradient,
            update: None,
            rows: &mut buffers.row_gradients[..rows.len()],
            statistics: &mut buffers.contribution.statistics,
            logits: &mut buffers.logits[..batch.len()],
        };
        let key = StepKey { seed: plan.job.config.seed, step: 0 };
        let workspace = &mut buffers.workspace.lend();
        model.train_step(&trainer.replica, &input, key, &mut |_| {}, workspace, &mut out);
        let took = thread_time() - start;
        (distinct, ids, all) = (distinct + found, ids + values, all + took);
        least = least.min(took.as_secs_f64() * batch_size as f64 / batch.len().max(1) as f64);
        batches += 1;
        workers[0].recycle(batch);
    }
    drop(workers);
    pipeline.join();
    let distinct = distinct as f64 / (ids as f64).max(1.0);
    Ok((least, distinct.clamp(1e-6, 1.0)))
}

/// Lines below those of the prediction.
impl fmt::Display for StepTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes_per_s, latency_us) = self.link;
        write!(
            f,
            "step time   a worker computes a batch of {} in {:.2} ms, measured here; the rest in \
             virtual time, on links of {:.3} GB/s each way and {latency_us} µs",
            self.batch,
            1e3 * self.compute_seconds,
            bytes_per_s / 1e9
        )?;
        for (method, pace) in &self.methods {
            let name = method.name();
            match pace {
                Ok(Pace { step_seconds, examples_per_second, waits: [rows, others] }) => write!(
                    f,
                    "\nstep time   {name:16} {:9.2} ms, {examples_per_second:9.0} examples/s, \
                     waits for rows {:3.0} %, for others {:3.0} %",
                    1e3 * step_seconds,
                    1e2 * rows,
                    1e2 * others
                )?,
                Err(why) => write!(f, "\nstep time   {name:16} not planned: {why}")?,
            }
        }
        Ok(())
    }
}
