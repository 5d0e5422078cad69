//! One dataset that grows while it is written: vectors and matrices, chunked by rows.
//!
//! Only whole chunks are written before the end, so that no chunk is written twice. They are
//! filtered here, in parallel on the caller's rayon pool, and handed to HDF5 as they go into the
//! file.

use std::path::Path;

use bytemuck::NoUninit;
use hdf5::{Dataset as H5Dataset, Extent, File, H5Type};
use rayon::prelude::*;

use super::chunk;
use super::filters::Packer;
use crate::DatasetError;

/// Chunks that are filtered together.
const CHUNKS_PER_WRITE: usize = 16;

/// Chunks that a column gathers at most before it writes.
const CHUNKS_GATHERED: usize = 8;

/// What filters the chunks of all columns of a file, [`CHUNKS_PER_WRITE`] at a time.
#[derive(Debug)]
pub(super) struct Packers([Packer; CHUNKS_PER_WRITE]);

impl Default for Packers {
    fn default() -> Self {
        Self(core::array::from_fn(|_| Packer::default()))
    }
}

/// One growing dataset, gathered in memory until whole chunks can be written.
#[derive(Debug)]
pub(super) struct Column<T> {
    dataset: H5Dataset,
    name: String,
    /// Columns of a matrix, or `None` for a vector.
    width: Option<usize>,
    /// Rows in a chunk.
    chunk: usize,
    pending: Vec<T>,
    /// Rows already in the file: whole chunks.
    written: usize,
}

impl<T: H5Type + NoUninit + Sync> Column<T> {
    pub(super) fn vector(
        file: &File,
        path: &Path,
        name: &str,
        chunk: usize,
    ) -> Result<Self, DatasetError> {
        Self::create(file, path, name, None, chunk)
    }

    pub(super) fn matrix(
        file: &File,
        path: &Path,
        name: &str,
        width: usize,
        chunk: usize,
    ) -> Result<Self, DatasetError> {
        Self::create(file, path, name, Some(width), chunk)
    }

    fn create(
        file: &File,
        path: &Path,
        name: &str,
        width: Option<usize>,
        chunk: usize,
    ) -> Result<Self, DatasetError> {
        // The level is only a remark in the file: any zlib stream will do.
        let builder = file.new_dataset::<T>().shuffle().deflate(1).fletcher32();
        let builder = builder.obj_track_times(false);
        let created = match width {
            None => builder.chunk((chunk,)).shape((0..,)).create(name),
            Some(width) => builder
                .chunk((chunk, width))
                .shape((Extent::from(0..), Extent::from(width)))
                .create(name),
        };
        let dataset =
            created.map_err(|e| DatasetError::hdf5(path, "create", dataset_label(name), &e))?;
        let name = name.to_owned();
        Ok(Self { dataset, name, width, chunk, pending: Vec::new(), written: 0 })
    }

    /// Appends `values`, whole rows.
    pub(super) fn push(
        &mut self,
        path: &Path,
        packers: &mut Packers,
        values: &[T],
    ) -> Result<(), DatasetError> {
        let chunk = self.chunk_elements();
        if self.pending.len() + values.len() < CHUNKS_GATHERED * chunk {
            self.pending.extend_from_slice(values);
            return Ok(());
        }
        // What is pending is filled up to whole chunks; then chunks are taken where they are.
        let missing = self.pending.len().next_multiple_of(chunk) - self.pending.len();
        let (fill, rest) = values.split_at(missing.min(values.len()));
        self.pending.extend_from_slice(fill);
        let mut pending = core::mem::take(&mut self.pending);
        let (whole, left) = rest.split_at(rest.len() - rest.len() % chunk);
        self.write(path, packers, &pending)?;
        self.write(path, packers, whole)?;
        pending.clear();
        pending.extend_from_slice(left);
        self.pending = pending;
        Ok(())
    }

    /// Writes what is pending; nothing is pushed after it.
    pub(super) fn flush(&mut self, path: &Path, packers: &mut Packers) -> Result<(), DatasetError> {
        let pending = core::mem::take(&mut self.pending);
        self.write(path, packers, &pending)
    }

    /// Writes rows of whole chunks, or the last rows of all.
    fn write(
        &mut self,
        path: &Path,
        packers: &mut Packers,
        values: &[T],
    ) -> Result<(), DatasetError> {
        let elements = self.chunk_elements();
        for part in values.chunks(CHUNKS_PER_WRITE * elements) {
            let chunks = part.par_chunks(elements);
            chunks.zip(&mut packers.0).for_each(|(chunk, packer)| packer.pack(chunk, elements));
            let filled = packers.0.iter().take(part.len().div_ceil(elements));
            let (from, to) = (self.written, self.written + part.len() / self.width.unwrap_or(1));
            let starts = (from as u64..).step_by(self.chunk);
            let resized = match self.width {
                None => self.dataset.resize((to,)),
                Some(width) => self.dataset.resize((to, width)),
            };
            let written = resized.and_then(|()| {
                filled.zip(starts).try_for_each(|(packer, start)| match self.width {
                    None => chunk::write_filtered(&self.dataset, &[start], &packer.filtered),
                    Some(_) => chunk::write_filtered(&self.dataset, &[start, 0], &packer.filtered),
                })
            });
            written.map_err(|e| {
                let rows = format!("{} rows {from}..{to}", dataset_label(&self.name));
                DatasetError::hdf5(path, "write", rows, &e)
            })?;
            self.written = to;
        }
        Ok(())
    }

    fn chunk_elements(&self) -> usize {
        self.chunk * self.width.unwrap_or(1)
    }
}

fn dataset_label(name: &str) -> String {
    format!("dataset `{name}`")
}
