//! A model as the core scores it from bytes (`umbra_core::flat`; docs/formats.md, "Flat").
//!
//! The file is written from its beginning to its end, so that the checksum goes along.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use umbra_core::flat::{FlatError, Header};
use umbra_core::model::{Model, ModelConfig};

use super::super::contents::{self, DenseTensor};
use super::super::error::{CheckpointError, at};
use super::super::manifest::MANIFEST;
use super::super::read::Checkpoint;
use super::bytes;

impl Checkpoint {
    /// Writes the file `path`. Returns its bytes.
    pub(super) fn write_flat(
        &self,
        folder: &Path,
        path: &Path,
        config: &ModelConfig<'_>,
    ) -> Result<u64, CheckpointError> {
        let described = Header::new(config, self.manifest.cardinality.iter().copied());
        let header = described.map_err(|error: FlatError| CheckpointError::Manifest {
            path: self.dir().join(MANIFEST),
            message: error.to_string(),
        })?;
        let model = header.model();
        let projection = Projection::new(self, model)?;
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
            self.read_tables(folder, |field, block| {
                if run.contains(&field) {
                    file.append(&bytes(&projection.applied(field, block)))
                } else {
                    Ok(())
                }
            })?;
        }
        file.fill(header.checksum_at())?;
        file.finish(header.file_len())
    }
}

/// Matrices that make vectors of the model's width of those of tables that have others. A vector of
/// a bag is a sum of rows times numbers, so the rows may as well be multiplied before.
struct Projection {
    /// Values of a row of every field, as they are. `[fields]`
    widths: Vec<usize>,
    /// Those of a row of the model, and how many of them are before the vector.
    wide: usize,
    first_order: usize,
    /// The matrix of every field, of those that have one. `[width, wide]` without the first values
    matrices: Vec<Vec<f32>>,
}

impl Projection {
    fn new(checkpoint: &Checkpoint, model: &Model) -> Result<Self, CheckpointError> {
        checkpoint.numbers()?;
        let (widths, wide) = (checkpoint.widths(), model.row_width());
        let first_order = model.first_order_columns();
        let mut matrices = vec![vec![]; widths.len()];
        match &checkpoint.manifest.strips {
            None => checkpoint.same("width of a row", wide, checkpoint.manifest.row_width)?,
            Some(strips) => {
                checkpoint.same("number of first values", first_order, strips.first_order)?;
            }
        }
        let elements = |width: &usize| width.saturating_sub(first_order) * (wide - first_order);
        let narrow = |width: &&usize| **width != wide;
        let count: usize = widths.iter().filter(narrow).map(elements).sum();
        if count > 0 {
            let mut reader = checkpoint.reader(PROJECTION, (count as u64, 1))?;
            for (matrix, width) in matrices.iter_mut().zip(&widths).filter(|it| narrow(&it.1)) {
                let mut words = vec![0; elements(width)];
                reader.read(&mut words)?;
                *matrix = words.into_iter().map(f32::from_bits).collect();
            }
            reader.finish()?;
        }
        Ok(Self { widths, wide, first_order, matrices })
    }

    /// Rows of `field` as the model has them.
    fn applied<'a>(&self, field: usize, rows: &'a [u32]) -> Cow<'a, [u32]> {
        let (first, columns) = (self.first_order, self.wide - self.first_order);
        if self.matrices[field].is_empty() {
            return Cow::Borrowed(rows);
        }
        let mut out = vec![];
        for row in rows.chunks_exact(self.widths[field]) {
            out.extend_from_slice(&row[..first]);
            let mut vector = vec![0.0; columns];
            for (x, of) in row[first..].iter().zip(self.matrices[field].chunks_exact(columns)) {
                let x = f32::from_bits(*x);
                vector.iter_mut().zip(of).for_each(|(sum, p)| *sum += x * p);
            }
            out.extend(vector.into_iter().map(f32::to_bits));
        }
        Cow::Owned(out)
    }
}

/// Name of the matrices in a checkpoint.
const PROJECTION: &str = "dense.projection.weight";

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
