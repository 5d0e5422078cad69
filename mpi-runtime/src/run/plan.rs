//! The plan of a run: every input opened and checked, every size known, before anything starts.

use core::fmt;

use umbra_core::model::Model;
use umbra_core::sync::server::PLACES_MAX;
use umbra_core::sync::{Dealing, Instances, Method};
use umbra_datasets::{Dataset, TrainOrder, steps_per_epoch};

use crate::config::{Config, Job, Layout, Save, SyncMethod, convert};
use crate::dense::parts::Parts;
use crate::error::Error;
use crate::launch::processor::Pins;
use crate::launch::roles::Roles;
use crate::measure::points::points;
use crate::recovery::planner::save_first;
use crate::rows::bag_wire::bag_lookup_words_max;
use crate::rows::partition::TokenRule;
use crate::rows::strips::values_max;
use crate::rows::tables::TableLayout;
use crate::rows::wire::push_words_max;
use crate::run::in_place::LENT_MAX;
use crate::run::placement::Placed;
use crate::run::pool_choice::PoolChoice;
use crate::run::tables;
use crate::trainer::buffers::StepBuffers;

/// Everything a run is made of; equal on all ranks.
pub struct Plan {
    /// The configuration on these ranks.
    pub job: Job,
    /// Which rank does what.
    pub roles: Roles,
    /// The model.
    pub model: Model,
    /// The tables.
    pub layout: TableLayout,
    /// Training data.
    pub train: Dataset,
    /// Validation data.
    pub valid: Option<Dataset>,
    /// Test data.
    pub test: Option<Dataset>,
    /// The order of training examples.
    pub order: TrainOrder,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// Steps of the run.
    pub steps: u64,
    /// Workers over all trainers. Under `bsp` a worker is a slice of the global batch, `data.lanes`
    /// of them whatever the ranks and threads, when these divide evenly; else, and with the other
    /// methods, a worker is a thread.
    pub slices: usize,
    /// Which cores this rank's threads stay on.
    pub pins: Pins,
    /// Workers share the tables directly: one rank, and workers that need not meet over them.
    pub local: bool,
    /// What the job wants compressed is: with `compress.auto` it is only where that pays.
    pub compresses: bool,
    /// Who pools bags, where that was chosen by bytes.
    pub pool_choice: Option<PoolChoice>,
    /// Where tables are, on the first rank, where rows are not simply dealt.
    pub placed: Option<Placed>,
    /// A number for the node of every rank; empty where none is known, and each has one of its own.
    pub node_of: Vec<usize>,
    /// Hosts of the launch at hand and how many of its ranks each has; empty where that is nothing
    /// to this plan.
    pub hosts: Vec<(String, usize)>,
}

impl Plan {
    /// Plans a job; who pools its bags may be left open ([`Plan::choose_pooling`]).
    /// *Not collective; opens every file on the rank that calls.*
    ///
    /// # Errors
    /// When an input can't be read or does not fit.
    pub fn new(job: Job, ranks: usize) -> Result<Self, Error> {
        let config = &job.config;
        let train = Dataset::open(&config.data.train)?;
        let valid = open_compatible(&config.data.valid, &train)?;
        let test = open_compatible(&config.data.test, &train)?;
        if train.rows() == 0 {
            return Err(Error::Data("data.train has no rows: there is nothing to learn".into()));
        }
        let alone = |method: SyncMethod| method != SyncMethod::Bsp && !method.is_served();
        let shared = ranks == 1 && job.config.sync.methods().all(alone);
        let local = shared && job.config.pooled().is_none();
        let per_rank = if local { 1 } else { config.embedding.partitions };
        let roles = match config.roles.layout {
            Layout::Collocated => Roles::collocated(ranks, job.sync_ps, per_rank)
                .with_dense_partitions(config.roles.dense_partitions),
            Layout::Separate => {
                Roles::separate(job.trainers, job.embedding_ps, job.sync_ps, per_rank)
            }
        };
        let (model, mut layout) = tables::of_job(config, &train, roles.partitions)?;
        let first = save_first(&config.recovery, &layout.own_rows_of_fields());
        layout.save_first = first.map(|first| first.in_strips(&layout));
        layout.lent = ranks > 1 && config.embedding.shared_memory && per_rank <= LENT_MAX;
        let (slices, order) = cut(&job);
        let (steps_per_epoch, steps) = steps(&job, &order, &train);
        let plan = Self {
            slices,
            pins: Pins::default(),
            local,
            roles,
            model,
            layout,
            train,
            valid,
            test,
            order,
            steps_per_epoch,
            steps,
            job,
            compresses: true,
            pool_choice: None,
            placed: None,
            node_of: vec![],
            hosts: vec![],
        };
        plan.check_counts()?;
        plan.part(0)?;
        Ok(plan)
    }

    /// The same from now on with `method`, the other of a run that changes its method.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn with_method(mut self, method: SyncMethod) -> Result<Self, Error> {
        self.job.method = method;
        (self.slices, self.order) = cut(&self.job);
        self.check_counts()?;
        Ok(self)
    }

    /// The same from now on on the ranks `left`, ascending: the n-th of them is rank n. Whatever of
    /// it was taken out is opened again.
    ///
    /// # Errors
    /// When the run can't go on without the others, and as [`Plan::new`].
    pub fn of_those(mut self, left: &[usize]) -> Result<Self, Error> {
        if self.roles.dense_partitions > 1 {
            return Err(Error::Launch(
                "a part of the dense layers is lost with each rank (roles.dense_partitions)".into(),
            ));
        }
        let roles = self.roles.of_those(left).ok_or_else(|| {
            Error::Launch("nobody is left that trains, or nobody that holds rows".to_owned())
        })?;
        self.job.trainers = roles.trainers.len();
        self.job.embedding_ps = roles.embedding_ps.len();
        self.job.sync_ps = roles.sync_ps.len();
        let config = &mut self.job.config.roles;
        config.trainers = config.trainers.map(|_| roles.trainers.len());
        config.embedding_ps = config.embedding_ps.map(|_| roles.embedding_ps.len());
        config.sync_ps = config.sync_ps.map(|_| roles.sync_ps.len());
        self.roles = roles;
        self.node_of = left.iter().filter_map(|rank| self.node_of.get(*rank).copied()).collect();
        (self.slices, self.order) = cut(&self.job);
        (self.steps_per_epoch, self.steps) = steps(&self.job, &self.order, &self.train);
        self.valid = open_compatible(&self.job.config.data.valid, &self.train)?;
        self.test = open_compatible(&self.job.config.data.test, &self.train)?;
        self.check_counts()?;
        Ok(self)
    }

    /// Workers of a trainer.
    #[must_use]
    pub fn workers_per_trainer(&self) -> usize {
        if self.job.method.is_served() {
            return self.job.worker_threads;
        }
        self.slices / self.roles.replicas()
    }

    /// The instances of the method.
    #[must_use]
    pub fn instances(&self) -> Instances {
        self.method().instances(self.roles.replicas(), self.workers_per_trainer())
    }

    /// How replicas stay together; groups that follow nodes know them only when it runs.
    #[must_use]
    pub fn method(&self) -> Method<'static> {
        let nodes = Dealing::Nodes { node: &[], place: &[] };
        let mut method = self.job.config.method(self.job.method, self.roles.sync_ps.len(), nodes);
        method.differences &= self.compresses;
        method
    }

    /// Workers of all trainers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.roles.trainers.len() * self.workers_per_trainer()
    }

    /// How partitions take the pushes of batches that are handed out; `None` where none are.
    #[must_use]
    pub fn tokens(&self) -> Option<TokenRule> {
        let serving = self.method().serving()?;
        let (members, places) = (serving.rule.members, serving.places(self.workers()));
        Some(TokenRule { members, places, divisor: self.job.config.sync.server.rows() })
    }

    /// Steps and messages must fit the numbers they travel in.
    pub(super) fn check_counts(&self) -> Result<(), Error> {
        if u32::try_from(self.steps).is_err() {
            let steps = self.steps;
            return Err(Error::Usage(format!(
                "the run would take {steps} steps; at most {} are possible: raise \
                 train.batch_size or lower train.epochs",
                u32::MAX
            )));
        }
        let workers = self.workers();
        if self.job.method.is_served() && workers > PLACES_MAX {
            return Err(Error::Usage(format!(
                "sync.method = \"{}\" with {workers} workers: at most {PLACES_MAX} can be handed \
                 batches",
                self.job.method.name()
            )));
        }
        // Under bsp the workers of a trainer send their pushes together.
        let batches = if self.synchronous() { self.workers_per_trainer() } else { 1 };
        let job_pools = self.job.config.pooled().is_some();
        let rows = batches * self.batch_max(0) * self.values_per_example();
        let sections = batches * self.roles.partitions as usize;
        let pooled = if job_pools { bag_lookup_words_max(batches, rows) } else { 0 };
        let words = push_words_max(sections, rows, self.layout.width).max(pooled);
        if i32::try_from(words).is_err() {
            return Err(Error::Usage(format!(
                "{batches} batches of {} examples can touch rows of {words} values, more than one \
                 MPI message holds ({}): lower train.batch_size",
                self.batch_max(0),
                i32::MAX
            )));
        }
        Ok(())
    }

    /// Most examples in a batch of a trainer's worker `local`. Only as many workers evaluate as
    /// there are threads.
    pub(super) fn batch_max(&self, local: usize) -> usize {
        let evaluates = local < self.job.worker_threads;
        let evaluation = if evaluates { self.job.config.train.eval_batch_size } else { 0 };
        self.order.batch_size.max(evaluation)
    }

    /// Most rows that an example names.
    fn values_per_example(&self) -> usize {
        let splits = [Some(&self.train), self.valid.as_ref(), self.test.as_ref()];
        let of_fields = splits.into_iter().flatten().map(Dataset::values_per_row_max).max();
        values_max(self.layout.strips(), of_fields.unwrap_or(0))
    }

    /// Most rows that an example of the training data names.
    #[must_use]
    pub fn rows_per_example(&self) -> usize {
        values_max(self.layout.strips(), self.train.values_per_row_max())
    }

    /// The memory of a trainer's worker `local`.
    #[must_use]
    pub fn step_buffers(&self, local: usize, parts: Option<&Parts>) -> StepBuffers {
        let batch_max = self.batch_max(local);
        let whole = StepBuffers::new(&self.model, batch_max, batch_max * self.values_per_example());
        match parts {
            Some(parts) => whole.for_part(parts.model(), parts.own_len(), batch_max),
            None => whole,
        }
    }

    /// Whether the best model on the validation data is kept on the way.
    #[must_use]
    pub fn keeps_best(&self) -> bool {
        let Config { train, checkpoint, .. } = &self.job.config;
        train.early_stop.as_ref().is_some_and(|settings| settings.restore_best)
            || (checkpoint.save == Save::Best && self.valid.is_some())
    }

    /// Whether checkpoints on the way are copied, and written while training goes on.
    #[must_use]
    pub fn saves_in_background(&self) -> bool {
        let checkpoint = &self.job.config.checkpoint;
        let on_the_way = checkpoint.every.is_some() || self.job.config.spacing(1).is_some();
        checkpoint.background && (on_the_way || self.keeps_best())
    }

    /// The first step after `step` at which the validation data are scored, a window of progressive
    /// validation ends, or the run.
    #[must_use]
    pub fn segment_end(&self, step: u64) -> u64 {
        let length = match (&self.valid, self.job.config.train.eval_every) {
            (Some(_), 0) => self.steps_per_epoch,
            (Some(_), every) => every,
            // Windows of progressive validation.
            (None, every @ 1..) => every,
            (None, 0) => self.steps,
        };
        let change = self.job.config.sync.next_switch(step).unwrap_or(u64::MAX);
        ((step / length + 1) * length).min(self.steps).min(change)
    }

    /// Whether they are scored after step `step`.
    #[must_use]
    pub fn evaluates_at(&self, step: u64) -> bool {
        let every = match self.job.config.train.eval_every {
            0 => self.steps_per_epoch,
            every => every,
        };
        self.valid.is_some() && step > 0 && (step.is_multiple_of(every) || step == self.steps)
    }

    /// Steps that are reported beside those that are anyway (`measure/points.rs`).
    #[must_use]
    pub fn points(&self) -> Vec<u64> {
        let windows = self.job.config.train.progressive;
        points(self.steps, self.steps_per_epoch, |step| {
            self.evaluates_at(step) || windows && self.segment_end(step - 1) == step
        })
    }

    /// Bytes of embedding records on a rank.
    #[must_use]
    pub fn embedding_bytes(&self, rank: usize) -> u64 {
        self.roles.partitions_of(rank).map(|partition| self.layout.bytes_of(partition)).sum()
    }

    /// Bytes of the dense replica and its optimizer state, over all ranks that share one.
    #[must_use]
    pub fn dense_bytes(&self) -> u64 {
        let planes = convert::dense_optimizer(&self.job.config.optim.dense)
            .map_or(0, |optimizer| optimizer.state_planes());
        4 * (self.model.replica_len() + planes * self.model.parameters_len()) as u64
    }

    /// What parameter servers and their workers take on `rank` beside that: what a worker trains
    /// with and what is on its way to it, and of a slice its values, state, sums and gradients.
    #[must_use]
    pub fn served_bytes(&self, rank: usize) -> u64 {
        let method = self.method();
        let Some(serving) = method.serving() else { return 0 };
        let elements = self.model.replica_len();
        let trains = self.roles.trainers.contains(rank);
        let own = if trains { 2 * self.workers_per_trainer() * elements } else { 0 };
        let slices =
            (0..serving.servers()).filter(|slice| self.roles.sync_ps.rank_of(*slice) == rank);
        let slices: usize = slices.map(|slice| method.slice(slice, elements).len()).sum();
        // Values, staging and the sum; a gradient of every worker, and one that waits for its
        // place.
        let each =
            3 + serving.updates.optimizer.state_planes() + 2 * serving.places(self.workers());
        4 * (own + each * slices) as u64
    }

    /// Whether rows are updated once per step for all workers.
    #[must_use]
    pub fn synchronous(&self) -> bool {
        self.job.method == SyncMethod::Bsp
    }
}

/// Workers over all trainers, and the order of their examples.
fn cut(job: &Job) -> (usize, TrainOrder) {
    let config = &job.config;
    let (streams, lanes) = (job.batches_per_step(), config.data.lanes);
    let even = lanes.is_multiple_of(streams) && job.global_batch().is_multiple_of(lanes);
    // A replica of several ranks has one slice: what its parts say to each other has one order.
    let whole = config.roles.dense_partitions > 1;
    let slices = if job.method == SyncMethod::Bsp && even && !whole { lanes } else { streams };
    let order = TrainOrder {
        seed: config.seed,
        workers_total: slices,
        lanes,
        batch_size: job.global_batch() / slices,
        shuffle: config.data.shuffle,
    };
    (slices, order)
}

/// Steps of an epoch, and of the run.
fn steps(job: &Job, order: &TrainOrder, train: &Dataset) -> (u64, u64) {
    let (of_epoch, config) = (steps_per_epoch(train.rows(), order), &job.config.train);
    let global_batch = job.global_batch() as u64;
    let wanted = config.max_examples.map_or(u64::MAX, |n| n.div_ceil(global_batch));
    (of_epoch, (of_epoch * u64::from(config.epochs)).min(wanted))
}

fn open_compatible(
    paths: &[std::path::PathBuf],
    train: &Dataset,
) -> Result<Option<Dataset>, Error> {
    if paths.is_empty() {
        return Ok(None);
    }
    let dataset = Dataset::open(paths)?;
    train.check_compatible(&dataset)?;
    dataset.check_labels()?;
    Ok(Some(dataset))
}

/// What `--dry-run` prints.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, roles, model, layout, .. } = self;
        let rows = |dataset: &Option<Dataset>| {
            dataset.as_ref().map_or("none".to_owned(), |data| format!("{} rows", data.rows()))
        };
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(
            f,
            "ranks       {} trainers × {} worker threads, {} embedding PS × {} partitions, {} \
             sync PS",
            roles.trainers.len(),
            job.worker_threads,
            roles.embedding_ps.len(),
            roles.partitions as usize / roles.embedding_ps.len(),
            roles.sync_ps.len()
        )?;
        if roles.dense_partitions > 1 {
            writeln!(
                f,
                "parts       {} dense replicas of {} ranks each; messages are not predicted",
                roles.replicas(),
                roles.dense_partitions
            )?;
        }
        writeln!(
            f,
            "data        train {} rows, valid {}, test {}",
            self.train.rows(),
            rows(&self.valid),
            rows(&self.test)
        )?;
        writeln!(
            f,
            "model       {:?}: {} dense parameters, {} {}, {} rows × {}",
            job.config.model.kind,
            model.parameters_len(),
            layout.own_tables(),
            if layout.strips().is_empty() { "tables" } else { "strips of tables" },
            layout.numbering().rows(),
            layout.width
        )?;
        writeln!(
            f,
            "training    {} steps of {} examples ({} an epoch), method {}",
            self.steps,
            job.global_batch(),
            self.steps_per_epoch,
            job.method.name()
        )?;
        let most = roles.embedding_ps.ranks().iter().map(|rank| self.embedding_bytes(*rank)).max();
        write!(
            f,
            "memory      {:.1} MiB of rows on the fullest rank, {:.1} MiB dense on every trainer",
            mebibytes(most.unwrap_or(0)),
            mebibytes(self.dense_bytes())
        )
    }
}
