//! Writes one dataset file.
//!
//! Columns are cut in chunks of [`CHUNK_ROWS`] rows and filtered by shuffle, deflate and
//! fletcher32, which any HDF5 reads without plugins. The file grows under a temporary name in the
//! same folder and takes its own name when it is complete and on disk; a writer that is dropped
//! earlier leaves nothing behind.
//!
//! Invariants: only whole chunks are written before the end; `sparse_offsets[0]` is 0; ids are
//! below the cardinality, labels lie in [0, 1], every float is finite.

use std::fs;
use std::path::{Path, PathBuf};

use hdf5::File;
use hdf5::plist::file_access::LibraryVersion;

use super::column::{Column, Packers};
use super::described::Described;
use super::vocabulary;
use crate::DatasetError;
use crate::output::Temporary;
use crate::schema::{CHUNK_ROWS, DatasetInfo, DatasetSummary, Fingerprint, RowBlock, VERSION};

/// Bounds of the chunk of the one-dimensional columns of bags, in elements.
const BAG_CHUNK: (usize, usize) = (1024, 131_072);

/// Writes a dataset, row block by row block.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    /// Closed before the temporary file is removed: fields are dropped in this order.
    columns: Columns,
    temporary: Temporary,
    replace: bool,
    packers: Packers,
    /// End of every bag of a block among all values; its buffer is reused.
    ends: Vec<u64>,
    info: DatasetInfo,
    /// Largest id of every field, or `None` without any. `[S]`
    id_max: Vec<Option<u32>>,
    rows: u64,
    values: u64,
    values_per_row_max: u64,
    fingerprint: Fingerprint,
    /// Hash of the key list of every field, 0 without one; `None` where ids are not of keys. `[S]`
    vocabulary: Option<Vec<u64>>,
}

impl Writer {
    /// Begins the file that will be `path`, under a temporary name in the same folder.
    ///
    /// # Errors
    /// When the folder cannot be written, or ids of a one-hot dataset are to have weights.
    pub fn create(path: &Path, info: DatasetInfo) -> Result<Self, DatasetError> {
        let temporary =
            Temporary::beside(path).map_err(|_| DatasetError::Path { path: path.to_owned() })?;
        if info.one_hot && info.has_value_weights {
            return Err(DatasetError::Rows {
                path: path.to_owned(),
                what: "weights of ids",
                expected: "bags, one_hot = false".into(),
                got: "one id per field".into(),
            });
        }
        let columns = Columns::create(temporary.path(), &info)?;
        Ok(Self {
            path: path.to_owned(),
            columns,
            temporary,
            replace: true,
            packers: Packers::default(),
            ends: Vec::new(),
            id_max: vec![None; info.sparse_names.len()],
            info,
            rows: 0,
            values: 0,
            values_per_row_max: 0,
            fingerprint: Fingerprint::default(),
            vocabulary: None,
        })
    }

    /// A file that appears at the path before this one is complete is not replaced.
    #[must_use]
    pub fn keep_existing(mut self) -> Self {
        self.replace = false;
        self
    }

    /// Appends the rows of `block`.
    ///
    /// # Errors
    /// When a column has another length than `block.rows`, or a value is outside its range; the
    /// dataset is then unchanged. When HDF5 cannot write.
    pub fn append(&mut self, block: &RowBlock<'_>) -> Result<(), DatasetError> {
        self.check(block)?;
        let fields = self.info.sparse_names.len();
        let (columns, packers, path) = (&mut self.columns, &mut self.packers, &self.path);
        if let Some(column) = &mut columns.label {
            column.push(path, packers, block.label)?;
            self.fingerprint.label(block.label);
        }
        if let Some(column) = &mut columns.weight {
            column.push(path, packers, block.weight)?;
            self.fingerprint.weight(block.weight);
        }
        if let Some(column) = &mut columns.group {
            column.push(path, packers, block.group)?;
            self.fingerprint.group(block.group);
        }
        if let Some(column) = &mut columns.dense {
            column.push(path, packers, block.dense)?;
            self.fingerprint.dense(block.dense);
        }
        if let Some(column) = &mut columns.values {
            column.push(path, packers, block.values)?;
            self.fingerprint.values(block.values);
        }
        if let Some(column) = &mut columns.value_weights {
            column.push(path, packers, block.value_weights)?;
            self.fingerprint.value_weights(block.value_weights);
        }
        if let Some(column) = &mut columns.offsets {
            let base = self.values;
            self.ends.clear();
            self.ends.extend(block.offsets[1..].iter().map(|&end| base + u64::from(end)));
            column.push(path, packers, &self.ends)?;
            self.fingerprint.lengths(block.offsets.windows(2).map(|w| w[1] - w[0]));
        }
        if block.offsets.is_empty() {
            let mut rows = block.values.chunks_exact(fields.max(1));
            if let Some(first) = rows.next() {
                let mut largest = first.to_vec();
                for row in rows {
                    largest.iter_mut().zip(row).for_each(|(max, &id)| *max = (*max).max(id));
                }
                let all = self.id_max.iter_mut().zip(largest);
                all.for_each(|(max, id)| *max = (*max).max(Some(id)));
            }
            self.values_per_row_max = self.values_per_row_max.max(fields as u64);
        } else {
            for (bag, bounds) in block.offsets.windows(2).enumerate() {
                let ids = &block.values[bounds[0] as usize..bounds[1] as usize];
                let max = &mut self.id_max[bag % fields];
                *max = (*max).max(ids.iter().copied().max());
            }
            for row in 0..block.rows {
                let length = block.offsets[(row + 1) * fields] - block.offsets[row * fields];
                self.values_per_row_max = self.values_per_row_max.max(u64::from(length));
            }
        }
        self.rows += block.rows as u64;
        self.values += block.values.len() as u64;
        Ok(())
    }

    /// Sets the cardinality of every field, at any time before [`finish`](Self::finish). `[S]`
    pub fn set_cardinality(&mut self, cardinality: Vec<u64>) {
        self.info.cardinality = cardinality;
    }

    /// Sets what was done to the raw values, at any time before [`finish`](Self::finish).
    pub fn set_transform(&mut self, transform: String) {
        self.info.transform = transform;
    }

    /// Rows appended so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Stores the vocabulary of `field`: key number `i` is `keys[offsets[i]..offsets[i + 1]]`,
    /// under the group `/vocabulary/<field>`.
    ///
    /// # Errors
    /// When it is there already, or `offsets` do not describe `keys`.
    pub fn write_vocabulary(
        &mut self,
        field: usize,
        keys: &[u8],
        offsets: &[u64],
    ) -> Result<(), DatasetError> {
        if !vocabulary::bounds_hold(offsets, keys.len()) {
            return Err(self.misfit(
                "offsets of a vocabulary",
                format!("bounds that grow from 0 to {}", keys.len()),
                format!("{:?}..{:?}", offsets.first(), offsets.last()),
            ));
        }
        let fields = self.info.sparse_names.len();
        if field < fields {
            let hashes = self.vocabulary.get_or_insert_with(|| vec![0; fields]);
            hashes[field] = vocabulary::vocabulary_hash(keys, offsets);
        }
        vocabulary::write(&self.columns.file, &self.path, &mut self.packers, field, keys, offsets)
    }

    /// Says that ids are those of the key lists of another file, by their hashes as that file has
    /// them (`Dataset::vocabulary`). `[S]`
    pub fn set_vocabulary(&mut self, hashes: Vec<u64>) {
        self.vocabulary = Some(hashes);
    }

    /// Completes the file: attributes, fingerprint, flush to disk, own name.
    ///
    /// # Errors
    /// When an id is not below its cardinality, or the disk refuses. The temporary file is removed.
    pub fn finish(self) -> Result<DatasetSummary, DatasetError> {
        self.check_cardinality()?;
        let Self { path, mut columns, temporary, mut packers, info, .. } = self;
        columns.flush(&path, &mut packers)?;
        let fingerprint = self.fingerprint.finish();
        let file = &columns.file;
        let described = Described {
            version: Some(VERSION),
            rows: Some(self.rows),
            dense_names: Some(info.dense_names),
            sparse_names: Some(info.sparse_names),
            cardinality: Some(info.cardinality.clone()),
            values_per_row_max: Some(self.values_per_row_max),
            transform: Some(info.transform),
            vocabulary: self.vocabulary,
            fingerprint: Some(fingerprint.clone()),
        };
        described.write(file, &path)?;
        file.flush().map_err(|e| DatasetError::hdf5(&path, "flush", "the file", &e))?;
        drop(columns);
        let published = temporary.publish(&path, self.replace);
        let file_bytes = published.map_err(|(doing, e)| DatasetError::io(&path, doing, e))?;
        Ok(DatasetSummary {
            rows: self.rows,
            values: self.values,
            values_per_row_max: self.values_per_row_max,
            cardinality: info.cardinality,
            fingerprint,
            file_bytes,
        })
    }

    /// Lengths and ranges of a block.
    fn check(&self, block: &RowBlock<'_>) -> Result<(), DatasetError> {
        let (rows, fields) = (block.rows, self.info.sparse_names.len());
        let count = |what, expected: usize, got: usize| {
            if expected == got {
                Ok(())
            } else {
                Err(self.misfit(what, format!("{expected} for {rows} rows"), got.to_string()))
            }
        };
        count("labels", if self.info.has_label { rows } else { 0 }, block.label.len())?;
        count("weights", if self.info.has_weight { rows } else { 0 }, block.weight.len())?;
        count("groups", if self.info.has_group { rows } else { 0 }, block.group.len())?;
        count("dense features", rows * self.info.dense_names.len(), block.dense.len())?;
        let weights = if self.info.has_value_weights { block.values.len() } else { 0 };
        count("weights of ids", weights, block.value_weights.len())?;
        if block.offsets.is_empty() && self.info.one_hot {
            count("sparse values", rows * fields, block.values.len())?;
        } else {
            count("sparse offsets", rows * fields + 1, block.offsets.len())?;
            if !block.offsets.is_sorted()
                || block.offsets[0] != 0
                || block.offsets[rows * fields] as usize != block.values.len()
            {
                return Err(self.misfit(
                    "sparse offsets",
                    format!("bounds that grow from 0 to {}", block.values.len()),
                    format!("{}..{}", block.offsets[0], block.offsets[rows * fields]),
                ));
            }
            if self.info.one_hot && block.offsets.windows(2).any(|w| w[1] - w[0] != 1) {
                return Err(self.misfit("sparse values", "one per field".into(), "a bag".into()));
            }
        }
        let range = |what, expected: &str, values: &[f32], legal: fn(f32) -> bool| match values
            .iter()
            .find(|&&v| !legal(v))
        {
            None => Ok(()),
            Some(v) => Err(self.misfit(what, expected.to_owned(), v.to_string())),
        };
        range("label", "a number from 0 to 1", block.label, |v| (0.0..=1.0).contains(&v))?;
        range("weight", "a finite number from 0", block.weight, |v| v.is_finite() && v >= 0.0)?;
        let weights = block.value_weights;
        range("weight of an id", "a finite number from 0", weights, |v| v.is_finite() && v >= 0.0)?;
        range("dense feature", "a finite number", block.dense, f32::is_finite)
    }

    fn check_cardinality(&self) -> Result<(), DatasetError> {
        let fields = self.info.sparse_names.len();
        if self.info.cardinality.len() != fields {
            return Err(self.misfit(
                "cardinality",
                format!("{fields} numbers, one per field"),
                self.info.cardinality.len().to_string(),
            ));
        }
        for ((&max, &cardinality), name) in
            self.id_max.iter().zip(&self.info.cardinality).zip(&self.info.sparse_names)
        {
            if let Some(id) = max
                && u64::from(id) >= cardinality
            {
                return Err(self.misfit(
                    "sparse values",
                    format!("ids of field `{name}` below its cardinality {cardinality}"),
                    id.to_string(),
                ));
            }
        }
        Ok(())
    }

    fn misfit(&self, what: &'static str, expected: String, got: String) -> DatasetError {
        DatasetError::Rows { path: self.path.clone(), what, expected, got }
    }
}

/// The open file and its columns. The file is closed when all of them are dropped.
#[derive(Debug)]
struct Columns {
    label: Option<Column<f32>>,
    weight: Option<Column<f32>>,
    group: Option<Column<u64>>,
    dense: Option<Column<f32>>,
    values: Option<Column<u32>>,
    offsets: Option<Column<u64>>,
    value_weights: Option<Column<f32>>,
    file: File,
}

impl Columns {
    fn create(path: &Path, info: &DatasetInfo) -> Result<Self, DatasetError> {
        let (dense, fields) = (info.dense_names.len(), info.sparse_names.len());
        // The system says better than HDF5 why a file cannot be made.
        fs::File::create(path).map_err(|e| DatasetError::io(path, "create", e))?;
        // From this version on all of the library's metadata has checksums.
        // No times: the same rows are the same bytes, whenever they are written.
        let mut builder = File::with_options();
        builder.with_fcpl(|file| file.obj_track_times(false));
        builder
            .with_fapl(|access| access.libver_bounds(LibraryVersion::V110, LibraryVersion::V110));
        let file =
            builder.create(path).map_err(|e| DatasetError::hdf5(path, "create", "the file", &e))?;
        let rows = CHUNK_ROWS;
        let bags = (rows * fields).clamp(BAG_CHUNK.0, BAG_CHUNK.1);
        let label =
            info.has_label.then(|| Column::vector(&file, path, "label", rows)).transpose()?;
        let weight =
            info.has_weight.then(|| Column::vector(&file, path, "weight", rows)).transpose()?;
        let group =
            info.has_group.then(|| Column::vector(&file, path, "group", rows)).transpose()?;
        let dense =
            (dense > 0).then(|| Column::matrix(&file, path, "dense", dense, rows)).transpose()?;
        let (values, offsets) = if fields == 0 {
            (None, None)
        } else if info.one_hot {
            (Some(Column::matrix(&file, path, "sparse", fields, rows)?), None)
        } else {
            let mut offsets = Column::vector(&file, path, "sparse_offsets", bags)?;
            offsets.push(path, &mut Packers::default(), &[0])?;
            (Some(Column::vector(&file, path, "sparse_values", bags)?), Some(offsets))
        };
        let value_weights = (info.has_value_weights && fields > 0)
            .then(|| Column::vector(&file, path, "sparse_weights", bags))
            .transpose()?;
        Ok(Self { label, weight, group, dense, values, offsets, value_weights, file })
    }

    fn flush(&mut self, path: &Path, packers: &mut Packers) -> Result<(), DatasetError> {
        let floats = [&mut self.label, &mut self.weight, &mut self.dense, &mut self.value_weights];
        for column in floats.into_iter().flatten() {
            column.flush(path, packers)?;
        }
        self.group.iter_mut().try_for_each(|c| c.flush(path, packers))?;
        self.values.iter_mut().try_for_each(|c| c.flush(path, packers))?;
        self.offsets.iter_mut().try_for_each(|c| c.flush(path, packers))
    }
}
