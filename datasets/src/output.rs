//! Files that we write: never in the place of an input, a device or a link, nothing replaced
//! unasked, and nothing left behind by a writer that does not come to its end.
//!
//! Invariants: the content stands under a temporary name in the same folder until it is complete
//! and on disk; a link is followed, never replaced; a writer that is dropped removes its temporary
//! file. What a killed one left is removed by the next writer of the same output once it is an hour
//! old and nobody holds its lock.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Why a file cannot be the output. A mistake in the call.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The name is that of a folder, a device or the like.
    #[error("{}: the output is {what}: choose the name of a file", path.display())]
    NotAFile {
        /// The output.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// A link that leads nowhere.
    #[error(
        "{}: the output is a link to {}, which is not there: create it, or remove the link",
        path.display(), target.display()
    )]
    Dangling {
        /// The output.
        path: PathBuf,
        /// What the link names.
        target: PathBuf,
    },
    /// The output would replace a file that is being read.
    #[error(
        "{}: the output is one of the files to read ({}): choose another name",
        path.display(), input.display()
    )]
    IsInput {
        /// The output.
        path: PathBuf,
        /// The file to read.
        input: PathBuf,
    },
    /// The output is there already.
    #[error(
        "{}: the output exists: choose another name, or replace it with --overwrite",
        path.display()
    )]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// The folder of the output is not there.
    #[error("{}: the folder {} does not exist: create it first", path.display(), folder.display())]
    Folder {
        /// The output.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
    },
    /// The folder takes no new file.
    #[error("{}: cannot write into {}: {source}", path.display(), folder.display())]
    Unwritable {
        /// The output.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
        /// The system's own words.
        source: io::Error,
    },
    /// A name that is none, or that HDF5 cannot be given.
    #[error("{}: expected a path in UTF-8 that ends in a file name", path.display())]
    Name {
        /// The output.
        path: PathBuf,
    },
}

/// Checks that `path` can be written and harms nothing that is there: none of `inputs`, no folder
/// or device, no file unless `overwrite` says so. Returns where its content goes: `path`, or what
/// it is a link to.
///
/// # Errors
/// The first thing that is against it. Nothing is left in the folder.
pub fn check<'a>(
    path: &Path,
    inputs: impl IntoIterator<Item = &'a Path>,
    overwrite: bool,
) -> Result<PathBuf, OutputError> {
    let at = || path.to_path_buf();
    if path.to_str().is_none() || path.file_name().is_none() {
        return Err(OutputError::Name { path: at() });
    }
    let target = match path.canonicalize() {
        Ok(target) => target,
        Err(_) if fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) => {
            let target = fs::read_link(path).unwrap_or_default();
            return Err(OutputError::Dangling { path: at(), target });
        }
        Err(_) => at(),
    };
    let folder = folder_of(&target).to_path_buf();
    if !folder.is_dir() {
        return Err(OutputError::Folder { path: at(), folder });
    }
    if let Ok(found) = fs::metadata(&target) {
        let kind = found.file_type();
        let what = match () {
            () if kind.is_dir() => Some("a folder"),
            () if kind.is_fifo() => Some("a pipe"),
            () if kind.is_socket() => Some("a socket"),
            () if kind.is_char_device() || kind.is_block_device() => Some("a device"),
            () => None,
        };
        if let Some(what) = what {
            return Err(OutputError::NotAFile { path: at(), what });
        }
        let same = |input: &&Path| {
            let input = fs::metadata(input);
            input.is_ok_and(|i| (i.dev(), i.ino()) == (found.dev(), found.ino()))
        };
        if let Some(input) = inputs.into_iter().find(same) {
            return Err(OutputError::IsInput { path: at(), input: input.to_path_buf() });
        }
        if !overwrite {
            return Err(OutputError::Exists { path: at() });
        }
    }
    // The system itself says whether the folder takes a file.
    let probe = Temporary::beside(&target).map_err(|_| OutputError::Name { path: at() })?;
    match File::create(&probe.path) {
        Ok(_) => Ok(target),
        Err(source) => Err(OutputError::Unwritable { path: at(), folder, source }),
    }
}

/// The folder that `path` is in.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The file under its temporary name; removed when dropped before it is published.
#[derive(Debug)]
pub struct Temporary {
    path: PathBuf,
}

impl Temporary {
    /// A name in the folder of `path` that no other writer uses. The file is not made.
    ///
    /// # Errors
    /// When `path` has no name in UTF-8.
    pub fn beside(path: &Path) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let wrong = || io::Error::from(io::ErrorKind::InvalidFilename);
        let name = path.to_str().and(path.file_name()).and_then(|name| name.to_str());
        let name = name.ok_or_else(wrong)?;
        remove_abandoned(folder_of(path), name);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary = format!(".{name}.{}-{number}{ENDING}", std::process::id());
        Ok(Self { path: path.with_file_name(temporary) })
    }

    /// The temporary name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Brings the content to the disk and gives it the name `path`, in the place of what is there
    /// or, without `replace`, only where nothing is. Returns its size in bytes.
    ///
    /// # Errors
    /// The system's own, with what was attempted.
    pub fn publish(self, path: &Path, replace: bool) -> Result<u64, (&'static str, io::Error)> {
        let doing = |doing| move |error| (doing, error);
        let file = File::open(&self.path).map_err(doing("reopen"))?;
        file.sync_all().map_err(doing("flush"))?;
        let bytes = file.metadata().map_err(doing("measure"))?.len();
        if replace {
            fs::rename(&self.path, path).map_err(doing("rename"))?;
        } else {
            // A link is made only where no file is; dropping this removes the other name.
            match fs::hard_link(&self.path, path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(("create", error));
                }
                // A file system without links: looked at just before.
                Err(_) if !path.exists() => {
                    fs::rename(&self.path, path).map_err(doing("rename"))?;
                }
                linked => linked.map_err(doing("create"))?,
            }
        }
        drop(self);
        File::open(folder_of(path))
            .and_then(|folder| folder.sync_all())
            .map_err(doing("flush the folder of"))?;
        Ok(bytes)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Once published the name is gone; else an error is already on its way to the user.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes temporary files of the output `name` that their writers cannot have any use for.
fn remove_abandoned(folder: &Path, name: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let start = format!(".{name}.");
    for entry in entries.flatten() {
        let found = entry.file_name();
        let Some(rest) = found.to_str().and_then(|found| found.strip_prefix(&start)) else {
            continue;
        };
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let numbers = rest.strip_suffix(ENDING).and_then(|rest| rest.split_once('-'));
        if !numbers.is_some_and(|(process, number)| digits(process) && digits(number)) {
            continue;
        }
        let age = entry.metadata().and_then(|found| found.modified()).ok();
        let old = age.and_then(|then| then.elapsed().ok()).is_some_and(|age| age > ABANDONED);
        // HDF5 locks what it writes.
        let free = old && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        if free {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// How temporary names end.
const ENDING: &str = ".partial";

/// A file that has not been written to for so long is nobody's: writers write all the time.
const ABANDONED: Duration = Duration::from_secs(3600);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use super::*;

    fn refusal(path: &Path, inputs: &[&Path], overwrite: bool) -> String {
        check(path, inputs.iter().copied(), overwrite).unwrap_err().to_string()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_there_is_never_harmed_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("input"), "rows").unwrap();
        fs::hard_link(at("input"), at("same")).unwrap();
        fs::write(at("old"), "older").unwrap();
        symlink(at("old"), at("link")).unwrap();
        symlink(at("nothing"), at("dangling")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        let input = at("input");
        let inputs = [input.as_path()];
        for name in ["input", "same"] {
            assert!(refusal(&at(name), &inputs, true).contains("one of the files to read"));
        }
        assert!(refusal(&at("old"), &inputs, false).contains("the output exists"));
        assert!(refusal(&at("link"), &inputs, false).contains("the output exists"));
        assert!(refusal(&at("dangling"), &inputs, true).contains("is a link to"));
        assert!(refusal(&at("folder"), &inputs, true).contains("is a folder"));
        assert!(refusal("/dev/null".as_ref(), &inputs, true).contains("is a device"));
        assert!(refusal(&at("no/new"), &inputs, true).contains("does not exist"));
        assert!(refusal(&at(".."), &inputs, true).contains("ends in a file name"));
        assert_eq!(check(&at("new"), inputs, false).unwrap(), at("new"));
        // What the link leads to is replaced, and the link stays.
        let target = check(&at("link"), inputs, true).unwrap();
        assert_eq!(target, at("old").canonicalize().unwrap());
        assert_eq!(names(folder.path()), ["dangling", "folder", "input", "link", "old", "same"]);
    }

    #[test]
    fn a_file_that_appears_on_the_way_is_not_replaced_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let write = || {
            let temporary = Temporary::beside(&path).unwrap();
            fs::write(temporary.path(), "new").unwrap();
            temporary
        };
        assert_eq!(write().publish(&path, false).unwrap(), 3);
        fs::write(&path, "other").unwrap();
        let (doing, error) = write().publish(&path, false).unwrap_err();
        assert_eq!((doing, error.kind()), ("create", io::ErrorKind::AlreadyExists));
        assert_eq!(fs::read(&path).unwrap(), b"other");
        write().publish(&path, true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn what_killed_writers_left_goes_and_what_others_write_stays() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let old = SystemTime::now() - 2 * ABANDONED;
        let all = [".a.1-0.partial", ".a.2-0.partial", ".a.3-0.partial", ".ab.1-0.partial", ".a.x"];
        let files = all.map(|name| File::create(at(name)).unwrap());
        files[0].set_modified(old).unwrap();
        files[1].set_modified(old).unwrap();
        files[1].lock().unwrap();
        files[3].set_modified(old).unwrap();
        files[4].set_modified(old).unwrap();
        check(&at("a"), [], false).unwrap();
        assert_eq!(
            names(folder.path()),
            [".a.2-0.partial", ".a.3-0.partial", ".a.x", ".ab.1-0.partial"]
        );
    }
}
