//! Opening a checkpoint: the first rank looks, and tells the others.

use std::path::{Path, PathBuf};

use super::error::CheckpointError;
use super::file::PartReader;
use super::folders;
use super::manifest::{MANIFEST, Manifest};
use crate::comm::Comm;
use crate::error::Error;

/// A checkpoint whose manifest has been read and whose files have the right lengths.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    /// What is inside.
    pub manifest: Manifest,
}

impl Checkpoint {
    /// Opens the checkpoint that `path` means (`folders::find`). The first rank looks and tells the
    /// others. *Collective over `control`.*
    ///
    /// # Errors
    /// When there is none, or it is not whole: on every rank, of whom the first has the message.
    pub fn open(control: &Comm, path: &Path) -> Result<Self, Error> {
        let first = control.rank() == 0;
        let opened = first.then(|| Self::open_here(path)).transpose();
        let opened = control.agree(opened.map_err(Error::from))?;
        Self::tell(control, opened)
    }

    /// As [`open`](Self::open), on this rank alone.
    ///
    /// # Errors
    /// When there is none, or it is not whole.
    pub fn open_here(path: &Path) -> Result<Self, CheckpointError> {
        let dir = folders::find(path)?;
        let manifest = Manifest::read(&dir)?;
        Ok(Self { dir, manifest })
    }

    /// Reads all of it and compares every checksum. Returns its bytes, the manifest's aside.
    ///
    /// # Errors
    /// When something of it is not as it was written.
    pub fn verify(&self) -> Result<u64, CheckpointError> {
        self.manifest.files.iter().map(|file| file.verify(&self.dir)).sum()
    }

    /// As [`verify`](Self::verify), each rank some of the files. *Collective over `control`.*
    ///
    /// # Errors
    /// When something of it is not as it was written: on every rank, of whom one has the message.
    pub fn verify_together(&self, control: &Comm) -> Result<(), Error> {
        let own = self.manifest.files.iter().skip(control.rank()).step_by(control.size());
        let verified = own.map(|file| file.verify(&self.dir)).find_map(Result::err);
        control.barrier("the reading of a checkpoint", true)?;
        control.agree(verified.map_or(Ok(()), |error| Err(error.into())))
    }

    /// What the first rank has opened, to all. *Collective over `control`.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn tell(control: &Comm, opened: Option<Self>) -> Result<Self, Error> {
        let failure = |error: serde_json::Error| Error::Failure(format!("the manifest: {error}"));
        let said = opened.as_ref().map(|it| serde_json::to_vec(&(&it.dir, &it.manifest)));
        let mut said = said.transpose().map_err(failure)?.unwrap_or_default();
        let (mut length, what) = ([said.len() as u64], "the manifest of a checkpoint");
        control.broadcast(&mut length, what, false)?;
        said.resize(usize::try_from(length[0]).unwrap_or(usize::MAX), 0);
        control.broadcast(&mut said, what, false)?;
        if let Some(opened) = opened {
            return Ok(opened);
        }
        let (dir, manifest) = serde_json::from_slice(&said).map_err(failure)?;
        Ok(Self { dir, manifest })
    }

    /// The tensor `name`, of `values` values, to be read from its beginning to its end.
    pub(super) fn reader(&self, name: &str, values: u64) -> Result<PartReader, CheckpointError> {
        let tensors = self.manifest.tensors();
        let Some((file, tensor)) = tensors.get(name) else {
            let message = format!("it lists no tensor {name}");
            return Err(CheckpointError::Manifest { path: self.dir.join(MANIFEST), message });
        };
        if tensor.values() != Some(values) {
            let (what, path) = ("the number of values of a tensor", self.dir.clone());
            let (expected, got) = (format!("{values} of {name}"), format!("{:?}", tensor.shape));
            return Err(CheckpointError::Mismatch { path, what, expected, got });
        }
        PartReader::tensor(&self.dir, &file.name, tensor)
    }

    /// Both are alike.
    ///
    /// # Errors
    /// When they are not: `what` does not fit.
    pub fn same<T: PartialEq + ToString>(
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
