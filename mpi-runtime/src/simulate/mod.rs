//! A job on a cluster that is not there: the core's simulator with the job's method, model and
//! data.
//!
//! One process. The job says what is trained and how replicas stay together; the cluster file
//! ([`cluster`]) says how many nodes there are and how fast. In `timing` only time passes; in
//! `training` every step trains the real model (`training.rs`, under `bsp` with `global_batch.rs`),
//! at the moment of virtual time at which it ends, so that throughput and quality come from one
//! run.
//!
//! What differs from a real run: the rows of a step are read and updated at that same moment, so
//! they are never stale; the workers of a trainer take turns, so no update is lost; there are no
//! evaluations under way. Under `bsp` neither is so in a real run, and the model is the same. On
//! parameter servers rows are as old as they are in a real run (`served.rs`).

pub mod cluster;
mod day;
mod failures;
mod global_batch;
mod served;
pub mod step_times;
mod training;

use std::sync::Arc;

use serde_json::json;
use umbra_core::sim::{self, Outcome, Simulated, Training};
use umbra_core::sync::server::Tally;
use umbra_core::sync::{Algorithm, Dealing};

use crate::comm::Comm;
use crate::comm::watch::Watch;
use crate::config::{BatchNormScope, Config, Layout, PoolAt, SyncMethod};
use crate::dense::stretches::Stretches;
use crate::error::Error;
use crate::record::{
    Status, Summary, SyncFigures, TrainFigures, TrainerSync, WaitFigures, WireFigures,
};
use crate::rows::tables::{Partition, TableLayout};
use crate::run::measures::eval_figures;
use crate::run::plan::Plan;
use cluster::{ClusterFile, Fidelity, StepSizes, Straggler};
use failures::Failures;
use training::{Learned, Learners};

/// Steps of a worker in `timing`, when the cluster file does not say: enough for the jitter of the
/// last not to matter.
const TIMING_STEPS: u64 = 1000;

/// A job, planned on a virtual cluster.
pub struct Virtual {
    /// The plan on the cluster's ranks.
    pub plan: Plan,
    /// Steps of a worker.
    steps: u64,
    ranks: usize,
    fidelity: Fidelity,
    simulated: sim::Job<'static>,
    cluster: sim::Cluster,
    leaf: Option<usize>,
    /// Trainers that are slow for a time.
    slow: Vec<Straggler>,
    change_s: f64,
}

/// What a simulated run came to.
pub struct Simulation {
    /// As it stands in `summary.json`.
    pub summary: Summary,
    /// What happened, if the job asks for a trace.
    pub outcome: Outcome,
}

impl Virtual {
    /// Plans `config` on `file` with so many `trainers`.
    ///
    /// # Errors
    /// A job that does not fit the cluster, a method without rounds to simulate, data that can't be
    /// opened.
    pub fn plan(mut config: Config, file: &ClusterFile, trainers: usize) -> Result<Self, Error> {
        let elastic = config.sync.methods().any(|method| method.shape().has_centers());
        let sync_ps = file.sync_ps.or(config.roles.sync_ps).unwrap_or(1).max(1);
        let (layout, embedding_ps) = match file.embedding_ps {
            0 => (Layout::Collocated, trainers),
            ps => (Layout::Separate, ps),
        };
        let roles = &mut config.roles;
        (roles.layout, roles.trainers) = (layout, Some(trainers));
        (roles.embedding_ps, roles.sync_ps) = (Some(embedding_ps), elastic.then_some(sync_ps));
        let ranks = match layout {
            Layout::Collocated => trainers,
            Layout::Separate => trainers + embedding_ps + if elastic { sync_ps } else { 0 },
        };
        let Some(worker_threads) =
            config.train.worker_threads.or(Some(file.cores)).filter(|n| *n > 0)
        else {
            return Err(Error::Usage(
                "train.worker_threads: expected a number, since the cluster file says nothing of \
                 cores"
                    .into(),
            ));
        };
        if config.embedding.pool_at == PoolAt::Auto {
            // Those who hold rows pool nothing in virtual time.
            config.embedding.pool_at = PoolAt::Trainer;
        }
        let cores = if file.cores == 0 { worker_threads + 1 } else { file.cores };
        let job = config.resolve(ranks, 1, cores)?;
        let config = &job.config;
        if config.roles.dense_partitions > 1 {
            return Err(Error::Usage(
                "roles.dense_partitions: layers are not split in virtual time; leave it out".into(),
            ));
        }
        if config.compress.dp_keep.is_some() && file.fidelity == Fidelity::Training {
            return Err(Error::Usage(
                "compress.dp_keep: with a real model nothing is compressed in virtual time; leave \
                 it out, or expect times and bytes alone of fidelity = \"timing\""
                    .into(),
            ));
        }
        if config.pooled().is_some() {
            return Err(Error::Usage(
                "embedding.pool_at and compress.mp_keep: bags are pooled by trainers in virtual \
                 time; leave them out"
                    .into(),
            ));
        }
        let changes = !config.sync.switch.is_off();
        if changes && config.recovery.inject.failures.is_some() {
            return Err(Error::Usage(
                "sync.switch: a job that changes its method has no failures in virtual time; leave \
                 out recovery.inject.failures"
                    .into(),
            ));
        }
        if changes && file.fidelity == Fidelity::Training {
            return Err(Error::Usage(
                "sync.switch: methods change in virtual time with no real model yet; expected \
                 fidelity = \"timing\""
                    .into(),
            ));
        }
        if !changes && file.slow_for_a_time().next().is_some() {
            return Err(Error::Usage(
                "[[straggler]] from_step and to_step are for jobs that change their method; \
                 expected sync.switch, or stragglers that are slow all the time"
                    .into(),
            ));
        }
        if job.method == SyncMethod::Bsp
            && file.fidelity == Fidelity::Training
            && config.model.batch_norm
            && config.sync.batch_norm == BatchNormScope::Global
        {
            return Err(Error::Usage(
                "sync.batch_norm = \"global\": workers would meet in the middle of a step, which \
                 only real ranks do; expected \"local\", or fidelity = \"timing\""
                    .into(),
            ));
        }
        let plan = Plan::new(job, ranks)?;
        plan.train.check_labels()?;
        let steps = match file.fidelity {
            Fidelity::Timing => file.steps.unwrap_or(TIMING_STEPS),
            Fidelity::Training => plan.steps.min(file.steps.unwrap_or(u64::MAX)),
        };
        let sizes = StepSizes {
            batch: plan.job.config.train.batch_size,
            ids: plan.rows_per_example(),
            width: plan.layout.width,
            replica: plan.model.replica_len(),
            coded_share: coded_share(&plan),
        };
        let cluster = file.cluster(&plan.job, steps, sizes);
        let uneven = cluster
            .trainers
            .windows(2)
            .any(|pair| (pair[0].steps, pair[0].ends.0) != (pair[1].steps, pair[1].ends.0));
        if plan.job.method == SyncMethod::Bsp && uneven {
            return Err(Error::Usage(
                "sync.method = \"bsp\": all trainers make equally many steps; expected no \
                 [[short]] and no [[death]]"
                    .into(),
            ));
        }
        let ends = cluster.trainers.iter().any(|trainer| trainer.ends.0 < u64::MAX);
        if plan.job.config.sync.methods().any(SyncMethod::is_served) && (uneven || ends) {
            return Err(Error::Usage(format!(
                "sync.method = \"{}\": batches are handed out until none is left; expected no \
                 `seconds`, no [[short]] and no [[death]]",
                plan.job.method.name()
            )));
        }
        let steps_of_data = (file.fidelity == Fidelity::Training).then_some(steps);
        Ok(Self {
            simulated: synchronized(&plan, plan.job.method, file.nodes_of_leaf(), steps_of_data),
            leaf: file.nodes_of_leaf(),
            slow: file.slow_for_a_time().collect(),
            change_s: file.change_s,
            plan,
            steps,
            ranks,
            fidelity: file.fidelity,
            cluster,
        })
    }

    /// Simulates. `control`: a communicator of this process alone, for metrics.
    ///
    /// # Errors
    /// Data that can't be read, no memory, a model that diverged.
    pub fn run(&self, control: &Comm, watch: &Arc<Watch>) -> Result<Simulation, Error> {
        if !self.plan.job.config.sync.switch.is_off() {
            return self.run_in_turn();
        }
        let trace = self.plan.job.config.run.trace;
        let mut failures = None;
        let (simulated, learned) = match self.fidelity {
            Fidelity::Timing => {
                let cluster = self.with_failures(&mut failures, None)?;
                (timing(&cluster, &self.simulated, trace)?, None)
            }
            Fidelity::Training => {
                let mut learners = Learners::new(&self.plan, watch)?;
                let cluster = self.with_failures(&mut failures, Some(learners.rows()))?;
                let simulated = learners.train(&cluster, &self.simulated, failures.as_mut(), trace);
                let learned = simulated.and_then(|simulated| {
                    let learned =
                        learners.learned(&self.plan, &self.simulated, &simulated, control);
                    Ok((simulated, Some(learned?)))
                });
                learners.finish();
                learned?
            }
        };
        let Simulated { outcome, tally, .. } = simulated;
        let mut summary = self.summary(&outcome, learned.as_ref(), &tally)?;
        summary.recovery = failures.map(|failures| failures.figures(&outcome));
        Ok(Simulation { summary, outcome })
    }

    /// The cluster as it is with the failures of the job, which it leaves in `failures`.
    fn with_failures(
        &self,
        failures: &mut Option<Failures>,
        rows: Option<(&TableLayout, &[Partition])>,
    ) -> Result<sim::Cluster, Error> {
        let (job, method) = (&self.plan.job, self.plan.job.method);
        if job.config.recovery.inject.failures.is_none() {
            return Ok(self.cluster.clone());
        }
        let simulated = synchronized(&self.plan, method, self.leaf, None);
        let seconds = timing(&self.cluster, &simulated, false)?.outcome.seconds;
        *failures = Failures::new(&self.plan, (self.steps, seconds), rows);
        Ok(failures.as_ref().map_or_else(|| self.cluster.clone(), |it| it.on(&self.cluster)))
    }

    fn summary(
        &self,
        outcome: &Outcome,
        learned: Option<&Learned>,
        tally: &Tally,
    ) -> Result<Summary, Error> {
        let job = &self.plan.job;
        let mut summary = Summary::new(job, self.ranks)?;
        (summary.r#virtual, summary.status) = (true, Status::Done);
        summary.data_fingerprint = Some(self.plan.train.fingerprint().to_owned());
        let of_steps = outcome.steps() * job.config.train.batch_size as u64;
        let examples = learned.map_or(of_steps, |learned| learned.reading.examples);
        summary.examples = Some(examples);
        summary.steps = Some(self.steps);
        summary.seconds = Some(outcome.seconds);
        summary.examples_per_second =
            (outcome.seconds > 0.0).then(|| examples as f64 / outcome.seconds);
        let exposed = outcome.mean(|trainer| trainer.exposed_seconds);
        let sync = self.sync_figures(outcome, learned);
        let served = self.plan.job.method.is_served();
        summary.sync = Some(if served { sync.with_gradients(tally) } else { sync });
        summary.wire = (self.ranks > 1).then(|| WireFigures {
            dense_bytes: Some(
                outcome.trainers.iter().map(|trainer| trainer.sync_bytes).sum::<u64>()
                    + outcome.center_bytes,
            ),
            embedding_bytes: Some(outcome.rows_bytes),
            ..WireFigures::default()
        });
        summary.wait = Some(WaitFigures {
            data_seconds: None,
            embedding_seconds: Some(outcome.mean(|trainer| trainer.rows_seconds)),
            sync_seconds: Some(exposed),
        });
        if let Some(Learned { reading, valid, test, test_replica }) = learned {
            summary.train = (reading.weight_sum > 0.0).then(|| TrainFigures {
                logloss: Some(reading.loss_sum / reading.weight_sum),
                normalized_entropy: None,
            });
            summary.valid = valid.as_ref().map(eval_figures);
            summary.test = test.as_ref().map(eval_figures);
            summary.test_replica = test_replica.as_ref().map(eval_figures);
        }
        Ok(summary)
    }

    fn sync_figures(&self, outcome: &Outcome, learned: Option<&Learned>) -> SyncFigures {
        let method = self.plan.job.method.name().into();
        let dropped = learned.map(|learned| learned.reading.dropped).filter(|dropped| *dropped > 0);
        if outcome.rounds() == 0 {
            return SyncFigures { method, dropped, ..SyncFigures::default() };
        }
        let trainers = outcome.trainers.iter().map(|trainer| TrainerSync {
            rounds: trainer.rounds,
            gap_mean: (trainer.rounds > 0).then_some(trainer.gap_mean),
            gap_p99: (trainer.rounds > 0).then_some(trainer.gap_p99),
            steps: trainer.steps,
            seconds: trainer.seconds,
            seconds_background: trainer.background_seconds,
            seconds_processor: trainer.processor_seconds,
        });
        let exposed = outcome.mean(|trainer| trainer.exposed_seconds);
        SyncFigures {
            method,
            dropped,
            rounds: outcome.trainers.first().map(|trainer| trainer.rounds),
            gap_mean: outcome.gap_mean(),
            gap_p99: outcome.gap_p99,
            seconds_exposed: Some(exposed).filter(|seconds| *seconds > 0.0),
            seconds_background: Some(outcome.mean(|trainer| trainer.background_seconds)),
            seconds_processor: Some(outcome.mean(|trainer| trainer.processor_seconds)),
            seconds_processor_center: Some(outcome.center_seconds).filter(|seconds| *seconds > 0.0),
            trainers: trainers.collect(),
            ..SyncFigures::default()
        }
    }
}

/// Only time passes.
fn timing(cluster: &sim::Cluster, job: &sim::Job<'_>, trace: bool) -> Result<Simulated, Error> {
    let (step, update) = (&mut |_: sim::Step<'_>| {}, &mut |_| {});
    let training = Training { replicas: &[], gradients: &[], step, update, rows: &mut |_| {} };
    sim::simulate(cluster, job, training, trace).map_err(defect)
}

/// What the simulator synchronizes; with a real model, so many `steps` of the data.
fn synchronized(
    plan: &Plan,
    method: SyncMethod,
    leaf: Option<usize>,
    steps: Option<u64>,
) -> sim::Job<'static> {
    // A node of the simulated cluster has one trainer, so it is the leaves that "nodes" tells
    // apart.
    let leaves = Dealing::Grid { columns: leaf.unwrap_or(1) };
    let mut method = plan.job.config.method(method, plan.roles.sync_ps.len(), leaves);
    if let Algorithm::Server(serving) = &mut method.algorithm {
        // Rows are one store: of a real model it is told what belongs together.
        serving.relays = usize::from(steps.is_some());
    }
    sim::Job {
        method,
        replica_bytes: 4 * plan.model.replica_len() as u64,
        parameters: plan.model.parameters_len(),
        steps,
    }
}

/// Bytes that are sent in place of one of what trainers exchange, where that is coded.
fn coded_share(plan: &Plan) -> Option<f64> {
    let coding = plan.coding().filter(|coding| !coding.is_all())?;
    let parts = Stretches::new(&plan.model, &(0..plan.model.replica_len()));
    Some(parts.sent_share(coding, plan.roles.trainers.len()))
}

/// Spans for chrome://tracing: a process per trainer and one for the instances that synchronize.
#[must_use]
pub fn chrome_trace(spans: &[sim::Span]) -> String {
    let events = spans.iter().map(|span| {
        let (process, thread) = match span.who {
            sim::Who::Worker { trainer, worker } => (format!("trainer {trainer}"), worker),
            sim::Who::Instance(number) => ("synchronization".into(), number),
        };
        let micros = |ns: u64| ns as f64 / 1e3;
        let took = micros(span.end.0 - span.begin.0);
        json!({"ph": "X", "name": span.what.to_string(), "pid": process, "tid": thread,
               "ts": micros(span.begin.0), "dur": took})
    });
    json!({"traceEvents": events.collect::<Vec<_>>(), "displayTimeUnit": "ms"}).to_string()
}

fn defect(error: sim::SimError) -> Error {
    Error::Failure(format!("the simulation: {error}"))
}
