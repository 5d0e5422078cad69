//! Opening a checkpoint, and reading its files one by one.
//!
//! A save that is cut short between its two renames (`write.rs`) leaves no folder of the name, but
//! the one before beside it, whole: that is opened then.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::beside;
use super::manifest::{CheckpointError, FileEntry, MANIFEST, Manifest, VERSION};
use crate::comm::Comm;
use crate::error::Error;
use crate::launch::world::World;
use crate::record::say;

/// A checkpoint whose manifest has been read and whose files have the right lengths.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    /// What is inside.
    pub manifest: Manifest,
}

impl Checkpoint {
    /// Opens the checkpoint in `dir`, or if there is none, the one before it that a save cut short
    /// has left. The first rank looks and tells the others. *Collective over `control`.*
    ///
    /// # Errors
    /// When there is none, or it is not whole: on every rank, of whom the first has the message.
    pub fn open(world: &World, control: &Comm, dir: &Path) -> Result<Self, Error> {
        let first = control.rank() == 0;
        let opened = first.then(|| Self::open_here(dir)).transpose();
        let opened = world.agree(control, opened.map_err(Error::from))?;
        let failure = |error: serde_json::Error| Error::Failure(format!("the manifest: {error}"));
        let said = opened.as_ref().map(|it| serde_json::to_vec(&(it.dir == dir, &it.manifest)));
        let mut said = said.transpose().map_err(failure)?.unwrap_or_default();
        let (mut length, what) = ([said.len() as u64], "the manifest of a checkpoint");
        control.broadcast(&mut length, what, false)?;
        said.resize(usize::try_from(length[0]).unwrap_or(usize::MAX), 0);
        control.broadcast(&mut said, what, false)?;
        if let Some(opened) = opened {
            if opened.dir != dir {
                let (new, old) = (dir.display(), opened.dir.display());
                say(&format!("umbra: {new}: its save was cut short; using the one before, {old}"));
            }
            return Ok(opened);
        }
        let (there, manifest): (bool, Manifest) = serde_json::from_slice(&said).map_err(failure)?;
        Ok(Self { dir: if there { dir.to_owned() } else { beside(dir, OLD) }, manifest })
    }

    fn open_here(dir: &Path) -> Result<Self, CheckpointError> {
        let old = beside(dir, OLD);
        let dir = if !dir.exists() && old.exists() { &old } else { dir };
        let path = dir.join(MANIFEST);
        let json = match fs::read(&path) {
            Ok(json) => json,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(CheckpointError::Missing { path: dir.to_owned() });
            }
            Err(source) => return Err(CheckpointError::Io { path, source }),
        };
        let malformed = |error: serde_json::Error| CheckpointError::Manifest {
            path: path.clone(),
            message: error.to_string(),
        };
        let json: serde_json::Value = serde_json::from_slice(&json).map_err(malformed)?;
        let version = json.get("version").and_then(serde_json::Value::as_u64);
        match version.and_then(|version| u32::try_from(version).ok()) {
            Some(VERSION) | None => {}
            Some(got) => return Err(CheckpointError::Version { path, got }),
        }
        let manifest: Manifest = serde_json::from_value(json).map_err(malformed)?;
        for file in &manifest.files {
            let path = dir.join(&file.name);
            let got = fs::metadata(&path)
                .map_err(|source| CheckpointError::Io { path: path.clone(), source })?
                .len();
            if got != file.bytes {
                return Err(CheckpointError::Length { path, expected: file.bytes, got });
            }
        }
        Ok(Self { dir: dir.to_owned(), manifest })
    }

    /// A file of it, to be read from beginning to end.
    pub(super) fn reader(&self, name: &str) -> Result<FileReader, CheckpointError> {
        let path = self.dir.join(name);
        let Some(entry) = self.manifest.files.iter().find(|file| file.name == name) else {
            let message = format!("it lists no file {name}");
            return Err(CheckpointError::Manifest { path: self.dir.join(MANIFEST), message });
        };
        let FileEntry { bytes, crc32, .. } = *entry;
        let file = File::open(&path);
        let file = file.map_err(|source| CheckpointError::Io { path: path.clone(), source })?;
        let (crc, buffer) = (crc32fast::Hasher::new(), vec![]);
        Ok(FileReader { path, file, crc, bytes, crc32, buffer })
    }

    /// A file must hold as much as the model at hand needs.
    pub(super) fn check_length(&self, name: &str, expected: u64) -> Result<(), CheckpointError> {
        match self.manifest.files.iter().find(|file| file.name == name) {
            Some(file) if file.bytes != expected => Err(CheckpointError::Length {
                path: self.dir.join(name),
                expected,
                got: file.bytes,
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn same<T: PartialEq + ToString>(
        &self,
        what: &'static str,
        here: T,
        got: T,
    ) -> Result<(), CheckpointError> {
        if here == got {
            return Ok(());
        }
        let (expected, got) = (here.to_string(), got.to_string());
        Err(CheckpointError::Mismatch { path: self.dir.clone(), what, expected, got })
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// A file of a checkpoint under way.
pub(super) struct FileReader {
    path: PathBuf,
    file: File,
    crc: crc32fast::Hasher,
    /// Its length and sum by the manifest.
    bytes: u64,
    crc32: u32,
    buffer: Vec<u8>,
}

impl FileReader {
    /// The next words.
    pub(super) fn read(&mut self, words: &mut [u32]) -> Result<(), CheckpointError> {
        self.buffer.resize(size_of_val(words), 0);
        let read = self.file.read_exact(&mut self.buffer);
        read.map_err(|source| CheckpointError::Io { path: self.path.clone(), source })?;
        self.crc.update(&self.buffer);
        for (word, bytes) in words.iter_mut().zip(self.buffer.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        Ok(())
    }

    /// Checks the sum of a file whose words have all been read, and returns its bytes.
    pub(super) fn finish(self) -> Result<u64, CheckpointError> {
        let Self { path, crc, bytes, crc32: expected, .. } = self;
        let got = crc.finalize();
        if got == expected {
            Ok(bytes)
        } else {
            Err(CheckpointError::Checksum { path, expected, got })
        }
    }
}

/// Behind the name of the checkpoint that a new one replaces.
pub(super) const OLD: &str = "old";
