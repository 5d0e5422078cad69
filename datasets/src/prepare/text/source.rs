//! The inputs of a run: files, and pipes, of which the first lines are looked at before they are
//! read.
//!
//! An argument is the name of a file, else a folder (all files in it but hidden ones), else a
//! pattern (`*`, `?`, `[…]`, for arguments that the shell left alone); what a folder or a pattern
//! stands for is sorted by name.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::prepare::error::PrepareError;

/// One input.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// Bytes on disk; 0 of a pipe.
    pub(crate) bytes: u64,
    pipe: Option<Arc<Mutex<Pipe>>>,
}

/// What can be read once.
struct Pipe {
    file: File,
    /// What was looked at.
    head: Vec<u8>,
}

/// The files that `arguments` stand for, in order.
///
/// # Errors
/// An argument that stands for no file.
pub(crate) fn expand(arguments: &[PathBuf]) -> Result<Vec<PathBuf>, PrepareError> {
    let mut paths = Vec::new();
    for argument in arguments {
        if argument.as_os_str() == "-" {
            paths.push("/dev/stdin".into());
        } else if argument.is_dir() {
            paths.extend(files_of(argument)?);
        } else if argument.symlink_metadata().is_ok() {
            paths.push(argument.clone());
        } else {
            paths.extend(matching(argument)?);
        }
    }
    Ok(paths)
}

fn files_of(folder: &Path) -> Result<Vec<PathBuf>, PrepareError> {
    let unreadable = |source| PrepareError::input(folder, source);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !is_hidden && !entry.path().is_dir() {
            files.push(entry.path());
        }
    }
    if files.is_empty() {
        return Err(PrepareError::NoFiles { argument: folder.into() });
    }
    files.sort();
    Ok(files)
}

fn matching(pattern: &Path) -> Result<Vec<PathBuf>, PrepareError> {
    let Some(text) = pattern.to_str().filter(|text| text.contains(['*', '?', '['])) else {
        return Ok(vec![pattern.into()]);
    };
    let options = glob::MatchOptions {
        require_literal_leading_dot: true,
        require_literal_separator: true,
        ..glob::MatchOptions::new()
    };
    let no_files = || PrepareError::NoFiles { argument: pattern.into() };
    let mut files = Vec::new();
    for path in glob::glob_with(text, options).map_err(|_| no_files())? {
        let path = path.map_err(|error| {
            PrepareError::input(error.path(), io::Error::other(error.to_string()))
        })?;
        if path.is_dir() {
            files.extend(files_of(&path)?);
        } else {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(no_files());
    }
    Ok(files)
}

impl Source {
    /// # Errors
    /// When the file is not there, may not be read, or is empty.
    pub(crate) fn new(path: &Path) -> Result<Self, PrepareError> {
        let unreadable = |source| PrepareError::input(path, source);
        let metadata = fs::metadata(path).map_err(unreadable)?;
        let pipe = if metadata.is_file() {
            if metadata.len() == 0 {
                return Err(PrepareError::EmptyInput { path: path.into() });
            }
            None
        } else {
            let file = File::open(path).map_err(unreadable)?;
            Some(Arc::new(Mutex::new(Pipe { file, head: Vec::new() })))
        };
        Ok(Self { path: path.into(), bytes: if pipe.is_some() { 0 } else { metadata.len() }, pipe })
    }

    /// True if it can be read once only.
    pub(crate) fn is_pipe(&self) -> bool {
        self.pipe.is_some()
    }

    /// The bytes of a pipe from the first on; what is read while `looking` will be read again.
    pub(super) fn stream(&self, looking: bool) -> Option<Stream> {
        let pipe = Arc::clone(self.pipe.as_ref()?);
        Some(Stream { pipe, at: 0, looking })
    }
}

/// The bytes of a pipe.
pub(super) struct Stream {
    pipe: Arc<Mutex<Pipe>>,
    at: usize,
    looking: bool,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ahead = &pipe.head[self.at..];
        if !ahead.is_empty() {
            let read = ahead.read(buffer)?;
            self.at += read;
            return Ok(read);
        }
        let read = pipe.file.read(buffer)?;
        if self.looking {
            pipe.head.extend_from_slice(&buffer[..read]);
            self.at += read;
        }
        Ok(read)
    }
}
