//! Reads ranges of the vectors and matrices of a file with the library.
//!
//! The binding reads a hyperslab into an array of its own, so a range costs one allocation per
//! dataset and one copy; ranges are blocks of about a thousand rows, not batches.

use core::ops::Range;
use std::path::Path;

use hdf5::{Dataset as H5Dataset, H5Type};
use ndarray::{Array1, Array2};

use crate::DatasetError;

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

/// Rows `range` of dataset `name` cannot be read.
pub(super) fn failed(
    path: &Path,
    name: &str,
    range: &Range<u64>,
    error: &hdf5::Error,
) -> DatasetError {
    let object = format!("dataset `{name}` rows {}..{}", range.start, range.end);
    DatasetError::hdf5(path, "read", object, error)
}
