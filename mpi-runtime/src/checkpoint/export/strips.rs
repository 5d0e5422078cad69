//! Rows of a table that is cut into strips, put together.
//!
//! A partition has one strip after the other, so all but the last of a table are kept in a file
//! without a name until that comes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::super::error::{CheckpointError, at};
use super::{BLOCK, bytes};

/// The strips of one table.
pub(super) struct Together {
    folder: PathBuf,
    /// Words of a row of a strip.
    width: usize,
    /// Those of them, its first, that only the first strip's are used of.
    first_order: usize,
    /// Rows of all strips, and how many bytes they are.
    kept: Option<File>,
    length: u64,
}

impl Together {
    pub(super) fn new(folder: &Path, width: usize, first_order: usize) -> Self {
        Self { folder: folder.to_owned(), width, first_order, kept: None, length: 0 }
    }

    /// Keeps the next rows.
    pub(super) fn keep(&mut self, rows: &[u32]) -> Result<(), CheckpointError> {
        let kept = match &self.kept {
            Some(kept) => kept,
            None => {
                let file = tempfile::tempfile_in(&self.folder).map_err(at(&self.folder))?;
                self.kept.insert(file)
            }
        };
        let bytes = bytes(rows);
        kept.write_all_at(&bytes, self.length).map_err(at(&self.folder))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Hands over whole rows of a table of `count` strips of `rows` rows each, all of which have
    /// been kept, and begins again.
    pub(super) fn hand_over(
        &mut self,
        count: usize,
        rows: u32,
        mut take: impl FnMut(&[u32]) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let Self { width, first_order, .. } = *self;
        let whole = first_order + count * (width - first_order);
        let block = u32::try_from((BLOCK / whole.max(1)).max(1)).unwrap_or(u32::MAX);
        let mut strip = vec![];
        for first in (0..rows).step_by(block as usize) {
            let here = block.min(rows - first) as usize;
            let mut out = vec![0; here * whole];
            for number in 0..count {
                strip.resize(4 * here * width, 0);
                let place = u64::from(rows) * number as u64 + u64::from(first);
                if let Some(kept) = &self.kept {
                    let read = kept.read_exact_at(&mut strip, 4 * place * width as u64);
                    read.map_err(at(&self.folder))?;
                }
                let used = if number == 0 { 0 } else { first_order };
                let to = if number == 0 { 0 } else { first_order + number * (width - first_order) };
                for (row, from) in out.chunks_exact_mut(whole).zip(strip.chunks_exact(4 * width)) {
                    let from = from[4 * used..].as_chunks::<4>().0;
                    let words = from.iter().map(|word| u32::from_le_bytes(*word));
                    row[to..].iter_mut().zip(words).for_each(|(to, word)| *to = word);
                }
            }
            take(&out)?;
        }
        self.length = 0;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_whole_again() {
        let folder = tempfile::tempdir().unwrap();
        // A first-order parameter and two columns, in three strips; then without, in two of one.
        let mut together = Together::new(folder.path(), 3, 1);
        for strip in [[9, 1, 2, 8, 11, 12], [0, 3, 4, 0, 13, 14], [0, 5, 6, 0, 15, 16]] {
            together.keep(&strip[..3]).unwrap();
            together.keep(&strip[3..]).unwrap();
        }
        let mut got = vec![];
        let mut take = |rows: &[u32]| {
            got.extend_from_slice(rows);
            Ok(())
        };
        together.hand_over(3, 2, &mut take).unwrap();
        assert_eq!(got, [9, 1, 2, 3, 4, 5, 6, 8, 11, 12, 13, 14, 15, 16]);
        let mut together = Together::new(folder.path(), 1, 0);
        got.clear();
        for table in [[1, 2], [3, 4]] {
            table.iter().for_each(|word| together.keep(&[*word]).unwrap());
            let take = |rows: &[u32]| {
                got.extend_from_slice(rows);
                Ok(())
            };
            together.hand_over(2, 1, take).unwrap();
        }
        assert_eq!(got, [1, 2, 3, 4]);
    }
}
