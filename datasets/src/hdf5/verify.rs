//! Reads a whole file: every checksum, every value, and the fingerprint.

use std::path::Path;

use super::file_info::{FileInfo, Sparse};
use super::open::inspect;
use super::open_file;
use super::ranges;
use super::read::{FileReader, RawRows, Road, RowBuffer};
use super::vocabulary::{read_vocabulary, vocabulary_hash};
use super::workspace::Workspace;
use crate::DatasetError;
use crate::attention::Attention;
use crate::schema::{DatasetSummary, Fingerprint};

/// Reads all of `path` and checks every chunk, every value, the key lists, and the fingerprint
/// where there is one.
///
/// # Errors
/// The first thing that is wrong.
pub fn verify(path: &Path) -> Result<DatasetSummary, DatasetError> {
    let info = inspect(path)?;
    let _attention = Attention::timed(path);
    let cache_bytes = 4 * info.chunk_bytes.max(1 << 18);
    let reader = FileReader::open(&info, 0, Road::Direct, cache_bytes)?;
    let (mut workspace, mut raw) = (Workspace::new(cache_bytes), RawRows::default());
    let bags = matches!(info.sparse, Sparse::Bags { .. });
    let mut block = RowBuffer { bags, ..RowBuffer::default() };
    let mut fingerprint = Fingerprint::default();
    let (mut values, mut longest) = (0, 0);
    let step = info.chunk_rows.clamp(1024, 65_536);
    let mut first = 0;
    while first < info.rows {
        let last = info.rows.min(first + step);
        block.clear();
        reader.fetch(first..last, &mut workspace, &mut raw)?;
        raw.decode(&mut workspace.unpacker, &mut block)?;
        if info.has_label {
            fingerprint.label(&block.label);
        }
        fingerprint.weight(&block.weight);
        fingerprint.group(&block.group);
        fingerprint.dense(&block.dense);
        fingerprint.values(&block.values);
        if info.has_value_weights {
            fingerprint.value_weights(&block.value_weights);
        }
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
    check_key_lists(path, &info)?;
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

/// Key lists are those whose hashes the file has.
fn check_key_lists(path: &Path, info: &FileInfo) -> Result<(), DatasetError> {
    for field in 0..info.cardinality.len() {
        let Some((keys, offsets)) = read_vocabulary(path, field)? else { continue };
        let got = vocabulary_hash(&keys, &offsets);
        let stated = info.vocabulary.as_ref().map(|hashes| hashes[field]);
        if let Some(stated) = stated
            && stated != got
        {
            return Err(DatasetError::mismatch(
                path,
                format!("key list of field {field}"),
                format!("the one with the hash {stated:016x} (attribute `vocabulary`)"),
                format!("{got:016x}"),
            ));
        }
    }
    Ok(())
}

/// Mean of the labels of `path`, which reads them alone; `None` without labels.
///
/// # Errors
/// When the file cannot be read.
pub fn mean_label(path: &Path) -> Result<Option<f64>, DatasetError> {
    let info = inspect(path)?;
    if !info.has_label {
        return Ok(None);
    }
    let attention = Attention::timed(path);
    let file = open_file(path, None)?;
    let open = file.dataset("label");
    let labels = open.map_err(|e| DatasetError::hdf5(path, "open", "dataset `label`", &e))?;
    let mut sum = 0.0;
    for first in (0..info.rows).step_by(LABELS_AT_ONCE) {
        attention.again();
        let range = first..info.rows.min(first + LABELS_AT_ONCE as u64);
        let read = ranges::vector::<f32>(path, &labels, "label", range)?;
        sum += read.iter().map(|&label| f64::from(label)).sum::<f64>();
    }
    Ok(Some(sum / info.rows as f64))
}

const LABELS_AT_ONCE: usize = 1 << 20;
