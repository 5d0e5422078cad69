//! Writing a checkpoint: every rank its own file, the manifest last.
//!
//! Everything is written to a folder of a temporary name and synced, files and folder; the rename
//! makes it visible, and is synced too (`folders.rs`).

use super::contents::{Contents, Item};
use super::error::CheckpointError;
use super::file::{FileEntry, FileWriter};
use super::folders::Folders;
use super::manifest::Manifest;
use crate::comm::Comm;
use crate::error::Error;
use crate::launch::world::World;

/// Writes the checkpoint of `manifest.steps` among `folders`, and makes it the newest. `manifest`
/// is used on the first rank. Nothing may train meanwhile. Returns its bytes. *Collective over
/// `control`; `folders` equal on all ranks and on a file system they share.*
///
/// # Errors
/// When a file can't be written, on every rank; what was there before is there still.
pub fn write(
    world: &World,
    control: &Comm,
    folders: &Folders,
    manifest: Manifest,
    contents: &Contents<'_>,
) -> Result<u64, Error> {
    let (step, first) = (manifest.steps, control.rank() == 0);
    let made = if first { folders.begin(step) } else { Ok(()) };
    world.agree(control, made.map_err(Error::from))?;
    let entry = own_file(folders, step, control.rank(), contents);
    control.barrier(WHAT, true)?;
    let entry = world.agree(control, entry.map_err(Error::from))?;
    let json = serde_json::to_vec(&entry).map_err(|error| Error::Failure(error.to_string()))?;
    let all = control.all_gather_varied(&json, WHAT)?;
    let files: Result<Vec<FileEntry>, _> =
        all.iter().map(|json| serde_json::from_slice(json)).collect();
    let files = files.map_err(|error| Error::Failure(error.to_string()))?;
    let bytes = files.iter().map(|file| file.bytes).sum();
    let finish = || {
        Manifest { files, ..manifest }.write(&folders.temporary(step))?;
        folders.commit(step)
    };
    let finished = if first { finish() } else { Ok(()) };
    world.agree(control, finished.map_err(Error::from))?;
    Ok(bytes)
}

fn own_file(
    folders: &Folders,
    step: u64,
    rank: usize,
    contents: &Contents<'_>,
) -> Result<FileEntry, CheckpointError> {
    let items = contents.items();
    let (tensors, sources): (Vec<_>, Vec<_>) =
        items.into_iter().map(|Item { tensor, words }| (tensor, words)).unzip();
    let name = format!("rank-{rank:05}.safetensors");
    let mut file = FileWriter::create(&folders.temporary(step), name, tensors)?;
    let (mut words, mut bytes) = (vec![0; BLOCK], Vec::with_capacity(4 * BLOCK));
    for (number, mut source) in sources.into_iter().enumerate() {
        loop {
            let length = source.fill(&mut words);
            if length == 0 {
                break;
            }
            bytes.clear();
            bytes.extend(words[..length].iter().flat_map(|word| word.to_le_bytes()));
            file.append(number, &bytes)?;
        }
    }
    file.finish()
}

/// What waits say they are waiting for.
const WHAT: &str = "the files of a checkpoint";

/// Words written at a time.
const BLOCK: usize = 1 << 18;
