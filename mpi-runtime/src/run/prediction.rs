//! What every rank of a planned run will send, receive and hold per step, before anything starts:
//! for the ranks of this launch or for any other number.
//!
//! How many messages, and how long they are, follows from the plan (`rows/traffic.rs`,
//! `dense/traffic.rs`) but for one thing: how many distinct rows a step touches, and of how many
//! bags. That is counted in the first batches of the training data (`first_batches.rs`).

use core::fmt;
use core::sync::atomic::AtomicU32;

use serde::Serialize;
use umbra_core::model::{Gradients, Input, StepKey};
use umbra_datasets::{BatchBuffer, Dataset};

use crate::comm::traffic::Traffic;
use crate::comm::watch::Watch;
use crate::config::BatchNormScope;
use crate::dense::bsp::STEP_SUMS;
use crate::dense::traffic::{Sum, of_round, of_step};
use crate::error::Error;
use crate::rows::traffic::Flow;
use crate::run::first_batches::FirstBatches;
use crate::run::memory::{RankMemory, mebibytes};
use crate::run::placement::Placed;
use crate::run::plan::Plan;
use crate::run::pool_choice::PoolChoice;
use crate::score::memory::figures_bytes;
use crate::trainer::buffers::StepBuffers;

/// What the ranks of a run do while every worker makes one step.
#[derive(Debug, Default, Serialize)]
pub struct Prediction {
    /// Where tables are, where rows are not simply dealt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placed>,
    /// Who pools bags, where that was chosen by bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooling: Option<PoolChoice>,
    /// The tables, the largest first.
    pub tables: Vec<PlannedTable>,
    /// Rank by rank.
    pub ranks: Vec<RankPrediction>,
}

/// A table over all ranks.
#[derive(Debug, Serialize)]
pub struct PlannedTable {
    /// Its field.
    pub name: String,
    /// Rows.
    pub rows: u64,
    /// Bytes of them with their state.
    pub bytes: u64,
    /// Distinct rows that a step of a worker touches, in the mean.
    pub touched: f64,
}

/// What a rank does while every worker makes one step.
#[derive(Debug, Serialize)]
pub struct RankPrediction {
    /// Which.
    pub rank: usize,
    /// Rows, or vectors of bags, and their gradients.
    pub embedding: Exchanged,
    /// Sums of a step.
    pub dense: Exchanged,
    /// Of a method with rounds: a round of the dense replicas.
    pub dense_round: Option<Exchanged>,
    /// These of all steps that may be under way, at most.
    pub embedding_held_bytes: f64,
    /// Scores and what is made of them in the largest evaluation, at most; 0 without data for one.
    pub evaluation_bytes: u64,
    /// What it has in memory at its greatest.
    pub memory: RankMemory,
    /// All of that.
    pub memory_bytes: u64,
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
        let (trainers, workers) = (roles.trainers.len(), plan.workers_per_trainer());
        let first = FirstBatches::count(plan, job.config.pooled(), watch)?;
        let steps = first.steps(plan.shape());
        let sums = if plan.synchronous() {
            let global_norm = job.config.sync.batch_norm == BatchNormScope::Global;
            step_sums(plan, global_norm)
        } else {
            vec![]
        };
        let coded = plan.coding().map(|coding| (coding, &plan.model));
        let replica = (plan.model.replica_len(), coded);
        let rounds = of_round(&plan.method(), replica, workers, roles, ranks);
        let evaluation = evaluation_bytes(plan);
        let touched: f64 = first.tables.iter().sum();
        let of_rank = |rank| {
            let trainer = roles.trainers.number_of(rank);
            let step = steps.of(&plan.duties(rank));
            let dense = trainer.map(|trainer| of_step(&sums, (trainers, trainer), coded));
            // Beside what is held, messages in the memory that they come in, and leave in: of all
            // steps that may be under way.
            let leaving = plan.shape().permits as f64 * step.sent.bytes;
            let held = step.held_bytes + leaving + step.received.bytes;
            let memory = plan.memory_of((rank, ranks), (touched, held), first.pages, evaluation);
            RankPrediction {
                rank,
                embedding: Exchanged::rows(step.sent, step.received),
                dense: dense.unwrap_or_default().into(),
                dense_round: rounds
                    .get(rank)
                    .filter(|round| **round != Traffic::default())
                    .map(|round| (*round).into()),
                embedding_held_bytes: step.held_bytes,
                evaluation_bytes: if trainer.is_some() { evaluation } else { 0 },
                memory_bytes: memory.total(),
                memory,
            }
        };
        let (placement, pooling) = (plan.placed.clone(), plan.pool_choice);
        let ranks = (0..ranks).map(of_rank).collect();
        Ok(Self { placement, pooling, tables: tables(plan, &first.tables), ranks })
    }

    fn busiest(&self, of: impl Fn(&RankPrediction) -> f64) -> Option<&RankPrediction> {
        self.ranks.iter().max_by(|one, other| of(one).total_cmp(&of(other)))
    }
}

/// The tables of `plan`, of which a step touches so many rows each.
fn tables(plan: &Plan, touched: &[f64]) -> Vec<PlannedTable> {
    let record = 4 * plan.layout.record().words() as u64;
    let numbering = plan.layout.numbering();
    let of = |(table, touched): (usize, &f64)| {
        let rows = numbering.cardinality(table).into();
        let name = plan.layout.name_of(table, plan.train.sparse_names());
        PlannedTable { name, rows, bytes: record * rows, touched: *touched }
    };
    let mut tables: Vec<_> = touched.iter().enumerate().map(of).collect();
    tables.sort_by_key(|table| core::cmp::Reverse(table.bytes));
    tables
}

/// What a trainer holds in the largest evaluation.
fn evaluation_bytes(plan: &Plan) -> u64 {
    let trainers = plan.roles.trainers.len() as u64;
    let of =
        |data: &Dataset| figures_bytes(data.rows().div_ceil(trainers), trainers, data.has_groups());
    [&plan.valid, &plan.test].into_iter().flatten().map(of).max().unwrap_or(0)
}

/// The sums over all trainers of a step under `bsp`, in their order; `global_norm` as in
/// [`Bsp::new`](crate::dense::bsp::Bsp::new). Found by making a step without examples, which has
/// the same sums as any other.
fn step_sums(plan: &Plan, global_norm: bool) -> Vec<Sum> {
    let (model, strips) = (&plan.model, plan.layout.strips());
    let (parameters, all) = (model.parameters_len(), model.replica_len());
    let replica: Vec<AtomicU32> = (0..all).map(|_| AtomicU32::new(0)).collect();
    let (batch, mut buffers) = (BatchBuffer::default(), StepBuffers::new(model, 1, model.bags()));
    let mut sums = vec![];
    let mut within = |values: &mut [f64]| sums.push(Sum { values: 0, few: values.len() });
    let mut out = Gradients {
        parameters: &mut buffers.contribution.gradient,
        update: None,
        rows: &mut [],
        statistics: &mut buffers.contribution.statistics,
        logits: &mut [],
    };
    let input = Input { batch: batch.batch(), rows: &[], slot: &[], strips, named_once: false };
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

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, not below 0")]
const fn whole(bytes: f64) -> u64 {
    bytes as u64
}

/// Tables that are named one by one.
const TABLES_NAMED: usize = 8;

/// Lines that `--dry-run` prints below the plan.
impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        type Kind = fn(&RankPrediction) -> Exchanged;
        let lines: [(&str, &str, Kind); 3] = [
            ("rows", "a step", |rank| rank.embedding),
            ("dense", "a step", |rank| rank.dense),
            ("dense", "a round", |rank| rank.dense_round.unwrap_or_default()),
        ];
        if let Some(placed) = &self.placement {
            write!(f, "\nplacement   {placed}")?;
        }
        if let Some(choice) = &self.pooling {
            write!(f, "\npooling     {choice}")?;
        }
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
        let Some(held) = self.busiest(|rank| rank.embedding_held_bytes) else {
            return Ok(());
        };
        write!(
            f,
            "\nunder way   {:.1} MiB of rows and gradients on the fullest rank, at most",
            held.embedding_held_bytes / f64::from(1 << 20)
        )?;
        let evaluation = self.ranks.iter().map(|rank| rank.evaluation_bytes).max().unwrap_or(0);
        if evaluation > 0 {
            let evaluation = mebibytes(evaluation);
            write!(f, "\nevaluation  {evaluation:.1} MiB of scores on a trainer, at most")?;
        }
        for PlannedTable { name, rows, bytes, touched } in self.tables.iter().take(TABLES_NAMED) {
            let bytes = mebibytes(*bytes);
            write!(
                f,
                "\ntable       {name}: {rows} rows, {bytes:.1} MiB, a worker's step touches \
                 {touched:.0} of them"
            )?;
        }
        if let Some(others @ [_, ..]) = self.tables.get(TABLES_NAMED..) {
            let bytes = mebibytes(others.iter().map(|table| table.bytes).sum());
            write!(f, "\ntables      {} more: {bytes:.1} MiB", others.len())?;
        }
        let Some(fullest) = self.busiest(|rank| rank.memory_bytes as f64) else { return Ok(()) };
        write!(f, "\nresident    rank {}, the fullest: {}", fullest.rank, fullest.memory)?;
        if self.ranks.len() > 1 {
            let uneven = |of: fn(&RankPrediction) -> u64| {
                let (most, all) = self
                    .ranks
                    .iter()
                    .map(of)
                    .fold((0, 0), |(most, all), bytes| (bytes.max(most), all + bytes));
                most as f64 * self.ranks.len() as f64 / (all as f64).max(1.0)
            };
            write!(
                f,
                "\nimbalance   the fullest rank has {:.2} times the mean memory, the busiest \
                 sends and receives {:.2} times the mean",
                uneven(|rank| rank.memory_bytes),
                uneven(|rank| whole(rank.embedding.busy() + rank.dense.busy()))
            )?;
        }
        Ok(())
    }
}
