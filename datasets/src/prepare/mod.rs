//! Raw text to an HDF5 dataset: `umbra prepare`.
//!
//! ```text
//! text: input (plain, gzip, zstd) ─ blocks (cut at line ends) ─┐
//! formats:          criteo, libfm, csv with its schema_file ─ parsed (columns of one block)
//! keys:                        number ─ vocabulary ─ encode ───┘
//! passes: plan (settles all before a row is read) ─ run (read and keep, then encode ─ Writer)
//! ```
//!
//! Map, each folder using only those above it:
//! - `options`: what a call is asked, tells on its way, and returns. `error`: why it failed.
//! - `text/`: the text of all files, in blocks of whole lines.
//! - `keys/`: from keys to ids.
//! - `formats/`: from a line to numbers and keys.
//! - `passes/`: what will be done, and the threads that do it.
//! - `fuzz`: one block of text in memory, for fuzzing.
//! - `twin`: the same without blocks and threads, to test against.
//!
//! Invariants: the output is a function of the text and the options, never of threads or blocks;
//! no row is dropped without being counted; on failure no file is left behind; memory is bounded by
//! the vocabulary.

mod error;
mod formats;
#[doc(hidden)]
pub mod fuzz;
mod keys;
mod options;
mod passes;
mod text;

#[cfg(test)]
mod twin;

use std::time::Instant;

use rayon::{ThreadPool, ThreadPoolBuilder};

pub use error::{OptionsError, PrepareError, SchemaError};
pub use keys::hash::hash_key;
pub use options::{
    BAD_ROWS_SHOWN, BadRow, DenseTransform, FieldSummary, Fields, Format, PrepareOptions,
    PrepareSummary, Progress,
};

use formats::transform::Moments;
use keys::encoder::Encoder;
use passes::ids::Ids;
use passes::kept_rows::KeptRows;
use passes::outputs::Outputs;
use passes::plan::Plan;
use passes::run::{self, Reporter, Rows};
use passes::totals::Totals;
use text::source::expand;

use crate::DatasetInfo;

/// Turns raw text into one HDF5 dataset.
///
/// `progress` is called on the caller's thread, about once per block and thread.
///
/// # Errors
/// Any [`PrepareError`]; then no output is left behind, and an output that was there is untouched.
pub fn prepare(
    options: &PrepareOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<PrepareSummary, PrepareError> {
    prepare_blocks(options, BLOCK_BYTES, progress)
}

/// [`prepare`], with blocks of about `block_bytes`.
fn prepare_blocks(
    options: &PrepareOptions,
    block_bytes: usize,
    progress: &mut dyn FnMut(Progress),
) -> Result<PrepareSummary, PrepareError> {
    let started = Instant::now();
    let options = &PrepareOptions { inputs: expand(&options.inputs)?, ..options.clone() };
    let mut plan = Plan::new(options, block_bytes)?;
    let pool = start_pool(options.threads)?;
    let mut ids = match &options.vocabulary_from {
        Some(path) => Ids::stored(path, &mut plan)?,
        None => Ids::new(&plan),
    };
    let is_begun = options.vocabulary_from.is_none();
    let counts = (is_begun || options.grow) && ids.has_vocabulary();
    let measures = is_begun && !plan.layout.measured.is_empty();
    let layout = &plan.layout;
    let info = DatasetInfo {
        dense_names: layout.dense_names.clone(),
        sparse_names: layout.sparse_names.clone(),
        cardinality: Vec::new(),
        transform: String::new(),
        one_hot: !layout.is_bag,
        has_label: layout.has_label,
        has_weight: layout.has_weight,
        has_group: layout.has_group,
        has_value_weights: layout.has_value_weights,
    };
    let outputs = Outputs::create(&plan, options, info)?;
    let vocabulary_path = options.vocabulary_from.as_ref().unwrap_or(&options.output);
    let mut reporter = Reporter { pass: 1, passes: 1, bytes_total: plan.input_bytes, progress };
    let mut first = None;
    let mut seen = Vec::new();
    let (rows, encoders) = if counts || measures {
        reporter.passes = 2;
        let mut numbers = ids.numbers(&plan, &pool, vocabulary_path)?;
        let mut kept = KeptRows::create(&plan)?;
        let (totals, moments) = run::keep(&plan, &pool, &mut numbers, &mut kept, &mut reporter)?;
        totals.check_rows(&plan)?;
        first = Some(totals);
        if is_begun {
            let moments: Vec<_> = moments.iter().map(Moments::finish).collect();
            plan.learn(&moments);
        }
        let (encoders, seen_of_fields) = ids.count(&plan, &pool, numbers)?;
        seen = seen_of_fields;
        reporter.pass = 2;
        (Rows::Kept(kept), encoders)
    } else {
        (Rows::Read, ids.encoders(&plan, &pool, vocabulary_path)?)
    };
    let cardinality = ids.cardinality();
    let (written, unknown) = write(&plan, &pool, outputs, ids, rows, &encoders, &mut reporter)?;
    let totals = first.unwrap_or(written);
    let fields = plan.layout.sparse_names.iter().zip(&cardinality).enumerate();
    let fields = fields.map(|(field, (name, &cardinality))| {
        let seen = seen.get(field).copied().flatten();
        FieldSummary {
            name: name.clone(),
            cardinality,
            keys: seen.map(|seen| seen.all),
            keys_left_out: seen.map(|seen| seen.left_out),
            values: totals.values[field],
            values_out_of_vocabulary: unknown[field],
        }
    });
    Ok(PrepareSummary {
        rows_read: totals.rows + totals.rows_bad,
        rows_written: totals.rows,
        rows_bad: totals.rows_bad,
        rows_open: totals.rows_open,
        lines_skipped: totals.lines_skipped,
        label_sum: plan.layout.has_label.then_some(totals.label_sum),
        dense_features: plan.layout.dense_names.len(),
        fields: fields.collect(),
        bad_rows: totals.bad_rows,
        input_bytes: plan.input_bytes,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Writes the output: vocabulary first, then the rows. Returns what of them it has seen, and of
/// each field the values whose keys are unknown.
fn write(
    plan: &Plan,
    pool: &ThreadPool,
    mut outputs: Outputs,
    ids: Ids,
    rows: Rows,
    encoders: &[Encoder],
    reporter: &mut Reporter<'_>,
) -> Result<(Totals, Vec<u64>), PrepareError> {
    outputs.settle(ids.cardinality(), plan.recipe.to_text(), ids.hashes());
    for (field, list) in ids.to_store() {
        pool.install(|| outputs.first().write_vocabulary(field, &list.bytes, &list.offsets))?;
    }
    drop(ids);
    let (totals, unknown) = run::encode(plan, pool, rows, encoders, &mut outputs, reporter)?;
    totals.check_rows(plan)?;
    outputs.finish(pool)?;
    Ok((totals, unknown))
}

fn start_pool(threads: Option<usize>) -> Result<ThreadPool, PrepareError> {
    // Rayon takes 0 for one per core.
    let threads = threads.unwrap_or(0);
    let name = |thread| format!("prepare-{thread}");
    let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build();
    pool.map_err(|error| PrepareError::Threads { threads, reason: error.to_string() })
}

/// Text parsed at once by one thread: enough to make the hand-over cheap, little enough that the
/// blocks in flight of many threads fit in memory.
const BLOCK_BYTES: usize = 4 << 20;
