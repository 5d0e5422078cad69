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
