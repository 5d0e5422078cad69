//! A model as the core scores it from bytes (`umbra_core::flat`; docs/formats.md, "Flat").
//!
//! The file is written from its beginning to its end, so that the checksum goes along.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use umbra_core::flat::{FlatError, Header};
use umbra_core::model::ModelConfig;

use super::super::contents::{self, DenseTensor};
use super::super::error::{CheckpointError, at};
use super::super::manifest::MANIFEST;
use super::super::read::Checkpoint;
use super::bytes;

impl Checkpoint {
    /// Writes the file `path`. Returns its bytes.
    pub(super) fn write_flat(
        &self,
        path: &Path,
        config: &ModelConfig<'_>,
    ) -> Result<u64, CheckpointError> {
        let described = Header::new(config, self.manifest.cardinality.iter().copied());
        let header = described.map_err(|error: FlatError| CheckpointError::Manifest {
            path: self.dir().join(MANIFEST),
            message: error.to_string(),
        })?;
        let model = header.model();
        self.same("width of a row", model.row_width(), self.manifest.row_width)?;
        let mut file = FlatWriter::create(path)?;
        header.words().try_for_each(|word| file.append(&word.to_le_bytes()))?;
        for DenseTensor { name, tensor, .. } in contents::values(model) {
            file.fill(header.replica_at() + 4 * tensor.offset as u64)?;
            let mut reader = self.reader(&name, (tensor.len() as u64, 1))?;
            let (mut row_major, mut words) = (vec![0; tensor.len()], vec![0; tensor.len()]);
            reader.read(&mut row_major)?;
            reader.finish()?;
            for (word, place) in row_major.into_iter().zip(tensor.places()) {
                words[place - tensor.offset] = word;
            }
            file.append(&bytes(&words))?;
        }
        file.fill(header.rows_at())?;
        // A flat model has a table for every field, also where several use one: those are read once
        // for each.
        let table_of = self.manifest.table_of.clone();
        let table_of = table_of.unwrap_or_else(|| (0..).take(header.model().fields()).collect());
        let mut left = &table_of[..];
        while let Some(first) = left.first() {
            // Tables that follow each other in both.
            let run = (*first..).zip(left).take_while(|(next, table)| next == *table).count();
            let run = left
                .split_off(..run)
                .map_or(0..0, |run| *first as usize..*first as usize + run.len());
            self.read_tables(|table, block| {
                if run.contains(&table) { file.append(&bytes(block)) } else { Ok(()) }
            })?;
        }
        file.fill(header.checksum_at())?;
        file.finish(header.file_len())
    }
}

/// A file under way.
struct FlatWriter {
    path: PathBuf,
    file: BufWriter<File>,
    /// Bytes written so far, and their checksum.
    length: u64,
    crc: crc32fast::Hasher,
}

impl FlatWriter {
    fn create(path: &Path) -> Result<Self, CheckpointError> {
        let file = BufWriter::new(File::create(path).map_err(at(path))?);
        Ok(Self { path: path.to_owned(), file, length: 0, crc: crc32fast::Hasher::new() })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.crc.update(bytes);
        self.length += bytes.len() as u64;
        self.file.write_all(bytes).map_err(at(&self.path))
    }

    /// Writes zeros up to the boundary at byte `end`.
    ///
    /// # Panics
    /// When it is not the next one.
    fn fill(&mut self, end: u64) -> Result<(), CheckpointError> {
        let missing = end.checked_sub(self.length).filter(|missing| *missing < BOUNDARY);
        assert!(missing.is_some(), "a part at {end} behind {} bytes", self.length);
        (0..missing.unwrap_or(0)).try_for_each(|_| self.append(&[0]))
    }

    /// Writes the checksum, and brings the file to the disk.
    ///
    /// # Panics
    /// When it has another length than `expected`.
    fn finish(mut self, expected: u64) -> Result<u64, CheckpointError> {
        let checksum = u64::from(self.crc.clone().finalize());
        self.append(&checksum.to_le_bytes())?;
        assert_eq!(self.length, expected, "length of {}", self.path.display());
        self.file.flush().map_err(at(&self.path))?;
        self.file.get_ref().sync_all().map_err(at(&self.path))?;
        Ok(self.length)
    }
}

/// Parts start on multiples of so many bytes at most.
const BOUNDARY: u64 = 64;
