//! One dataset that grows while it is written: vectors and matrices, chunked by rows.
//!
//! Filters are shuffle, deflate 1 and fletcher32. Only whole chunks are written before the end, so
//! that no chunk is compressed twice.

use std::path::Path;

use hdf5::{Dataset, Extent, File, H5Type};
use ndarray::{ArrayView1, ArrayView2};

use crate::DatasetError;

/// Chunks that a column gathers before it calls HDF5.
const CHUNKS_PER_WRITE: usize = 16;

/// One growing dataset, gathered in memory until whole chunks can be written.
#[derive(Debug)]
pub(super) struct Column<T> {
    dataset: Dataset,
    name: &'static str,
    /// Columns of a matrix, or `None` for a vector.
    width: Option<usize>,
    /// Rows in a chunk.
    chunk: usize,
    pending: Vec<T>,
    /// Rows already in the file.
    written: usize,
}

impl<T: H5Type + Copy> Column<T> {
    pub(super) fn vector(
        file: &File,
        path: &Path,
        name: &'static str,
        chunk: usize,
    ) -> Result<Self, DatasetError> {
        Self::create(file, path, name, None, chunk)
    }

    pub(super) fn matrix(
        file: &File,
        path: &Path,
        name: &'static str,
        width: usize,
        chunk: usize,
    ) -> Result<Self, DatasetError> {
        Self::create(file, path, name, Some(width), chunk)
    }

    fn create(
        file: &File,
        path: &Path,
        name: &'static str,
        width: Option<usize>,
        chunk: usize,
    ) -> Result<Self, DatasetError> {
        let builder = file.new_dataset::<T>().shuffle().deflate(1).fletcher32();
        let created = match width {
            None => builder.chunk((chunk,)).shape((0..,)).create(name),
            Some(width) => builder
                .chunk((chunk, width))
                .shape((Extent::from(0..), Extent::from(width)))
                .create(name),
        };
        let dataset =
            created.map_err(|e| DatasetError::hdf5(path, "create", dataset_label(name), &e))?;
        Ok(Self { dataset, name, width, chunk, pending: Vec::new(), written: 0 })
    }

    pub(super) fn push(&mut self, path: &Path, values: &[T]) -> Result<(), DatasetError> {
        self.pending.extend_from_slice(values);
        self.write_whole_chunks(path)
    }

    pub(super) fn extend(
        &mut self,
        path: &Path,
        values: impl Iterator<Item = T>,
    ) -> Result<(), DatasetError> {
        self.pending.extend(values);
        self.write_whole_chunks(path)
    }

    fn write_whole_chunks(&mut self, path: &Path) -> Result<(), DatasetError> {
        let rows = self.pending.len() / self.width.unwrap_or(1);
        if rows < CHUNKS_PER_WRITE * self.chunk {
            return Ok(());
        }
        self.write(path, rows - rows % self.chunk)
    }

    pub(super) fn flush(&mut self, path: &Path) -> Result<(), DatasetError> {
        self.write(path, self.pending.len() / self.width.unwrap_or(1))
    }

    /// Writes the first `rows` pending rows.
    fn write(&mut self, path: &Path, rows: usize) -> Result<(), DatasetError> {
        if rows == 0 {
            return Ok(());
        }
        let (from, to) = (self.written, self.written + rows);
        let length = rows * self.width.unwrap_or(1);
        let values = &self.pending[..length];
        let written = match self.width {
            None => self
                .dataset
                .resize((to,))
                .and_then(|()| self.dataset.write_slice(ArrayView1::from(values), from..to)),
            Some(width) => self.dataset.resize((to, width)).and_then(|()| {
                let values = ArrayView2::from_shape((rows, width), values)?;
                self.dataset.write_slice(values, (from..to, 0..width))
            }),
        };
        written.map_err(|e| {
            DatasetError::hdf5(
                path,
                "write",
                format!("{} rows {from}..{to}", dataset_label(self.name)),
                &e,
            )
        })?;
        self.pending.drain(..length);
        self.written = to;
        Ok(())
    }
}

fn dataset_label(name: &str) -> String {
    format!("dataset `{name}`")
}
