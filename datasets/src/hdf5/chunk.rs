//! The call of HDF5 for chunks that its binding has no safe word for.
//!
//! `H5Dwrite_chunk` (HDF5 1.10.3) puts a chunk in the file that went through the filters already,
//! so that it is filtered outside the library: faster, and by many threads, since the library has
//! one lock.
#![allow(unsafe_code)]

use hdf5::Dataset as H5Dataset;
use hdf5_sys::h5d::H5Dwrite_chunk;
use hdf5_sys::h5p::H5P_DEFAULT;

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

const NO_FILTER_LEFT_OUT: u32 = 0;
