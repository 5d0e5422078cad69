//! Takes ranges of rows of one dataset from a file, and makes numbers of them.
//!
//! The two steps are apart, because only the first needs the library and its lock: *fetching* gets
//! chunks as they are stored, *decoding* undoes their filters and casts, on any thread. A chunk
//! that lies wholly in the rows wanted is decoded straight to where its numbers go; others are
//! shared between the pieces that have a part in them.
//!
//! What chunks cannot be read so for (contiguous data, other filters, another byte order) the
//! library reads and filters when it is fetched; the same road for everything is the plain twin.

use core::ops::Range;
use std::path::Path;
use std::sync::Arc;

use hdf5::Dataset as H5Dataset;

use super::chunk;
use super::chunk_cache::{Chunk, ChunkCache};
use super::element::{Element, Value};
use super::form::{ChunkForm, Form};
use super::ranges;
use super::unpack::{Damage, Unpacker};
use crate::DatasetError;

/// One open dataset.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) dataset: H5Dataset,
    pub(super) form: Form,
    /// The file and the dataset in it, by number: its place in the cache of chunks.
    pub(super) number: (usize, usize),
}

/// Rows of one dataset as they were fetched.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    rows: Range<u64>,
    parts: Vec<Part>,
    /// Of chunks that nobody else reads, the first `own_used` of them: bytes and mask.
    own: Vec<(Vec<u8>, u32)>,
    own_used: usize,
    /// Numbers as the library read them, in the type of the file.
    read: Vec<u8>,
    /// `read` is what there is, not chunks.
    by_library: bool,
    /// Numbers in the type of the file, when another is wanted.
    uncast: Vec<u8>,
}

/// The part of a chunk in the rows wanted.
#[derive(Debug)]
struct Part {
    /// Rows of the dataset.
    rows: Range<u64>,
    /// First row and column of the chunk.
    chunk: (u64, usize),
    stored: Stored,
}

#[derive(Debug)]
enum Stored {
    /// In `Fetched::own`.
    Own(usize),
    Shared(Arc<Chunk>),
}

/// Why fetched rows are no numbers.
#[derive(Debug)]
pub(super) enum Wrong {
    /// These rows cannot be read.
    Damaged(Range<u64>, Damage),
    /// The number at this index of the rows has no place in its type; as it is in the file.
    Number(usize, String),
}

impl Source {
    /// Fetches `rows` into `fetched`, in place of what was there.
    pub(super) fn fetch(
        &self,
        path: &Path,
        rows: Range<u64>,
        cache: &mut ChunkCache,
        fetched: &mut Fetched,
    ) -> Result<(), DatasetError> {
        fetched.rows = rows.clone();
        fetched.parts.clear();
        fetched.own_used = 0;
        fetched.by_library = self.form.chunks.is_none();
        let Some(chunks) = self.form.chunks else {
            fetched.read.clear();
            return self.read_by_library(path, rows, &mut fetched.read);
        };
        let mut first = rows.start - rows.start % chunks.rows;
        while first < rows.end {
            // Rows of the chunk that there are, and those of them that are wanted.
            let there = first..self.form.rows.min(first + chunks.rows);
            let wanted = there.start.max(rows.start)..there.end.min(rows.end);
            for column in (0..self.form.width).step_by(chunks.columns) {
                let stored = if wanted == there && chunks.columns == self.form.width {
                    if fetched.own.len() == fetched.own_used {
                        fetched.own.push((Vec::new(), 0));
                    }
                    let own = &mut fetched.own[fetched.own_used];
                    own.1 = self.read_chunk(path, &there, column, &mut own.0)?;
                    fetched.own_used += 1;
                    Stored::Own(fetched.own_used - 1)
                } else {
                    Stored::Shared(self.shared(path, &there, column, chunks, cache)?)
                };
                let (rows, chunk) = (wanted.clone(), (first, column));
                fetched.parts.push(Part { rows, chunk, stored });
            }
            first += chunks.rows;
        }
        Ok(())
    }

    /// The chunk at `rows` and `column`, from the cache or the file.
    fn shared(
        &self,
        path: &Path,
        rows: &Range<u64>,
        column: usize,
        chunks: ChunkForm,
        cache: &mut ChunkCache,
    ) -> Result<Arc<Chunk>, DatasetError> {
        let key = (self.number.0, self.number.1, rows.start, column);
        if let Some(chunk) = cache.get(key) {
            return Ok(chunk);
        }
        let mut raw = Vec::new();
        let mask = self.read_chunk(path, rows, column, &mut raw)?;
        let chunk = Arc::new(Chunk::new(raw, mask));
        let (elements, size) = chunks.numbers(self.form.element);
        cache.insert(key, Arc::clone(&chunk), elements * size);
        Ok(chunk)
    }

    /// Reads the stored bytes of a chunk, and returns its mask.
    fn read_chunk(
        &self,
        path: &Path,
        rows: &Range<u64>,
        column: usize,
        raw: &mut Vec<u8>,
    ) -> Result<u32, DatasetError> {
        let start = [rows.start, column as u64];
        let start = &start[..self.dataset.ndim()];
        let failed = |error: &hdf5::Error| ranges::failed(path, self.form.name, rows, error);
        chunk::read_filtered(&self.dataset, start, raw)
            .map_err(|e| failed(&e))?
            .ok_or_else(|| failed(&"these rows were never written: the file has no data".into()))
    }

    fn read_by_library(
        &self,
        path: &Path,
        rows: Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), DatasetError> {
        macro_rules! read {
            ($type:ty) => {{
                let Form { name, width, .. } = self.form;
                let numbers = if self.dataset.ndim() == 1 {
                    ranges::vector::<$type>(path, &self.dataset, name, rows)?
                } else {
                    ranges::matrix::<$type>(path, &self.dataset, name, rows, width)?
                };
                out.extend_from_slice(bytemuck::cast_slice(&numbers));
            }};
        }
        match self.form.element {
            Element::F32 => read!(f32),
            Element::F64 => read!(f64),
            Element::I8 => read!(i8),
            Element::I16 => read!(i16),
            Element::I32 => read!(i32),
            Element::I64 => read!(i64),
            // The library turns the enumeration into its numbers.
            Element::U8 | Element::Bool => read!(u8),
            Element::U16 => read!(u16),
            Element::U32 => read!(u32),
            Element::U64 => read!(u64),
        }
        Ok(())
    }
}

impl ChunkForm {
    /// Numbers in a chunk, and the size of one.
    fn numbers(&self, element: Element) -> (usize, usize) {
        let rows = usize::try_from(self.rows).unwrap_or(usize::MAX);
        (rows * self.columns, element.bytes())
    }
}

impl Fetched {
    /// Appends the numbers of the fetched rows of `form` to `out`.
    pub(super) fn decode<T: Value>(
        &mut self,
        form: &Form,
        unpacker: &mut Unpacker,
        out: &mut Vec<T>,
    ) -> Result<(), Wrong> {
        if self.by_library {
            return cast(form, &self.read, out);
        }
        if form.element == T::OWN {
            let from = out.len();
            out.resize(from + self.count(form), T::zeroed());
            return self.gather(form, unpacker, bytemuck::cast_slice_mut(&mut out[from..]));
        }
        let mut uncast = core::mem::take(&mut self.uncast);
        uncast.resize(self.count(form) * form.element.bytes(), 0);
        let done = self.gather(form, unpacker, &mut uncast).and_then(|()| cast(form, &uncast, out));
        self.uncast = uncast;
        done
    }

    /// Numbers of the fetched rows.
    fn count(&self, form: &Form) -> usize {
        usize::try_from(self.rows.end - self.rows.start).unwrap_or(usize::MAX) * form.width
    }

    /// Puts the numbers of all parts, in the type of the file, to their places in `to`.
    fn gather(&self, form: &Form, unpacker: &mut Unpacker, to: &mut [u8]) -> Result<(), Wrong> {
        let Some(chunks) = form.chunks else { return Ok(()) };
        let (elements, size) = chunks.numbers(form.element);
        #[expect(clippy::cast_possible_truncation, reason = "rows held in memory")]
        let between = |from: u64, to: u64| (to - from) as usize;
        for part in &self.parts {
            let damaged = |damage| Wrong::Damaged(part.rows.clone(), damage);
            let row = between(self.rows.start, part.rows.start);
            let rows = between(part.rows.start, part.rows.end);
            let width = form.width * size;
            let place = &mut to[row * width..(row + rows) * width];
            match &part.stored {
                Stored::Own(index) => {
                    let (raw, mask) = &self.own[*index];
                    let stored = (raw.as_slice(), *mask);
                    unpacker
                        .unpack(chunks.filters, stored, (elements, size), place)
                        .map_err(damaged)?;
                }
                Stored::Shared(chunk) => {
                    let numbers = chunk
                        .numbers(chunks.filters, (elements, size), unpacker)
                        .map_err(damaged)?;
                    let (first, column) = part.chunk;
                    let stride = chunks.columns * size;
                    let from = &numbers[between(first, part.rows.start) * stride..];
                    let columns = chunks.columns.min(form.width - column) * size;
                    if columns == width {
                        place.copy_from_slice(&from[..place.len()]);
                        continue;
                    }
                    let places = place.chunks_exact_mut(width);
                    for (to, from) in places.zip(from.chunks_exact(stride)) {
                        to[column * size..][..columns].copy_from_slice(&from[..columns]);
                    }
                }
            }
        }
        Ok(())
    }
}

fn cast<T: Value>(form: &Form, bytes: &[u8], out: &mut Vec<T>) -> Result<(), Wrong> {
    T::cast(form.element, bytes, out)
        .map_err(|index| Wrong::Number(index, form.element.text(bytes, index)))
}
