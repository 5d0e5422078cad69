//! Reads ranges of rows of one file into reused columns, and checks every value on the way.
//!
//! In two steps, as [`super::fetch`] says: [`FileReader::fetch`] takes what is stored, under the
//! library's lock; [`RawRows::decode`] makes numbers of it and checks them, on any thread. Which
//! ids a row of bags has is known from its offsets, which are decoded when they are fetched.

use core::ops::Range;
use std::sync::Arc;

use hdf5::File;

use super::fetch::{Fetched, Source, Wrong};
use super::file_info::{FileInfo, Sparse};
use super::form::{Form, Meaning};
use super::unpack::Unpacker;
use super::workspace::Workspace;
use super::{attributes, check, offsets, open_file, ranges};
use crate::DatasetError;
use crate::attention::Attention;

/// Rows in columns, one-hot or bags alike in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowBuffer {
    /// Zeros where the file has none. `[n]`
    pub(crate) label: Vec<f32>,
    /// `[n]` or `[0]`
    pub(crate) weight: Vec<f32>,
    /// `[n, D]`
    pub(crate) dense: Vec<f32>,
    pub(crate) values: Vec<u32>,
    /// As long as `values`, or `[0]`
    pub(crate) value_weights: Vec<f32>,
    /// Keep `ends`; without, every bag holds one id.
    pub(crate) bags: bool,
    /// End of every bag in `values`. `[n * S]` with `bags`, else `[0]`
    pub(crate) ends: Vec<usize>,
    /// `[n]` or `[0]`
    pub(crate) group: Vec<u64>,
}

impl RowBuffer {
    pub(crate) fn clear(&mut self) {
        self.label.clear();
        self.weight.clear();
        self.dense.clear();
        self.values.clear();
        self.value_weights.clear();
        self.ends.clear();
        self.group.clear();
    }
}

/// One open file.
#[derive(Debug)]
pub(crate) struct FileReader {
    form: Arc<FileForm>,
    /// By [`Column`].
    sources: [Option<Source>; COLUMNS],
    _file: File,
}

/// Which dataset of a file.
#[derive(Clone, Copy, Debug)]
enum Column {
    Label,
    Weight,
    Dense,
    Values,
    Offsets,
    Group,
    ValueWeights,
}

const COLUMNS: usize = 7;

/// What decoding must know of a file.
#[derive(Debug)]
struct FileForm {
    info: FileInfo,
    /// By [`Column`].
    forms: [Option<Form>; COLUMNS],
    limits: check::IdLimits,
}

/// Rows of one file as they are stored. Its memory is used again and again.
#[derive(Debug, Default)]
pub(crate) struct RawRows {
    /// Of the file they are from, once there are any.
    form: Option<Arc<FileForm>>,
    rows: Range<u64>,
    /// By [`Column`].
    columns: [Fetched; COLUMNS],
    /// Offsets of the bags of the rows in those of the file. `[n * S + 1]` or `[0]`
    offsets: Vec<u64>,
}

/// How chunks are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Road {
    /// As stored, where that can be, and their filters undone here.
    Direct,
    /// By the library alone, slower: the plain twin.
    Library,
}

impl FileReader {
    /// Opens the file that `info` was taken from, number `number` of its dataset. What the library
    /// reads by itself goes through a chunk cache of `cache_bytes` per dataset.
    pub(crate) fn open(
        info: &FileInfo,
        number: usize,
        road: Road,
        cache_bytes: usize,
    ) -> Result<Self, DatasetError> {
        let path = info.path.as_path();
        let _attention = Attention::on(path);
        let library_needed = road == Road::Library || !info.direct;
        let file = open_file(path, Some(if library_needed { cache_bytes } else { 0 }))?;
        info.unchanged()?;
        // Of one whose times were set back the system says nothing else.
        let found = attributes::string(&file, path, "fingerprint")?;
        if found != info.fingerprint {
            let name = |print: &Option<String>| print.clone().unwrap_or_else(|| "none".into());
            let what =
                format!("its fingerprint was {} and is {}", name(&info.fingerprint), name(&found));
            return Err(DatasetError::Changed { path: path.to_owned(), what });
        }
        let open = |column: Column, name: &'static str, meaning| {
            let dataset = file
                .dataset(name)
                .map_err(|e| DatasetError::hdf5(path, "open", format!("dataset `{name}`"), &e))?;
            let mut form = Form::of(path, &dataset, name, meaning)?;
            if road == Road::Library {
                form.chunks = None;
            }
            Ok(Source { dataset, form, number: (number, column as usize) })
        };
        let (number_of, id, count) = (Meaning::Number, Meaning::Id, Meaning::Count);
        let (values, offsets) = match info.sparse {
            Sparse::None => (None, None),
            Sparse::OneHot => (Some(open(Column::Values, "sparse", id)?), None),
            Sparse::Bags { .. } => (
                Some(open(Column::Values, "sparse_values", id)?),
                Some(open(Column::Offsets, "sparse_offsets", count)?),
            ),
        };
        let (weight, group, weighted) = (info.has_weight, info.has_group, info.has_value_weights);
        let dense = info.dense_features > 0;
        let sources = [
            info.has_label.then(|| open(Column::Label, "label", number_of)).transpose()?,
            weight.then(|| open(Column::Weight, "weight", number_of)).transpose()?,
            dense.then(|| open(Column::Dense, "dense", number_of)).transpose()?,
            values,
            offsets,
            group.then(|| open(Column::Group, "group", count)).transpose()?,
            weighted
                .then(|| open(Column::ValueWeights, "sparse_weights", number_of))
                .transpose()?,
        ];
        let forms = sources.each_ref().map(|source| source.as_ref().map(|s| s.form.clone()));
        let limits = check::IdLimits::new(&info.cardinality);
        let form = Arc::new(FileForm { info: info.clone(), forms, limits });
        Ok(Self { form, sources, _file: file })
    }

    /// Fetches rows `rows` of the file into `raw`, in place of what was there.
    pub(crate) fn fetch(
        &self,
        rows: Range<u64>,
        workspace: &mut Workspace,
        raw: &mut RawRows,
    ) -> Result<(), DatasetError> {
        let FileForm { info, .. } = &*self.form;
        let path = info.path.as_path();
        let _attention = Attention::on(path);
        raw.rows = rows.clone();
        raw.offsets.clear();
        for (source, fetched) in self.sources.iter().zip(&mut raw.columns) {
            let Some(source) = source else { continue };
            let cache = &mut workspace.cache;
            match (source.number.1, info.sparse) {
                (VALUES | OFFSETS | VALUE_WEIGHTS, Sparse::Bags { .. }) => {}
                _ => source.fetch(path, rows.clone(), cache, fetched)?,
            }
        }
        if let [.., Some(values), Some(offsets), _, weights] = &self.sources
            && let Sparse::Bags { values: length } = info.sparse
        {
            let fields = info.cardinality.len();
            let found = offsets::read(
                path,
                offsets,
                rows,
                (fields, length),
                workspace,
                (&mut raw.columns[OFFSETS], &mut raw.offsets),
            )?;
            let cache = &mut workspace.cache;
            values.fetch(path, found.clone(), cache, &mut raw.columns[VALUES])?;
            if let Some(weights) = weights {
                weights.fetch(path, found, cache, &mut raw.columns[VALUE_WEIGHTS])?;
            }
        }
        raw.form = Some(Arc::clone(&self.form));
        Ok(())
    }
}

const VALUES: usize = Column::Values as usize;
const OFFSETS: usize = Column::Offsets as usize;
const VALUE_WEIGHTS: usize = Column::ValueWeights as usize;

impl RawRows {
    /// Appends the rows to `block`.
    pub(crate) fn decode(
        &mut self,
        unpacker: &mut Unpacker,
        block: &mut RowBuffer,
    ) -> Result<(), DatasetError> {
        let Some(form) = self.form.take() else { return Ok(()) };
        let first_row = self.rows.start;
        let from = block.label.len();
        if !form.info.has_label {
            // Rows without labels are counted by these, which nobody may learn from.
            block.label.extend(self.rows.clone().map(|_| 0.0));
        }
        let floats = [
            (Column::Label, &mut block.label),
            (Column::Weight, &mut block.weight),
            (Column::Dense, &mut block.dense),
        ];
        for (column, out) in floats {
            let Some(of) = &form.forms[column as usize] else { continue };
            self.columns[column as usize]
                .decode(of, unpacker, out)
                .map_err(|wrong| form.wrong(of, first_row, wrong))?;
            check::floats(&form.info, of.name, of.width, first_row, &out[from * of.width..])?;
        }
        if let Some(of) = &form.forms[Column::Group as usize] {
            self.columns[Column::Group as usize]
                .decode(of, unpacker, &mut block.group)
                .map_err(|wrong| form.wrong(of, first_row, wrong))?;
        }
        self.decode_sparse(&form, unpacker, block)
    }

    fn decode_sparse(
        &mut self,
        form: &FileForm,
        unpacker: &mut Unpacker,
        block: &mut RowBuffer,
    ) -> Result<(), DatasetError> {
        let Some(of) = &form.forms[VALUES] else { return Ok(()) };
        let (info, first_row) = (&form.info, self.rows.start);
        let from = block.values.len();
        let decoded = self.columns[VALUES].decode(of, unpacker, &mut block.values);
        if self.offsets.is_empty() {
            decoded.map_err(|wrong| form.wrong(of, first_row, wrong))?;
            if block.bags {
                block.ends.extend(from + 1..=block.values.len());
            }
            return form.limits.one_hot(info, first_row, &block.values[from..]);
        }
        let offsets = self.offsets.as_slice();
        let wrong = |of: &Form, wrong| match wrong {
            Wrong::Number(index, got) => {
                let bag = check::bag_of(offsets, index);
                form.value(of.name, first_row, bag, info.cardinality.len(), got)
            }
            damaged @ Wrong::Damaged(..) => form.wrong(of, first_row, damaged),
        };
        decoded.map_err(|error| wrong(of, error))?;
        if let Some(of) = &form.forms[VALUE_WEIGHTS] {
            let from = block.value_weights.len();
            let decoded =
                self.columns[VALUE_WEIGHTS].decode(of, unpacker, &mut block.value_weights);
            decoded.map_err(|error| wrong(of, error))?;
            check::value_weights(info, first_row, &block.value_weights[from..], offsets)?;
        }
        #[expect(clippy::cast_possible_truncation, reason = "bounds of values held in memory")]
        let ends = offsets[1..].iter().map(|&end| from + (end - offsets[0]) as usize);
        block.ends.extend(ends);
        check::bags(info, first_row, &block.values[from..], offsets)
    }
}

impl FileForm {
    /// Why rows from `first_row` on of the dataset `of` are no numbers.
    fn wrong(&self, of: &Form, first_row: u64, wrong: Wrong) -> DatasetError {
        match wrong {
            Wrong::Damaged(rows, damage) => {
                ranges::failed(&self.info.path, of.name, &rows, &damage.to_string().into())
            }
            Wrong::Number(index, got) => self.value(of.name, first_row, index, of.width, got),
        }
    }

    /// Number `index` of rows of `width` numbers has no place in its type.
    fn value(
        &self,
        dataset: &'static str,
        first_row: u64,
        index: usize,
        width: usize,
        got: String,
    ) -> DatasetError {
        DatasetError::Value {
            path: self.info.path.clone(),
            dataset,
            row: first_row + (index / width) as u64,
            column: index % width,
            expected: match dataset {
                "label" => "a number from 0 to 1",
                "weight" | "dense" | "sparse_weights" => "a finite number of f32",
                "group" => "a number from 0",
                _ => "an id from 0 to 4294967295",
            },
            got,
        }
    }
}
