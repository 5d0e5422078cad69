//! What a run goes on from, and what of it is as if it had never stopped.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::path::PathBuf;

use umbra_core::kernel;

use crate::checkpoint::{
    self, Checkpoint, CheckpointError, Dense, Folders, Manifest, say_passed_over,
};
use crate::comm::Comm;
use crate::config::{
    CheckpointConfig, Config, EmbeddingConfig, Placement, Precision, RolesConfig, SyncConfig,
    SyncMethod, TrainConfig,
};
use crate::error::Error;
use crate::record::{RunFolder, build_hash};
use crate::run::Run;
use crate::run::plan::Plan;

/// What a run that goes on from a checkpoint has in common with one that never stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// All: the same bits.
    Bits,
    /// Every trainer's replica, optimizer state and what the method remembers.
    Replicas,
    /// The model, its optimizer state and the place in the data.
    Model,
}

impl Kept {
    /// As the end of a sentence.
    #[must_use]
    pub const fn says(self) -> &'static str {
        match self {
            Self::Bits => "the results are those of a run without a stop, bit for bit",
            Self::Replicas => "every trainer goes on with its own replica",
            Self::Model => "all trainers go on with the saved model",
        }
    }
}

/// The checkpoint that a run goes on from, if there is one: the newest that is whole, or the one
/// that was named. Every byte of it has been read. *Collective over `control`.*
///
/// # Errors
/// When the one that was asked for is not there or not whole, on every rank.
pub fn find(control: &Comm, config: &Config) -> Result<Option<Checkpoint>, Error> {
    let mut passed_over = vec![];
    loop {
        let first = control.rank() == 0;
        let found = if first { find_here(config, &mut passed_over) } else { Ok(None) };
        let found = control.agree(found)?;
        let mut there = [u64::from(found.is_some())];
        control.broadcast(&mut there, "what the run goes on from", false)?;
        if there == [0] {
            return Ok(None);
        }
        let checkpoint = Checkpoint::tell(control, found)?;
        let another_will_do = config.checkpoint.resume == AUTO;
        match checkpoint.verify_together(control) {
            Ok(()) => return Ok(Some(checkpoint)),
            Err(error) if another_will_do && error.exit_code() == 4 => {
                if !error.is_silent() {
                    say_passed_over(&error);
                }
                passed_over.push(checkpoint.dir().to_owned());
            }
            Err(error) => return Err(error),
        }
    }
}

fn find_here(config: &Config, passed_over: &mut Vec<PathBuf>) -> Result<Option<Checkpoint>, Error> {
    let CheckpointConfig { dir, resume, .. } = &config.checkpoint;
    let folders = Folders::new(dir.clone());
    // What is to be replaced is nothing to go on from.
    let replaced = config.run.overwrite && RunFolder::holds_a_finished_run(config);
    let found = match resume.as_str() {
        AUTO if !replaced => newest(&folders, passed_over)?,
        AUTO | "none" => None,
        path => Some(Checkpoint::open_here(path.as_ref())?),
    };
    if found.is_some() || folders.steps()?.is_empty() {
        return Ok(found);
    }
    if !config.run.overwrite && resume == AUTO {
        return Err(CheckpointError::NoneWhole { path: dir.clone() }.into());
    }
    if !config.run.overwrite {
        return Err(Error::Usage(format!(
            "{}: checkpoints of a run that has not ended are here; go on from them \
             (checkpoint.resume = \"auto\"), or replace it with --set run.overwrite=true",
            dir.display()
        )));
    }
    folders.clear()?;
    Ok(None)
}

/// The one that `LATEST` names, or else the newest that is whole, but for those that were
/// `passed_over`. Says what else it passes over, and why.
pub(super) fn newest(
    folders: &Folders,
    passed_over: &mut Vec<PathBuf>,
) -> Result<Option<Checkpoint>, CheckpointError> {
    let named = folders.latest();
    let others = folders.steps()?.into_iter().filter(|step| Some(*step) != named);
    for place in named.into_iter().chain(others).map(|step| folders.of(step)) {
        if passed_over.contains(&place) {
            continue;
        }
        match Checkpoint::open_here(&place) {
            Ok(checkpoint) => return Ok(Some(checkpoint)),
            Err(error) => {
                say_passed_over(&error);
                passed_over.push(place);
            }
        }
    }
    Ok(None)
}

/// `checkpoint.resume` of who wants the newest.
pub(super) const AUTO: &str = "auto";

/// The method that `checkpoint` was saved under, if a run of `plan` trains by it too.
#[must_use]
pub fn method_of(plan: &Plan, checkpoint: &Checkpoint) -> Option<SyncMethod> {
    let mut others = plan.job.config.sync.methods().filter(|method| *method != plan.job.method);
    others.find(|method| method.name() == checkpoint.manifest.method)
}

/// What a run of `plan` keeps of the one that wrote `checkpoint`, if every trainer finds its own
/// there.
///
/// # Errors
/// When it was trained on other data.
pub fn kept(plan: &Plan, checkpoint: &Checkpoint) -> Result<Kept, CheckpointError> {
    let manifest = &checkpoint.manifest;
    checkpoint.same("the training data", plan.train.fingerprint(), &manifest.data_fingerprint)?;
    let same_layout = manifest.trainers == plan.roles.trainers.len()
        && manifest.workers == plan.order.workers_total;
    let same_steps = manifest.global_batch() == plan.job.global_batch() as u64
        && manifest.lanes == plan.order.lanes_used();
    let same_method = manifest.method == plan.job.method.name();
    let slices = manifest.workers == manifest.lanes && plan.order.workers_total == manifest.lanes;
    Ok(if !same_method || !same_steps || !same_differences(plan, manifest) {
        Kept::Model
    } else if plan.job.method == SyncMethod::Bsp
        && (slices || same_layout)
        && !checkpoint.rounds_rows()
        // What was not sent of gradients is not in it, nor are thresholds.
        && plan.job.config.compress.dp_keep.is_none()
        && plan.job.config.compress.mp_keep.is_none()
        && same_arithmetic(plan, manifest)
    {
        Kept::Bits
    } else if same_layout {
        Kept::Replicas
    } else {
        Kept::Model
    })
}

/// Whether trainers that average remember the same: the model that differences are to, or none.
fn same_differences(plan: &Plan, manifest: &Manifest) -> bool {
    let Ok(then) = Config::saved(&manifest.config, "manifest.json".as_ref()) else {
        return false;
    };
    let averages = plan.job.method.shape().averages();
    let differ = |config: &Config| averages && config.differences();
    // What was tried at the start of that run is not known any more.
    differ(&then) == differ(&plan.job.config) && !(differ(&then) && then.compress.auto)
}

/// Whether a step computes the same from the same: program, instruction set and all settings but
/// those of ranks, folders and reports, and of when the run ends.
fn same_arithmetic(plan: &Plan, manifest: &Manifest) -> bool {
    let now = &plan.job.config;
    let Ok(mut then) = Config::saved(&manifest.config, "manifest.json".as_ref()) else {
        return false;
    };
    // Where rows are decides in which order a bag is added up, and where tables are whole their
    // numbers, by which bf16s are rounded.
    let rounded = now.embedding.precision == Precision::Bf16;
    let dealt = |config: &Config| config.embedding.placement == Placement::Rows;
    let by_place = now.pooled().is_some() || (rounded && !(dealt(now) && dealt(&then)));
    if by_place && (&then.roles, &then.embedding) != (&now.roles, &now.embedding) {
        return false;
    }
    let dense_partitions = then.roles.dense_partitions;
    then.roles = RolesConfig { dense_partitions, ..now.roles.clone() };
    let EmbeddingConfig { pool_at, precision, .. } = then.embedding;
    then.embedding = EmbeddingConfig { pool_at, precision, ..now.embedding.clone() };
    then.run = now.run.clone();
    then.checkpoint = now.checkpoint.clone();
    then.recovery = now.recovery.clone();
    then.data.prefetch_batches = now.data.prefetch_batches;
    then.data.reader_threads = now.data.reader_threads;
    // Its fingerprint is compared.
    then.data.train.clone_from(&now.data.train);
    let TrainConfig { early_stop, eval_every, .. } = then.train;
    then.train = TrainConfig { early_stop, eval_every, ..now.train.clone() };
    let (method, batch_norm) = (then.sync.method, then.sync.batch_norm);
    then.sync = SyncConfig { method, batch_norm, ..now.sync.clone() };
    let simd = kernel::selected().to_string();
    then == *now && manifest.git == build_hash() && manifest.simd == simd
}

/// The step at which a run of `plan` has seen as many examples as `checkpoint`.
#[must_use]
pub fn step_here(plan: &Plan, checkpoint: &Checkpoint) -> u64 {
    let (steps, global) = (checkpoint.manifest.steps, plan.job.global_batch() as u64);
    let examples = u128::from(steps) * u128::from(checkpoint.manifest.global_batch());
    let here = u64::try_from(examples / u128::from(global.max(1))).unwrap_or(u64::MAX);
    here.min(plan.steps)
}

impl Run<'_> {
    /// Reads the model from `checkpoint` to all ranks.
    ///
    /// # Errors
    /// When it does not fit or is damaged.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), Error> {
        // What is read takes the place of all that the last stretch has left.
        if let Some(side) = &mut self.trainer {
            side.forget_published();
        }
        let side = self.trainer.as_ref();
        let (replica, state): (&[AtomicU32], &[AtomicU32]) =
            side.map_or((&[], &[]), |side| (&side.shared.replica, &side.shared.state));
        let dense = Dense { model: &self.plan.model, replica, state };
        let target = checkpoint::Target {
            dense,
            layout: &self.plan.layout,
            partitions: &self.services.partitions,
        };
        checkpoint.read(self.control, &target)?;
        if let Some(side) = side {
            side.shared.updates.store(checkpoint.manifest.updates, Relaxed);
            side.release_parts();
        }
        Ok(())
    }

    /// Goes on from `checkpoint` at step `step`. What of it is kept is `kept`, or less, if not
    /// every rank finds its own: returned. Before anything trains.
    ///
    /// # Errors
    /// When it does not fit or is damaged, on every rank.
    pub fn resume(
        &mut self,
        checkpoint: &Checkpoint,
        step: u64,
        kept: Kept,
    ) -> Result<Kept, Error> {
        self.restore(checkpoint)?;
        let (world, control, model) = (self.world, self.control, self.plan.model);
        let own_replicas = self.publishes();
        // Workers fetch what they train with, and what of the data is done is one number.
        let kept = if self.is_served() { Kept::Model } else { kept };
        let mut sections = self.sections();
        checkpoint.read_job(control, &mut sections)?;
        let lacks =
            [u64::from(kept == Kept::Replicas && !checkpoint.has_own(&sections, own_replicas))];
        let mut all = vec![0; world.size];
        control.all_gather(&lacks, &mut all, "what the run goes on from")?;
        let kept = if all.contains(&1) { Kept::Model } else { kept };
        if kept == Kept::Replicas {
            let read = checkpoint.read_own(&model, &mut sections, own_replicas);
            control.agree(read.map_err(Error::from))?;
        } else {
            drop(sections);
            self.begin_at(step);
            let model = self.gather_first()?;
            self.sync.begin_again(&model);
        }
        self.serve_again()?;
        // Another number where steps have another size.
        self.state.step = step;
        Ok(kept)
    }

    /// Workers have made the steps before `step`: where batches are handed out, an even share.
    pub(super) fn begin_at(&self, step: u64) {
        let (streams, workers) = (self.plan.order.workers_total as u64, self.plan.workers() as u64);
        let made = if self.is_served() { step * streams / workers } else { step };
        self.counters.worker_steps().for_each(|steps| steps.store(made, Relaxed));
    }
}
