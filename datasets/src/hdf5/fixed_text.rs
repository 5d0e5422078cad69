//! Strings of fixed length in attributes, as bytes: the binding has them of lengths known when it
//! is compiled only.
//!
//! HDF5 keeps strings of variable length in a heap of the file that has no checksum, and the
//! library (before 2.0) hangs or crashes on a damaged one. So we write fixed lengths, which lie in
//! the attribute itself, filled up with zeros.
#![allow(unsafe_code)]

use hdf5::types::TypeDescriptor;
use hdf5::{Attribute, File};
use hdf5_sys::h5a::{H5Aread, H5Awrite};

/// Creates attribute `name` with `values`, none of which holds a zero byte; a scalar for `None`.
pub(super) fn write(
    file: &File,
    name: &str,
    values: &[&str],
    shape: Option<usize>,
) -> Result<(), hdf5::Error> {
    let width = values.iter().map(|value| value.len()).max().unwrap_or(0).max(1);
    let builder = file.new_attr_builder().empty_as(TypeDescriptor::FixedUnicode(width));
    let attribute = match shape {
        Some(length) => builder.shape((length,)).create(name)?,
        None => builder.create(name)?,
    };
    if values.is_empty() {
        return Ok(());
    }
    let mut bytes = vec![0u8; width * values.len()];
    for (place, value) in bytes.chunks_exact_mut(width).zip(values) {
        place[..value.len()].copy_from_slice(value.as_bytes());
    }
    let type_ = attribute.dtype()?;
    fits(&attribute, bytes.len())?;
    hdf5::sync::sync(|| {
        // SAFETY: the handles are of an open attribute and of its own type, the library's lock is
        // held, and `bytes` is as long as the attribute in that type, as checked.
        hdf5::h5check(unsafe { H5Awrite(attribute.id(), type_.id(), bytes.as_ptr().cast()) })
    })
    .map(drop)
}

/// The strings of `attribute`, each of `width` bytes, without what fills them up.
pub(super) fn read(attribute: &Attribute, width: usize) -> Result<Vec<String>, hdf5::Error> {
    let type_ = attribute.dtype()?;
    let mut bytes = vec![0u8; attribute.size().saturating_mul(width)];
    fits(attribute, bytes.len())?;
    hdf5::sync::sync(|| {
        // SAFETY: as in `write`; the library writes as many bytes as `bytes` has.
        hdf5::h5check(unsafe { H5Aread(attribute.id(), type_.id(), bytes.as_mut_ptr().cast()) })
    })?;
    let text = |place: &[u8]| {
        let end = memchr::memchr(0, place).unwrap_or(place.len());
        // h5py's null-padded strings may also be filled up with blanks by other writers: kept.
        String::from_utf8(place[..end].to_vec()).map_err(|e| hdf5::Error::from(e.to_string()))
    };
    bytes.chunks_exact(width.max(1)).map(text).collect()
}

/// The elements of `attribute` are `bytes` in its own type.
fn fits(attribute: &Attribute, bytes: usize) -> Result<(), hdf5::Error> {
    let there = attribute.size().checked_mul(attribute.dtype()?.size());
    if there == Some(bytes) {
        return Ok(());
    }
    Err(format!("an attribute of {there:?} bytes, not {bytes}").into())
}
