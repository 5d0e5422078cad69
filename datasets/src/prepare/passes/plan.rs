//! What a run will do, settled before any row is read.

use core::sync::atomic::{AtomicBool, AtomicU64};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::layout::Layout;
use super::parts;
use super::recipe::Recipe;
use crate::output;
use crate::prepare::error::{OptionsError, PrepareError};
use crate::prepare::formats::parsed::{Block, RowFormat};
use crate::prepare::keys::rule::{IdRule, KeySettings};
use crate::prepare::options::{DenseTransform, Format, PrepareOptions};
use crate::prepare::text::blocks::Blocks;
use crate::prepare::text::source::Source;

/// Everything the passes need to know.
pub(crate) struct Plan {
    pub(crate) layout: Layout,
    pub(crate) recipe: Recipe,
    pub(crate) inputs: Vec<Source>,
    /// With links resolved.
    pub(crate) output: PathBuf,
    pub(crate) input_bytes: u64,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) max_bad_rows: u64,
    pub(crate) block_bytes: usize,
}

impl Plan {
    /// Checks the options, the output and the inputs, and looks at the first lines of the text.
    pub(crate) fn new(options: &PrepareOptions, block_bytes: usize) -> Result<Self, PrepareError> {
        check_options(options)?;
        let output = check_output(options)?;
        let inputs: Vec<Source> =
            options.inputs.iter().map(|path| Source::new(path)).collect::<Result<_, _>>()?;
        let layout = match options.format {
            Format::Criteo => Layout::criteo(options),
            Format::Libfm => Layout::libfm(options, &inputs)?,
            Format::Csv => Layout::csv(options, &inputs)?,
            Format::Parquet => Layout::parquet(options, &inputs)?,
        };
        Ok(Self {
            recipe: Recipe::new(options.format.recipe_name(), settings(options), &layout),
            layout,
            input_bytes: inputs.iter().map(|input| input.bytes).sum(),
            inputs,
            output,
            max_bad_rows: options.max_bad_rows,
            stop: Arc::clone(&options.stop),
            block_bytes,
        })
    }

    /// The rows of all inputs in order. Bytes taken from disk are added to `bytes_read`; text is
    /// read into buffers from `spent`.
    pub(crate) fn blocks(
        &self,
        bytes_read: Arc<AtomicU64>,
        spent: Receiver<Vec<u8>>,
    ) -> Box<dyn Iterator<Item = Result<Block, PrepareError>> + Send> {
        let inputs = self.inputs.clone();
        match &self.layout.format {
            RowFormat::Lines(_) => {
                let blocks = Blocks::new(inputs, self.block_bytes, bytes_read, Some(spent));
                Box::new(blocks.map(|block| block.map(Block::Text)))
            }
            RowFormat::Columns(format) => {
                let rows = (self.block_bytes / BYTES_PER_ROW).max(1);
                let paths = inputs.into_iter().map(|input| input.path).collect();
                Box::new(format.tables(paths, rows, bytes_read))
            }
        }
    }

    /// How the keys of each field become ids. `[S]`
    pub(crate) fn rules(&self) -> Vec<IdRule> {
        self.layout.sparse_names.iter().map(|name| self.recipe.rule(name)).collect()
    }

    /// Goes on as another split was made.
    pub(crate) fn follow(&mut self, recipe: Recipe) {
        let label = self.recipe.label.take();
        self.recipe = recipe;
        if self.recipe.label.is_none() {
            self.recipe.label = label;
        }
        let measured = self.layout.measured.iter();
        let known = measured.filter_map(|name| {
            let number = self.recipe.numbers.get(name)?;
            number.mean.zip(number.deviation)
        });
        let moments: Vec<_> = known.collect();
        self.layout.format.learn(&moments);
    }

    /// Sets what was counted of numbers, mean and deviation of each of [`Layout::measured`].
    pub(crate) fn learn(&mut self, moments: &[(f64, f64)]) {
        for (name, &(mean, deviation)) in self.layout.measured.iter().zip(moments) {
            let number = self.recipe.numbers.entry(name.clone()).or_default();
            (number.mean, number.deviation) = (Some(mean), Some(deviation));
        }
        self.layout.format.learn(moments);
    }
}

/// The settings of fields that have none of their own.
fn settings(options: &PrepareOptions) -> KeySettings {
    let hash_size = options.hash_size;
    KeySettings {
        min_count: hash_size.is_none().then_some(options.min_count),
        cap: options.cap,
        oov_buckets: options.oov_buckets,
        hash_size,
        hashes: None,
        salt: options.salt,
    }
}

fn check_options(options: &PrepareOptions) -> Result<(), OptionsError> {
    let format = options.format.name();
    if options.inputs.is_empty() {
        return Err(OptionsError::NoInput);
    }
    if options.schema.is_some() && !options.format.has_schema() {
        return Err(OptionsError::SchemaUnused { format });
    }
    if options.fields.is_some() && options.format != Format::Libfm {
        return Err(OptionsError::FieldsUnused { format });
    }
    if options.dense_transform.is_some() && options.format == Format::Libfm {
        return Err(OptionsError::TransformUnused);
    }
    if options.min_count == 0 {
        return Err(OptionsError::MinCount);
    }
    if options.hash_size == Some(0) {
        return Err(OptionsError::HashSize);
    }
    if options.hash_size.is_some() && options.vocabulary_from.is_some() {
        return Err(OptionsError::TwoSourcesOfIds);
    }
    if options.min_count > 1 && options.hash_size.is_some() {
        return Err(OptionsError::MinCountUnused { other: "--hash-size" });
    }
    if options.min_count > 1 && options.vocabulary_from.is_some() {
        return Err(OptionsError::MinCountUnused { other: "--vocabulary" });
    }
    if options.threads.is_some_and(|threads| !(1..=THREADS_MAX).contains(&threads)) {
        return Err(OptionsError::Threads { got: options.threads.unwrap_or(0) });
    }
    if options.no_label && options.format.has_schema() {
        return Err(OptionsError::NoLabelUnused);
    }
    if options.dense_transform == Some(DenseTransform::ZScore) && !options.format.has_schema() {
        return Err(OptionsError::ZScore);
    }
    if options.rows_per_file == Some(0) {
        return Err(OptionsError::FromOne { flag: "--rows-per-file" });
    }
    if options.grow && options.vocabulary_from.is_none() {
        return Err(OptionsError::GrowAlone);
    }
    let counted = [("--cap", options.cap), ("--oov-buckets", options.oov_buckets)];
    for (flag, value) in counted.into_iter().chain([("--salt", options.salt)]) {
        if value == Some(0) && flag != "--salt" {
            return Err(OptionsError::FromOne { flag });
        }
        if value.is_some() && options.vocabulary_from.is_some() {
            return Err(OptionsError::SettingUnused { flag, other: "--vocabulary" });
        }
        if value.is_some() && options.hash_size.is_some() && flag != "--salt" {
            return Err(OptionsError::SettingUnused { flag, other: "--hash-size" });
        }
    }
    Ok(())
}

/// The output can be written, and harms nothing that is there. Where it goes; of parts the name
/// that they are numbered by.
fn check_output(options: &PrepareOptions) -> Result<PathBuf, PrepareError> {
    let check = |path: &Path| {
        let read = options.inputs.iter().chain(&options.vocabulary_from).chain(&options.schema);
        output::check(path, read.map(PathBuf::as_path), options.overwrite)
    };
    if options.rows_per_file.is_none() {
        return Ok(check(&options.output)?);
    }
    check(&parts::name(&options.output, 0))?;
    for part in parts::existing(&options.output)? {
        check(&part)?;
    }
    Ok(options.output.clone())
}

/// More than any machine has cores for, and starting them takes no time that shows.
const THREADS_MAX: usize = 1024;

/// Blocks of columns have as many rows as so long ones would fill: 8192 of those of 4 MiB.
const BYTES_PER_ROW: usize = 512;
