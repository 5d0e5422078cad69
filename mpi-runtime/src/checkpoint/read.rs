//! Opening a checkpoint: the first rank looks, and tells the others.

use std::path::{Path, PathBuf};

use umbra_core::sparse::Numbers;
use umbra_datasets::dataset::first_difference;

use super::error::CheckpointError;
use super::file::{FileEntry, TensorEntry};
use super::folders;
use super::manifest::{Base, MANIFEST, Manifest};
use super::part::PartReader;
use crate::comm::Comm;
use crate::error::Error;
use crate::record::say;
use crate::state::Kind;

/// A checkpoint whose manifest has been read and whose files have the right lengths.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    /// What is inside.
    pub manifest: Manifest,
    /// The one with the rows that this one has not.
    base: Option<Box<Self>>,
    /// Row saves since, the oldest first: for rows that were lost alone.
    row_saves: Vec<Self>,
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
        let (manifest, _) = Manifest::read(&dir)?;
        let base = manifest.base.map(|base| Self::open_base(&dir, base)).transpose()?;
        Ok(Self { dir, manifest, base: base.map(Box::new), row_saves: vec![] })
    }

    /// With the row saves up to step `last` that stand beside it. What can't be read is passed over
    /// with a warning. *Not collective.*
    ///
    /// # Errors
    /// When its own manifest can't be read again.
    pub fn with_row_saves(mut self, last: u64) -> Result<Self, CheckpointError> {
        let (_, this) = Manifest::read_alone(&self.dir)?;
        let folders = folders::Folders::beside(&self.dir).of_rows();
        let mut steps = folders.steps()?;
        steps.retain(|step| *step <= last);
        for dir in steps.into_iter().rev().map(|step| folders.of(step)) {
            match Manifest::read(&dir) {
                Ok((manifest, _)) => {
                    let partitions = manifest.partitions == self.manifest.partitions;
                    if manifest.base == Some(this) && partitions {
                        self.row_saves.push(Self { dir, manifest, base: None, row_saves: vec![] });
                    }
                }
                Err(error) => say_passed_over(&error),
            }
        }
        Ok(self)
    }

    /// The `base` of the checkpoint in `dir`, which stands beside it.
    fn open_base(dir: &Path, base: Base) -> Result<Self, CheckpointError> {
        let other = folders::Folders::beside(dir).of(base.step);
        let not_there = |another| {
            let (path, base) = (dir.to_owned(), other.clone());
            CheckpointError::Base { path, base, another }
        };
        match Manifest::read(&other) {
            Ok((manifest, found)) if found == base && manifest.base.is_none() => {
                Ok(Self { dir: other, manifest, base: None, row_saves: vec![] })
            }
            Ok(_) => Err(not_there(true)),
            Err(CheckpointError::Missing { .. }) => Err(not_there(false)),
            Err(error) => Err(error),
        }
    }

    /// The same one, opened again where it stands. *Not collective.*
    ///
    /// # Errors
    /// As [`open_here`](Self::open_here).
    pub fn again(&self) -> Result<Self, CheckpointError> {
        Self::open_here(&self.dir)
    }

    /// The one with the rows that this one has not.
    pub(super) fn base(&self) -> Option<&Self> {
        self.base.as_deref()
    }

    /// Row saves since, the oldest first.
    #[must_use]
    pub fn row_saves(&self) -> &[Self] {
        &self.row_saves
    }

    /// Its files, and those of its base, which it is not whole without.
    fn files(&self) -> impl Iterator<Item = (&Path, &FileEntry)> {
        let all = core::iter::once(self).chain(self.base());
        all.flat_map(|it| it.manifest.files.iter().map(|file| (it.dir(), file)))
    }

    /// Reads all of it, and of its base, and compares every checksum. Returns its bytes, manifests
    /// aside.
    ///
    /// # Errors
    /// When something of it is not as it was written.
    pub fn verify(&self) -> Result<u64, CheckpointError> {
        self.files().map(|(dir, file)| file.verify(dir)).sum()
    }

    /// As [`verify`](Self::verify), each rank some of the files. *Collective over `control`.*
    ///
    /// # Errors
    /// When something of it is not as it was written: on every rank, of whom one has the message.
    pub fn verify_together(&self, control: &Comm) -> Result<(), Error> {
        let own = self.files().skip(control.rank()).step_by(control.size());
        let verified = own.map(|(dir, file)| file.verify(dir)).find_map(Result::err);
        control.barrier("the reading of a checkpoint", true)?;
        control.agree(verified.map_or(Ok(()), |error| Err(error.into())))
    }

    /// What the first rank has opened, to all. *Collective over `control`.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn tell(control: &Comm, opened: Option<Self>) -> Result<Self, Error> {
        let failure = |error: serde_json::Error| Error::Failure(format!("the manifest: {error}"));
        let both = |it: &Self| {
            let of = |it: &'_ Self| (it.dir.clone(), it.manifest.clone());
            let row_saves: Vec<_> = it.row_saves.iter().map(of).collect();
            serde_json::to_vec(&(of(it), it.base().map(of), row_saves))
        };
        let said = opened.as_ref().map(both);
        let mut said = said.transpose().map_err(failure)?.unwrap_or_default();
        let (mut length, what) = ([said.len() as u64], "the manifest of a checkpoint");
        control.broadcast(&mut length, what, false)?;
        said.resize(usize::try_from(length[0]).unwrap_or(usize::MAX), 0);
        control.broadcast(&mut said, what, false)?;
        if let Some(opened) = opened {
            return Ok(opened);
        }
        let (own, base, row_saves): (_, Option<_>, Vec<_>) =
            serde_json::from_slice(&said).map_err(failure)?;
        let told = |(dir, manifest)| Self { dir, manifest, base: None, row_saves: vec![] };
        let base = base.map(told).map(Box::new);
        Ok(Self { base, row_saves: row_saves.into_iter().map(told).collect(), ..told(own) })
    }

    /// The tensor `name`, of `values` values of so many `words` each, to be read from its beginning
    /// to its end.
    pub(super) fn reader(
        &self,
        name: &str,
        (values, words): (u64, u64),
    ) -> Result<PartReader, CheckpointError> {
        let (file, tensor) = self.tensor(name)?;
        let mismatch = |what, expected, got| {
            let path = self.dir.clone();
            Err(CheckpointError::Mismatch { path, what, expected, got })
        };
        if tensor.values() != Some(values) {
            let expected = format!("{values} of {name}");
            return mismatch("the number of values of a tensor", expected, shape(tensor));
        }
        if tensor.kind.words() != words {
            let expected = format!("{} bits of {name}", words * u64::from(u32::BITS));
            let got = format!("{:?}", tensor.kind);
            return mismatch("what the values of a tensor are", expected, got);
        }
        PartReader::tensor(&self.dir, &file.name, tensor)
    }

    /// Words of a record of rows.
    ///
    /// # Errors
    /// When it says of rows what cannot be.
    pub(super) fn record_words(&self) -> Result<usize, CheckpointError> {
        let Manifest { row_width, row_state_len, .. } = self.manifest;
        let words = row_width.checked_add(row_state_len).filter(|words| *words <= RECORD_MAX);
        words.filter(|_| row_width > 0).ok_or_else(|| CheckpointError::Manifest {
            path: self.dir.join(MANIFEST),
            message: format!("it says rows of {row_width} values, and {row_state_len} of state"),
        })
    }

    /// The tensor `name` has these extents.
    pub(super) fn has_shape(&self, name: &str, shape: &[u64]) -> Result<(), CheckpointError> {
        let got = &self.tensor(name)?.1.shape;
        if got == shape {
            return Ok(());
        }
        let (what, path) = ("the shape of a tensor", self.dir.clone());
        let (expected, got) = (format!("{shape:?} of {name}"), format!("{got:?}"));
        Err(CheckpointError::Mismatch { path, what, expected, got })
    }

    /// Values of the tensor `name`.
    pub(super) fn values(&self, name: &str) -> Result<u64, CheckpointError> {
        // Of extents that cannot be none can be read.
        Ok(self.tensor(name)?.1.values().unwrap_or(u64::MAX))
    }

    fn tensor(&self, name: &str) -> Result<(&FileEntry, &TensorEntry), CheckpointError> {
        let tensors = self.manifest.tensors();
        tensors.get(name).copied().ok_or_else(|| {
            let message = format!("it lists no tensor {name}");
            CheckpointError::Manifest { path: self.dir.join(MANIFEST), message }
        })
    }

    /// Rows are written with fewer bits than they had.
    #[must_use]
    pub fn rounds_rows(&self) -> bool {
        self.files().flat_map(|(_, file)| &file.tensors).any(|tensor| tensor.kind == Kind::Bf16)
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

    /// The row numbers of its tables.
    ///
    /// # Errors
    /// When it says of tables and partitions what cannot be.
    pub fn numbers(&self) -> Result<Vec<Numbers>, CheckpointError> {
        let message = match self.manifest.partitions {
            0 => "it says 0 partitions",
            _ => match self.manifest.numbers() {
                Some(numbers) => return Ok(numbers),
                None => "its tables do not fit into its partitions",
            },
        };
        Err(CheckpointError::Manifest {
            path: self.dir.join(MANIFEST),
            message: message.to_owned(),
        })
    }

    /// What was done to the raw values is what `transform` says, where both say something.
    ///
    /// # Errors
    /// When it is something else, with the first line that differs.
    pub fn same_transform(&self, transform: &str) -> Result<(), CheckpointError> {
        let there = &self.manifest.transform;
        if there.is_empty() || transform.is_empty() {
            return Ok(());
        }
        let Some((expected, got)) = first_difference(transform, there) else { return Ok(()) };
        let (what, path) = ("what was done to the raw values", self.dir.clone());
        Err(CheckpointError::Mismatch { path, what, expected, got })
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

fn shape(tensor: &TensorEntry) -> String {
    format!("{:?}", tensor.shape)
}

/// Words of a record, at most: no embedding is near that.
const RECORD_MAX: usize = 1 << 24;

/// A checkpoint that could not be read where others will do.
pub fn say_passed_over(error: &dyn core::fmt::Display) {
    say(&format!("umbra: warning: passed over a checkpoint: {error}"));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Under checksums that are right.
    #[test]
    fn tensors_of_another_kind_and_rows_that_cannot_be_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rank-00000.safetensors"), [0; 96]).unwrap();
        let of = |row_width, row_state_len| Checkpoint {
            dir: folder.path().to_owned(),
            manifest: Manifest { row_width, row_state_len, ..Manifest::example() },
            base: None,
            row_saves: vec![],
        };
        assert!(of(8, 1).reader("a", (2, 1)).is_ok());
        let refused = |length| of(8, 1).reader("a", length).err().unwrap().to_string();
        assert!(refused((2, 2)).contains("64 bits of a"), "{}", refused((2, 2)));
        assert!(refused((3, 1)).contains("the number of values"), "{}", refused((3, 1)));
        assert_eq!(of(8, 1).record_words().unwrap(), 9);
        for (width, state) in [(0, 0), (0, 1), (usize::MAX, 1), (1 << 40, 0)] {
            assert!(of(width, state).record_words().is_err(), "{width} and {state}");
        }
    }

    #[test]
    fn a_base_is_the_one_that_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let folder_of = |step: u64| {
            let dir = folder.path().join(format!("step-{step}"));
            std::fs::create_dir_all(&dir).unwrap();
            dir
        };
        let manifest = |steps, updates, base| Manifest {
            steps,
            updates,
            base,
            files: vec![],
            ..Manifest::example()
        };
        let base = manifest(4, 4, None).write(&folder_of(4)).unwrap();
        manifest(6, 6, Some(base)).write(&folder_of(6)).unwrap();
        // Through a link from elsewhere, too.
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(folder_of(6), elsewhere.path().join("best")).unwrap();
        for path in [folder_of(6), elsewhere.path().join("best")] {
            assert!(Checkpoint::open_here(&path).unwrap().base().is_some());
        }
        let refused = |expected| {
            let error = Checkpoint::open_here(&folder_of(6)).unwrap_err();
            let CheckpointError::Base { another, .. } = error else { panic!("{error}") };
            assert_eq!(another, expected);
        };
        // Another one of that step.
        manifest(4, 5, None).write(&folder_of(4)).unwrap();
        refused(true);
        std::fs::remove_dir_all(folder_of(4)).unwrap();
        refused(false);
        // It has not all rows either.
        let other = manifest(4, 4, Some(base)).write(&folder_of(4)).unwrap();
        manifest(6, 6, Some(other)).write(&folder_of(6)).unwrap();
        refused(true);
        std::fs::write(folder_of(4).join(MANIFEST), "{}").unwrap();
        let error = Checkpoint::open_here(&folder_of(6)).unwrap_err();
        assert!(matches!(error, CheckpointError::Manifest { .. }), "{error}");
    }
}
