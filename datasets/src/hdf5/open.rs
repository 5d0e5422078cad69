//! Opens one file and checks its structure: what is there, of which type and shape.
//!
//! Content is checked while it is read ([`super::read`]) or all at once ([`super::verify`]).

use std::path::{Path, PathBuf};

use hdf5::types::{FloatSize, IntSize, TypeDescriptor};
use hdf5::{Dataset, File};

use super::{attributes, open_file};
use crate::DatasetError;
use crate::schema::{CHUNK_ROWS, VERSION};

/// How the sparse values of a file are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sparse {
    /// No fields at all.
    None,
    /// `sparse` u32 `[N, S]`.
    OneHot,
    /// `sparse_values` u32 `[values]`, `sparse_offsets` u64 `[N·S + 1]`.
    Bags {
        /// Length of `sparse_values`.
        values: u64,
    },
}

/// A file whose structure is as the layout says.
#[derive(Clone, Debug)]
pub(crate) struct FileInfo {
    pub(crate) path: PathBuf,
    pub(crate) rows: u64,
    pub(crate) dense_features: usize,
    pub(crate) dense_names: Option<Vec<String>>,
    pub(crate) sparse_names: Option<Vec<String>>,
    pub(crate) cardinality: Vec<u64>,
    pub(crate) transform: String,
    pub(crate) fingerprint: Option<String>,
    pub(crate) sparse: Sparse,
    pub(crate) has_weight: bool,
    pub(crate) has_group: bool,
    /// Most sparse values in one row.
    pub(crate) values_per_row_max: u64,
    /// Rows in a chunk of the widest dataset: the unit in which reading is cheap.
    pub(crate) chunk_rows: u64,
    /// Size of the largest chunk, uncompressed, in bytes; 0 when nothing is chunked.
    pub(crate) chunk_bytes: usize,
}

/// Opens `path`, checks its structure, closes it.
pub(crate) fn inspect(path: &Path) -> Result<FileInfo, DatasetError> {
    let file = open_file(path, None)?;
    let structure = Structure { file: &file, path };
    structure.version()?;

    let label = structure.require("label", "the clicks, f32 [rows]")?;
    structure.element(&label, "label", TypeDescriptor::Float(FloatSize::U4))?;
    let rows = structure.vector(&label, "label", None)?;
    if let Some(stated) = attributes::integer(&file, path, "rows")?
        && stated != rows
    {
        return Err(structure.wrong_shape(
            "label",
            format!("[{stated}] (attribute `rows`)"),
            &label,
        ));
    }
    if rows == 0 {
        return Err(structure.wrong_shape("label", "one row or more".into(), &label));
    }

    let mut widest = (size_of::<f32>(), label.clone());
    let mut all = vec![label];
    let dense = structure.find("dense")?;
    let dense_features = match &dense {
        None => 0,
        Some(dense) => {
            structure.element(dense, "dense", TypeDescriptor::Float(FloatSize::U4))?;
            structure.matrix(dense, "dense", rows, None)?
        }
    };
    let dense_names = structure.names("dense_names", dense_features)?;
    if let Some(dense) = dense {
        widest = (size_of::<f32>() * dense_features, dense.clone());
        all.push(dense);
    }

    let cardinality = attributes::integers(&file, path, "cardinality")?.ok_or_else(|| {
        DatasetError::Missing {
            path: path.to_owned(),
            object: "attribute `cardinality`",
            expected: "u64 [fields], every id of a field below its number (with h5py: f.attrs['cardinality'] = sparse.max(axis=0) + 1)".into(),
        }
    })?;
    let fields = cardinality.len();
    let sparse_names = structure.names("sparse_names", fields)?;
    let sparse = structure.sparse(rows, fields, &mut all)?;
    if sparse == Sparse::OneHot
        && let Some(dataset) = all.last()
        && size_of::<u32>() * fields >= widest.0
    {
        widest.1 = dataset.clone();
    }

    let weight = structure.find("weight")?;
    if let Some(weight) = &weight {
        structure.element(weight, "weight", TypeDescriptor::Float(FloatSize::U4))?;
        structure.vector(weight, "weight", Some(rows))?;
    }
    let group = structure.find("group")?;
    if let Some(group) = &group {
        structure.element(group, "group", TypeDescriptor::Unsigned(IntSize::U8))?;
        structure.vector(group, "group", Some(rows))?;
    }
    let (has_weight, has_group) = (weight.is_some(), group.is_some());
    all.extend(weight.into_iter().chain(group));

    all.iter().try_for_each(|dataset| structure.filters(dataset))?;

    let values_per_row_max = match sparse {
        Sparse::None | Sparse::OneHot => fields as u64,
        Sparse::Bags { values } => match attributes::integer(&file, path, "values_per_row_max")? {
            Some(stated) => stated.min(values),
            None => structure.scan_offsets(rows, fields, values)?,
        },
    };
    let chunk_rows = widest.1.chunk().and_then(|c| c.first().copied()).unwrap_or(CHUNK_ROWS);
    let chunk_bytes = all.iter().filter_map(chunk_bytes).max().unwrap_or(0);
    Ok(FileInfo {
        path: path.to_owned(),
        rows,
        dense_features,
        dense_names,
        sparse_names,
        cardinality,
        transform: attributes::string(&file, path, "transform")?.unwrap_or_default(),
        fingerprint: attributes::string(&file, path, "fingerprint")?,
        sparse,
        has_weight,
        has_group,
        values_per_row_max,
        chunk_rows: chunk_rows.max(1) as u64,
        chunk_bytes,
    })
}

/// Uncompressed size of a chunk of `dataset`.
fn chunk_bytes(dataset: &Dataset) -> Option<usize> {
    let size = dataset.dtype().ok()?.size();
    dataset.chunk().map(|c| c.iter().product::<usize>() * size)
}

/// Rows of offsets that are scanned at once.
const SCAN_ROWS: u64 = 65_536;

/// The checks of one open file.
struct Structure<'a> {
    file: &'a File,
    path: &'a Path,
}

impl Structure<'_> {
    fn version(&self) -> Result<(), DatasetError> {
        match attributes::integer(self.file, self.path, "umbra_version")? {
            Some(VERSION) => Ok(()),
            Some(other) => Err(DatasetError::mismatch(
                self.path,
                "attribute `umbra_version`",
                format!("{VERSION}, the layout this build reads"),
                other.to_string(),
            )),
            None => Err(DatasetError::Missing {
                path: self.path.to_owned(),
                object: "attribute `umbra_version`",
                expected: format!("the integer {VERSION}: is this a dataset of umbra?"),
            }),
        }
    }

    fn find(&self, name: &str) -> Result<Option<Dataset>, DatasetError> {
        if !self.file.link_exists(name) {
            return Ok(None);
        }
        self.file
            .dataset(name)
            .map(Some)
            .map_err(|e| DatasetError::hdf5(self.path, "open", format!("dataset `{name}`"), &e))
    }

    fn require(&self, name: &'static str, expected: &str) -> Result<Dataset, DatasetError> {
        self.find(name)?.ok_or_else(|| DatasetError::Missing {
            path: self.path.to_owned(),
            object: name,
            expected: format!("dataset `{name}`: {expected}"),
        })
    }

    fn element(
        &self,
        dataset: &Dataset,
        name: &str,
        expected: TypeDescriptor,
    ) -> Result<(), DatasetError> {
        let got = attributes::descriptor(dataset);
        if got.as_ref() == Some(&expected) {
            return Ok(());
        }
        Err(DatasetError::mismatch(
            self.path,
            format!("type of dataset `{name}`"),
            attributes::type_name(Some(&expected)),
            attributes::type_name(got.as_ref()),
        ))
    }

    /// Length of a vector, which must be `rows` where given.
    fn vector(
        &self,
        dataset: &Dataset,
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
        dataset: &Dataset,
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
    fn filters(&self, dataset: &Dataset) -> Result<(), DatasetError> {
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

    fn wrong_shape(&self, name: &str, expected: String, dataset: &Dataset) -> DatasetError {
        let got = format!("{:?}", dataset.shape());
        DatasetError::mismatch(self.path, format!("shape of dataset `{name}`"), expected, got)
    }

    /// Names of `count` columns.
    fn names(&self, name: &str, count: usize) -> Result<Option<Vec<String>>, DatasetError> {
        let names = attributes::strings(self.file, self.path, name)?;
        match &names {
            Some(names) if names.len() != count => Err(DatasetError::mismatch(
                self.path,
                format!("attribute `{name}`"),
                format!("{count} names, one per column"),
                names.len().to_string(),
            )),
            _ => Ok(names),
        }
    }

    /// Finds and checks the sparse datasets; pushes them to `all`.
    fn sparse(
        &self,
        rows: u64,
        fields: usize,
        all: &mut Vec<Dataset>,
    ) -> Result<Sparse, DatasetError> {
        let ids = TypeDescriptor::Unsigned(IntSize::U4);
        let one_hot = self.find("sparse")?;
        let (values, offsets) = (self.find("sparse_values")?, self.find("sparse_offsets")?);
        match (one_hot, values, offsets) {
            (None, None, None) if fields == 0 => Ok(Sparse::None),
            (Some(dataset), None, None) => {
                self.element(&dataset, "sparse", ids)?;
                self.matrix(&dataset, "sparse", rows, Some(fields))?;
                all.push(dataset);
                Ok(if fields == 0 { Sparse::None } else { Sparse::OneHot })
            }
            (None, Some(values), Some(offsets)) if fields > 0 => {
                self.element(&values, "sparse_values", ids)?;
                self.element(&offsets, "sparse_offsets", TypeDescriptor::Unsigned(IntSize::U8))?;
                let length = self.vector(&values, "sparse_values", None)?;
                self.vector(&offsets, "sparse_offsets", Some(rows * fields as u64 + 1))?;
                all.extend([values, offsets]);
                Ok(Sparse::Bags { values: length })
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
                    "either `sparse` u32 [rows, fields], or both `sparse_values` and `sparse_offsets`",
                    if found.is_empty() { "none".to_owned() } else { found.join(", ") },
                ))
            }
        }
    }

    /// Reads all offsets: they must grow from 0 to `values`. Returns the longest row.
    fn scan_offsets(&self, rows: u64, fields: usize, values: u64) -> Result<u64, DatasetError> {
        let dataset = self.require("sparse_offsets", "u64 [rows * fields + 1]")?;
        let mut longest = 0;
        for first in (0..rows).step_by(usize::try_from(SCAN_ROWS).unwrap_or(usize::MAX)) {
            let last = rows.min(first + SCAN_ROWS);
            let offsets = super::read::offsets(self.path, &dataset, first..last, fields, values)?;
            for row in offsets.windows(fields + 1).step_by(fields) {
                longest = longest.max(row[fields] - row[0]);
            }
        }
        Ok(longest)
    }
}
