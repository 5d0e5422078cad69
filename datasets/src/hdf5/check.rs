//! Checks of values once they are in memory.
//!
//! Without a branch per value, so that they become vector code: a wrong one is looked for only
//! where there is one.

use super::file_info::FileInfo;
use crate::DatasetError;

/// Every number of `dataset` is in its range.
pub(super) fn floats(
    info: &FileInfo,
    dataset: &'static str,
    width: usize,
    first_row: u64,
    values: &[f32],
) -> Result<(), DatasetError> {
    match dataset {
        "label" => {
            let legal = |v: f32| (0.0..=1.0).contains(&v);
            floats_are(info, (dataset, "a number from 0 to 1"), width, first_row, values, legal)
        }
        "weight" => {
            let legal = |v: f32| (0.0..f32::INFINITY).contains(&v);
            floats_are(info, (dataset, "a finite number from 0"), width, first_row, values, legal)
        }
        _ => {
            floats_are(info, (dataset, "a finite number"), width, first_row, values, f32::is_finite)
        }
    }
}

fn floats_are(
    info: &FileInfo,
    (dataset, expected): (&'static str, &'static str),
    width: usize,
    first_row: u64,
    values: &[f32],
    legal: impl Fn(f32) -> bool,
) -> Result<(), DatasetError> {
    if values.iter().fold(true, |all, &v| all & legal(v)) {
        return Ok(());
    }
    let at = values.iter().position(|&v| !legal(v)).unwrap_or(0);
    Err(DatasetError::Value {
        path: info.path.clone(),
        dataset,
        row: first_row + (at / width) as u64,
        column: at % width,
        expected,
        got: values[at].to_string(),
    })
}

/// The largest legal id of every field, again and again, so that rows are compared many at a time.
#[derive(Debug)]
pub(super) struct IdLimits {
    /// `[16 * S]`
    largest: Vec<u32>,
    /// A field without a legal id.
    none: bool,
}

impl IdLimits {
    pub(super) fn new(cardinality: &[u64]) -> Self {
        let largest = |&c: &u64| u32::try_from(c.saturating_sub(1)).unwrap_or(u32::MAX);
        let row: Vec<u32> = cardinality.iter().map(largest).collect();
        Self { largest: row.repeat(16), none: cardinality.contains(&0) }
    }

    /// Every id of the rows `values: [n, S]` is below its cardinality.
    pub(super) fn one_hot(
        &self,
        info: &FileInfo,
        first_row: u64,
        values: &[u32],
    ) -> Result<(), DatasetError> {
        let wrong = values.chunks(self.largest.len().max(1)).fold(false, |wrong, ids| {
            wrong | ids.iter().zip(&self.largest).fold(false, |w, (id, max)| w | (id > max))
        });
        if !wrong && (!self.none || values.is_empty()) {
            return Ok(());
        }
        let fields = info.cardinality.len();
        let illegal = |(at, &id): (usize, &u32)| u64::from(id) >= info.cardinality[at % fields];
        let Some(at) = values.iter().enumerate().position(illegal) else { return Ok(()) };
        Err(out_of_range(info, "sparse", first_row + (at / fields) as u64, at % fields, values[at]))
    }
}

/// No row of bags is longer than stated, and every id is below its cardinality.
///
/// `offsets: [n * S + 1]`, the first of them that of `values[0]`.
pub(super) fn bags(
    info: &FileInfo,
    first_row: u64,
    values: &[u32],
    offsets: &[u64],
) -> Result<(), DatasetError> {
    let cardinality = &info.cardinality;
    let (fields, limit) = (cardinality.len(), info.values_per_row_max);
    for (row, bounds) in offsets.windows(fields + 1).step_by(fields).enumerate() {
        let length = bounds[fields] - bounds[0];
        if length > limit {
            return Err(DatasetError::mismatch(
                &info.path,
                "attribute `values_per_row_max`",
                format!("{length} or more, the values of row {}", first_row + row as u64),
                limit.to_string(),
            ));
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "bounds of values held in memory")]
    let at = |offset: u64| (offset - offsets[0]) as usize;
    for (bag, bounds) in offsets.windows(2).enumerate() {
        let field = bag % fields;
        let limit = cardinality[field];
        let ids = &values[at(bounds[0])..at(bounds[1])];
        if let Some(&id) = ids.iter().find(|&&id| u64::from(id) >= limit) {
            let row = first_row + (bag / fields) as u64;
            return Err(out_of_range(info, "sparse_values", row, field, id));
        }
    }
    Ok(())
}

/// Every weight of an id is finite and from 0. `offsets` as in [`bags`].
pub(super) fn value_weights(
    info: &FileInfo,
    first_row: u64,
    weights: &[f32],
    offsets: &[u64],
) -> Result<(), DatasetError> {
    #[expect(clippy::manual_range_contains, reason = "without a branch, so that it is a vector's")]
    let legal = |v: f32| (v >= 0.0) & (v < f32::INFINITY);
    if weights.iter().fold(true, |all, &v| all & legal(v)) {
        return Ok(());
    }
    let at = weights.iter().position(|&v| !legal(v)).unwrap_or(0);
    let (bag, fields) = (bag_of(offsets, at), info.cardinality.len());
    Err(DatasetError::Value {
        path: info.path.clone(),
        dataset: "sparse_weights",
        row: first_row + (bag / fields) as u64,
        column: bag % fields,
        expected: "a finite number from 0",
        got: weights[at].to_string(),
    })
}

/// The bag that value number `index`, from that of the first of `offsets`, is in.
pub(super) fn bag_of(offsets: &[u64], index: usize) -> usize {
    offsets.partition_point(|&o| o <= offsets[0] + index as u64) - 1
}

fn out_of_range(
    info: &FileInfo,
    dataset: &'static str,
    row: u64,
    field: usize,
    id: u32,
) -> DatasetError {
    let name = match &info.sparse_names {
        Some(names) => names[field].clone(),
        None => format!("sparse{field}"),
    };
    let (path, cardinality) = (info.path.clone(), info.cardinality[field]);
    DatasetError::IdOutOfRange { path, dataset, row, field, name, id, cardinality }
}
