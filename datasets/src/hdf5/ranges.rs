//! Reads ranges of the vectors and matrices of a file, as they are.
//!
//! The binding reads a hyperslab into an array of its own, so a range costs one allocation per
//! dataset and one copy; ranges are blocks of about a thousand rows, not batches.

use core::ops::Range;
use std::path::Path;

use hdf5::{Dataset as H5Dataset, H5Type};
use ndarray::{Array1, Array2};

use crate::DatasetError;

/// Offsets of the bags of `rows`, which must grow within `0..=values`. `[rows * fields + 1]`
pub(super) fn offsets(
    path: &Path,
    dataset: &H5Dataset,
    rows: Range<u64>,
    fields: usize,
    values: u64,
) -> Result<Vec<u64>, DatasetError> {
    let width = fields as u64;
    let range = rows.start * width..rows.end * width + 1;
    let offsets = vector::<u64>(path, dataset, "sparse_offsets", range)?;
    let last_row = dataset.size() as u64 == rows.end * width + 1;
    let wrong = offsets.windows(2).position(|w| w[0] > w[1] || w[1] > values).or_else(|| {
        let ends_wrong = last_row && offsets.last() != Some(&values);
        let starts_wrong = rows.start == 0 && offsets.first() != Some(&0);
        if starts_wrong { Some(0) } else { ends_wrong.then(|| offsets.len() - 2) }
    });
    let Some(bag) = wrong else { return Ok(offsets) };
    Err(DatasetError::Offsets {
        path: path.to_owned(),
        row: rows.start + (bag / fields) as u64,
        field: bag % fields,
        start: offsets[bag],
        end: offsets[bag + 1],
        values,
    })
}

pub(super) fn vector<T: H5Type>(
    path: &Path,
    dataset: &H5Dataset,
    name: &'static str,
    range: Range<u64>,
) -> Result<Vec<T>, DatasetError> {
    let read: Result<Array1<T>, _> = dataset.read_slice(bounds(&range));
    read.map(|a| a.into_raw_vec_and_offset().0).map_err(|e| failed(path, name, &range, &e))
}

pub(super) fn matrix<T: H5Type>(
    path: &Path,
    dataset: &H5Dataset,
    name: &'static str,
    rows: Range<u64>,
    width: usize,
) -> Result<Vec<T>, DatasetError> {
    let read: Result<Array2<T>, _> = dataset.read_slice((bounds(&rows), 0..width));
    read.map(|a| a.into_raw_vec_and_offset().0).map_err(|e| failed(path, name, &rows, &e))
}

#[expect(clippy::cast_possible_truncation, reason = "below the length of a dataset, a usize")]
fn bounds(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

fn failed(path: &Path, name: &str, range: &Range<u64>, error: &hdf5::Error) -> DatasetError {
    let object = format!("dataset `{name}` rows {}..{}", range.start, range.end);
    DatasetError::hdf5(path, "read", object, error)
}
