//! The calls of HDF5 for chunks that its binding has no safe words for.
//!
//! `H5Dwrite_chunk` (HDF5 1.10.3) puts a chunk in the file that went through the filters already,
//! and `H5Dread_chunk` gets one that is still to go through them backwards. So they are applied
//! and undone outside the library: faster, and by many threads, since the library has one lock.
#![allow(unsafe_code)]

use hdf5::Dataset as H5Dataset;
use hdf5_sys::h5::{herr_t, hsize_t};
use hdf5_sys::h5d::{H5Dread_chunk1, H5Dwrite_chunk};
use hdf5_sys::h5i::hid_t;
use hdf5_sys::h5p::H5P_DEFAULT;

// HDF5 1.10.2; the crate of bindings, which links the library, leaves it out.
unsafe extern "C" {
    fn H5Dget_chunk_storage_size(
        dataset: hid_t,
        offset: *const hsize_t,
        bytes: *mut hsize_t,
    ) -> herr_t;
}

/// Writes the filtered bytes of the chunk of `dataset` that begins at `start`, one number per
/// dimension; all its filters were applied.
///
/// Bytes that its filters did not make cannot be read back.
///
/// # Errors
/// When `start` is outside the dataset or not where a chunk begins, or the disk refuses.
pub(super) fn write_filtered(
    dataset: &H5Dataset,
    start: &[u64],
    filtered: &[u8],
) -> Result<(), hdf5::Error> {
    if start.len() != dataset.ndim() {
        return Err(format!("{} dimensions for {}", start.len(), dataset.ndim()).into());
    }
    hdf5::sync::sync(|| {
        // SAFETY: the handle is of an open dataset, and the library's lock is held. `start` has a
        // number per dimension, as checked, `filtered` has the length given, and the call keeps
        // neither.
        hdf5::h5check(unsafe {
            H5Dwrite_chunk(
                dataset.id(),
                H5P_DEFAULT,
                NO_FILTER_LEFT_OUT,
                start.as_ptr(),
                filtered.len(),
                filtered.as_ptr().cast(),
            )
        })
    })
    .map(drop)
}

/// Reads the bytes of the chunk of `dataset` that begins at `start`, as they are in the file, into
/// `raw`. Returns the mask of the filters left out, or `None` where nothing was ever written.
///
/// # Errors
/// When `start` is outside the dataset or not where a chunk begins, or the file cannot be read.
pub(super) fn read_filtered(
    dataset: &H5Dataset,
    start: &[u64],
    raw: &mut Vec<u8>,
) -> Result<Option<u32>, hdf5::Error> {
    if start.len() != dataset.ndim() {
        return Err(format!("{} dimensions for {}", start.len(), dataset.ndim()).into());
    }
    hdf5::sync::sync(|| {
        let mut size = 0;
        // SAFETY: the handle is of an open dataset, and the library's lock is held. `start` has a
        // number per dimension, as checked, and the call keeps no pointer.
        hdf5::h5check(unsafe {
            H5Dget_chunk_storage_size(dataset.id(), start.as_ptr(), &raw mut size)
        })?;
        let size = usize::try_from(size).map_err(|_| "a chunk larger than memory")?;
        if size == 0 {
            return Ok(None);
        }
        raw.resize(size, 0);
        let mut mask = 0;
        // SAFETY: as above; `raw` has as many bytes as the library says that the chunk has, and no
        // other call comes between, since the lock is held.
        hdf5::h5check(unsafe {
            H5Dread_chunk1(
                dataset.id(),
                H5P_DEFAULT,
                start.as_ptr(),
                &raw mut mask,
                raw.as_mut_ptr().cast(),
            )
        })?;
        Ok(Some(mask))
    })
}

const NO_FILTER_LEFT_OUT: u32 = 0;
