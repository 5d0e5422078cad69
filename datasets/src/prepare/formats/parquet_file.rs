//! A Parquet file, read by the parquet crate and not trusted: damaged ones end with a message.
//!
//! Source: the Apache Parquet format (parquet.apache.org/docs/file-format). What the footer claims
//! of places and lengths is compared with the file before anything is read from there; what is read
//! after that is the crate's, and a panic of the crate is an error that names the file.
//!
//! Invariants: no read reaches beyond the end of the file, none takes more memory than the file has
//! bytes, and no page more than `PAGE_BYTES_MAX`; a file gives as many rows as its footer says, or
//! an error.

use core::cell::Cell;
use core::panic::AssertUnwindSafe;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use core::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetStatisticsPolicy};
use parquet::file::reader::{ChunkReader, Length};

use crate::prepare::error::PrepareError;

/// A file whose footer has been read.
pub(crate) struct ParquetFile {
    path: PathBuf,
    bytes: Bytes,
    footer: ArrowReaderMetadata,
}

/// The rows of a file from its first to its last, in batches.
pub(crate) struct Batches {
    path: PathBuf,
    reader: ParquetRecordBatchReader,
    /// Rows that the footer promises, and the crate has not given yet.
    rows_left: u64,
}

impl ParquetFile {
    /// Reads the footer of `path`. Bytes taken from disk, now and later, are added to `bytes_read`.
    ///
    /// # Errors
    /// [`PrepareError::Input`] when the file cannot be read, [`PrepareError::Parquet`] when it is
    /// not what it should be.
    pub(crate) fn open(path: &Path, bytes_read: &Arc<AtomicU64>) -> Result<Self, PrepareError> {
        let unreadable = |source| PrepareError::input(path, source);
        let file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let mut magic = [0; 4];
        if length < FILE_BYTES_MIN || file.read_exact_at(&mut magic, 0).is_err() || magic != MAGIC {
            return Err(PrepareError::NotParquet { path: path.to_path_buf() });
        }
        let bytes = Bytes { file: Arc::new(file), length, bytes_read: Arc::clone(bytes_read) };
        // Types are those of the format itself; statistics and indices are for queries.
        let options = ArrowReaderOptions::new()
            .with_skip_arrow_metadata(true)
            .with_page_index_policy(PageIndexPolicy::Skip)
            .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll)
            .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
            .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll);
        let footer = guard(path, || ArrowReaderMetadata::load(&bytes, options))?;
        Ok(Self { path: path.to_path_buf(), bytes, footer })
    }

    /// The columns, with their types.
    pub(crate) fn schema(&self) -> &Schema {
        self.footer.schema()
    }

    /// The rows, with the columns number `columns` alone.
    ///
    /// # Errors
    /// [`PrepareError::Parquet`] when the footer contradicts itself or the file.
    pub(crate) fn batches(
        self,
        columns: &[usize],
        rows_at_once: usize,
    ) -> Result<Batches, PrepareError> {
        let Self { path, bytes, footer } = self;
        let mask = ProjectionMask::roots(footer.parquet_schema(), columns.iter().copied());
        let rows = check(&footer, &mask, bytes.length).map_err(|wrong| match wrong {
            Wrong::Footer(reason) => damaged(&path, reason),
            Wrong::Compression(name) => {
                PrepareError::ParquetCompression { path: path.clone(), name }
            }
        })?;
        let reader = guard(&path, || {
            ParquetRecordBatchReaderBuilder::new_with_metadata(bytes, footer)
                .with_projection(mask)
                .with_batch_size(rows_at_once)
                .build()
        })?;
        Ok(Batches { path, reader, rows_left: rows })
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, PrepareError>;

    /// The next rows. Not to be called again after an error.
    fn next(&mut self) -> Option<Self::Item> {
        let reader = &mut self.reader;
        match guard(&self.path, || reader.next().transpose().map_err(ParquetError::from)) {
            Ok(Some(batch)) => {
                let rows = batch.num_rows() as u64;
                let Some(left) = self.rows_left.checked_sub(rows) else {
                    return Some(Err(damaged(&self.path, "more rows than its footer says".into())));
                };
                self.rows_left = left;
                Some(Ok(batch))
            }
            Ok(None) if self.rows_left > 0 => {
                let reason = format!("{} rows fewer than its footer says", self.rows_left);
                Some(Err(damaged(&self.path, reason)))
            }
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

/// What is wrong with a footer.
enum Wrong {
    Footer(String),
    /// A compression that is not read, by name.
    Compression(&'static str),
}

/// Compares what the footer says with itself and with the length of the file. Returns the rows.
fn check(footer: &ArrowReaderMetadata, mask: &ProjectionMask, length: u64) -> Result<u64, Wrong> {
    let metadata = footer.metadata();
    let mut rows = 0u64;
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let wrong = |what: String| Wrong::Footer(format!("row group {number}: {what}"));
        let group_rows = u64::try_from(group.num_rows())
            .map_err(|_| wrong(format!("expected a number of rows, got {}", group.num_rows())))?;
        rows = rows.checked_add(group_rows).ok_or_else(|| wrong("too many rows".into()))?;
        let columns = footer.parquet_schema().num_columns();
        if group.num_columns() != columns {
            let got = group.num_columns();
            return Err(wrong(format!("expected {columns} columns, got {got}")));
        }
        for (leaf, chunk) in group.columns().iter().enumerate() {
            if !mask.leaf_included(leaf) {
                continue;
            }
            check_compression(chunk)?;
            let name = chunk.column_path().string();
            let place = place(chunk).filter(|(_, end)| *end <= length);
            if place.is_none() || chunk.uncompressed_size() < 0 {
                return Err(wrong(format!("column {name}: its bytes are not within the file")));
            }
            let (values, is_flat) = (chunk.num_values(), chunk.column_descr().max_rep_level() == 0);
            if u64::try_from(values)
                .ok()
                .is_none_or(|v| v < group_rows || is_flat && v > group_rows)
            {
                let what = format!("column {name}: expected {group_rows} values, got {values}");
                return Err(wrong(what));
            }
        }
    }
    let said = metadata.file_metadata().num_rows();
    if u64::try_from(said) != Ok(rows) {
        return Err(Wrong::Footer(format!("{said} rows in all, {rows} in its row groups")));
    }
    Ok(rows)
}

/// First byte of a column chunk, and the byte after its last.
fn place(chunk: &ColumnChunkMetaData) -> Option<(u64, u64)> {
    let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
    let start = u64::try_from(start).ok()?;
    let end = start.checked_add(u64::try_from(chunk.compressed_size()).ok()?)?;
    Some((start, end))
}

fn check_compression(chunk: &ColumnChunkMetaData) -> Result<(), Wrong> {
    match chunk.compression() {
        Compression::BROTLI(_) => Err(Wrong::Compression("brotli")),
        Compression::LZO => Err(Wrong::Compression("lzo")),
        _ => Ok(()),
    }
}

/// Runs `work` of the parquet crate. Its panic, which says nothing on stderr, and its error name
/// the file.
fn guard<T>(
    path: &Path,
    work: impl FnOnce() -> Result<T, ParquetError>,
) -> Result<T, PrepareError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !IS_GUARDED.get() {
                before(panic);
            }
        }));
    });
    IS_GUARDED.set(true);
    // What a panic leaves half done is dropped with the file.
    let ended = panic::catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(false);
    match ended {
        Ok(result) => result.map_err(|error| unreadable(path, error)),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(damaged(path, words.unwrap_or("the reader gave up").to_owned()))
        }
    }
}

thread_local! {
    /// A panic of this thread is caught.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

fn damaged(path: &Path, reason: String) -> PrepareError {
    PrepareError::Parquet { path: path.to_path_buf(), reason }
}

/// The disk's own errors pass through the crate.
fn unreadable(path: &Path, error: ParquetError) -> PrepareError {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => PrepareError::input(path, *source),
            Err(source) => damaged(path, source.to_string()),
        },
        ParquetError::General(reason) | ParquetError::EOF(reason) => damaged(path, reason),
        error => damaged(path, error.to_string()),
    }
}

/// The bytes of a file for the crate: nothing beyond the end is asked for, and what is read is
/// counted.
#[derive(Clone)]
struct Bytes {
    file: Arc<File>,
    length: u64,
    bytes_read: Arc<AtomicU64>,
}

impl Length for Bytes {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Bytes {
    type T = io::BufReader<From>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let mut head = [0; 12];
        // At the end of the file there are fewer, and no page.
        let _ = self.file.read_at(&mut head, start)?;
        if let Some(bytes) = page_bytes(&head)
            && bytes > PAGE_BYTES_MAX
        {
            let reason = format!("a page of {bytes} bytes; at most {PAGE_BYTES_MAX} are read");
            return Err(ParquetError::General(reason));
        }
        // Of a page's header, of some tens of bytes.
        Ok(io::BufReader::with_capacity(HEADER_BYTES, From { bytes: self.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<bytes::Bytes, ParquetError> {
        let end = start.checked_add(length as u64).filter(|end| *end <= self.length);
        if end.is_none() {
            let reason = format!("{length} bytes at {start} are not within the file");
            return Err(ParquetError::EOF(reason));
        }
        let mut buffer = vec![0; length];
        self.file.read_exact_at(&mut buffer, start)?;
        // Only a progress figure: no other memory depends on its order.
        self.bytes_read.fetch_add(length as u64, Ordering::Relaxed);
        Ok(buffer.into())
    }
}

/// Bytes of a page once it is unpacked, for which the crate makes room as soon as it has read them:
/// the second field of its header, after the kind of page, in Thrift's compact protocol. `None` for
/// what is no such header.
fn page_bytes(header: &[u8]) -> Option<u64> {
    let mut rest = header.iter();
    let mut field = || -> Option<u64> {
        let mut number = 0;
        if *rest.next()? != THRIFT_NEXT_I32 {
            return None;
        }
        for shift in (0..35).step_by(7) {
            let byte = *rest.next()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                // Zigzag; a negative one is refused by the crate.
                return Some(number >> 1);
            }
        }
        None
    };
    field()?;
    field()
}

/// Reads on from a place in a file.
struct From {
    bytes: Bytes,
    at: u64,
}

impl Read for From {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The first bytes of a file, and the last.
const MAGIC: [u8; 4] = *b"PAR1";

/// Both magic words, and the length of the footer.
const FILE_BYTES_MIN: u64 = 12;

const HEADER_BYTES: usize = 1024;

/// Writers make pages of about a megabyte.
const PAGE_BYTES_MAX: u64 = 256 << 20;

/// The field after the one before, an integer of 32 bits.
const THRIFT_NEXT_I32: u8 = 0x15;

#[cfg(test)]
mod tests {
    use super::*;

    /// A data page of 300 bytes, packed to 70, by the specification of the protocol.
    #[test]
    fn the_size_of_a_page_is_read() {
        assert_eq!(page_bytes(&[0x15, 0x00, 0x15, 0xd8, 0x04, 0x15, 0x8c, 0x01]), Some(300));
        let most = [0x15, 0x06, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0x15];
        assert_eq!(page_bytes(&most), Some(i32::MAX as u64));
        assert_eq!(page_bytes(&[0x15, 0x00, 0x25, 0x02]), None);
        assert_eq!(page_bytes(&[0x15, 0x80]), None);
    }
}
