//! What is known of a dataset without its file: type, shape, chunks and filters.

use std::path::Path;

use hdf5::Dataset as H5Dataset;
use hdf5::dataset::ChunkOpts;

use super::attributes;
use super::element::Element;
use super::unpack::Filters;
use crate::DatasetError;

/// What the numbers of a dataset stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Labels, weights, dense features: f32, or cast to it.
    Number,
    /// Ids: u32, or cast to it.
    Id,
    /// Offsets and groups: u64, or cast to it.
    Count,
}

/// One dataset of a file.
#[derive(Clone, Debug)]
pub(super) struct Form {
    pub(super) name: &'static str,
    pub(super) element: Element,
    /// Numbers in a row.
    pub(super) width: usize,
    pub(super) rows: u64,
    /// How its chunks are read without the library's filters; `None` where the library must.
    pub(super) chunks: Option<ChunkForm>,
}

/// The chunks of a dataset.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkForm {
    pub(super) rows: u64,
    pub(super) columns: usize,
    pub(super) filters: Filters,
}

/// Chunks with fewer bytes are left to the library, which takes many at a time.
const CHUNK_BYTES_MIN: usize = 256;

impl Form {
    /// That of `dataset`, a vector or a matrix.
    pub(super) fn of(
        path: &Path,
        dataset: &H5Dataset,
        name: &'static str,
        meaning: Meaning,
    ) -> Result<Self, DatasetError> {
        let element = element(path, dataset, name, meaning)?;
        let shape = dataset.shape();
        let (rows, width) = match shape[..] {
            [rows] => (rows, 1),
            [rows, width] => (rows, width),
            _ => (0, 0),
        };
        let chunks = chunks(dataset, element);
        Ok(Self { name, element, width, rows: rows as u64, chunks })
    }
}

/// The type of `dataset`, if it can stand for what it must.
pub(super) fn element(
    path: &Path,
    dataset: &H5Dataset,
    name: &str,
    meaning: Meaning,
) -> Result<Element, DatasetError> {
    let expected = match meaning {
        Meaning::Number => "f32, or f64, an integer or bool, which are cast",
        Meaning::Id => "u32, or another integer, which is cast",
        Meaning::Count => "u64, or another integer, which is cast",
    };
    match Element::of(dataset) {
        Some(element) if meaning == Meaning::Number || !element.is_float() => Ok(element),
        _ => Err(DatasetError::mismatch(
            path,
            format!("type of dataset `{name}`"),
            expected,
            attributes::type_name(attributes::descriptor(dataset).as_ref()),
        )),
    }
}

/// The chunks of `dataset`, if they can be read here.
fn chunks(dataset: &H5Dataset, element: Element) -> Option<ChunkForm> {
    let plan = dataset.create_plist().ok()?;
    let (rows, columns) = match plan.chunk()?[..] {
        [rows] => (rows, 1),
        [rows, columns] => (rows, columns),
        _ => return None,
    };
    // Such chunks at the edge are stored without filters.
    let edges =
        plan.chunk_opts().is_some_and(|o| o.contains(ChunkOpts::DONT_FILTER_PARTIAL_CHUNKS));
    let small = rows.checked_mul(columns)?.checked_mul(element.bytes())? < CHUNK_BYTES_MIN;
    if edges || small || !element.is_native(dataset) {
        return None;
    }
    let filters = Filters::of(&plan.filters())?;
    Some(ChunkForm { rows: rows as u64, columns, filters })
}

/// The library is not needed for the chunks of `dataset`, if it has any.
pub(super) fn is_direct(dataset: &H5Dataset) -> bool {
    let direct = |element| chunks(dataset, element).is_some();
    !dataset.is_chunked() || Element::of(dataset).is_some_and(direct)
}
