//! Opens one file and checks its structure: what is there, of which type and shape.
//!
//! Content is checked while it is read ([`super::read`]) or all at once ([`super::verify`]).

use std::path::Path;

use hdf5::{Dataset as H5Dataset, File};

use super::described::Described;
use super::fetch::{Fetched, Source};
use super::file_info::{FileInfo, Sparse};
use super::form::{self, Form, Meaning};
use super::stamp::Stamp;
use super::workspace::Workspace;
use super::{has_link, offsets, open_file, stored};
use crate::DatasetError;
use crate::attention::Attention;
use crate::schema::{CHUNK_ROWS, VERSION};

/// Opens `path`, checks its structure, closes it.
pub(crate) fn inspect(path: &Path) -> Result<FileInfo, DatasetError> {
    let attention = Attention::timed(path);
    let file = open_file(path, None)?;
    let stamp = Stamp::of(path)?;
    let described = Described::read(&file, path)?;
    let structure = Structure { file: &file, path, attention: &attention, described };
    let version = structure.version()?;
    let (label, rows) = structure.label()?;
    let (dense, dense_features) = structure.dense(rows)?;
    let described = &structure.described;
    let dense_names = structure.names("dense_names", &described.dense_names, dense_features)?;
    let cardinality = structure.cardinality()?;
    let fields = cardinality.len();
    let sparse_names = structure.names("sparse_names", &described.sparse_names, fields)?;
    let vocabulary = structure.vocabulary(fields)?;
    let (sparse, ids) = structure.sparse(rows, fields)?;
    let weight = structure.per_row("weight", Meaning::Number, rows)?;
    let group = structure.per_row("group", Meaning::Count, rows)?;
    let value_weights = structure.value_weights(sparse)?;
    let has_label = label.is_some();
    let (has_weight, has_group) = (weight.is_some(), group.is_some());
    let has_value_weights = value_weights.is_some();

    // Numbers and ids have four bytes each, so of two matrices the one with more columns is wider.
    let widest = match (sparse, ids.first(), &dense) {
        (Sparse::OneHot, Some(ids), None) => Some(ids),
        (Sparse::OneHot, Some(ids), Some(_)) if fields >= dense_features => Some(ids),
        (_, _, Some(dense)) => Some(dense),
        (_, _, None) => label.as_ref(),
    };
    let chunk_rows =
        widest.and_then(H5Dataset::chunk).and_then(|c| c.first().copied()).unwrap_or(CHUNK_ROWS);
    let optional = [label, dense, weight, group, value_weights].into_iter().flatten();
    let all: Vec<H5Dataset> = optional.chain(ids).collect();
    all.iter().try_for_each(|dataset| {
        stored::check(path, dataset)?;
        structure.filters(dataset)
    })?;

    Ok(FileInfo {
        path: path.to_owned(),
        stamp,
        version,
        rows,
        dense_features,
        dense_names,
        sparse_names,
        values_per_row_max: structure.values_per_row_max(rows, fields, sparse)?,
        cardinality,
        transform: described.transform.clone().unwrap_or_default(),
        vocabulary,
        fingerprint: described.fingerprint.clone(),
        sparse,
        has_label,
        has_weight,
        has_group,
        has_value_weights,
        direct: all.iter().all(form::is_direct),
        chunk_rows: chunk_rows.max(1) as u64,
        chunk_bytes: all.iter().filter_map(chunk_bytes).max().unwrap_or(0),
    })
}

/// Uncompressed size of a chunk of `dataset`.
fn chunk_bytes(dataset: &H5Dataset) -> Option<usize> {
    let size = dataset.dtype().ok()?.size();
    dataset.chunk().map(|c| c.iter().product::<usize>() * size)
}

/// Rows of offsets that are scanned at once.
const SCAN_ROWS: u64 = 65_536;

/// The checks of one open file.
struct Structure<'a> {
    file: &'a File,
    path: &'a Path,
    attention: &'a Attention,
    described: Described,
}

impl Structure<'_> {
    fn version(&self) -> Result<u64, DatasetError> {
        match self.described.version {
            Some(version @ 1..=VERSION) => Ok(version),
            Some(other) => Err(DatasetError::mismatch(
                self.path,
                "attribute `umbra_version`",
                format!("1 to {VERSION}, the layouts this build reads"),
                other.to_string(),
            )),
            None => Err(DatasetError::Missing {
                path: self.path.to_owned(),
                object: "attribute `umbra_version`",
                expected: format!("an integer from 1 to {VERSION}: is this a dataset of umbra?"),
            }),
        }
    }

    fn find(&self, name: &str) -> Result<Option<H5Dataset>, DatasetError> {
        let open = || {
            let there = has_link(self.file, name)?;
            there.then(|| self.file.dataset(name)).transpose()
        };
        open().map_err(|e| DatasetError::hdf5(self.path, "open", format!("dataset `{name}`"), &e))
    }

    fn require(&self, name: &'static str, expected: &str) -> Result<H5Dataset, DatasetError> {
        self.find(name)?.ok_or_else(|| DatasetError::Missing {
            path: self.path.to_owned(),
            object: name,
            expected: format!("dataset `{name}`: {expected}"),
        })
    }

    fn element(
        &self,
        dataset: &H5Dataset,
        name: &str,
        meaning: Meaning,
    ) -> Result<(), DatasetError> {
        form::element(self.path, dataset, name, meaning).map(drop)
    }

    /// Length of a vector, which must be `rows` where given.
    fn vector(
        &self,
        dataset: &H5Dataset,
        name: &str,
        length: Option<u64>,
    ) -> Result<u64, DatasetError> {
        match (dataset.shape()[..].as_ref(), length) {
            (&[got], None) => Ok(got as u64),
            (&[got], Some(length)) if got as u64 == length => Ok(length),
            (_, length) => {
                let expected = length.map_or("[rows]".to_owned(), |n| format!("[{n}]"));
                Err(self.wrong_shape(name, expected, dataset))
            }
        }
    }

    /// Columns of a matrix of `rows` rows, which must be `columns` where given.
    fn matrix(
        &self,
        dataset: &H5Dataset,
        name: &str,
        rows: u64,
        columns: Option<usize>,
    ) -> Result<usize, DatasetError> {
        match dataset.shape()[..] {
            [got, width] if got as u64 == rows && columns.is_none_or(|c| c == width) => Ok(width),
            _ => {
                let columns = columns.map_or("columns".to_owned(), |c| c.to_string());
                Err(self.wrong_shape(name, format!("[{rows}, {columns}]"), dataset))
            }
        }
    }

    /// The library can undo every filter of `dataset`.
    fn filters(&self, dataset: &H5Dataset) -> Result<(), DatasetError> {
        let Some(missing) = dataset.filters().into_iter().find(|f| !f.is_available()) else {
            return Ok(());
        };
        Err(DatasetError::mismatch(
            self.path,
            format!("filters of dataset `{}`", dataset.name().trim_start_matches('/')),
            "compression by gzip or none",
            match missing.id() {
                32_000 => "lzf".to_owned(),
                32_001 => "blosc".to_owned(),
                32_015 => "zstd".to_owned(),
                other => format!("filter number {other}, which this HDF5 library does not have"),
            },
        ))
    }

    fn wrong_shape(&self, name: &str, expected: String, dataset: &H5Dataset) -> DatasetError {
        let got = format!("{:?}", dataset.shape());
        DatasetError::mismatch(self.path, format!("shape of dataset `{name}`"), expected, got)
    }

    /// Names of `count` columns.
    fn names(
        &self,
        name: &str,
        names: &Option<Vec<String>>,
        count: usize,
    ) -> Result<Option<Vec<String>>, DatasetError> {
        match names {
            Some(names) if names.len() != count => Err(DatasetError::mismatch(
                self.path,
                format!("attribute `{name}`"),
                format!("{count} names, one per column"),
                names.len().to_string(),
            )),
            _ => Ok(names.clone()),
        }
    }

    /// The labels, if there are any, and how many rows there are.
    fn label(&self) -> Result<(Option<H5Dataset>, u64), DatasetError> {
        let Some(label) = self.find("label")? else {
            return match self.described.rows {
                Some(rows @ 1..) => Ok((None, rows)),
                _ => Err(DatasetError::Missing {
                    path: self.path.to_owned(),
                    object: "label",
                    expected: "dataset `label`: the clicks, f32 [rows]; for rows that are only to \
                               be scored, the attribute `rows`"
                        .into(),
                }),
            };
        };
        self.element(&label, "label", Meaning::Number)?;
        let rows = self.vector(&label, "label", None)?;
        if let Some(stated) = self.described.rows
            && stated != rows
        {
            let expected = format!("[{stated}] (attribute `rows`)");
            return Err(self.wrong_shape("label", expected, &label));
        }
        if rows == 0 {
            return Err(self.wrong_shape("label", "one row or more".into(), &label));
        }
        Ok((Some(label), rows))
    }

    /// Hashes of key lists, one per field.
    fn vocabulary(&self, fields: usize) -> Result<Option<Vec<u64>>, DatasetError> {
        match &self.described.vocabulary {
            Some(hashes) if hashes.len() != fields => Err(DatasetError::mismatch(
                self.path,
                "attribute `vocabulary`",
                format!("{fields} numbers, one per field"),
                hashes.len().to_string(),
            )),
            hashes => Ok(hashes.clone()),
        }
    }

    /// The dense features, and how many there are in a row.
    fn dense(&self, rows: u64) -> Result<(Option<H5Dataset>, usize), DatasetError> {
        let Some(dense) = self.find("dense")? else { return Ok((None, 0)) };
        self.element(&dense, "dense", Meaning::Number)?;
        let features = self.matrix(&dense, "dense", rows, None)?;
        Ok((Some(dense), features))
    }

    /// One number above all ids of every field. `[S]`
    fn cardinality(&self) -> Result<Vec<u64>, DatasetError> {
        self.described.cardinality.clone().ok_or_else(|| DatasetError::Missing {
            path: self.path.to_owned(),
            object: "attribute `cardinality`",
            expected: "u64 [fields], every id of a field below its number \
                       (with h5py: f.attrs['cardinality'] = sparse.max(axis=0) + 1)"
                .into(),
        })
    }

    /// The vector `name` of `rows` elements, if there is one.
    fn per_row(
        &self,
        name: &str,
        element: Meaning,
        rows: u64,
    ) -> Result<Option<H5Dataset>, DatasetError> {
        let Some(dataset) = self.find(name)? else { return Ok(None) };
        self.element(&dataset, name, element)?;
        self.vector(&dataset, name, Some(rows))?;
        Ok(Some(dataset))
    }

    /// Finds and checks the sparse datasets: none, one, or values and offsets.
    fn sparse(&self, rows: u64, fields: usize) -> Result<(Sparse, Vec<H5Dataset>), DatasetError> {
        let ids = Meaning::Id;
        let one_hot = self.find("sparse")?;
        let (values, offsets) = (self.find("sparse_values")?, self.find("sparse_offsets")?);
        match (one_hot, values, offsets) {
            (None, None, None) if fields == 0 => Ok((Sparse::None, Vec::new())),
            (Some(dataset), None, None) => {
                self.element(&dataset, "sparse", ids)?;
                self.matrix(&dataset, "sparse", rows, Some(fields))?;
                let sparse = if fields == 0 { Sparse::None } else { Sparse::OneHot };
                Ok((sparse, vec![dataset]))
            }
            (None, Some(values), Some(offsets)) if fields > 0 => {
                self.element(&values, "sparse_values", ids)?;
                self.element(&offsets, "sparse_offsets", Meaning::Count)?;
                let length = self.vector(&values, "sparse_values", None)?;
                self.vector(&offsets, "sparse_offsets", Some(rows * fields as u64 + 1))?;
                Ok((Sparse::Bags { values: length }, vec![values, offsets]))
            }
            (one_hot, values, offsets) => {
                let found = [
                    one_hot.map(|_| "`sparse`"),
                    values.map(|_| "`sparse_values`"),
                    offsets.map(|_| "`sparse_offsets`"),
                ];
                let found: Vec<_> = found.into_iter().flatten().collect();
                Err(DatasetError::mismatch(
                    self.path,
                    format!("datasets of {fields} sparse fields"),
                    "either `sparse` u32 [rows, fields], \
                     or both `sparse_values` and `sparse_offsets`",
                    if found.is_empty() { "none".to_owned() } else { found.join(", ") },
                ))
            }
        }
    }

    /// The weights of ids, if there are any: one for every value of the bags.
    fn value_weights(&self, sparse: Sparse) -> Result<Option<H5Dataset>, DatasetError> {
        let name = "sparse_weights";
        let Sparse::Bags { values } = sparse else {
            return match self.find(name)? {
                None => Ok(None),
                Some(_) => Err(DatasetError::mismatch(
                    self.path,
                    format!("dataset `{name}`"),
                    "`sparse_values` and `sparse_offsets` beside it",
                    "none: only ids in bags have weights",
                )),
            };
        };
        self.per_row(name, Meaning::Number, values)
    }

    /// Most sparse values in one row: as stated, or counted where nothing is stated.
    fn values_per_row_max(
        &self,
        rows: u64,
        fields: usize,
        sparse: Sparse,
    ) -> Result<u64, DatasetError> {
        let Sparse::Bags { values } = sparse else { return Ok(fields as u64) };
        match self.described.values_per_row_max {
            Some(stated) => Ok(stated.min(values)),
            None => self.scan_offsets(rows, fields, values),
        }
    }

    /// Reads all offsets: they must grow from 0 to `values`. Returns the longest row.
    fn scan_offsets(&self, rows: u64, fields: usize, values: u64) -> Result<u64, DatasetError> {
        let dataset = self.require("sparse_offsets", "u64 [rows * fields + 1]")?;
        let form = Form::of(self.path, &dataset, "sparse_offsets", Meaning::Count)?;
        let source = Source { dataset, form, number: (0, 0) };
        let mut workspace = Workspace::new(0);
        let (mut fetched, mut offsets) = (Fetched::default(), Vec::new());
        let mut longest = 0;
        for first in (0..rows).step_by(usize::try_from(SCAN_ROWS).unwrap_or(usize::MAX)) {
            let last = rows.min(first + SCAN_ROWS);
            self.attention.again();
            let shape = (fields, values);
            let found = (&mut fetched, &mut offsets);
            offsets::read(self.path, &source, first..last, shape, &mut workspace, found)?;
            for row in offsets.windows(fields + 1).step_by(fields) {
                longest = longest.max(row[fields] - row[0]);
            }
        }
        Ok(longest)
    }
}
