//! Datasets in HDF5 files: written, opened and read.
//!
//! The library holds one process-wide lock, so one thread of a rank reads; nothing computes while
//! it waits for HDF5. What takes time, undoing compression, is done outside it.
//!
//! Map: `attributes`, `fixed_text` (strings in them) and `described`, all of them together ·
//! `open` checks the structure of a file, `stored` that all values are in it, and `file_info` is
//! what they find · `read` reads ranges of rows, `offsets` bounds of bags: `fetch` takes them as
//! they are stored in the `form` of a dataset, or `ranges` has the library read them; `unpack`
//! undoes filters, `chunk_cache` keeps chunks that are read in pieces, `workspace` is both,
//! `element` casts, `check` checks · `stamp` tells whether a file is still the same · `verify`
//! checks a whole file · `write` makes one, of `column`s · `vocabulary` keeps the keys behind ids ·
//! `filters` applies what stands between values and file, with the zlib streams of `crate::codec` ·
//! `chunk` takes chunks from HDF5 and hands them to it. The unsafe code of the crate is in `chunk`
//! and `fixed_text`.
//!
//! The binding calls a table of values a dataset; here that is an `H5Dataset`, and a dataset is
//! what the file as a whole holds.

mod attributes;
mod check;
mod chunk;
mod chunk_cache;
mod column;
mod described;
mod element;
mod fetch;
mod file_info;
mod filters;
mod fixed_text;
mod form;
mod offsets;
mod open;
mod ranges;
mod read;
mod stamp;
mod stored;
mod unpack;
mod verify;
mod vocabulary;
mod workspace;
mod write;

use std::path::Path;

use hdf5::{File, Group, IndexType, IterationOrder};

use crate::DatasetError;

pub(crate) use file_info::{FileInfo, Sparse};
pub(crate) use open::inspect;
pub(crate) use read::{FileReader, RawRows, Road, RowBuffer};
pub(crate) use unpack::Unpacker;
pub use verify::{mean_label, verify};
pub use vocabulary::{Vocabulary, read_vocabulary, vocabulary_hash};
pub(crate) use workspace::Workspace;
pub use write::Writer;

/// Opens `path` for reading, with a chunk cache of `cache_bytes` for each of its datasets.
pub(crate) fn open_file(path: &Path, cache_bytes: Option<usize>) -> Result<File, DatasetError> {
    // The system says better than HDF5 why a file cannot be opened.
    let mut head = std::fs::File::open(path).map_err(|e| DatasetError::io(path, "open", e))?;
    if path.to_str().is_none() {
        return Err(DatasetError::Path { path: path.to_owned() });
    }
    let mut signature = [0u8; 8];
    match std::io::Read::read_exact(&mut head, &mut signature) {
        Ok(()) if signature == *SIGNATURE => {}
        Err(e) if e.kind() != std::io::ErrorKind::UnexpectedEof => {
            return Err(DatasetError::io(path, "read the first bytes", e));
        }
        Ok(()) | Err(_) => return Err(DatasetError::NotHdf5 { path: path.to_owned() }),
    }
    drop(head);
    let mut builder = File::with_options();
    if let Some(bytes) = cache_bytes {
        builder.with_fapl(|access| access.chunk_cache(CACHE_SLOTS, bytes, 1.0));
    }
    builder.open(path).map_err(|e| DatasetError::hdf5(path, "open", "the file", &e))
}

/// Whether `group` has the link `name`. The binding's own word for it also says no where a damaged
/// file cannot be searched, and an optional part would be missing without an error.
fn has_link(group: &Group, name: &str) -> Result<bool, hdf5::Error> {
    let wanted = |link: &str, _| Ok((link == name).then_some(()));
    group.find_link(IndexType::Name, IterationOrder::Native, wanted).map(|found| found.is_some())
}

/// First bytes of an HDF5 file without a user block (HDF5 file format specification, II.A).
const SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";

/// Hash slots of a chunk cache: a prime, far above the chunks that are held.
const CACHE_SLOTS: usize = 12_421;
