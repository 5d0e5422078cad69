//! Reads ranges of rows of one file into reused columns, and checks every value on the way.

use core::ops::Range;

use hdf5::{Dataset as H5Dataset, File};

use super::file_info::{FileInfo, Sparse};
use super::{attributes, open_file, ranges};
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
        self.ends.clear();
        self.group.clear();
    }
}

/// One open file.
#[derive(Debug)]
pub(crate) struct FileReader {
    info: FileInfo,
    label: Option<H5Dataset>,
    weight: Option<H5Dataset>,
    dense: Option<H5Dataset>,
    values: Option<H5Dataset>,
    offsets: Option<H5Dataset>,
    group: Option<H5Dataset>,
    _file: File,
}

impl FileReader {
    /// Opens the file that `info` was taken from, with a chunk cache of `cache_bytes` per dataset.
    pub(crate) fn open(info: &FileInfo, cache_bytes: usize) -> Result<Self, DatasetError> {
        let path = info.path.as_path();
        let _attention = Attention::on(path);
        let file = open_file(path, Some(cache_bytes))?;
        info.unchanged()?;
        // Of one whose times were set back the system says nothing else.
        let found = attributes::string(&file, path, "fingerprint")?;
        if found != info.fingerprint {
            let name = |print: &Option<String>| print.clone().unwrap_or_else(|| "none".into());
            let what =
                format!("its fingerprint was {} and is {}", name(&info.fingerprint), name(&found));
            return Err(DatasetError::Changed { path: path.to_owned(), what });
        }
        let open = |name: &str| {
            file.dataset(name)
                .map_err(|e| DatasetError::hdf5(path, "open", format!("dataset `{name}`"), &e))
        };
        let (values, offsets) = match info.sparse {
            Sparse::None => (None, None),
            Sparse::OneHot => (Some(open("sparse")?), None),
            Sparse::Bags { .. } => (Some(open("sparse_values")?), Some(open("sparse_offsets")?)),
        };
        Ok(Self {
            label: info.has_label.then(|| open("label")).transpose()?,
            weight: info.has_weight.then(|| open("weight")).transpose()?,
            dense: (info.dense_features > 0).then(|| open("dense")).transpose()?,
            values,
            offsets,
            group: info.has_group.then(|| open("group")).transpose()?,
            info: info.clone(),
            _file: file,
        })
    }

    /// Appends rows `rows` of the file to `block`.
    pub(crate) fn append(
        &self,
        rows: Range<u64>,
        block: &mut RowBuffer,
    ) -> Result<(), DatasetError> {
        let path = self.info.path.as_path();
        let _attention = Attention::on(path);
        let from = block.label.len();
        match &self.label {
            Some(label) => {
                let read = ranges::vector(path, label, "label", rows.clone())?;
                block.label.extend_from_slice(&read);
                self.check_floats("label", 1, rows.start, &block.label[from..])?;
            }
            // Rows without labels are counted by these, which nobody may learn from.
            None => block.label.extend(rows.clone().map(|_| 0.0)),
        }
        if let Some(dataset) = &self.weight {
            block.weight.extend_from_slice(&ranges::vector(path, dataset, "weight", rows.clone())?);
            self.check_floats("weight", 1, rows.start, &block.weight[from..])?;
        }
        if let Some(dataset) = &self.dense {
            let width = self.info.dense_features;
            let read = ranges::matrix(path, dataset, "dense", rows.clone(), width)?;
            block.dense.extend_from_slice(&read);
            self.check_floats("dense", width, rows.start, &block.dense[from * width..])?;
        }
        if let Some(dataset) = &self.group {
            block.group.extend_from_slice(&ranges::vector(path, dataset, "group", rows.clone())?);
        }
        self.append_sparse(rows, block)
    }

    fn append_sparse(&self, rows: Range<u64>, block: &mut RowBuffer) -> Result<(), DatasetError> {
        let path = self.info.path.as_path();
        let fields = self.info.cardinality.len();
        let Some(dataset) = &self.values else { return Ok(()) };
        let first = block.values.len();
        let (Some(offsets), Sparse::Bags { values }) = (&self.offsets, self.info.sparse) else {
            let read = ranges::matrix(path, dataset, "sparse", rows.clone(), fields)?;
            block.values.extend_from_slice(&read);
            if block.bags {
                block.ends.extend(first + 1..=block.values.len());
            }
            return self.check_one_hot(rows.start, &block.values[first..]);
        };
        let offsets = ranges::offsets(path, offsets, rows.clone(), fields, values)?;
        let (start, end) = (offsets[0], offsets[offsets.len() - 1]);
        block.values.extend_from_slice(&ranges::vector(
            path,
            dataset,
            "sparse_values",
            start..end,
        )?);
        let limit = self.info.values_per_row_max;
        for (row, bounds) in offsets.windows(fields + 1).step_by(fields).enumerate() {
            let length = bounds[fields] - bounds[0];
            if length > limit {
                return Err(DatasetError::mismatch(
                    path,
                    "attribute `values_per_row_max`",
                    format!("{length} or more, the values of row {}", rows.start + row as u64),
                    limit.to_string(),
                ));
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "bounds of values held in memory")]
        block.ends.extend(offsets[1..].iter().map(|&end| first + (end - start) as usize));
        self.check_bags(rows.start, &block.values[first..], &offsets)
    }

    /// Every float of `dataset` is in its range.
    fn check_floats(
        &self,
        dataset: &'static str,
        width: usize,
        first_row: u64,
        values: &[f32],
    ) -> Result<(), DatasetError> {
        let (legal, expected): (fn(f32) -> bool, _) = match dataset {
            "label" => (|v| (0.0..=1.0).contains(&v), "a number from 0 to 1"),
            "weight" => (|v| v.is_finite() && v >= 0.0, "a finite number from 0"),
            _ => (f32::is_finite, "a finite number"),
        };
        let Some(at) = values.iter().position(|&v| !legal(v)) else { return Ok(()) };
        Err(DatasetError::Value {
            path: self.info.path.clone(),
            dataset,
            row: first_row + (at / width) as u64,
            column: at % width,
            expected,
            got: values[at],
        })
    }

    fn check_one_hot(&self, first_row: u64, values: &[u32]) -> Result<(), DatasetError> {
        let cardinality = &self.info.cardinality;
        for (row, ids) in values.chunks_exact(cardinality.len()).enumerate() {
            // Without a branch per id: a wrong one is looked for only when there is one.
            let wrong =
                ids.iter().zip(cardinality).fold(false, |w, (&i, &c)| w | (u64::from(i) >= c));
            if wrong {
                let field = ids.iter().zip(cardinality).position(|(&i, &c)| u64::from(i) >= c);
                let field = field.unwrap_or(0);
                return Err(self.out_of_range("sparse", first_row + row as u64, field, ids[field]));
            }
        }
        Ok(())
    }

    fn check_bags(
        &self,
        first_row: u64,
        values: &[u32],
        offsets: &[u64],
    ) -> Result<(), DatasetError> {
        let cardinality = &self.info.cardinality;
        #[expect(clippy::cast_possible_truncation, reason = "bounds of values held in memory")]
        let at = |offset: u64| (offset - offsets[0]) as usize;
        for (bag, bounds) in offsets.windows(2).enumerate() {
            let field = bag % cardinality.len();
            let limit = cardinality[field];
            let ids = &values[at(bounds[0])..at(bounds[1])];
            if let Some(&id) = ids.iter().find(|&&id| u64::from(id) >= limit) {
                let row = first_row + (bag / cardinality.len()) as u64;
                return Err(self.out_of_range("sparse_values", row, field, id));
            }
        }
        Ok(())
    }

    fn out_of_range(&self, dataset: &'static str, row: u64, field: usize, id: u32) -> DatasetError {
        let name = match &self.info.sparse_names {
            Some(names) => names[field].clone(),
            None => format!("sparse{field}"),
        };
        DatasetError::IdOutOfRange {
            path: self.info.path.clone(),
            dataset,
            row,
            field,
            name,
            id,
            cardinality: self.info.cardinality[field],
        }
    }
}
