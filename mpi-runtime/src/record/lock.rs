//! A run folder has one owner at a time: the process that holds the lock on its `run.lock`.
//!
//! The system lets a lock go when its process ends, however it ends, so a dead owner is none. What
//! stands in the file says who the owner is.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::launch::environment::scheduled_job;

/// A folder that is this process's until it is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the folder `folder`, for a process on `host`.
    ///
    /// # Errors
    /// When another process has it ([`Error::Usage`], which names that one), or the system refuses.
    pub(super) fn take(folder: &Path, host: &str) -> Result<Self, Error> {
        Self::try_take(folder, host)?.map_err(|owner| {
            Error::Usage(format!(
                "run.dir = {}: another job writes there ({owner}); choose another folder with \
                 --set run.dir=…",
                folder.display(),
            ))
        })
    }

    /// As [`take`](Self::take); where another process has it, what that one says of itself.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn try_take(folder: &Path, host: &str) -> Result<Result<Self, String>, Error> {
        let path = folder.join(NAME);
        let failed = |source| Error::file(&path, "lock it", source);
        loop {
            let mut options = File::options();
            let file = options.read(true).write(true).create(true).truncate(false).open(&path);
            let mut file = file.map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut owner = String::new();
                    // Who it is, is for the message alone.
                    let _ = file.read_to_string(&mut owner);
                    return Ok(Err(owner.trim_end().to_owned()));
                }
                // A file system without locks: better a run without one than none.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // The owner before may just have taken the file away.
            let same = fs::metadata(&path).is_ok_and(|there| {
                file.metadata()
                    .is_ok_and(|own| (own.dev(), own.ino()) == (there.dev(), there.ino()))
            });
            if !same {
                continue;
            }
            let written = file.set_len(0).and_then(|()| file.rewind());
            written.and_then(|()| file.write_all(owner(host).as_bytes())).map_err(failed)?;
            return Ok(Ok(Self { file, path }));
        }
    }

    /// Whether the folder still has this lock in it: it has not been moved or removed.
    pub(super) fn is_there(&self) -> bool {
        let own = self.file.metadata();
        own.is_ok_and(|own| fs::metadata(&self.path).is_ok_and(|there| own.ino() == there.ino()))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.is_there() {
            // What is left would only be in the way of the eye.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Host, process and, under a scheduler, job.
fn owner(host: &str) -> String {
    let job = scheduled_job(&|name| std::env::var(name).ok());
    let job = job.map_or_else(String::new, |job| format!(", job {job}"));
    format!("host {host}, process {}{job}\n", std::process::id())
}

const NAME: &str = "run.lock";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_owner_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::take(folder.path(), "here").unwrap();
        let error = Lock::take(folder.path(), "there").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let owner = format!("(host here, process {}", std::process::id());
        assert!(error.to_string().contains(&owner), "{error}");
        drop(lock);
        assert!(!folder.path().join(NAME).exists());
        drop(Lock::take(folder.path(), "there").unwrap());
        // What a process that was killed has left is no lock.
        fs::write(folder.path().join(NAME), "host gone, process 1\n").unwrap();
        drop(Lock::take(folder.path(), "here").unwrap());
    }

    #[test]
    fn a_folder_that_goes_is_missed() {
        let folder = tempfile::tempdir().unwrap();
        let (run, moved) = (folder.path().join("run"), folder.path().join("moved"));
        fs::create_dir(&run).unwrap();
        let lock = Lock::take(&run, "here").unwrap();
        assert!(lock.is_there());
        fs::rename(&run, &moved).unwrap();
        assert!(!lock.is_there());
    }
}
