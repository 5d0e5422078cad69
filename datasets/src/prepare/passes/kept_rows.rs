//! Rows between reading and writing: ids are known once all keys have been counted, and until then
//! rows stand, with numbers for keys, in a file beside the output.
//!
//! So a text is read once, and may be a pipe, or packed in a way that is dear to undo; and nothing
//! that happens to it meanwhile can make the keys of one text and the rows of another.
//!
//! Invariants: the file has no name, so that nothing is left of it however the process ends; blocks
//! come back in the order in which they were kept, and are compared with their checksums.

use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::plan::Plan;
use crate::output;
use crate::prepare::error::PrepareError;
use crate::prepare::formats::kept::{KeptBlock, Shape, checksum, columns};
use crate::prepare::formats::parsed::{Block, Parsed};

/// Rows that are kept, block by block.
pub(crate) struct KeptRows {
    folder: PathBuf,
    file: File,
    /// With the checksum of each.
    blocks: Vec<(Shape, u64)>,
}

impl KeptRows {
    /// None so far, in the folder of the output.
    pub(crate) fn create(plan: &Plan) -> Result<Self, PrepareError> {
        let folder = output::folder_of(&plan.output).to_path_buf();
        match tempfile::tempfile_in(&folder) {
            Ok(file) => Ok(Self { folder, file, blocks: Vec::new() }),
            Err(source) => Err(PrepareError::Kept { folder, doing: "create", source }),
        }
    }

    /// Appends the rows of `parsed` with `numbers` in the place of its keys. `[S]`
    pub(super) fn push<'a>(
        &mut self,
        parsed: &'a Parsed,
        numbers: impl Iterator<Item = &'a [u32]>,
    ) -> Result<(), PrepareError> {
        let (shape, columns) = columns(parsed, numbers);
        let sum = checksum(columns.iter().copied());
        for column in columns {
            self.file.write_all(column).map_err(|source| PrepareError::Kept {
                folder: self.folder.clone(),
                doing: "write",
                source,
            })?;
        }
        self.blocks.push((shape, sum));
        Ok(())
    }

    /// Bytes of all blocks.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.iter().map(|(shape, _)| shape.bytes() as u64).sum()
    }

    /// All blocks. Their bytes are added to `bytes_read`, and buffers from `spent` are used again.
    pub(super) fn blocks(
        self,
        bytes_read: Arc<AtomicU64>,
        spent: Receiver<Vec<u8>>,
    ) -> impl Iterator<Item = Result<Block, PrepareError>> + Send {
        let Self { folder, mut file, blocks } = self;
        let mut rewound = file.rewind();
        blocks.into_iter().map(move |(shape, sum)| {
            let mut bytes = spent.try_recv().unwrap_or_default();
            bytes.resize(shape.bytes(), 0);
            let rewound = core::mem::replace(&mut rewound, Ok(()));
            let read = rewound.and_then(|()| file.read_exact(&mut bytes)).and_then(|()| {
                let is_same = checksum(shape.columns(&bytes)) == sum;
                is_same.then_some(()).ok_or_else(|| io::Error::other("they are others now"))
            });
            bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            match read {
                Ok(()) => Ok(Block::Kept(KeptBlock { shape, bytes })),
                Err(source) => {
                    Err(PrepareError::Kept { folder: folder.clone(), doing: "read", source })
                }
            }
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::prepare::keys::key_column::Keys;
    use std::os::unix::fs::FileExt;
    use std::sync::mpsc::channel;

    fn kept(folder: &std::path::Path) -> KeptRows {
        let file = tempfile::tempfile_in(folder).unwrap();
        let mut kept = KeptRows { folder: folder.into(), file, blocks: Vec::new() };
        for rows in [3, 2] {
            let parsed = Parsed { label: vec![1.0; rows], rows, ..Parsed::default() };
            kept.push(&parsed, [&[1, 2, 3][..rows]].into_iter()).unwrap();
        }
        kept
    }

    #[test]
    fn blocks_come_back_and_a_changed_byte_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let (_, spent) = channel();
        let bytes_read = Arc::new(AtomicU64::new(0));
        let whole = kept(folder.path());
        assert_eq!(whole.bytes(), 5 * 8);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it has no name");
        let mut rows = Vec::new();
        for block in whole.blocks(Arc::clone(&bytes_read), spent) {
            let mut parsed = Parsed {
                keys: vec![Keys::Number(Vec::new())],
                bag_ends: vec![None],
                ..Parsed::default()
            };
            let Ok(Block::Kept(block)) = block else { panic!("kept rows") };
            block.restore(&mut parsed);
            rows.push((parsed.label, parsed.keys));
        }
        let expected = [3, 2]
            .map(|rows| (vec![1.0; rows], vec![Keys::Numbered(vec![1, 2, 3][..rows].to_vec())]));
        assert_eq!(rows, expected);
        assert_eq!(bytes_read.load(Ordering::Relaxed), 5 * 8);

        for (at, whole_blocks) in [(0, 0), (20, 0), (24, 1), (39, 1)] {
            let damaged = kept(folder.path());
            damaged.file.write_at(&[0xa5], at).unwrap();
            let (_, spent) = channel();
            let blocks: Vec<_> = damaged.blocks(Arc::default(), spent).collect();
            let error = blocks[whole_blocks].as_ref().err().unwrap().to_string();
            assert!(blocks[..whole_blocks].iter().all(Result::is_ok));
            let said = format!("{}: cannot read the rows that", folder.path().display());
            assert!(error.starts_with(&said), "{error}");
        }
    }
}
