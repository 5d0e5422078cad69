//! What every rank of a planned run will send, receive and hold per step, before anything starts:
//! for the ranks of this launch or for any other number.
//!
//! How many messages, and how long they are, follows from the plan (`rows/traffic.rs`,
//! `dense/traffic.rs`) but for one thing: how many distinct rows a step touches. That is counted in
//! the first batches of the training data; steps of other examples have about as many.

use core::fmt;
use core::sync::atomic::AtomicU32;

use serde::Serialize;
use umbra_core::model::{Gradients, Input, Model, StepKey};
use umbra_core::sparse::{coalesce, heads_len};
use umbra_datasets::{BatchBuffer, Dataset, Pipeline, TrainOrder};

use crate::comm::traffic::Traffic;
use crate::comm::watch::Watch;
use crate::config::BatchNormScope;
use crate::dense::bsp::STEP_SUMS;
use crate::dense::traffic::{Sum, of_round, of_step};
use crate::error::Error;
use crate::rows::traffic::{Duties, Flow, Shape};
use crate::run::plan::Plan;
use crate::score::memory::figures_bytes;
use crate::trainer::batches::next_read;
use crate::trainer::buffers::StepBuffers;

/// What the ranks of a run do while every worker makes one step.
#[derive(Debug, Default, Serialize)]
pub struct Prediction {
    /// Rank by rank; empty of one rank, which sends nothing.
    pub ranks: Vec<RankPrediction>,
}

/// What a rank does while every worker makes one step.
#[derive(Debug, Serialize)]
pub struct RankPrediction {
    /// Which.
    pub rank: usize,
    /// Rows and their gradients; not predicted where bags are pooled by those who hold their rows.
    pub embedding: Option<Exchanged>,
    /// Sums of a step.
    pub dense: Exchanged,
    /// Of a method with rounds: a round of the dense replicas.
    pub dense_round: Option<Exchanged>,
    /// Rows and gradients of all steps that may be under way, at most; as they.
    pub embedding_held_bytes: Option<f64>,
    /// Scores and what is made of them in the largest evaluation, at most; 0 without data for one.
    pub evaluation_bytes: u64,
}

/// Messages and bytes between a rank and all others, expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Exchanged {
    /// Messages to others.
    pub messages_sent: f64,
    /// Bytes in them.
    pub bytes_sent: f64,
    /// Messages from others.
    pub messages_received: f64,
    /// Bytes in them.
    pub bytes_received: f64,
}

impl Exchanged {
    const fn rows(sent: Flow, received: Flow) -> Self {
        Self {
            messages_sent: sent.messages,
            bytes_sent: sent.bytes,
            messages_received: received.messages,
            bytes_received: received.bytes,
        }
    }

    const fn busy(&self) -> f64 {
        self.bytes_sent + self.bytes_received
    }
}

impl From<Traffic> for Exchanged {
    fn from(traffic: Traffic) -> Self {
        Self {
            messages_sent: traffic.messages_sent as f64,
            bytes_sent: traffic.bytes_sent as f64,
            messages_received: traffic.messages_received as f64,
            bytes_received: traffic.bytes_received as f64,
        }
    }
}

impl Prediction {
    /// Of `plan`, which was made for `ranks` ranks. Reads the first batches of the training data,
    /// for which `watch` gives its time. *Not collective.*
    ///
    /// # Errors
    /// When they can't be read.
    pub fn new(plan: &Plan, ranks: usize, watch: &Watch) -> Result<Self, Error> {
        let Plan { job, roles, .. } = plan;
        let (trainers, servers) = (roles.trainers.len(), roles.embedding_ps.len());
        let workers = plan.workers_per_trainer();
        let shape = Shape {
            trainers,
            servers,
            workers,
            partitions: roles.partitions as usize / servers,
            joint: plan.synchronous(),
            width: plan.layout.width,
            permits: job.config.embedding.prefetch + 1,
        };
        let pooled = job.config.pooled().is_some();
        let rows = if pooled { vec![0.0; servers] } else { rows_of_a_step(plan, watch)? };
        let steps = shape.steps(&rows);
        let sums = if plan.synchronous() {
            let global_norm = job.config.sync.batch_norm == BatchNormScope::Global;
            step_sums(&plan.model, plan.train.fields(), global_norm)
        } else {
            vec![]
        };
        let coded = plan.coding().map(|coding| (coding, &plan.model));
        let replica = (plan.model.replica_len(), coded);
        let rounds = of_round(&plan.method(), replica, workers, roles, ranks);
        let evaluation = evaluation_bytes(plan);
        let of_rank = |rank| {
            let trainer = roles.trainers.number_of(rank);
            let duties =
                Duties { trains: trainer.is_some(), serves: roles.embedding_ps.number_of(rank) };
            let step = steps.of(duties);
            let dense = trainer.map(|trainer| of_step(&sums, (trainers, trainer), coded));
            RankPrediction {
                rank,
                embedding: (!pooled).then(|| Exchanged::rows(step.sent, step.received)),
                dense: dense.unwrap_or_default().into(),
                dense_round: rounds
                    .get(rank)
                    .filter(|round| **round != Traffic::default())
                    .map(|round| (*round).into()),
                embedding_held_bytes: (!pooled).then_some(step.held_bytes),
                evaluation_bytes: if trainer.is_some() { evaluation } else { 0 },
            }
        };
        Ok(Self { ranks: (0..ranks).map(of_rank).collect() })
    }

    fn busiest(&self, of: impl Fn(&RankPrediction) -> f64) -> Option<&RankPrediction> {
        self.ranks.iter().max_by(|one, other| of(one).total_cmp(&of(other)))
    }
}

/// What a trainer holds in the largest evaluation.
fn evaluation_bytes(plan: &Plan) -> u64 {
    let trainers = plan.roles.trainers.len() as u64;
    let of =
        |data: &Dataset| figures_bytes(data.rows().div_ceil(trainers), trainers, data.has_groups());
    [&plan.valid, &plan.test].into_iter().flatten().map(of).max().unwrap_or(0)
}

/// Distinct rows that a step of a worker touches in one partition of each rank that holds rows:
/// the mean over the first batches of an epoch. `[servers]`
fn rows_of_a_step(plan: &Plan, watch: &Watch) -> Result<Vec<f64>, Error> {
    let servers = plan.roles.embedding_ps.len();
    // One worker that reads all lanes in turn: batches as long as any worker's.
    let order = TrainOrder { workers_total: 1, ..plan.order };
    let (pipeline, mut workers) = Pipeline::train(&plan.train, &order, 0..1, 0..1, 4)?;
    let wanted = BATCHES_MIN.max(EXAMPLES_MIN / order.batch_size);
    let (mut batches, mut found) = (0, vec![0_u64; servers]);
    let (mut heads, mut unique, mut slot) = (vec![], vec![], vec![]);
    while batches < wanted {
        let Some(batch) = next_read(&mut workers[0], watch)? else { break };
        let values = batch.values.len();
        heads.resize(heads_len(values), 0);
        unique.resize(values, 0);
        slot.resize(values, 0);
        let numbering = plan.layout.numbering();
        let rows = coalesce(batch.batch().bags, numbering, &mut heads, &mut unique, &mut slot);
        for row in &unique[..rows] {
            let partition = plan.layout.partitioning.partition(*row);
            found[partition as usize % servers] += 1;
        }
        batches += 1;
        workers[0].recycle(batch);
    }
    drop(workers);
    pipeline.join();
    let each = (batches.max(1) * plan.roles.partitions as usize / servers) as f64;
    Ok(found.into_iter().map(|rows| rows as f64 / each).collect())
}

/// Batches and examples that are looked at, at least.
const BATCHES_MIN: usize = 64;
const EXAMPLES_MIN: usize = 65_536;

/// The sums over all trainers of a step under `bsp`, in their order; `global_norm` as in
/// [`Bsp::new`](crate::dense::bsp::Bsp::new). Found by making a step without examples, which has
/// the same sums as any other.
fn step_sums(model: &Model, fields: usize, global_norm: bool) -> Vec<Sum> {
    let (parameters, all) = (model.parameters_len(), model.replica_len());
    let replica: Vec<AtomicU32> = (0..all).map(|_| AtomicU32::new(0)).collect();
    let (batch, mut buffers) = (BatchBuffer::default(), StepBuffers::new(model, 1, fields));
    let mut sums = vec![];
    let mut within = |values: &mut [f64]| sums.push(Sum { values: 0, few: values.len() });
    let mut out = Gradients {
        parameters: &mut buffers.contribution.gradient,
        update: None,
        rows: &mut [],
        statistics: &mut buffers.contribution.statistics,
        logits: &mut [],
    };
    let input = Input { batch: batch.batch(), rows: &[], slot: &[] };
    let key = StepKey { seed: 0, step: 0 };
    model.train_step(&replica, &input, key, &mut within, &mut buffers.workspace.lend(), &mut out);
    if !global_norm {
        sums.truncate(1);
    }
    sums.push(Sum { values: parameters, few: STEP_SUMS });
    if !global_norm && all > parameters {
        sums.push(Sum { values: all - parameters, few: 0 });
    }
    sums
}

/// Lines that `--dry-run` prints below the plan.
impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        type Kind = fn(&RankPrediction) -> Exchanged;
        let lines: [(&str, &str, Kind); 3] = [
            ("rows", "a step", |rank| rank.embedding.unwrap_or_default()),
            ("dense", "a step", |rank| rank.dense),
            ("dense", "a round", |rank| rank.dense_round.unwrap_or_default()),
        ];
        for (what, when, of) in lines {
            let Some(rank) = self.busiest(|rank| of(rank).busy()) else { continue };
            let exchanged = of(rank);
            if exchanged.busy() == 0.0 {
                continue;
            }
            let Exchanged { messages_sent, bytes_sent, messages_received, bytes_received } =
                exchanged;
            write!(
                f,
                "\n{what:11} {when}, busiest rank {}: {messages_sent:.1} messages of {:.1} KiB \
                 sent, {messages_received:.1} of {:.1} KiB received",
                rank.rank,
                bytes_sent / 1024.0,
                bytes_received / 1024.0
            )?;
        }
        let Some(held) = self.busiest(|rank| rank.embedding_held_bytes.unwrap_or(0.0)) else {
            return Ok(());
        };
        if let Some(held) = held.embedding_held_bytes {
            let mebibytes = held / f64::from(1 << 20);
            write!(
                f,
                "\nunder way   {mebibytes:.1} MiB of rows and gradients on the fullest rank, at \
                 most"
            )?;
        } else {
            write!(f, "\nrows        not predicted: bags are pooled by those who hold their rows")?;
        }
        let evaluation = self.ranks.iter().map(|rank| rank.evaluation_bytes).max().unwrap_or(0);
        if evaluation > 0 {
            let mebibytes = evaluation as f64 / f64::from(1 << 20);
            write!(f, "\nevaluation  {mebibytes:.1} MiB of scores on a trainer, at most")?;
        }
        Ok(())
    }
}
