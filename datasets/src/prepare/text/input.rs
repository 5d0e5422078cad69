//! Input files: plain, gzip (RFC 1952) or Zstandard (RFC 8878) text behind one reader.
//!
//! The kind is told by the first bytes, never by the name. Bytes are counted below the
//! decompressor, so that progress is a share of what lies on disk. A file cut short inside its
//! compressed stream is an error, never a short split.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use core::sync::atomic::{AtomicU64, Ordering};

use crate::prepare::error::PrepareError;

/// Opens `path` for reading its text. Bytes taken from disk are added to `bytes_read`.
///
/// # Errors
/// [`PrepareError::Input`] when the file cannot be read, [`PrepareError::Compression`] for a
/// compressed file of a kind that is not read here.
pub(crate) fn open(path: &Path, bytes_read: &Arc<AtomicU64>) -> Result<Input, PrepareError> {
    let unreadable = |source| PrepareError::input(path, source);
    let mut file = File::open(path).map_err(unreadable)?;
    let magic = first_bytes(&mut file).map_err(unreadable)?;
    let counted = Counted { file, bytes_read: Arc::clone(bytes_read) };
    match Kind::of(&magic) {
        Kind::Plain => Ok(Input::Plain(counted)),
        Kind::Gzip => {
            let buffered = BufReader::with_capacity(READ_BYTES, counted);
            Ok(Input::Packed(Box::new(flate2::bufread::MultiGzDecoder::new(buffered))))
        }
        Kind::Zstd => {
            let decoder = zstd::stream::read::Decoder::new(counted).map_err(unreadable)?;
            Ok(Input::Packed(Box::new(decoder)))
        }
        Kind::Other { name, cure } => {
            Err(PrepareError::Compression { path: path.to_path_buf(), name, cure })
        }
    }
}

/// Size of the file on disk.
pub(crate) fn disk_bytes(path: &Path) -> Result<u64, PrepareError> {
    let unreadable = |source| PrepareError::input(path, source);
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if metadata.is_dir() {
        return Err(unreadable(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    Ok(metadata.len())
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

fn first_bytes(file: &mut File) -> io::Result<Vec<u8>> {
    let mut magic = Vec::with_capacity(4);
    file.by_ref().take(4).read_to_end(&mut magic)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(magic)
}

/// The text of a file.
pub(crate) enum Input {
    Plain(Counted),
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

pub(crate) struct Counted {
    file: File,
    bytes_read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read(buffer)?;
        // Only a progress figure: no other memory depends on its order.
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// What one read asks the disk for.
const READ_BYTES: usize = 256 * 1024;
