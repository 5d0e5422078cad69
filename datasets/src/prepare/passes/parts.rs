//! Names of the parts of an output `OUT.h5`: `OUT-00000.h5`, `OUT-00001.h5`, …

use std::fs;
use std::path::{Path, PathBuf};

use crate::DatasetError;
use crate::output::folder_of;

/// The name of part `number`.
pub(super) fn name(path: &Path, number: usize) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
    path.with_file_name(format!("{stem}-{number:05}{extension}"))
}

/// The parts that are there, in order.
pub(super) fn existing(path: &Path) -> Result<Vec<PathBuf>, DatasetError> {
    let folder = folder_of(path);
    let error = |error| DatasetError::io(folder, "list", error);
    let mut parts = Vec::new();
    for entry in fs::read_dir(folder).map_err(error)? {
        let found = entry.map_err(error)?.file_name();
        let found = found.to_string_lossy();
        let digits = found.rsplit_once('-').map(|(_, rest)| rest.split('.').next().unwrap_or(rest));
        if let Some(number) = digits.and_then(|digits| digits.parse().ok())
            && self::name(path, number).file_name().is_some_and(|part| *part == *found)
        {
            parts.push(self::name(path, number));
        }
    }
    parts.sort();
    Ok(parts)
}
