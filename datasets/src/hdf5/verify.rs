//! Reads a whole file: every checksum, every value, and the fingerprint.

use std::path::Path;

use super::file_info::Sparse;
use super::open::inspect;
use super::read::{FileReader, RowBuffer};
use crate::DatasetError;
use crate::schema::{DatasetSummary, Fingerprint};

/// Reads all of `path` and checks every chunk, every value, and the fingerprint where there is one.
///
/// # Errors
/// The first thing that is wrong.
pub fn verify(path: &Path) -> Result<DatasetSummary, DatasetError> {
    let info = inspect(path)?;
    let reader = FileReader::open(&info, 4 * info.chunk_bytes.max(1 << 18))?;
    let bags = matches!(info.sparse, Sparse::Bags { .. });
    let mut block = RowBuffer { bags, ..RowBuffer::default() };
    let mut fingerprint = Fingerprint::default();
    let (mut values, mut longest) = (0, 0);
    let step = info.chunk_rows.clamp(1024, 65_536);
    let mut first = 0;
    while first < info.rows {
        let last = info.rows.min(first + step);
        block.clear();
        reader.append(first..last, &mut block)?;
        fingerprint.label(&block.label);
        fingerprint.weight(&block.weight);
        fingerprint.group(&block.group);
        fingerprint.dense(&block.dense);
        fingerprint.values(&block.values);
        if bags {
            let starts = core::iter::once(0).chain(block.ends.iter().copied());
            #[expect(clippy::cast_possible_truncation, reason = "the length of one bag in memory")]
            fingerprint.lengths(starts.zip(&block.ends).map(|(start, &end)| (end - start) as u32));
            let mut start = 0;
            for row in block.ends.chunks_exact(info.cardinality.len()) {
                let end = row[row.len() - 1];
                longest = longest.max((end - start) as u64);
                start = end;
            }
        }
        values += block.values.len() as u64;
        first = last;
    }
    let got = fingerprint.finish();
    if let Some(expected) = info.fingerprint
        && expected != got
    {
        return Err(DatasetError::Fingerprint { path: path.to_owned(), expected, got });
    }
    Ok(DatasetSummary {
        rows: info.rows,
        values,
        values_per_row_max: if bags { longest } else { info.values_per_row_max },
        cardinality: info.cardinality,
        fingerprint: got,
        file_bytes: std::fs::metadata(path)
            .map_err(|e| DatasetError::io(path, "measure", e))?
            .len(),
    })
}
