//! Reads the bounds of bags.
//!
//! Invariant: what is returned grows, within the values that there are.

use core::ops::Range;
use std::path::Path;

use super::fetch::{Fetched, Source, Wrong};
use super::ranges;
use super::workspace::Workspace;
use crate::DatasetError;

/// Reads the offsets of the bags of `rows`, which must grow within `0..=values`, into `offsets`,
/// and returns the values they bound. `offsets: [rows * fields + 1]`
pub(super) fn read(
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
            Wrong::Damaged(rows, damage) => {
                ranges::failed(path, name, &rows, &damage.to_string().into())
            }
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
