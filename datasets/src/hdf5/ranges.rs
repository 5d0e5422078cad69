//! Reads ranges of the vectors and matrices of a file with the library, and the offsets of bags.
//!
//! The binding reads a hyperslab into an array of its own, so a range costs one allocation per
//! dataset and one copy; ranges are blocks of about a thousand rows, not batches.

use core::ops::Range;
use std::path::Path;

use hdf5::{Dataset as H5Dataset, H5Type};
use ndarray::{Array1, Array2};

use super::fetch::{Fetched, Source, Wrong};
use super::read::Workspace;
use crate::DatasetError;

/// Reads the offsets of the bags of `rows`, which must grow within `0..=values`, into `offsets`,
/// and returns the values they bound. `offsets: [rows * fields + 1]`
pub(super) fn offsets(
    path: &Path,
    source: &Source,
    rows: Range<u64>,
    (fields, values): (usize, u64),
    workspace: &mut Workspace,
    (fetched, offsets): (&mut Fetched, &mut Vec<u64>),
) -> Result<Range<u64>, DatasetError> {
    let width = fields as u64;
    let range = rows.start * width..rows.end * width + 1;
    source.fetch(path, range.clone(), &mut workspace.cache, fetched)?;
    offsets.clear();
    let name = source.form.name;
    fetched.decode(&source.form, &mut workspace.unpacker, offsets).map_err(
        |wrong| match wrong {
            Wrong::Damaged(rows, damage) => failed(path, name, &rows, &damage.to_string().into()),
            Wrong::Number(index, got) => DatasetError::Value {
                path: path.to_owned(),
                dataset: name,
                row: rows.start + (index / fields) as u64,
                column: index % fields,
                expected: "a number from 0",
                got,
            },
        },
    )?;
    let last_row = source.form.rows == range.end;
    let wrong = offsets.windows(2).position(|w| w[0] > w[1] || w[1] > values).or_else(|| {
        let ends_wrong = last_row && offsets.last() != Some(&values);
        let starts_wrong = rows.start == 0 && offsets.first() != Some(&0);
        if starts_wrong { Some(0) } else { ends_wrong.then(|| offsets.len() - 2) }
    });
    let Some(bag) = wrong else { return Ok(offsets[0]..offsets[offsets.len() - 1]) };
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
