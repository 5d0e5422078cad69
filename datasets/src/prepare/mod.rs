//! Raw text to an HDF5 dataset: `umbra prepare`.
//!
//! ```text
//! text: input (plain, gzip, zstd) ─ blocks (cut at line ends) ─┐
//! formats:          criteo, libfm, csv with its schema_file ─ parsed (columns of one block)
//! keys:                         count ─ vocabulary ─ encode ───┘
//! passes: plan (settles all before a row is read) ─ run (first count, then encode ─ Writer)
//! ```
//!
//! Map, each folder using only those above it:
//! - `options`: what a call is asked, tells on its way, and returns. `error`: why it failed.
//! - `text/`: the text of all files, in blocks of whole lines.
//! - `keys/`: from keys to ids.
//! - `formats/`: from a line to numbers and keys.
//! - `passes/`: what will be done, and the threads that do it.
//! - `twin`: the same without blocks and threads, to test against.
//!
//! Invariants: the output is a function of the text and the options, never of threads or blocks;
//! no row is dropped without being counted; on failure no file is left behind; memory is bounded by
//! the vocabulary.

mod error;
mod formats;
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

use passes::ids::{Ids, KeysSeen};
use passes::plan::Plan;
use passes::run::{self, EncodedTotals, Reporter, Totals};

use crate::{DatasetInfo, Writer};

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
    let mut plan = Plan::new(options, block_bytes)?;
    let pool = start_pool(options.threads)?;
    let mut reporter = Reporter { pass: 1, passes: 1, progress };
    let (ids, seen) = match (&options.vocabulary_from, options.hash_size) {
        (Some(path), _) => (Ids::stored(path, &mut plan)?, None),
        (None, Some(size)) => (Ids::Hashed(size), None),
        (None, None) => {
            reporter.passes = 2;
            let (ids, seen) = Ids::count(&plan, &pool, options.min_count, &mut reporter)?;
            reporter.pass = 2;
            (ids, Some(seen))
        }
    };
    let cardinality = ids.cardinality(&plan);
    let (totals, encoded) = write(options, &plan, &pool, ids, &mut reporter)?;
    Ok(PrepareSummary {
        rows_read: totals.rows + totals.rows_bad,
        rows_written: totals.rows,
        rows_bad: totals.rows_bad,
        lines_skipped: totals.lines_skipped,
        label_sum: totals.label_sum,
        bad_rows: totals.bad_rows,
        dense_features: plan.layout.dense_names.len(),
        fields: summarise_fields(&plan, &cardinality, seen.as_deref(), &encoded),
        input_bytes: plan.input_bytes,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Writes the output: vocabulary first, then the rows.
fn write(
    options: &PrepareOptions,
    plan: &Plan,
    pool: &ThreadPool,
    ids: Ids,
    reporter: &mut Reporter<'_>,
) -> Result<(Totals, EncodedTotals), PrepareError> {
    let layout = &plan.layout;
    let info = DatasetInfo {
        dense_names: layout.dense_names.clone(),
        sparse_names: layout.sparse_names.clone(),
        cardinality: ids.cardinality(plan),
        transform: plan.recipe.to_text(),
        one_hot: !layout.is_bag,
        has_label: true,
        has_weight: layout.has_weight,
        has_group: layout.has_group,
    };
    let mut writer = Writer::create(&plan.output, info)?;
    if !options.overwrite {
        writer = writer.keep_existing();
    }
    if let Some(hashes) = ids.hashes() {
        writer.set_vocabulary(hashes);
    }
    for (field, list) in ids.to_store().iter().enumerate() {
        pool.install(|| writer.write_vocabulary(field, &list.bytes, &list.offsets))?;
    }
    let vocabulary_path = options.vocabulary_from.as_ref().unwrap_or(&options.output);
    let encoders = ids.into_encoders(plan, pool, vocabulary_path)?;
    let (totals, encoded) = run::encode(plan, pool, &encoders, &mut writer, reporter)?;
    totals.check_rows(plan)?;
    pool.install(|| writer.finish())?;
    Ok((totals, encoded))
}

fn summarise_fields(
    plan: &Plan,
    cardinality: &[u64],
    seen: Option<&[KeysSeen]>,
    encoded: &EncodedTotals,
) -> Vec<FieldSummary> {
    let fields = plan.layout.sparse_names.iter().zip(cardinality).enumerate();
    let summarise = |(field, (name, &cardinality)): (usize, (&String, &u64))| FieldSummary {
        name: name.clone(),
        cardinality,
        keys: seen.map(|seen| seen[field].all),
        keys_below_threshold: seen.map(|seen| seen[field].below_threshold),
        values: encoded.values[field],
        values_out_of_vocabulary: encoded.unknown[field],
    };
    fields.map(summarise).collect()
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
