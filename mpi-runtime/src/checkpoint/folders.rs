//! The folders of a run's checkpoints.
//!
//! ```text
//! checkpoints/step-1200/    a checkpoint: manifest.json and the files that it lists
//! checkpoints/step-1500/
//! checkpoints/LATEST        "step-1500": the newest
//! checkpoints/last          a link to it
//! checkpoints/best          a link to the one of the best validation
//! checkpoints/rows-1600/    rows that were saved first, since the newest checkpoint
//! ```
//!
//! A checkpoint is written to `step-N.tmp`, synced, and renamed; then `LATEST` is replaced, then
//! the links. So whatever call of a save is the last one, a `step-N` is whole, and the newest of
//! them is the one that `LATEST` names or the one after it.
//!
//! Invariants: who finds a name without a manifest takes it for nothing. A folder that is removed
//! loses its manifest first.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::error::{CheckpointError, at};
use super::manifest::{MANIFEST, Manifest};
use crate::record::write_atomically;

/// Where a run's checkpoints are.
#[derive(Clone, Debug)]
pub struct Folders {
    dir: PathBuf,
    /// What stands before the step in their names.
    prefix: &'static str,
}

/// The links to checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// To the newest.
    Last,
    /// To the one of the best validation.
    Best,
}

impl Link {
    const fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Best => "best",
        }
    }
}

impl Folders {
    /// Those of a run whose `checkpoint.dir` is `dir`; it need not be there yet.
    #[must_use]
    pub const fn new(dir: PathBuf) -> Self {
        Self { dir, prefix: PREFIX }
    }

    /// Those that the one in `dir` is one of.
    #[must_use]
    pub fn beside(dir: &Path) -> Self {
        // What a link leads to has the neighbours.
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        Self::new(dir.parent().map_or_else(PathBuf::new, Path::to_owned))
    }

    /// The row saves beside these checkpoints.
    #[must_use]
    pub fn of_rows(&self) -> Self {
        Self { dir: self.dir.clone(), prefix: ROWS }
    }

    /// The folder of step `step`.
    #[must_use]
    pub fn of(&self, step: u64) -> PathBuf {
        self.dir.join(format!("{}{step}", self.prefix))
    }

    /// Where the checkpoint of `step` is written to.
    pub(super) fn temporary(&self, step: u64) -> PathBuf {
        self.dir.join(format!("{}{step}.{TEMPORARY}", self.prefix))
    }

    /// Makes the empty folder that the checkpoint of `step` is written to. What saves that were cut
    /// short have left goes.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn begin(&self, step: u64) -> Result<(), CheckpointError> {
        for name in self.names()? {
            if name.starts_with(self.prefix) && name.ends_with(TEMPORARY) {
                remove(&self.dir.join(name))?;
            }
        }
        let folder = self.temporary(step);
        fs::create_dir_all(&folder).map_err(at(&folder))
    }

    /// Makes the folder of [`begin`](Self::begin), in which everything has been written and synced,
    /// the checkpoint of `step`, and the newest.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn commit(&self, step: u64) -> Result<(), CheckpointError> {
        self.place(step)?;
        self.name_latest(step)
    }

    /// As [`commit`](Self::commit), of what is not the newest of any.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn place(&self, step: u64) -> Result<(), CheckpointError> {
        let (from, to) = (self.temporary(step), self.of(step));
        sync_folder(&from)?;
        // One of that name is of a run that ended in the middle of removing it, or of this step
        // once more.
        remove(&to)?;
        fs::rename(&from, &to).map_err(at(&to))?;
        sync_folder(&self.dir)
    }

    /// Makes the checkpoint of `step`, which is there, the newest.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn name_latest(&self, step: u64) -> Result<(), CheckpointError> {
        let named =
            write_atomically(&self.dir.join(LATEST), format!("{PREFIX}{step}\n").as_bytes());
        named.map_err(|error| CheckpointError::Io {
            path: self.dir.join(LATEST),
            source: io::Error::other(error.to_string()),
        })?;
        self.link(Link::Last, step)
    }

    /// Makes `link` lead to the checkpoint of `step`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn link(&self, link: Link, step: u64) -> Result<(), CheckpointError> {
        let path = self.dir.join(link.name());
        let new = self.dir.join(format!(".{}.tmp", link.name()));
        // What a save that was cut short has left, and a folder that this name had before it was a
        // link's.
        gone(fs::remove_file(&new), &new)?;
        if fs::symlink_metadata(&path).is_ok_and(|there| there.is_dir()) {
            remove(&path)?;
        }
        symlink(format!("{PREFIX}{step}"), &new).map_err(at(&new))?;
        fs::rename(&new, &path).map_err(at(&path))?;
        sync_folder(&self.dir)
    }

    /// Where `link` leads; `None` when it is not there or leads elsewhere.
    #[must_use]
    pub fn linked(&self, link: Link) -> Option<u64> {
        step_of(fs::read_link(self.dir.join(link.name())).ok()?.to_str()?)
    }

    /// What `LATEST` names; `None` when it is not there or says something else.
    #[must_use]
    pub fn latest(&self) -> Option<u64> {
        step_of(fs::read_to_string(self.dir.join(LATEST)).ok()?.trim_end())
    }

    /// Steps with a checkpoint, the newest first.
    ///
    /// # Errors
    /// When the folder can't be read; one that is not there has none.
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        let names = self.names()?.into_iter();
        let number = |name: String| number_of(&name, self.prefix);
        let mut steps: Vec<u64> = names.filter_map(number).collect();
        steps.retain(|step| self.of(*step).join(MANIFEST).exists());
        steps.sort_unstable_by(|a, b| b.cmp(a));
        Ok(steps)
    }

    /// Removes all checkpoints but the newest `most`, that of the best validation, and their bases.
    /// Not those of later steps than `newest`, which another run has left: they are not this one's
    /// to remove.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn keep(&self, newest: u64, most: usize) -> Result<(), CheckpointError> {
        let best = self.linked(Link::Best);
        let (others, own): (Vec<_>, Vec<_>) =
            self.steps()?.into_iter().partition(|step| *step > newest);
        let (kept, rest) = own.split_at(most.max(1).min(own.len()));
        let (best, rest): (Vec<_>, Vec<_>) = rest.iter().partition(|step| Some(**step) == best);
        let stay = others.iter().chain(kept).chain(best);
        // One that can't be read has no use for a base.
        let base = |step: &u64| Manifest::read_alone(&self.of(*step)).ok()?.0.base;
        let bases: Vec<u64> = stay.filter_map(base).map(|base| base.step).collect();
        for step in rest.into_iter().filter(|step| !bases.contains(step)) {
            remove(&self.of(*step))?;
        }
        self.of_rows().remove(|step| step <= newest)
    }

    /// Removes those of which `which` is true of their step.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn remove(&self, which: impl Fn(u64) -> bool) -> Result<(), CheckpointError> {
        self.steps()?
            .into_iter()
            .filter(|step| which(*step))
            .try_for_each(|step| remove(&self.of(step)))
    }

    /// Removes all that [`commit`](Self::commit) and [`link`](Self::link) have made.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn clear(&self) -> Result<(), CheckpointError> {
        let named = |name: &str| [PREFIX, ROWS].iter().any(|prefix| name.starts_with(prefix));
        for name in [LATEST, Link::Last.name(), Link::Best.name()] {
            let path = self.dir.join(name);
            if fs::symlink_metadata(&path).is_ok_and(|there| !there.is_dir()) {
                gone(fs::remove_file(&path), &path)?;
            }
        }
        for name in self.names()?.into_iter().filter(|name| named(name)) {
            remove(&self.dir.join(name))?;
        }
        Ok(())
    }

    /// Names in the folder.
    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries.map_err(at(&self.dir))?,
        };
        let name = |entry: io::Result<fs::DirEntry>| {
            Ok(entry.map_err(at(&self.dir))?.file_name().to_string_lossy().into_owned())
        };
        entries.map(name).collect()
    }
}

/// The checkpoint that a user means by `path`: that folder, or the newest of a run folder or of its
/// `checkpoints`.
///
/// # Errors
/// When there is none.
pub(super) fn find(path: &Path) -> Result<PathBuf, CheckpointError> {
    let newest = |dir: &Path| {
        let folders = Folders::new(dir.to_owned());
        folders.latest().map(|step| folders.of(step))
    };
    let places = [Some(path.to_owned()), newest(path), newest(&path.join("checkpoints"))];
    let found = places.into_iter().flatten().find(|place| place.join(MANIFEST).exists());
    found.ok_or_else(|| CheckpointError::Missing { path: path.to_owned() })
}

/// The step of a checkpoint's name.
fn step_of(name: &str) -> Option<u64> {
    number_of(name, PREFIX)
}

fn number_of(name: &str, prefix: &str) -> Option<u64> {
    let step: u64 = name.strip_prefix(prefix)?.parse().ok()?;
    // No other way of writing the number names the folder.
    (format!("{prefix}{step}") == name).then_some(step)
}

/// Removes a checkpoint: from its first step on it is none.
fn remove(folder: &Path) -> Result<(), CheckpointError> {
    let manifest = folder.join(MANIFEST);
    gone(fs::remove_file(&manifest), &manifest)?;
    gone(fs::remove_dir_all(folder), folder)
}

/// What is not there is gone.
fn gone(result: io::Result<()>, path: &Path) -> Result<(), CheckpointError> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

/// Brings a folder's names to the disk, where its file system knows how to.
pub(super) fn sync_folder(folder: &Path) -> Result<(), CheckpointError> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(at(folder)(error)),
        _ => Ok(()),
    }
}

const LATEST: &str = "LATEST";
const PREFIX: &str = "step-";
const ROWS: &str = "rows-";
const TEMPORARY: &str = "tmp";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn save(folders: &Folders, step: u64) {
        folders.begin(step).unwrap();
        fs::write(folders.temporary(step).join(MANIFEST), step.to_string()).unwrap();
        folders.commit(step).unwrap();
    }

    #[test]
    fn the_newest_and_the_best_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let folders = Folders::new(folder.path().join("checkpoints"));
        assert_eq!(folders.steps().unwrap(), [0; 0]);
        for step in [8, 9, 10, 100, 1000] {
            save(&folders, step);
            if step == 9 {
                folders.link(Link::Best, step).unwrap();
            }
            folders.keep(step, 2).unwrap();
        }
        assert_eq!(folders.steps().unwrap(), [1000, 100, 9]);
        assert_eq!((folders.latest(), folders.linked(Link::Last)), (Some(1000), Some(1000)));
        assert_eq!(folders.linked(Link::Best), Some(9));
        // A run that went back: what it did not write is not its own.
        save(&folders, 50);
        folders.keep(50, 1).unwrap();
        assert_eq!(folders.steps().unwrap(), [1000, 100, 50, 9]);
    }

    #[test]
    fn a_base_stays_as_long_as_what_needs_it() {
        let folder = tempfile::tempdir().unwrap();
        let folders = Folders::new(folder.path().to_owned());
        let save = |steps, base, best| {
            folders.begin(steps).unwrap();
            let manifest = Manifest { steps, base, files: vec![], ..Manifest::example() };
            let base = manifest.write(&folders.temporary(steps)).unwrap();
            folders.commit(steps).unwrap();
            if best {
                folders.link(Link::Best, steps).unwrap();
            }
            folders.keep(steps, 1).unwrap();
            (base, folders.steps().unwrap())
        };
        let (one, _) = save(1, None, false);
        assert_eq!(save(2, Some(one), false).1, [2, 1]);
        assert_eq!(save(3, Some(one), true).1, [3, 1]);
        let (four, steps) = save(4, None, false);
        assert_eq!(steps, [4, 3, 1]);
        assert_eq!(save(5, Some(four), true).1, [5, 4]);
        // One that another run has left keeps its base too.
        assert_eq!(save(2, None, false).1, [5, 4, 2]);
        assert_eq!(save(4, None, false).1, [5, 4]);
    }

    #[test]
    fn row_saves_stay_until_the_next_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let folders = Folders::new(folder.path().to_owned());
        let rows = folders.of_rows();
        save(&folders, 4);
        for step in [5, 6, 9] {
            rows.begin(step).unwrap();
            fs::write(rows.temporary(step).join(MANIFEST), "").unwrap();
            rows.place(step).unwrap();
        }
        // They are no checkpoints.
        assert_eq!((folders.steps().unwrap(), folders.latest()), (vec![4], Some(4)));
        assert_eq!(rows.steps().unwrap(), [9, 6, 5]);
        rows.remove(|step| step > 6).unwrap();
        save(&folders, 8);
        assert_eq!(rows.steps().unwrap(), [6, 5], "until it is the newest");
        folders.keep(8, 1).unwrap();
        assert_eq!((rows.steps().unwrap(), folders.steps().unwrap()), (vec![], vec![8]));
    }

    #[test]
    fn what_is_not_whole_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let folders = Folders::new(folder.path().to_owned());
        save(&folders, 5);
        // Cut short while it was written, and while it was removed.
        folders.begin(6).unwrap();
        fs::create_dir(folder.path().join("step-4")).unwrap();
        fs::create_dir(folder.path().join("step-07")).unwrap();
        assert_eq!(folders.steps().unwrap(), [5]);
        // The next save takes both away.
        save(&folders, 4);
        assert!(!folder.path().join("step-6.tmp").exists());
        assert_eq!(folders.steps().unwrap(), [5, 4]);
        fs::write(folder.path().join(LATEST), "step-").unwrap();
        assert_eq!(folders.latest(), None);
    }

    #[test]
    fn a_checkpoint_is_found_by_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let (run, dir) = (folder.path(), folder.path().join("checkpoints"));
        let folders = Folders::new(dir.clone());
        assert!(matches!(find(run), Err(CheckpointError::Missing { .. })));
        save(&folders, 3);
        folders.link(Link::Best, 3).unwrap();
        save(&folders, 4);
        let found = |path: &Path| find(path).unwrap().canonicalize().unwrap();
        let of = |step| folders.of(step).canonicalize().unwrap();
        for path in [run, &dir, &dir.join("last"), &dir.join("step-4")] {
            assert_eq!(found(path), of(4), "{}", path.display());
        }
        for path in [&dir.join("best"), &dir.join("step-3")] {
            assert_eq!(found(path), of(3), "{}", path.display());
        }
        assert!(matches!(find(&dir.join("step-9")), Err(CheckpointError::Missing { .. })));
    }
}
