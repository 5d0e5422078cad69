//! A model as one file of the safetensors format, without optimizer state: what other programs
//! load.
//!
//! | tensor | extents |
//! | --- | --- |
//! | `NAME`, as in the model | its own, row-major |
//! | `embedding.FIELD` | rows, values |

use std::fs;
use std::path::Path;

use super::contents::rows;
use super::error::{CheckpointError, at};
use super::file::{FileWriter, PartReader, Tensor};
use super::read::Checkpoint;
use crate::state::Kind;

/// Before the names of the model's tensors.
const DENSE: &str = "dense.";

impl Checkpoint {
    /// Writes the model to the file `output`, which is there whole or not at all. Returns its
    /// bytes.
    ///
    /// # Errors
    /// When the checkpoint is damaged, or the file can't be written.
    pub fn export(&self, output: &Path) -> Result<u64, CheckpointError> {
        let manifest = &self.manifest;
        let dense = manifest.files.iter().flat_map(|file| &file.tensors).filter_map(|tensor| {
            let name = tensor.name.strip_prefix(DENSE)?;
            (!name.contains(".state.")).then_some((name, tensor))
        });
        let dense: Vec<_> = dense.collect();
        let tensor = |name: String, shape: Vec<u64>| Tensor { name, kind: Kind::F32, shape };
        let width = manifest.row_width as u64;
        let fields = manifest.sparse_names.iter().zip(&manifest.cardinality);
        let tensors = dense.iter().map(|(name, it)| tensor((*name).to_owned(), it.shape.clone()));
        let tensors = tensors.chain(
            fields.map(|(field, rows)| tensor(format!("embedding.{field}"), vec![*rows, width])),
        );
        let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or_else(|| Path::new("."));
        let name = output.file_name().unwrap_or_default().to_string_lossy();
        let mut file = FileWriter::create(folder, format!(".{name}.tmp"), tensors.collect())?;
        for (number, (_, entry)) in dense.iter().enumerate() {
            let mut left = entry.values().unwrap_or(0);
            let mut reader = self.reader(&entry.name, left)?;
            while left > 0 {
                let mut words = vec![0; usize::try_from(left.min(BLOCK)).unwrap_or(usize::MAX)];
                reader.read(&mut words)?;
                file.append(number, &bytes(&words))?;
                left -= words.len() as u64;
            }
            reader.finish()?;
        }
        self.export_rows(&mut file, dense.len())?;
        let entry = file.finish()?;
        fs::rename(folder.join(&entry.name), output).map_err(at(output))?;
        Ok(entry.bytes)
    }

    /// Writes the tables, the first of which is tensor `first`: rows of all partitions in turn.
    fn export_rows(&self, file: &mut FileWriter, first: usize) -> Result<(), CheckpointError> {
        let manifest = &self.manifest;
        let (all, count) =
            (manifest.cardinality.iter().sum::<u64>(), u64::from(manifest.partitions));
        let record = manifest.row_width + manifest.row_state_len;
        let open = |partition: u32| -> Result<Records, CheckpointError> {
            let own = (all + count - 1 - u64::from(partition)) / count.max(1);
            let reader = self.reader(&rows(partition), own * record as u64)?;
            Ok(Records { reader, record, block: vec![], at: 0 })
        };
        let mut partitions = (0..manifest.partitions).map(open).collect::<Result<Vec<_>, _>>()?;
        let mut row = 0;
        for (table, rows) in manifest.cardinality.iter().enumerate() {
            let mut block = vec![];
            for _ in 0..*rows {
                let partition = usize::try_from(row % count).unwrap_or(0);
                let record = partitions[partition].next()?;
                block.extend_from_slice(&record[..manifest.row_width]);
                if block.len() as u64 >= BLOCK {
                    file.append(first + table, &bytes(&block))?;
                    block.clear();
                }
                row += 1;
            }
            file.append(first + table, &bytes(&block))?;
        }
        partitions.into_iter().try_for_each(|partition| partition.reader.finish())
    }
}

/// The records of a partition, one after the other.
struct Records {
    reader: PartReader,
    record: usize,
    /// Read, and how much of it has been taken.
    block: Vec<u32>,
    at: usize,
}

impl Records {
    fn next(&mut self) -> Result<&[u32], CheckpointError> {
        if self.at == self.block.len() {
            let left = usize::try_from(self.reader.left() / 4).unwrap_or(usize::MAX);
            self.block.resize(left.min(RECORDS * self.record), 0);
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
const BLOCK: u64 = 1 << 18;
