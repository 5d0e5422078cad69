//! Whether a file is still the one whose structure was checked.
//!
//! A run opens its files again for every pass and evaluation. One that was written to or replaced
//! in between would be read as if nothing had happened.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::DatasetError;

/// What the system says of a file, and says again as long as nobody changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Stamp {
    /// That of the file at `path`.
    pub(crate) fn of(path: &Path) -> Result<Self, DatasetError> {
        let found = std::fs::metadata(path).map_err(|e| DatasetError::io(path, "look at", e))?;
        let modified = (found.mtime(), found.mtime_nsec());
        Ok(Self { inode: found.ino(), bytes: found.len(), modified })
    }

    /// The file at `path` is still this one.
    pub(crate) fn check(self, path: &Path) -> Result<(), DatasetError> {
        let now = Self::of(path)?;
        let what = if now.bytes != self.bytes {
            format!("it had {} bytes when the run began and has {}", self.bytes, now.bytes)
        } else if now.inode != self.inode {
            "another file has taken its place".into()
        } else if now.modified != self.modified {
            "it was written to".into()
        } else {
            return Ok(());
        };
        Err(DatasetError::Changed { path: path.to_owned(), what })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use core::time::Duration;
    use std::fs;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn what_was_changed_is_not_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::write(&path, "one").unwrap();
        let stamp = Stamp::of(&path).unwrap();
        let says = |words: &str| {
            let error = stamp.check(&path).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        stamp.check(&path).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        let then = file.metadata().unwrap().modified().unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(9)).unwrap();
        says("it was written to");
        file.set_modified(then).unwrap();
        stamp.check(&path).unwrap();
        fs::write(&path, "three").unwrap();
        says("it had 3 bytes when the run began and has 5");
        let other = folder.path().join("other");
        fs::write(&other, "two").unwrap();
        fs::rename(&other, &path).unwrap();
        says("another file has taken its place");
        fs::remove_file(&path).unwrap();
        says("cannot look at");
    }
}
