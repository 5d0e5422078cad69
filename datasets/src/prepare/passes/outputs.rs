//! The files of an output: one, or with a limit of rows as many as it takes.
//!
//! Parts of `OUT.h5` are `OUT-00000.h5`, `OUT-00001.h5`, …: all but the last have as many rows as
//! were asked for, and the first keeps the vocabulary of all. They take their names together at the
//! end, so that a failure leaves none.

use std::fs;
use std::path::{Path, PathBuf};

use rayon::ThreadPool;

use super::parts;
use super::plan::Plan;
use crate::output::Temporary;
use crate::prepare::error::PrepareError;
use crate::prepare::options::PrepareOptions;
use crate::{DatasetError, DatasetInfo, RowBlock, Writer};

/// Writes rows to the file that they belong to.
pub(crate) struct Outputs {
    path: PathBuf,
    info: DatasetInfo,
    /// Hashes of the key lists. `[S]`
    vocabulary: Option<Vec<u64>>,
    rows_per_file: Option<u64>,
    /// The file that grows.
    writer: Writer,
    /// Parts, the last one growing, the others complete: gone again unless they get their names.
    parts: Vec<Temporary>,
    replace: bool,
}

impl Outputs {
    /// Begins the first file, so that what forbids it is known before any work.
    pub(crate) fn create(
        plan: &Plan,
        options: &PrepareOptions,
        info: DatasetInfo,
    ) -> Result<Self, PrepareError> {
        let path = plan.output.clone();
        let mut parts = Vec::new();
        let writer = match options.rows_per_file {
            None if options.overwrite => Writer::create(&path, info.clone())?,
            None => Writer::create(&path, info.clone())?.keep_existing(),
            Some(_) => begin_part(&path, &mut parts, info.clone())?,
        };
        let (rows_per_file, replace) = (options.rows_per_file, options.overwrite);
        Ok(Self { path, info, vocabulary: None, rows_per_file, writer, parts, replace })
    }

    /// Settles what is known once the keys are counted.
    pub(crate) fn settle(
        &mut self,
        cardinality: Vec<u64>,
        transform: String,
        vocabulary: Option<Vec<u64>>,
    ) {
        self.writer.set_cardinality(cardinality.clone());
        self.writer.set_transform(transform.clone());
        vocabulary.iter().for_each(|hashes| self.writer.set_vocabulary(hashes.clone()));
        (self.info.cardinality, self.info.transform) = (cardinality, transform);
        self.vocabulary = vocabulary;
    }

    /// The first file, to store the vocabulary in.
    pub(crate) fn first(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Appends the rows of `block`; chunks are filtered on the pool.
    pub(crate) fn append(
        &mut self,
        block: &RowBlock<'_>,
        pool: &ThreadPool,
    ) -> Result<(), PrepareError> {
        let Some(rows_max) = self.rows_per_file else {
            return Ok(pool.install(|| self.writer.append(block))?);
        };
        let mut start = 0;
        while start < block.rows {
            if self.writer.rows() == rows_max {
                self.roll(pool)?;
            }
            let room = usize::try_from(rows_max - self.writer.rows()).unwrap_or(usize::MAX);
            let end = block.rows.min(start.saturating_add(room));
            let mut offsets = Vec::new();
            let part = self.part(block, start, end, &mut offsets);
            pool.install(|| self.writer.append(&part))?;
            start = end;
        }
        Ok(())
    }

    /// Completes the last file, and gives all parts their names.
    pub(crate) fn finish(self, pool: &ThreadPool) -> Result<(), PrepareError> {
        pool.install(|| self.writer.finish())?;
        if self.rows_per_file.is_none() {
            return Ok(());
        }
        let old = parts::existing(&self.path)?;
        let count = self.parts.len();
        for (number, part) in self.parts.into_iter().enumerate() {
            let name = parts::name(&self.path, number);
            let published = part.publish(&name, self.replace);
            published.map_err(|(doing, error)| DatasetError::io(&name, doing, error))?;
        }
        // Of an output that is replaced and had more parts.
        let names: Vec<PathBuf> =
            (0..count).map(|number| parts::name(&self.path, number)).collect();
        for stale in old.iter().filter(|path| !names.contains(path)) {
            fs::remove_file(stale).map_err(|error| DatasetError::io(stale, "remove", error))?;
        }
        Ok(())
    }

    /// Completes a part, and begins the next.
    fn roll(&mut self, pool: &ThreadPool) -> Result<(), PrepareError> {
        let mut next = begin_part(&self.path, &mut self.parts, self.info.clone())?;
        self.vocabulary.iter().for_each(|hashes| next.set_vocabulary(hashes.clone()));
        let full = core::mem::replace(&mut self.writer, next);
        pool.install(|| full.finish())?;
        Ok(())
    }

    /// Rows `start..end` of `block`.
    fn part<'a>(
        &self,
        block: &RowBlock<'a>,
        start: usize,
        end: usize,
        offsets: &'a mut Vec<u32>,
    ) -> RowBlock<'a> {
        let (dense, fields) = (self.info.dense_names.len(), self.info.sparse_names.len());
        let some = |has: bool| if has { start..end } else { 0..0 };
        let values = if block.offsets.is_empty() {
            start * fields..end * fields
        } else {
            let bounds = &block.offsets[start * fields..=end * fields];
            offsets.extend(bounds.iter().map(|bound| bound - bounds[0]));
            bounds[0] as usize..bounds[bounds.len() - 1] as usize
        };
        let weighted = if self.info.has_value_weights { values.clone() } else { 0..0 };
        RowBlock {
            rows: end - start,
            label: &block.label[some(self.info.has_label)],
            weight: &block.weight[some(self.info.has_weight)],
            dense: &block.dense[start * dense..end * dense],
            values: &block.values[values],
            value_weights: &block.value_weights[weighted],
            offsets,
            group: &block.group[some(self.info.has_group)],
        }
    }
}

/// Begins the next part under a name that no pattern finds.
fn begin_part(
    path: &Path,
    parts: &mut Vec<Temporary>,
    info: DatasetInfo,
) -> Result<Writer, PrepareError> {
    let name = parts::name(path, parts.len());
    let part = Temporary::beside(&name).map_err(|_| DatasetError::Path { path: name })?;
    let writer = Writer::create(part.path(), info)?;
    parts.push(part);
    Ok(writer)
}
