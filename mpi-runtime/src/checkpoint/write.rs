//! Writing a checkpoint: every rank its partitions, the first rank the rest, the manifest last.
//!
//! Everything is written to a folder of a temporary name and synced, files and folder; the rename
//! makes it visible, and is synced too.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use umbra_core::model::Model;

use super::dense::Dense;
use super::manifest::{CheckpointError, DENSE, FileEntry, MANIFEST, Manifest, rows_file};
use super::read::OLD;
use crate::comm::Comm;
use crate::error::Error;
use crate::launch::world::World;
use crate::state::{Scope, Section, Words};

/// What a rank has to write.
pub struct Contents<'a> {
    /// The manifest without its files; used on the first rank.
    pub manifest: Manifest,
    /// Whose dense parameters those are.
    pub model: &'a Model,
    /// The state of this rank, of which a model is a part: replica and optimizer state, used on the
    /// first rank, and rows.
    pub sections: &'a [Section<'a>],
}

/// Writes a checkpoint to `dir`, replacing what is there. Nothing may train meanwhile. Returns its
/// bytes. *Collective over `control`; `dir` equal on all ranks and on a file system they share.*
///
/// # Errors
/// When a file can't be written, on every rank.
pub fn write(
    world: &World,
    control: &Comm,
    dir: &Path,
    contents: Contents<'_>,
) -> Result<u64, Error> {
    let temporary = beside(dir, "tmp");
    let first = control.rank() == 0;
    let made = if first { make_empty(&temporary) } else { Ok(()) };
    world.agree(control, made.map_err(Error::from))?;
    let entries = own_files(&temporary, first, &contents);
    control.barrier("the files of a checkpoint", true)?;
    let entries = world.agree(control, entries.map_err(Error::from))?;
    let json = serde_json::to_vec(&entries).map_err(|error| Error::Failure(error.to_string()))?;
    let all = control.all_gather_varied(&json, "the files of a checkpoint")?;
    let mut files: Vec<FileEntry> = vec![];
    for json in &all {
        let entries: Result<Vec<FileEntry>, _> = serde_json::from_slice(json);
        files.extend(entries.map_err(|error| Error::Failure(error.to_string()))?);
    }
    let bytes = files.iter().map(|file| file.bytes).sum();
    let finished = if first {
        finish(&temporary, dir, Manifest { files, ..contents.manifest })
    } else {
        Ok(())
    };
    world.agree(control, finished.map_err(Error::from))?;
    Ok(bytes)
}

fn own_files(
    folder: &Path,
    first: bool,
    contents: &Contents<'_>,
) -> Result<Vec<FileEntry>, CheckpointError> {
    let mut entries = vec![];
    if first {
        let dense = Dense::saved(contents.model, contents.sections);
        entries.push(write_words(folder, DENSE.to_owned(), dense.words())?);
    }
    for section in contents.sections {
        if let (Scope::Partition(number), Words::Shared(rows)) = (section.scope, &section.words) {
            entries.push(write_words(folder, rows_file(number), rows.iter())?);
        }
    }
    Ok(entries)
}

fn write_words<'a>(
    folder: &Path,
    name: String,
    mut words: impl Iterator<Item = &'a AtomicU32>,
) -> Result<FileEntry, CheckpointError> {
    let path = folder.join(&name);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&path).map_err(at(&path))?);
    let (mut crc, mut bytes) = (crc32fast::Hasher::new(), 0);
    let mut block = Vec::with_capacity(BLOCK * 4);
    loop {
        block.clear();
        block.extend(words.by_ref().take(BLOCK).flat_map(|word| word.load(Relaxed).to_le_bytes()));
        if block.is_empty() {
            break;
        }
        crc.update(&block);
        bytes += block.len() as u64;
        file.write_all(&block).map_err(at(&path))?;
    }
    let file = file.into_inner().map_err(|error| at(&path)(error.into_error()))?;
    file.sync_all().map_err(at(&path))?;
    Ok(FileEntry { name, bytes, crc32: crc.finalize() })
}

/// Words written at a time.
const BLOCK: usize = 1 << 16;

fn finish(temporary: &Path, dir: &Path, manifest: Manifest) -> Result<(), CheckpointError> {
    let path = temporary.join(MANIFEST);
    let json = serde_json::to_string_pretty(&manifest).map_err(|error| {
        CheckpointError::Manifest { path: path.clone(), message: error.to_string() }
    })?;
    let mut file = File::create(&path).map_err(at(&path))?;
    file.write_all(json.as_bytes()).map_err(at(&path))?;
    file.sync_all().map_err(at(&path))?;
    sync_folder(temporary)?;
    replace(temporary, dir)
}

/// Puts `new` in the place of `dir`. At every moment one of `dir` and `dir.old` is whole: who finds
/// no `dir` reads that (`read.rs`). A folder cannot be renamed onto another, and exchanging two is
/// not for every file system.
fn replace(new: &Path, dir: &Path) -> Result<(), CheckpointError> {
    let old = beside(dir, OLD);
    if dir.exists() {
        remove(&old)?;
        fs::rename(dir, &old).map_err(at(dir))?;
    }
    fs::rename(new, dir).map_err(at(dir))?;
    // Before the old one goes, the new one must be there after a loss of power too.
    sync_folder(dir.parent().unwrap_or(dir))?;
    remove(&old)
}

/// Brings a folder's names to the disk, where its file system knows how to.
fn sync_folder(folder: &Path) -> Result<(), CheckpointError> {
    let here = Path::new(".");
    let folder = if folder.as_os_str().is_empty() { here } else { folder };
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if error.kind() != std::io::ErrorKind::InvalidInput => Err(at(folder)(error)),
        _ => Ok(()),
    }
}

fn make_empty(folder: &Path) -> Result<(), CheckpointError> {
    remove(folder)?;
    fs::create_dir_all(folder).map_err(at(folder))
}

fn remove(folder: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(at(folder)(error)),
        _ => Ok(()),
    }
}

/// `path` with `.suffix` behind its whole name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> CheckpointError + '_ {
    |source| CheckpointError::Io { path: path.to_owned(), source }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Whatever step of a replacement is the last one, `dir` or the folder beside it is whole, and
    /// the next replacement ends with the new one alone.
    #[test]
    fn a_replacement_cut_short_leaves_one_that_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let make = |name: &str, word: &str| {
            fs::create_dir_all(at(name)).unwrap();
            fs::write(at(name).join(MANIFEST), word).unwrap();
        };
        let word = |name: &str| fs::read_to_string(at(name).join(MANIFEST)).ok();
        for cut_after_first_rename in [false, true] {
            make("last", "first");
            make("last.tmp", "second");
            if cut_after_first_rename {
                fs::rename(at("last"), at("last.old")).unwrap();
                // The second save begins: it must not take the only one away.
                make_empty(&at("last.tmp")).unwrap();
                assert_eq!(word("last.old").as_deref(), Some("first"));
                make("last.tmp", "third");
            }
            replace(&at("last.tmp"), &at("last")).unwrap();
            let expected = if cut_after_first_rename { "third" } else { "second" };
            assert_eq!(word("last").as_deref(), Some(expected));
            assert!(!at("last.old").exists() && !at("last.tmp").exists());
        }
    }
}
