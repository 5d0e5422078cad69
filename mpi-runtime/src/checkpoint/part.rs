//! Reading a part of a file: from its beginning to its end, with its checksum.

use core::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use umbra_core::compress::from_half;

use super::error::{CheckpointError, at};
use super::file::TensorEntry;

/// A part of a file that is read from its beginning to its end.
pub(super) struct PartReader {
    part: Part,
    path: PathBuf,
    file: File,
    at: u64,
    end: u64,
    crc: crc32fast::Hasher,
    crc32: u32,
    /// Bytes of a word: 2 of those that are written as half of one.
    word: u64,
    buffer: Vec<u8>,
}

/// Which part of a file: what a damaged one is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// What stands before the values.
    Header,
    /// The tensor of this name.
    Tensor(String),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("the header"),
            Self::Tensor(name) => f.write_str(name),
        }
    }
}

/// Words as the integers of 64 bits that they are, the low halves first.
pub(super) fn integers(words: &[u32]) -> impl Iterator<Item = u64> + '_ {
    let (pairs, _) = words.as_chunks::<2>();
    pairs.iter().map(|[low, high]| u64::from(*high) << 32 | u64::from(*low))
}

impl PartReader {
    /// A tensor of the file `name` in `folder`.
    ///
    /// # Errors
    /// When it can't be opened.
    pub(super) fn tensor(
        folder: &Path,
        name: &str,
        tensor: &TensorEntry,
    ) -> Result<Self, CheckpointError> {
        let length = tensor.bytes().unwrap_or(u64::MAX);
        let end = tensor.offset.saturating_add(length);
        let part = Part::Tensor(tensor.name.clone());
        let opened = Self::open(folder.join(name), part, (tensor.offset, end), tensor.crc32)?;
        Ok(Self { word: tensor.kind.bytes() / tensor.kind.words(), ..opened })
    }

    /// What stands before the first value, which is at byte `end`.
    ///
    /// # Errors
    /// When it can't be opened.
    pub(super) fn header(
        folder: &Path,
        name: &str,
        end: u64,
        crc32: u32,
    ) -> Result<Self, CheckpointError> {
        Self::open(folder.join(name), Part::Header, (0, end), crc32)
    }

    fn open(
        path: PathBuf,
        part: Part,
        (at, end): (u64, u64),
        crc32: u32,
    ) -> Result<Self, CheckpointError> {
        let file = File::open(&path).map_err(super::error::at(&path))?;
        let (crc, buffer) = (crc32fast::Hasher::new(), vec![]);
        Ok(Self { part, path, file, at, end, crc, crc32, word: 4, buffer })
    }

    /// The next words; those of 16 bits as the f32s that they are. Returns how many bytes of the
    /// file they are.
    ///
    /// # Errors
    /// When they can't be read.
    ///
    /// # Panics
    /// When there are not so many left.
    pub(super) fn read(&mut self, words: &mut [u32]) -> Result<u64, CheckpointError> {
        let halves = self.word == 2;
        let bytes = self.bytes(words.len() * if halves { 2 } else { 4 })?;
        if halves {
            for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
                *word = from_half(u16::from_le_bytes(*bytes)).to_bits();
            }
        } else {
            for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
                *word = u32::from_le_bytes(*bytes);
            }
        }
        Ok(bytes.len() as u64)
    }

    fn bytes(&mut self, length: usize) -> Result<&[u8], CheckpointError> {
        assert!(length as u64 <= self.left(), "{} is shorter", self.part);
        self.buffer.resize(length, 0);
        self.file.read_exact_at(&mut self.buffer, self.at).map_err(at(&self.path))?;
        self.crc.update(&self.buffer);
        self.at += length as u64;
        Ok(&self.buffer)
    }

    /// What it has been found to be, where it should list rows.
    pub(super) fn unordered(&self) -> CheckpointError {
        CheckpointError::Unordered { path: self.path.clone(), part: self.part.clone() }
    }

    /// Words that have not been read.
    #[must_use]
    pub(super) fn words_left(&self) -> usize {
        usize::try_from(self.left() / self.word).unwrap_or(usize::MAX)
    }

    /// Bytes that have not been read.
    const fn left(&self) -> u64 {
        self.end - self.at
    }

    /// Checks the sum of a part that has been read to its end.
    ///
    /// # Errors
    /// When it is damaged.
    ///
    /// # Panics
    /// When something is left.
    pub(super) fn finish(self) -> Result<(), CheckpointError> {
        assert_eq!(self.left(), 0, "{} is not read", self.part);
        let Self { part, path, crc, crc32: expected, .. } = self;
        let got = crc.finalize();
        if got == expected {
            Ok(())
        } else {
            Err(CheckpointError::Checksum { path, part, expected, got })
        }
    }

    /// Reads what is left, and checks the sum.
    pub(super) fn read_over(mut self) -> Result<(), CheckpointError> {
        while self.left() > 0 {
            let block = usize::try_from(self.left()).unwrap_or(usize::MAX).min(BLOCK);
            self.bytes(block)?;
        }
        self.finish()
    }
}

/// Bytes read at a time where nobody wants the values.
const BLOCK: usize = 1 << 20;
