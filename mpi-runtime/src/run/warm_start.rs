//! A new run that begins with a saved model, in tables that may have grown since: the day after.
//!
//! What is taken over is the model: dense parameters, rows, and their optimizer state if it is
//! wanted. Steps, the order of the data, learning rates and evaluations begin anew. Rows keep their
//! ids: those of a table that has grown at its end keep their values, bit for bit, and what is new
//! has the initial values of a table of the new size.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::path::Path;

use umbra_datasets::{Dataset, read_vocabulary, vocabulary_hash};

use super::Run;
use super::plan::Plan;
use crate::checkpoint::{Checkpoint, CheckpointError, Dense, Target};
use crate::comm::Comm;
use crate::config::{Config, ModelSection};
use crate::error::Error;

/// The model that a run of `plan` begins with, if it is to begin with one: every byte of it has
/// been read, and it fits. *Collective over `control`.*
///
/// # Errors
/// When it is not there, not whole, or does not fit: on every rank.
pub fn find(control: &Comm, plan: &Plan) -> Result<Option<Checkpoint>, Error> {
    let Some(path) = &plan.job.config.checkpoint.warm_start else { return Ok(None) };
    let checkpoint = Checkpoint::open(control, path)?;
    checkpoint.verify_together(control)?;
    control.agree(fits(plan, &checkpoint))?;
    // Key lists may be long: one rank reads them.
    let first = control.rank() == 0;
    control.agree(if first { keeps_ids(&checkpoint, &plan.train) } else { Ok(()) })?;
    Ok(Some(checkpoint))
}

/// A run must not begin with what it is going to replace. *Not collective.*
///
/// # Errors
/// When the model lies in the run's own folders.
pub fn is_elsewhere(config: &Config) -> Result<(), Error> {
    let Some(path) = &config.checkpoint.warm_start else { return Ok(()) };
    // What is not there is said of by whoever opens it.
    let Ok(found) = path.canonicalize() else { return Ok(()) };
    let own = |folder: &Path| folder.canonicalize().is_ok_and(|own| found.starts_with(own));
    if own(&config.run.dir) || own(&config.checkpoint.dir) {
        return Err(Error::Usage(format!(
            "checkpoint.warm_start = \"{}\" lies in this run's own folder, {}: give the new run \
             another run.dir",
            path.display(),
            config.run.dir.display()
        )));
    }
    Ok(())
}

fn fits(plan: &Plan, checkpoint: &Checkpoint) -> Result<(), Error> {
    let (manifest, config) = (&checkpoint.manifest, &plan.job.config);
    let then = Config::saved(&manifest.config, &checkpoint.dir().join("manifest.json"))?;
    // What a training step does with a model is not the model.
    let of_the_model = |model: &ModelSection| ModelSection {
        dropout: 0.0,
        batch_norm_momentum: 0.0,
        ..model.clone()
    };
    let (now, was) = (of_the_model(&config.model), of_the_model(&then.model));
    if now != was {
        return Err(different(checkpoint, "[model]", format!("{now:?}"), format!("{was:?}")));
    }
    if config.checkpoint.warm_state {
        let kinds = |config: &Config| {
            format!("{:?}, {:?}", config.optim.dense.kind, config.optim.sparse.kind)
        };
        checkpoint.same(
            "the pair of optimizers (checkpoint.warm_state = false leaves their state behind)",
            kinds(config),
            kinds(&then),
        )?;
    }
    checkpoint.fits_grown(&plan.layout, config.checkpoint.warm_state)?;
    let features = plan.train.dense_features();
    checkpoint.same("the number of dense features", features, manifest.dense_features)?;
    checkpoint.same_transform(plan.train.transform())?;
    let names = |names: &[String]| format!("{names:?}");
    let (here, written) = (plan.train.sparse_names(), &manifest.sparse_names);
    checkpoint.same("the list of fields", names(here), names(written))?;
    Ok(())
}

/// Every id of `checkpoint` means the same key in `data`, as far as both say what ids mean.
fn keeps_ids(checkpoint: &Checkpoint, data: &Dataset) -> Result<(), Error> {
    let manifest = &checkpoint.manifest;
    let (Some(then), Some(now)) = (&manifest.vocabulary, data.vocabulary()) else { return Ok(()) };
    for (field, name) in data.sparse_names().iter().enumerate() {
        let other = |why| {
            let (path, name) = (checkpoint.dir().to_owned(), name.clone());
            Err(CheckpointError::OtherKeys { path, field, name, why }.into())
        };
        let (then, now) = (then[field], now[field]);
        let rows = [manifest.cardinality[field], data.cardinality()[field]];
        if then == now {
            if rows[0] != rows[1] {
                return other(HASHED);
            }
            continue;
        }
        let mut lists = data.paths().filter_map(|path| read_vocabulary(path, field).transpose());
        let Some((keys, bounds)) = lists.next().transpose()? else { return other(NO_LIST) };
        // Ids before the first key's are of no key.
        let first = rows[1].saturating_sub(bounds.len() as u64 - 1);
        let old = rows[0].checked_sub(first).and_then(|old| usize::try_from(old).ok());
        if !old.is_some_and(|old| {
            vocabulary_hash(&keys, bounds.get(..=old).unwrap_or_default()) == then
        }) {
            return other(OTHER);
        }
    }
    Ok(())
}

const HASHED: &str = "its ids are hashes into another number of rows, so all of them are others: \
                      give it the number that the saved model has";
const NO_LIST: &str = "its key list is another one than the saved model's, and none of data.train \
                       keeps it, so nobody can tell whether it only grew: name the file that was \
                       written with --grow among them";
const OTHER: &str = "its key list does not begin with the saved model's: prepare the data with \
                     --vocabulary and --grow from the file which that was trained on";

fn different(checkpoint: &Checkpoint, what: &'static str, expected: String, got: String) -> Error {
    let path = checkpoint.dir().to_owned();
    CheckpointError::Mismatch { path, what, expected, got }.into()
}

impl Run<'_> {
    /// Takes the model of `checkpoint` over, before anything trains. Returns how many rows had been
    /// written. *Collective over all ranks.*
    ///
    /// # Errors
    /// When it does not fit or is damaged, on every rank.
    pub fn warm_start(&mut self, checkpoint: &Checkpoint) -> Result<u64, Error> {
        let with_state = self.plan.job.config.checkpoint.warm_state;
        let side = self.trainer.as_ref();
        let (replica, state): (&[AtomicU32], &[AtomicU32]) =
            side.map_or((&[], &[]), |side| (&side.shared.replica, &side.shared.state));
        let target = Target {
            dense: Dense { model: &self.plan.model, replica, state },
            layout: &self.plan.layout,
            partitions: &self.services.partitions,
        };
        checkpoint.read_grown(self.control, &target, with_state)?;
        if let (Some(side), true) = (side, with_state) {
            side.shared.updates.store(checkpoint.manifest.updates, Relaxed);
        }
        let model = self.gather_first()?;
        self.sync.begin_again(&model);
        self.serve_again()?;
        self.release_parts();
        Ok(checkpoint.manifest.rows())
    }
}
