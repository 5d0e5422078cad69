//! Writing a checkpoint: every rank its own file, the manifest last.
//!
//! Everything is written to a folder of a temporary name and synced, files and folder; the rename
//! makes it visible, and is synced too (`folders.rs`).

use umbra_core::compress::to_half;
use umbra_core::kernel::Precision;

use super::contents::{Contents, Item};
use super::error::CheckpointError;
use super::file::{FileEntry, FileWriter};
use super::folders::{Folders, Link};
use super::manifest::{Base, Manifest};
use crate::comm::Comm;
use crate::error::Error;
use crate::record::say;
use crate::state::Kind;

/// What is done when a checkpoint has become the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    /// So many of the newest are kept.
    pub keep: usize,
    /// It is the one of the best validation.
    pub best: bool,
}

/// Writes the checkpoint of `manifest.steps` among `folders`, and makes it the newest. `manifest`
/// is used on the first rank. Nothing may train meanwhile. Returns its bytes. *Collective over
/// `comm`; `folders` equal on all ranks and on a file system they share.*
///
/// # Errors
/// When a file can't be written, on every rank; what was there before is there still.
pub fn write(
    comm: &Comm,
    folders: &Folders,
    manifest: Manifest,
    contents: &Contents<'_>,
    after: After,
) -> Result<u64, Error> {
    Ok(write_items(comm, folders, manifest, contents.items(), Some(after))?.0)
}

/// As [`write`], of tensors as they are; without `after`, what is written is no checkpoint, and is
/// not the newest of any. Returns on the first rank, beside the bytes, what it is the base by.
pub(super) fn write_items(
    comm: &Comm,
    folders: &Folders,
    manifest: Manifest,
    items: Vec<Item<'_>>,
    after: Option<After>,
) -> Result<(u64, Base), Error> {
    let (step, first) = (manifest.steps, comm.rank() == 0);
    let made = if first { folders.begin(step) } else { Ok(()) };
    comm.agree(made.map_err(Error::from))?;
    let entry = own_file(folders, step, comm.rank(), items);
    comm.barrier(WHAT, true)?;
    let entry = comm.agree(entry.map_err(Error::from))?;
    let json = serde_json::to_vec(&entry).map_err(|error| Error::Failure(error.to_string()))?;
    let all = comm.all_gather_varied(&json, WHAT)?;
    let files: Result<Vec<FileEntry>, _> =
        all.iter().map(|json| serde_json::from_slice(json)).collect();
    let files = files.map_err(|error| Error::Failure(error.to_string()))?;
    let bytes = files.iter().map(|file| file.bytes).sum();
    let finish = || {
        let base = Manifest { files, ..manifest }.write(&folders.temporary(step))?;
        let Some(After { keep, best }) = after else {
            folders.place(step)?;
            return Ok(base);
        };
        folders.commit(step)?;
        if best {
            folders.link(Link::Best, step)?;
        }
        folders.keep(step, keep)?;
        Ok(base)
    };
    let finished: Result<_, CheckpointError> =
        if first { finish() } else { Ok(Base { step, crc32: 0 }) };
    comm.barrier(WHAT, true)?;
    let base = comm.agree(finished.map_err(Error::from))?;
    Ok((bytes, base))
}

/// A checkpoint that could not be written where training goes on all the same: one rank says so.
pub fn say_unwritten(error: &Error) {
    if !error.is_silent() {
        say(&format!("umbra: warning: no checkpoint was written: {error}"));
    }
}

fn own_file(
    folders: &Folders,
    step: u64,
    rank: usize,
    items: Vec<Item<'_>>,
) -> Result<FileEntry, CheckpointError> {
    // Behind all others: what follows a value of 16 bits may stand on no multiple of its own.
    let (halves, mut items): (Vec<_>, Vec<_>) =
        items.into_iter().partition(|item| item.tensor.kind == Kind::Bf16);
    items.extend(halves);
    let (tensors, sources): (Vec<_>, Vec<_>) =
        items.into_iter().map(|item| (item.tensor, item.words)).unzip();
    let forms: Vec<_> = tensors.iter().map(|tensor| (tensor.kind, tensor.record)).collect();
    let name = format!("rank-{rank:05}.safetensors");
    let mut file = FileWriter::create(&folders.temporary(step), name, tensors)?;
    let (mut words, mut unpacked) = (vec![0; BLOCK], vec![]);
    for (number, (mut source, (kind, record))) in sources.into_iter().zip(forms).enumerate() {
        let packed = record.filter(|record| record.precision != Precision::F32);
        // Whole records, where they have another form in memory.
        let of = packed.map_or(1, |record| record.words());
        let room = (BLOCK / of).max(1) * of;
        words.resize(words.len().max(room), 0);
        loop {
            let length = source.fill(&mut words[..room]);
            if length == 0 {
                break;
            }
            let mut block = &mut words[..length];
            if let Some(record) = packed {
                unpacked.resize(length / of * record.len_f32(), 0);
                record.unpack(block, &mut unpacked);
                block = &mut unpacked;
            }
            if kind == Kind::Bf16 {
                let halves: Vec<[u8; 2]> =
                    block.iter().map(|word| to_half(f32::from_bits(*word)).to_le_bytes()).collect();
                file.append(number, halves.as_flattened())?;
            } else {
                block.iter_mut().for_each(|word| *word = word.to_le());
                file.append(number, bytemuck::cast_slice(block))?;
            }
        }
    }
    file.finish()
}

/// What waits say they are waiting for.
const WHAT: &str = "the files of a checkpoint";

/// Words written at a time.
const BLOCK: usize = 1 << 18;
