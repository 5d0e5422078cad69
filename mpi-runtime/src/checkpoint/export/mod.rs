//! A model as one file, without optimizer state: what other programs read.
//!
//! - `safetensors.rs`: tensors by name
//! - `flat.rs`: what the core scores where it stands
//! - `strips.rs`: rows of tables that are cut, put together
//!
//! Invariants: the file is there whole or not at all. It is read and written a block at a time; of
//! the model alone a tensor of the dense replica is held whole.

mod flat;
mod safetensors;
mod strips;

use std::fs;
use std::path::Path;

use umbra_core::model::ModelConfig;
use umbra_core::sparse::{Numbering, Partitioning};

use super::error::{CheckpointError, at};
use super::folders::sync_folder;
use super::read::Checkpoint;
use super::rows::RowReader;
use strips::Together;

/// What a model is written as.
#[derive(Clone, Copy, Debug)]
pub enum ExportFormat<'a> {
    /// Tensors by name.
    Safetensors,
    /// What the core scores; the checkpoint is of this model.
    Flat(&'a ModelConfig<'a>),
}

impl Checkpoint {
    /// Writes the model to the file `output`, in the place of one that is there. Returns its bytes.
    ///
    /// # Errors
    /// When the checkpoint is damaged or of another model, or the file can't be written.
    pub fn export(&self, format: ExportFormat<'_>, output: &Path) -> Result<u64, CheckpointError> {
        let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or_else(|| Path::new("."));
        let name = format!(".{}.tmp", output.file_name().unwrap_or_default().to_string_lossy());
        let temporary = folder.join(&name);
        let write = || {
            let bytes = match format {
                ExportFormat::Safetensors => self.write_safetensors(folder, name)?,
                ExportFormat::Flat(config) => self.write_flat(folder, &temporary, config)?,
            };
            fs::rename(&temporary, output).map_err(at(output))?;
            sync_folder(folder)?;
            Ok(bytes)
        };
        let written = write();
        if written.is_err() {
            // What is wrong is told already.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Hands the values of the rows of all fields to `take`, in their order, some rows at a time,
    /// with the field's number; a table that fields share once, as the first one's. Strips of a
    /// table are kept in `folder` until they are put together.
    fn read_tables(
        &self,
        folder: &Path,
        mut take: impl FnMut(usize, &[u32]) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let manifest = &self.manifest;
        let numbers = self.numbers()?;
        let (numbering, tables) = (Numbering::new(&numbers), 0..numbers.len());
        let dealt = Partitioning { partitions: manifest.partitions };
        let record = self.record_words()?;
        let open = |partition: u32| -> Result<Records, CheckpointError> {
            let own = tables.clone().map(|table| numbering.rows_in(table, dealt, partition));
            let reader = self.rows(partition, own.map(u64::from).sum(), record)?;
            Ok(Records { reader, record, block: vec![], at: 0 })
        };
        let mut partitions = (0..manifest.partitions).map(open).collect::<Result<Vec<_>, _>>()?;
        let first_order = manifest.strips.as_ref().map_or(0, |strips| strips.first_order);
        let counts = manifest.strip_counts();
        let of_fields = (0..).zip(&counts).flat_map(|(field, count)| {
            (0..*count).map(move |strip| (field, strip, *count as usize))
        });
        let mut together = Together::new(folder, manifest.row_width, first_order);
        // A partition has them in the same order.
        for (table, (field, strip, count)) in tables.clone().zip(of_fields) {
            let mut block = vec![];
            let of = numbering.of(table);
            if of.shared {
                continue;
            }
            let mut block_is_there = |block: &[u32]| match count {
                1 => take(field, block),
                _ => together.keep(block),
            };
            for id in 0..of.rows {
                let record = partitions[dealt.partition(of.row(id)) as usize].next()?;
                block.extend_from_slice(&record[..manifest.row_width]);
                if block.len() >= BLOCK {
                    block_is_there(&block)?;
                    block.clear();
                }
            }
            block_is_there(&block)?;
            if count > 1 && strip as usize + 1 == count {
                together.hand_over(count, of.rows, |rows| take(field, rows))?;
            }
        }
        partitions.into_iter().try_for_each(|partition| partition.reader.finish())
    }

    /// Values of a row of every field: its first-order parameter and its vector. `[fields]`
    fn widths(&self) -> Vec<usize> {
        let first_order = self.manifest.strips.as_ref().map_or(0, |strips| strips.first_order);
        let width = self.manifest.row_width - first_order;
        let counts = self.manifest.strip_counts().into_iter();
        counts.map(|count| first_order + count as usize * width).collect()
    }
}

/// The records of a partition, one after the other.
struct Records {
    reader: RowReader,
    record: usize,
    /// Read, and how much of it has been taken.
    block: Vec<u32>,
    at: usize,
}

impl Records {
    fn next(&mut self) -> Result<&[u32], CheckpointError> {
        if self.at == self.block.len() {
            self.block.resize(self.reader.words_left().min(RECORDS * self.record), 0);
            self.reader.read(&mut self.block)?;
            self.at = 0;
        }
        self.at += self.record;
        Ok(&self.block[self.at - self.record..self.at])
    }
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Records read at a time.
const RECORDS: usize = 1024;

/// Values written at a time.
const BLOCK: usize = 1 << 18;
