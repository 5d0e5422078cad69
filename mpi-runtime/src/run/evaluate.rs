//! A saved model on a dataset: `umbra eval` and `umbra predict`.
//!
//! The checkpoint's own configuration says what the model is; ranks and worker threads are those of
//! the launch at hand.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mpi::traits::Equivalence;
use umbra_core::float::sigmoid;
use umbra_datasets::Dataset;
use umbra_datasets::output::{self, Temporary};
use umbra_datasets::scores::{ScoredRows, ScoresFormat};

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::comm::Comm;
use crate::comm::watch::Lost;
use crate::config::{CompressConfig, Config, Layout, PoolAt, SwitchConfig, SyncMethod};
use crate::error::Error;
use crate::launch::signals::Signals;
use crate::launch::world::World;
use crate::record::note;
use crate::run::Run;
use crate::run::job::plan;
use crate::score::figures::{Figures, Scores};

/// Figures of the model in `checkpoint` on `data`. *Collective over all ranks, main thread only.*
///
/// # Errors
/// The same exit code on every rank; one of them has the message.
pub fn eval(
    world: &World,
    control: &Comm,
    checkpoint: &Path,
    data: &[PathBuf],
) -> Result<Figures, Error> {
    let (mut run, dataset) = load(world, control, checkpoint, data, true)?;
    let figures = control.watch().end_if_lost(run.evaluate(&dataset));
    run.finish();
    figures
}

/// Where predictions go.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// To stdout of the first rank.
    Stdout,
    /// To a file, and whether one that is there is replaced.
    File(&'a Path, bool),
}

/// Writes a probability for each row of `data` to `target`, in the order of rows. Returns how many.
/// *Collective over all ranks, main thread only.*
///
/// # Errors
/// The same exit code on every rank; one of them has the message.
pub fn predict(
    world: &World,
    control: &Comm,
    checkpoint: &Path,
    data: &[PathBuf],
    target: Target<'_>,
    format: ScoresFormat,
) -> Result<u64, Error> {
    let path = match target {
        Target::File(path, overwrite) if world.rank == 0 => {
            let read = data.iter().map(PathBuf::as_path);
            output::check(path, read, overwrite).map(Some).map_err(Error::from)
        }
        _ => Ok(None),
    };
    let path = control.agree(path)?;
    let (mut run, dataset) = load(world, control, checkpoint, data, false)?;
    let scores = control.watch().end_if_lost(run.score(&dataset, false));
    run.finish();
    let Columns { score, label, group } = Columns::gather(control, scores?, dataset.has_labels())?;
    let rows = ScoredRows { score: &score, label: &label, group: &group };
    let written = match (target, path) {
        (Target::File(_, overwrite), Some(path)) => write(&path, format, &rows, overwrite),
        (Target::Stdout, _) if world.rank == 0 => print(format, &rows),
        _ => Ok(()),
    };
    control.agree(written)?;
    Ok(dataset.rows())
}

/// The model on these ranks, and the data it fits.
fn load<'w>(
    world: &'w World,
    control: &'w Comm,
    dir: &Path,
    data: &[PathBuf],
    with_labels: bool,
) -> Result<(Run<'w>, Dataset), Error> {
    let checkpoint = Checkpoint::open(control, dir)?;
    if world.rank == 0 && checkpoint.dir() != dir {
        note(&format!("umbra: the checkpoint is {}", checkpoint.dir().display()));
    }
    let config = scoring_config(&checkpoint, data);
    let plan = plan(world, control, control.agree(config)?, world.size)?;
    let fits = check_schema(&checkpoint, &plan.train);
    control.agree(fits.map_err(Error::from))?;
    let dataset = Dataset::open(data).and_then(|dataset| {
        if with_labels {
            dataset.check_labels()?
        }
        Ok(dataset)
    });
    let dataset = control.agree(dataset.map_err(Error::from))?;
    let signals = Arc::new(Signals::none());
    let mut run = Run::start(world, control, plan, &signals, None, None)?;
    if let Err(error) = control.watch().end_if_lost(run.restore(&checkpoint)) {
        // Its threads must have ended before MPI does.
        run.finish();
        return Err(error);
    }
    Ok((run, dataset))
}

/// The run's configuration, turned to scoring `data` on whatever ranks there are.
fn scoring_config(checkpoint: &Checkpoint, data: &[PathBuf]) -> Result<Config, Error> {
    let path = checkpoint.dir().join("manifest.json");
    let mut config = Config::saved(&checkpoint.manifest.config, &path)?;
    config.data.train = data.to_vec();
    config.data.valid.clear();
    config.data.test.clear();
    config.roles.layout = Layout::Collocated;
    config.roles.trainers = None;
    config.roles.embedding_ps = None;
    config.roles.sync_ps = None;
    config.roles.dense_partitions = 1;
    config.sync.method = SyncMethod::Auto;
    config.sync.switch = SwitchConfig::default();
    config.embedding.pool_at = PoolAt::Trainer;
    config.compress = CompressConfig::default();
    config.train.worker_threads = None;
    config.train.early_stop = None;
    config.train.progressive = false;
    Ok(config)
}

fn check_schema(checkpoint: &Checkpoint, data: &Dataset) -> Result<(), CheckpointError> {
    let manifest = &checkpoint.manifest;
    let mismatch = |what, expected: String, got: String| {
        let path = checkpoint.dir().to_owned();
        Err(CheckpointError::Mismatch { path, what, expected, got })
    };
    if manifest.dense_features != data.dense_features() {
        let (here, there) = (data.dense_features(), manifest.dense_features);
        return mismatch("the number of dense features", here.to_string(), there.to_string());
    }
    if manifest.cardinality != data.cardinality() {
        let list = |rows: &[u64]| format!("{rows:?}");
        let (here, there) = (list(data.cardinality()), list(&manifest.cardinality));
        return mismatch("the cardinality of the fields", here, there);
    }
    if let (Some(there), Some(here)) = (&manifest.vocabulary, data.vocabulary()) {
        let fields = there.iter().zip(here).zip(&manifest.sparse_names);
        if let Some(((there, here), name)) = fields.into_iter().find(|((a, b), _)| a != b) {
            // Of fields that nothing names the number would say no more.
            let (here, there) = (format!("{name}: {here:016x}"), format!("{name}: {there:016x}"));
            return mismatch("the keys behind the ids", here, there);
        }
    }
    checkpoint.same_transform(data.transform())
}

/// What is known of all rows, in their order; on the first rank. `[n]`, or empty where there is
/// none.
struct Columns {
    score: Vec<f32>,
    label: Vec<f32>,
    group: Vec<u64>,
}

impl Columns {
    /// *Collective.*
    fn gather(control: &Comm, scores: Scores, has_labels: bool) -> Result<Self, Lost> {
        let Scores { scored, group, row } = scores;
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_unstable_by_key(|&at| row[at]);
        let score: Vec<f32> = order.iter().map(|&at| sigmoid(scored[at].score)).collect();
        let labelled = if has_labels { &order[..] } else { &[] };
        let label: Vec<f32> = labelled.iter().map(|&at| scored[at].label).collect();
        let group: Vec<u64> =
            if group.is_empty() { group } else { order.iter().map(|&at| group[at]).collect() };
        Ok(Self {
            score: to_first(control, &score)?,
            label: to_first(control, &label)?,
            group: to_first(control, &group)?,
        })
    }
}

/// The lists of all ranks, joined; on the first rank. Shares are contiguous and in rank order, so
/// sorted shares only need to be joined. *Collective.*
fn to_first<T: Equivalence + Copy + Default>(control: &Comm, own: &[T]) -> Result<Vec<T>, Lost> {
    let mut lists = vec![&[][..]; control.size()];
    lists[0] = own;
    Ok(control.exchange(&lists, "predictions")?.concat())
}

fn print(format: ScoresFormat, rows: &ScoredRows<'_>) -> Result<(), Error> {
    let mut stdout = BufWriter::new(std::io::stdout());
    match rows.write(format, &mut stdout).and_then(|()| stdout.flush()) {
        // Whoever reads has read enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|source| Error::file("stdout".as_ref(), "write to it", source)),
    }
}

fn write(
    path: &Path,
    format: ScoresFormat,
    rows: &ScoredRows<'_>,
    replace: bool,
) -> Result<(), Error> {
    let wrong = |source| Error::file(path, "write predictions to it", source);
    let temporary = Temporary::beside(path).map_err(wrong)?;
    let file = File::create(temporary.path()).map_err(wrong)?;
    rows.write(format, BufWriter::new(file)).map_err(wrong)?;
    let published = temporary.publish(path, replace);
    published.map(drop).map_err(|(doing, source)| Error::file(path, doing, source))
}
