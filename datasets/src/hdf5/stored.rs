//! Whether all values of a dataset are in its file.
//!
//! HDF5 has ways to leave values elsewhere, or out: the library then reads what it does not find
//! as zeros, without a word.

use std::path::Path;

use hdf5::Dataset as H5Dataset;
use hdf5::dataset::Layout;

use crate::DatasetError;

/// The largest chunk that is read, uncompressed, in bytes: it is held as a whole.
const CHUNK_BYTES_MAX: usize = 1 << 30;

/// The values of `dataset` are in this file, all of them, in chunks that fit in memory.
pub(super) fn check(path: &Path, dataset: &H5Dataset) -> Result<(), DatasetError> {
    let name = dataset.name();
    let name = name.trim_start_matches('/');
    let wrong = |what: &str, expected: String, got: String| {
        Err(DatasetError::mismatch(path, format!("{what} of dataset `{name}`"), expected, got))
    };
    let read = |e| DatasetError::hdf5(path, "read", format!("layout of dataset `{name}`"), &e);
    let plan = dataset.create_plist().map_err(read)?;
    let elsewhere = match (plan.get_layout().map_err(read)?, plan.external().first()) {
        (Layout::Virtual, _) => Some("a virtual dataset, whose values are in others".to_owned()),
        (_, Some(file)) => Some(format!("values in the external file `{}`", file.name)),
        _ => None,
    };
    if let Some(got) = elsewhere {
        let cure = format!("values in this file (with h5py: x = f['{name}'][:]; write x anew)");
        return wrong("storage", cure, got);
    }
    let Some(chunk) = plan.chunk() else {
        if plan.layout() == Layout::Contiguous && dataset.size() > 0 && dataset.storage_size() == 0
        {
            let got = "none: the dataset was made and never written".to_owned();
            return wrong("values", dataset.size().to_string(), got);
        }
        return Ok(());
    };
    let bytes =
        chunk.iter().product::<usize>().saturating_mul(dataset.dtype().map_err(read)?.size());
    if bytes > CHUNK_BYTES_MAX {
        return wrong(
            "chunks",
            format!(
                "{CHUNK_BYTES_MAX} bytes or fewer (write it anew, with chunks of some thousand \
                 rows)"
            ),
            format!("{bytes}"),
        );
    }
    let needed: usize = dataset.shape().iter().zip(&chunk).map(|(n, c)| n.div_ceil(*c)).product();
    let found = dataset.num_chunks().unwrap_or(0);
    if found < needed {
        let got = format!("{found}: the others were never written, or their index is damaged");
        return wrong("number of chunks", needed.to_string(), got);
    }
    Ok(())
}
