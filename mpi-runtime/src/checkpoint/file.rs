//! A file of named tensors, in the safetensors format (huggingface.co/docs/safetensors, "Format").
//!
//! Eight bytes, the length of the header, a little-endian u64; the header, JSON, filled up with
//! spaces to a multiple of eight; then the values of all tensors, one after the other without a
//! gap, row-major and little-endian. Whatever reads this format reads a checkpoint.
//!
//! Invariants: all lengths are known before the first value is written, so that tensors may be
//! written side by side, each from its beginning to its end. Every byte of a file is under one
//! checksum, the header's or a tensor's, so that a part can be read and trusted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;
use umbra_core::sparse::Record;

use super::error::{CheckpointError, at};
use super::part::PartReader;
use crate::state::Kind;

/// A tensor before it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tensor {
    /// Once in a checkpoint.
    pub(super) name: String,
    /// What its values are.
    pub(super) kind: Kind,
    /// Its extents.
    pub(super) shape: Vec<u64>,
    /// What its values are in memory, where they are records of rows: the first extent.
    pub(super) record: Option<Record>,
}

impl Tensor {
    fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.kind.bytes()
    }

    /// Its length in memory, where a value has the words of its kind or of its record.
    pub(super) fn words(&self) -> usize {
        if let Some(record) = &self.record {
            let rows = self.shape.first().copied().unwrap_or(0);
            return usize::try_from(rows * record.words() as u64).unwrap_or(usize::MAX);
        }
        let values: u64 = self.shape.iter().product();
        usize::try_from(values * self.kind.words()).unwrap_or(usize::MAX)
    }
}

/// A tensor as the manifest lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Once in a checkpoint.
    pub name: String,
    /// What its values are.
    pub kind: Kind,
    /// Its extents.
    pub shape: Vec<u64>,
    /// Place of its first byte in the file.
    pub offset: u64,
    /// CRC-32 (IEEE 802.3) of its bytes.
    pub crc32: u32,
}

impl TensorEntry {
    /// Its length; `None` of extents that cannot be.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.kind.bytes(), |bytes, extent| bytes.checked_mul(*extent))
    }

    /// Values; `None` of extents that cannot be.
    #[must_use]
    pub fn values(&self) -> Option<u64> {
        self.bytes().map(|bytes| bytes / self.kind.bytes())
    }
}

/// A file as the manifest lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32 of all that stands before the first tensor.
    pub header_crc32: u32,
    /// What is in it, in this order.
    pub tensors: Vec<TensorEntry>,
}

/// A file under way.
pub(super) struct FileWriter {
    path: PathBuf,
    name: String,
    file: File,
    header_crc32: u32,
    tensors: Vec<Open>,
}

/// A tensor under way.
struct Open {
    tensor: Tensor,
    first: u64,
    /// Written so far.
    at: u64,
    crc: crc32fast::Hasher,
}

impl FileWriter {
    /// Makes the file `name` in `folder` for `tensors`, and writes its header.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn create(
        folder: &Path,
        name: String,
        tensors: Vec<Tensor>,
    ) -> Result<Self, CheckpointError> {
        let path = folder.join(&name);
        let header = header(&tensors);
        let file = File::create(&path).map_err(at(&path))?;
        file.write_all_at(&header, 0).map_err(at(&path))?;
        let mut first = header.len() as u64;
        let open = |tensor: Tensor| {
            let open = Open { first, at: first, crc: crc32fast::Hasher::new(), tensor };
            first += open.tensor.bytes();
            open
        };
        let tensors = tensors.into_iter().map(open).collect();
        Ok(Self { path, name, file, header_crc32: crc32fast::hash(&header), tensors })
    }

    /// Writes the next bytes of tensor number `tensor`.
    ///
    /// # Errors
    /// When the system refuses.
    ///
    /// # Panics
    /// When it has not so many left.
    pub(super) fn append(&mut self, tensor: usize, bytes: &[u8]) -> Result<(), CheckpointError> {
        let open = &mut self.tensors[tensor];
        let end = open.at + bytes.len() as u64;
        assert!(end <= open.first + open.tensor.bytes(), "{} is longer", open.tensor.name);
        self.file.write_all_at(bytes, open.at).map_err(at(&self.path))?;
        open.crc.update(bytes);
        open.at = end;
        Ok(())
    }

    /// Brings the file to the disk.
    ///
    /// # Errors
    /// When the system refuses.
    ///
    /// # Panics
    /// When a tensor is not there in full.
    pub(super) fn finish(self) -> Result<FileEntry, CheckpointError> {
        let Self { path, name, file, header_crc32, tensors } = self;
        file.sync_all().map_err(at(&path))?;
        let bytes = file.metadata().map_err(at(&path))?.len();
        let entry = |Open { tensor, first, at, crc }: Open| {
            assert_eq!(at, first + tensor.bytes(), "{} is cut", tensor.name);
            let Tensor { name, kind, shape, .. } = tensor;
            TensorEntry { name, kind, shape, offset: first, crc32: crc.finalize() }
        };
        Ok(FileEntry {
            name,
            bytes,
            header_crc32,
            tensors: tensors.into_iter().map(entry).collect(),
        })
    }
}

/// What stands before the values.
fn header(tensors: &[Tensor]) -> Vec<u8> {
    let mut entries = serde_json::Map::new();
    let mut first = 0;
    for tensor in tensors {
        let end = first + tensor.bytes();
        let entry =
            json!({ "dtype": tensor.kind, "shape": tensor.shape, "data_offsets": [first, end] });
        assert!(entries.insert(tensor.name.clone(), entry).is_none(), "{} twice", tensor.name);
        first = end;
    }
    let mut json = serde_json::Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}

impl FileEntry {
    /// Whether the file in `folder` is as long as it was written, and the manifest says so of every
    /// part of it. Reads nothing.
    ///
    /// # Errors
    /// When it is not there, or another.
    pub fn check_length(&self, folder: &Path) -> Result<(), CheckpointError> {
        let path = folder.join(&self.name);
        let got = std::fs::metadata(&path).map_err(at(&path))?.len();
        if got != self.bytes {
            return Err(CheckpointError::Length { path, expected: self.bytes, got });
        }
        let mut end = self.tensors.first().map_or(self.bytes, |tensor| tensor.offset);
        for tensor in &self.tensors {
            let fits = tensor.offset == end;
            let next = tensor.bytes().and_then(|bytes| end.checked_add(bytes));
            let (true, Some(next)) = (fits, next) else {
                let message = format!("{} of {} is not where it should be", tensor.name, self.name);
                return Err(CheckpointError::Manifest { path: folder.to_owned(), message });
            };
            end = next;
        }
        if end == self.bytes {
            return Ok(());
        }
        let message = format!("the tensors of {} do not fill it", self.name);
        Err(CheckpointError::Manifest { path: folder.to_owned(), message })
    }

    /// Reads the file in `folder` whole, and checks every sum. Returns its bytes.
    ///
    /// # Errors
    /// When something of it is not as it was written.
    pub fn verify(&self, folder: &Path) -> Result<u64, CheckpointError> {
        self.check_length(folder)?;
        let first = self.tensors.first().map_or(self.bytes, |tensor| tensor.offset);
        PartReader::header(folder, &self.name, first, self.header_crc32)?.read_over()?;
        for tensor in &self.tensors {
            PartReader::tensor(folder, &self.name, tensor)?.read_over()?;
        }
        Ok(self.bytes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{fs, io};

    use proptest::prelude::*;

    use super::*;

    fn words(tensor: &Tensor, seed: u32) -> Vec<u8> {
        let words = 0..u32::try_from(tensor.bytes() / 4).unwrap();
        words.flat_map(|i| (seed ^ i.wrapping_mul(2_654_435_761)).to_le_bytes()).collect()
    }

    /// Writes `tensors` side by side in blocks of `block` bytes.
    fn write(folder: &Path, tensors: &[Tensor], block: usize) -> FileEntry {
        let name = "part.safetensors".to_owned();
        let mut file = FileWriter::create(folder, name, tensors.to_vec()).unwrap();
        let values: Vec<Vec<u8>> =
            (0..).zip(tensors).map(|(seed, tensor)| words(tensor, seed)).collect();
        let longest = values.iter().map(Vec::len).max().unwrap_or(0);
        for first in (0..longest).step_by(block) {
            for (number, values) in values.iter().enumerate().filter(|(_, all)| first < all.len()) {
                file.append(number, &values[first..values.len().min(first + block)]).unwrap();
            }
        }
        file.finish().unwrap()
    }

    fn tensors() -> impl Strategy<Value = Vec<Tensor>> {
        let kind = prop_oneof![Just(Kind::F32), Just(Kind::F64), Just(Kind::U64)];
        let shape = prop::collection::vec(0u64..6, 0..4);
        prop::collection::vec((kind, shape), 0..6).prop_map(|all| {
            let named = |(number, (kind, shape))| Tensor {
                name: format!("t.{number}"),
                kind,
                shape,
                record: None,
            };
            all.into_iter().enumerate().map(named).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn what_is_written_is_read_again(tensors in tensors(), block in 1usize..40) {
            let folder = tempfile::tempdir().unwrap();
            let block = 4 * block;
            let entry = write(folder.path(), &tensors, block);
            prop_assert_eq!(entry.verify(folder.path()).unwrap(), entry.bytes);
            for ((seed, tensor), listed) in (0..).zip(&tensors).zip(&entry.tensors) {
                prop_assert_eq!((&listed.name, listed.kind, &listed.shape),
                    (&tensor.name, tensor.kind, &tensor.shape));
                let mut reader = PartReader::tensor(folder.path(), &entry.name, listed).unwrap();
                let expected = words(tensor, seed);
                for chunk in expected.chunks(block) {
                    let mut got = vec![0; chunk.len() / 4];
                    reader.read(&mut got).unwrap();
                    let got: Vec<u8> = got.into_iter().flat_map(u32::to_le_bytes).collect();
                    prop_assert_eq!(got, chunk);
                }
                reader.finish().unwrap();
            }
        }
    }

    /// The format as it is documented, read by hand.
    #[test]
    fn the_layout_is_that_of_safetensors() {
        let folder = tempfile::tempdir().unwrap();
        let tensor = |name: &str, kind, shape: &[u64]| {
            let (name, shape) = (name.to_owned(), shape.to_vec());
            Tensor { name, kind, shape, record: None }
        };
        let tensors = [tensor("b", Kind::F32, &[2, 3]), tensor("a", Kind::U64, &[1])];
        write(folder.path(), &tensors, 8);
        let bytes = fs::read(folder.path().join("part.safetensors")).unwrap();
        let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
        assert_eq!(length % 8, 0);
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let expected = json!({
            "b": { "dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24] },
            "a": { "dtype": "U64", "shape": [1], "data_offsets": [24, 32] },
        });
        assert_eq!(header, expected);
        assert_eq!(bytes.len(), 8 + length + 32);
        assert_eq!(bytes[8 + length..8 + length + 24], words(&tensors[0], 0));
    }

    /// Whatever byte is another, and whatever is cut off or added, is seen.
    #[test]
    fn damage_anywhere_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let tensor =
            |name: &str, kind| Tensor { name: name.to_owned(), kind, shape: vec![5], record: None };
        let entry = write(folder.path(), &[tensor("a", Kind::F32), tensor("b", Kind::F64)], 4);
        let path = folder.path().join(&entry.name);
        let whole = fs::read(&path).unwrap();
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 1 << (place % 8);
            fs::write(&path, &damaged).unwrap();
            let error = entry.verify(folder.path()).unwrap_err();
            assert!(matches!(error, CheckpointError::Checksum { .. }), "{place}: {error}");
        }
        for other in [&whole[..whole.len() - 1], &[whole.as_slice(), &[0]].concat()] {
            fs::write(&path, other).unwrap();
            let error = entry.verify(folder.path()).unwrap_err();
            assert!(matches!(error, CheckpointError::Length { .. }), "{error}");
        }
        fs::remove_file(&path).unwrap();
        let error = entry.verify(folder.path()).unwrap_err();
        let CheckpointError::Io { source, .. } = error else { panic!("{error}") };
        assert_eq!(source.kind(), io::ErrorKind::NotFound);
    }
}
