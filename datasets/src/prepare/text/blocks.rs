//! Cuts the text of all inputs into blocks that end at line ends, so that blocks can be parsed in
//! parallel.
//!
//! Invariants: the blocks of a file, one after the other, are its text byte for byte, without a
//! leading UTF-8 byte order mark; no line spans two blocks; a block never spans two files. A line
//! longer than [`LINE_BYTES_MAX`] is an error, so memory stays bounded whatever the input holds.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use core::sync::atomic::AtomicU64;

use super::input::{self, Input};
use super::source::Source;
use crate::prepare::error::PrepareError;

/// Whole lines of one file. Only the last line of a file may lack its line end.
pub(crate) struct TextBlock {
    /// Which of the inputs.
    pub(crate) file: usize,
    /// The first line of this block is the first line of the file.
    pub(crate) starts_file: bool,
    pub(crate) bytes: Vec<u8>,
}

/// The blocks of all inputs in order. After an error the iterator ends.
pub(crate) struct Blocks {
    sources: Vec<Source>,
    /// Pipes will be read again.
    looking: bool,
    block_bytes: usize,
    bytes_read: Arc<AtomicU64>,
    /// Buffers of blocks that are done with: memory that the system need not clear again.
    spent: Option<Receiver<Vec<u8>>>,
    file: usize,
    reader: Option<Input>,
    /// Text after the last line end of the previous block.
    rest: Vec<u8>,
    starts_file: bool,
    failed: bool,
}

impl Blocks {
    /// Blocks of about `block_bytes`; bytes taken from disk are added to `bytes_read`, and buffers
    /// from `spent` are used again.
    pub(crate) fn new(
        sources: Vec<Source>,
        block_bytes: usize,
        bytes_read: Arc<AtomicU64>,
        spent: Option<Receiver<Vec<u8>>>,
    ) -> Self {
        Self {
            sources,
            looking: false,
            block_bytes: block_bytes.max(1),
            bytes_read,
            spent,
            file: 0,
            reader: None,
            rest: Vec::new(),
            starts_file: true,
            failed: false,
        }
    }

    /// The blocks of `source`, which can then be read from the beginning even if it is a pipe.
    pub(crate) fn look_at(source: &Source, block_bytes: usize) -> Self {
        let sources = vec![source.clone()];
        Self { looking: true, ..Self::new(sources, block_bytes, Arc::default(), None) }
    }

    /// The next block, `None` after the last file.
    fn advance(&mut self) -> Result<Option<TextBlock>, PrepareError> {
        while self.file < self.sources.len() {
            let mut reader = match self.reader.take() {
                Some(reader) => reader,
                None => {
                    self.starts_file = true;
                    input::open(&self.sources[self.file], self.looking, &self.bytes_read)?
                }
            };
            let mut bytes = self.buffer();
            bytes.append(&mut self.rest);
            let ended = self.read_lines(&mut reader, &mut bytes)?;
            let file = self.file;
            if ended {
                self.file += 1;
            } else {
                self.reader = Some(reader);
            }
            let starts_file = core::mem::replace(&mut self.starts_file, false);
            if starts_file && bytes.starts_with(BYTE_ORDER_MARK) {
                bytes.drain(..BYTE_ORDER_MARK.len());
            }
            if bytes.is_empty() {
                if starts_file {
                    return Err(PrepareError::EmptyInput { path: self.sources[file].path.clone() });
                }
                continue;
            }
            return Ok(Some(TextBlock { file, starts_file, bytes }));
        }
        Ok(None)
    }

    /// An empty buffer.
    fn buffer(&self) -> Vec<u8> {
        let spent = self.spent.as_ref().and_then(|spent| spent.try_recv().ok());
        let mut buffer = spent.unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Fills `bytes` up to a line end, keeping what follows in `rest`. True at the end of the file.
    fn read_lines(
        &mut self,
        reader: &mut Input,
        bytes: &mut Vec<u8>,
    ) -> Result<bool, PrepareError> {
        let path = &self.sources[self.file].path;
        // What was carried over holds no line end.
        let mut searched = bytes.len();
        bytes.reserve(self.block_bytes + READ_SLACK_BYTES);
        loop {
            let want = self.block_bytes.saturating_sub(bytes.len()).max(READ_SLACK_BYTES);
            let read = reader
                .append(want as u64, bytes)
                .map_err(|source| PrepareError::input(path, source))?;
            let ended = read < want;
            if ended {
                return Ok(true);
            }
            if bytes.len() >= self.block_bytes {
                if let Some(end) = memchr::memrchr(b'\n', &bytes[searched..]) {
                    self.rest.extend_from_slice(&bytes[searched + end + 1..]);
                    bytes.truncate(searched + end + 1);
                    return Ok(false);
                }
                searched = bytes.len();
                if bytes.len() > LINE_BYTES_MAX {
                    return Err(PrepareError::LineTooLong {
                        path: path.clone(),
                        expected_bytes_max: LINE_BYTES_MAX,
                    });
                }
            }
        }
    }
}

impl Iterator for Blocks {
    type Item = Result<TextBlock, PrepareError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let block = self.advance();
        self.failed = block.is_err();
        block.transpose()
    }
}

/// Written in front of the text by some editors and converters; never part of the first value.
const BYTE_ORDER_MARK: &[u8] = &[0xef, 0xbb, 0xbf];

/// Least bytes asked for at once.
const READ_SLACK_BYTES: usize = 64;

/// The longest line that is read. A Criteo line has about 240 bytes; a file without line ends has
/// one line.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 20;
