//! Reading a checkpoint: any number of ranks reads what any number wrote.

use core::sync::atomic::Ordering::Relaxed;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::dense::Dense;
use super::manifest::{
    CheckpointError, DENSE, FileEntry, MANIFEST, Manifest, TensorEntry, VERSION, rows_file,
};
use crate::rows::tables::{Partition, TableLayout};
use umbra_core::sparse::Partitioning;

/// A checkpoint whose manifest has been read and whose files have the right lengths.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    /// What is inside.
    pub manifest: Manifest,
}

impl Checkpoint {
    /// Opens the checkpoint in `dir`.
    ///
    /// # Errors
    /// When there is none, or it is not whole.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let path = dir.join(MANIFEST);
        let json = match fs::read(&path) {
            Ok(json) => json,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(CheckpointError::Missing { path: dir.to_owned() });
            }
            Err(source) => return Err(CheckpointError::Io { path, source }),
        };
        let malformed = |error: serde_json::Error| CheckpointError::Manifest {
            path: path.clone(),
            message: error.to_string(),
        };
        let json: serde_json::Value = serde_json::from_slice(&json).map_err(malformed)?;
        let version = json.get("version").and_then(serde_json::Value::as_u64);
        match version.and_then(|version| u32::try_from(version).ok()) {
            Some(VERSION) | None => {}
            Some(got) => return Err(CheckpointError::Version { path, got }),
        }
        let manifest: Manifest = serde_json::from_value(json).map_err(malformed)?;
        for file in &manifest.files {
            let path = dir.join(&file.name);
            let got = fs::metadata(&path)
                .map_err(|source| CheckpointError::Io { path: path.clone(), source })?
                .len();
            if got != file.bytes {
                return Err(CheckpointError::Length { path, expected: file.bytes, got });
            }
        }
        Ok(Self { dir: dir.to_owned(), manifest })
    }

    /// Reads replica and optimizer state. Lengths must be the manifest's.
    ///
    /// # Errors
    /// When lengths differ or the file is damaged.
    pub fn read_dense(&self, dense: Dense<'_>) -> Result<(), CheckpointError> {
        let (replica, state) = (dense.replica.len(), dense.state.len());
        self.same("length of the dense replica", replica, self.manifest.replica_len)?;
        self.same("length of the dense state", state, self.manifest.dense_state_len)?;
        let names = |tensors: &[TensorEntry]| {
            let entries =
                tensors.iter().map(|TensorEntry { name, shape: [rows, columns], offset }| {
                    format!("{name} [{rows}, {columns}] at {offset}")
                });
            entries.collect::<Vec<_>>().join(", ")
        };
        let here: Vec<TensorEntry> = dense.model.tensors().map(TensorEntry::from).collect();
        self.same("tensors", names(&here), names(&self.manifest.tensors))?;
        self.check_length(DENSE, 4 * (replica + state) as u64)?;
        let mut words = dense.words();
        self.stream(DENSE, 1, |record| {
            if let Some(word) = words.next() {
                word.store(record[0], Relaxed);
            }
        })
    }

    /// Reads the rows of these partitions out of all files.
    ///
    /// # Errors
    /// When tables differ or a file is damaged.
    pub fn read_rows(
        &self,
        layout: &TableLayout,
        partitions: &[Partition],
    ) -> Result<(), CheckpointError> {
        let manifest = &self.manifest;
        self.same("width of a row", layout.width, manifest.row_width)?;
        self.same("length of a row's state", layout.state_len, manifest.row_state_len)?;
        let rows = u64::from(layout.numbering().rows());
        self.same("number of rows", rows, manifest.cardinality.iter().sum())?;
        let written = Partitioning { partitions: manifest.partitions };
        if manifest.partitions == 0 {
            let message = "it says 0 partitions".to_owned();
            return Err(CheckpointError::Manifest { path: self.dir.join(MANIFEST), message });
        }
        for number in 0..manifest.partitions {
            let mut index = 0;
            let records = u64::from(written.rows_of(number, layout.numbering().rows()));
            self.check_length(&rows_file(number), records * 4 * layout.record_len() as u64)?;
            self.stream(&rows_file(number), layout.record_len(), |record| {
                let row = written.row(number, index);
                index += 1;
                let (owner, place) =
                    (layout.partitioning.partition(row), layout.partitioning.index(row));
                if let Some(partition) = partitions.iter().find(|p| p.number == owner) {
                    let words = partition.table().record(place as usize);
                    words.iter().zip(record).for_each(|(word, x)| word.store(*x, Relaxed));
                }
            })?;
        }
        Ok(())
    }

    /// Hands out a file's records of `len` words and checks its sum.
    fn stream(
        &self,
        name: &str,
        len: usize,
        mut take: impl FnMut(&[u32]),
    ) -> Result<(), CheckpointError> {
        let path = self.dir.join(name);
        let Some(entry) = self.manifest.files.iter().find(|file| file.name == name) else {
            let message = format!("it lists no file {name}");
            return Err(CheckpointError::Manifest { path: self.dir.join(MANIFEST), message });
        };
        let FileEntry { bytes, crc32: expected, .. } = *entry;
        let io = |source| CheckpointError::Io { path: path.clone(), source };
        let mut file = File::open(&path).map_err(io)?;
        let mut block = vec![0u8; 4 * len * (RECORDS_BYTES / (4 * len)).max(1)];
        let (mut crc, mut left, mut record) = (crc32fast::Hasher::new(), bytes, vec![0; len]);
        while left > 0 {
            let n = usize::try_from(left).map_or(block.len(), |left| left.min(block.len()));
            file.read_exact(&mut block[..n]).map_err(io)?;
            crc.update(&block[..n]);
            for bytes in block[..n].chunks_exact(4 * len) {
                for (word, bytes) in record.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *word = u32::from_le_bytes(*bytes);
                }
                take(&record);
            }
            left -= n as u64;
        }
        let got = crc.finalize();
        if got == expected {
            Ok(())
        } else {
            Err(CheckpointError::Checksum { path, expected, got })
        }
    }

    /// A file must hold as much as the model at hand needs.
    fn check_length(&self, name: &str, expected: u64) -> Result<(), CheckpointError> {
        match self.manifest.files.iter().find(|file| file.name == name) {
            Some(file) if file.bytes != expected => Err(CheckpointError::Length {
                path: self.dir.join(name),
                expected,
                got: file.bytes,
            }),
            _ => Ok(()),
        }
    }

    fn same<T: PartialEq + ToString>(
        &self,
        what: &'static str,
        here: T,
        got: T,
    ) -> Result<(), CheckpointError> {
        if here == got {
            return Ok(());
        }
        let (expected, got) = (here.to_string(), got.to_string());
        Err(CheckpointError::Mismatch { path: self.dir.clone(), what, expected, got })
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Bytes read at a time, about.
const RECORDS_BYTES: usize = 1 << 20;
