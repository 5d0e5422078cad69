//! The keys behind the ids of a field: group `/vocabulary/<field>` with `keys` u8, all keys one
//! after the other, and `offsets` u64, their bounds.

use std::path::Path;

use bytemuck::NoUninit;
use hdf5::{File, H5Type};
use xxhash_rust::xxh3::Xxh3Default;

use super::column::{Column, Packers};
use super::{has_link, open_file};
use crate::DatasetError;
use crate::attention::Attention;

/// Largest chunk, in elements.
const CHUNK_MAX: usize = 131_072;

/// Keys of one field, concatenated, and their bounds: `offsets[i]..offsets[i + 1]` of key `i`.
pub type Vocabulary = (Vec<u8>, Vec<u64>);

/// The vocabulary of `field` of the dataset `path`, or `None` when the file has none.
///
/// # Errors
/// When the file cannot be read, or the bounds do not describe the keys.
pub fn read_vocabulary(path: &Path, field: usize) -> Result<Option<Vocabulary>, DatasetError> {
    let _attention = Attention::timed(path);
    let file = open_file(path, None)?;
    let name = format!("vocabulary/{field}");
    let error = |e: hdf5::Error| DatasetError::hdf5(path, "read", name.as_str(), &e);
    if !has_link(&file, "vocabulary").map_err(error)?
        || !has_link(&file.group("vocabulary").map_err(error)?, &field.to_string())
            .map_err(error)?
    {
        return Ok(None);
    }
    let group = file.group(&name).map_err(error)?;
    let keys = group.dataset("keys").and_then(|d| d.read_raw::<u8>()).map_err(error)?;
    let offsets = group.dataset("offsets").and_then(|d| d.read_raw::<u64>()).map_err(error)?;
    if !bounds_hold(&offsets, keys.len()) {
        return Err(DatasetError::mismatch(
            path,
            format!("dataset `{name}/offsets`"),
            format!("bounds that grow from 0 to {}", keys.len()),
            format!("{:?}..{:?}", offsets.first(), offsets.last()),
        ));
    }
    Ok(Some((keys, offsets)))
}

/// Hash of a key list, which tells it from others: XXH3-64 over the length of every key as u64 and
/// its bytes, each key after the other; never 0. Of the first keys of a list it is that of the list
/// that they were before it grew.
///
/// # Panics
/// When `offsets` are not the bounds of `keys`.
#[must_use]
pub fn vocabulary_hash(keys: &[u8], offsets: &[u64]) -> u64 {
    let mut hasher = Xxh3Default::new();
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    for bounds in offsets.windows(2) {
        let key = &keys[at(bounds[0])..at(bounds[1])];
        hasher.update(&(key.len() as u64).to_le_bytes());
        hasher.update(key);
    }
    // 0 stands for no list.
    hasher.digest().max(1)
}

/// Whether `offsets` are the bounds of keys of `length` bytes in all.
pub(super) fn bounds_hold(offsets: &[u64], length: usize) -> bool {
    offsets.first() == Some(&0) && offsets.last() == Some(&(length as u64)) && offsets.is_sorted()
}

/// Writes the vocabulary of `field`, whose bounds hold.
pub(super) fn write(
    file: &File,
    path: &Path,
    packers: &mut Packers,
    field: usize,
    keys: &[u8],
    offsets: &[u64],
) -> Result<(), DatasetError> {
    let name = format!("vocabulary/{field}");
    let error = |e: hdf5::Error| DatasetError::hdf5(path, "write", name.as_str(), &e);
    let timeless = || file.create_group_builder().with_create_plist(|p| p.obj_track_times(false));
    if !file.link_exists("vocabulary") {
        timeless().create("vocabulary").map_err(error)?;
    }
    timeless().create(name.as_str()).map_err(error)?;
    write_whole(file, path, packers, &format!("{name}/keys"), keys)?;
    write_whole(file, path, packers, &format!("{name}/offsets"), offsets)
}

fn write_whole<T: H5Type + NoUninit + Sync>(
    file: &File,
    path: &Path,
    packers: &mut Packers,
    name: &str,
    values: &[T],
) -> Result<(), DatasetError> {
    let chunk = values.len().clamp(1, CHUNK_MAX);
    let mut column = Column::vector(file, path, name, chunk)?;
    column.push(path, packers, values)?;
    column.flush(path, packers)
}
