//! Input files: plain, gzip (RFC 1952) or Zstandard (RFC 8878) text behind one reader.
//!
//! The kind is told by the first bytes, never by the name. Bytes are counted below the
//! decompressor, so that progress is a share of what lies on disk. A file cut short inside its
//! compressed stream is an error, never a short split.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use core::sync::atomic::{AtomicU64, Ordering};

use super::gzip::Members;
use super::source::Source;
use crate::prepare::error::PrepareError;

/// Opens `source` for reading its text. Bytes taken from disk are added to `bytes_read`. What is
/// read of a pipe while `looking` will be read again.
///
/// # Errors
/// [`PrepareError::Input`] when the file cannot be read, [`PrepareError::Compression`] for a
/// compressed file of a kind that is not read here.
pub(crate) fn open(
    source: &Source,
    looking: bool,
    bytes_read: &Arc<AtomicU64>,
) -> Result<Input, PrepareError> {
    let path = &source.path;
    let unreadable = |error| PrepareError::input(path, error);
    let mut magic = Vec::with_capacity(4);
    let bytes_read = Arc::clone(bytes_read);
    let packed: Box<dyn Read + Send> = match source.stream(looking) {
        Some(mut stream) => {
            (&mut stream).take(4).read_to_end(&mut magic).map_err(unreadable)?;
            let head = io::Cursor::new(magic.clone());
            Box::new(Counted { file: head.chain(stream), bytes_read })
        }
        None => {
            let mut file = File::open(path).map_err(unreadable)?;
            file.by_ref().take(4).read_to_end(&mut magic).map_err(unreadable)?;
            file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
            if let Kind::Plain = Kind::of(&magic) {
                return Ok(Input::Plain(Counted { file, bytes_read }));
            }
            Box::new(Counted { file, bytes_read })
        }
    };
    Ok(Input::Packed(match Kind::of(&magic) {
        Kind::Plain => packed,
        Kind::Gzip => Box::new(Members::new(BufReader::with_capacity(READ_BYTES, packed))),
        Kind::Zstd => Box::new(zstd::stream::read::Decoder::new(packed).map_err(unreadable)?),
        Kind::Other { name, cure } => {
            return Err(PrepareError::Compression { path: path.clone(), name, cure });
        }
    }))
}

enum Kind {
    Plain,
    Gzip,
    Zstd,
    Other { name: &'static str, cure: &'static str },
}

impl Kind {
    fn of(magic: &[u8]) -> Self {
        match magic {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A skippable frame, as parallel compressors put in front.
            [first, 0x2a, 0x4d, 0x18, ..] if first & 0xf0 == 0x50 => Self::Zstd,
            [0xfd, b'7', b'z', b'X', ..] => Self::Other { name: "xz", cure: "xz -dk" },
            [b'B', b'Z', b'h', ..] => Self::Other { name: "bzip2", cure: "bzip2 -dk" },
            [b'P', b'K', 3, 4, ..] => Self::Other { name: "zip", cure: "unzip" },
            _ => Self::Plain,
        }
    }
}

/// The text of a file.
pub(crate) enum Input {
    Plain(Counted<File>),
    Packed(Box<dyn Read + Send>),
}

impl Input {
    /// Appends up to `bytes_max` bytes; fewer only at the end of the text. Returns how many.
    pub(crate) fn append(&mut self, bytes_max: u64, bytes: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            // Of a file the buffer needs no zeros to be read into.
            Self::Plain(Counted { file, bytes_read }) => {
                let read = file.take(bytes_max).read_to_end(bytes)?;
                bytes_read.fetch_add(read as u64, Ordering::Relaxed);
                Ok(read)
            }
            Self::Packed(reader) => reader.take(bytes_max).read_to_end(bytes),
        }
    }
}

pub(crate) struct Counted<R> {
    file: R,
    bytes_read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read(buffer)?;
        // Only a progress figure: no other memory depends on its order.
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// What one read asks the disk for.
const READ_BYTES: usize = 256 * 1024;
