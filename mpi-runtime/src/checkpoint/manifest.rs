//! The manifest: what is inside a checkpoint, under a checksum of its own.
//!
//! `manifest.json` is one line, `{"crc32":"…","manifest":{…}}`: the CRC-32 of what follows
//! `"manifest":`, up to the last brace, as eight hexadecimal digits. It is written last.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use umbra_core::sparse::{Numbering, Numbers};
use umbra_datasets::Dataset;

use super::error::{CheckpointError, at};
use super::file::{FileEntry, TensorEntry};
use crate::rows::strips::Strips;
use crate::rows::tables::{TableLayout, starts, strips_of_tables};

/// Version of the layout written.
pub(super) const VERSION: u32 = 2;
/// Most strips of all tables: a manifest that says of more is damaged.
const STRIPS_MAX: u64 = 1 << 20;
/// Name of the manifest.
pub(super) const MANIFEST: &str = "manifest.json";

/// What is inside a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the layout.
    pub version: u32,
    /// Revision of the program that wrote it.
    pub git: String,
    /// Instruction set that it computed with, on the first rank.
    pub simd: String,
    /// The run's configuration, resolved, as TOML.
    pub config: String,
    /// Its synchronization method.
    pub method: String,
    /// Training steps taken.
    pub steps: u64,
    /// Updates of the dense replica.
    pub updates: u64,
    /// Trainers of the run that wrote it.
    pub trainers: usize,
    /// Its workers.
    pub workers: usize,
    /// Examples of a worker and step.
    pub batch_size: usize,
    /// Lanes of the training data.
    pub lanes: usize,
    /// Fingerprint of the training data.
    pub data_fingerprint: String,
    /// Hash of the key list behind the ids of every field, 0 without one; `None` where the data do
    /// not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<Vec<u64>>,
    /// What was done to the raw values, as the data say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub transform: String,
    /// Dense features of the data.
    pub dense_features: usize,
    /// Names of the sparse fields.
    pub sparse_names: Vec<String>,
    /// Rows of every field's table.
    pub cardinality: Vec<u64>,
    /// How tables are cut into strips; `None`: they are not. A strip is a table in what follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strips: Option<Strips>,
    /// Partitions of rows.
    pub partitions: u32,
    /// The partition of every table, where tables are whole; `None` where rows are dealt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owners: Option<Vec<u32>>,
    /// The field whose table every field uses; `None`: each has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_of: Option<Vec<u32>>,
    /// f32s of a row's values.
    pub row_width: usize,
    /// f32s of a row's optimizer state.
    pub row_state_len: usize,
    /// The checkpoint with the rows that this one has not; `None` when it has all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// Every other file.
    pub files: Vec<FileEntry>,
}

/// A checkpoint with all rows, which another one has only the changes since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Of this step: it stands beside the other one.
    pub step: u64,
    /// CRC-32 of its manifest, as that says itself.
    pub crc32: u32,
}

impl Manifest {
    /// What it says of data and rows; the rest is empty.
    #[must_use]
    pub fn of(data: &Dataset, layout: &TableLayout) -> Self {
        Self {
            version: VERSION,
            git: String::new(),
            simd: String::new(),
            config: String::new(),
            method: String::new(),
            steps: 0,
            updates: 0,
            trainers: 0,
            workers: 0,
            batch_size: 0,
            lanes: 0,
            data_fingerprint: data.fingerprint().to_owned(),
            vocabulary: data.vocabulary().map(<[u64]>::to_vec),
            transform: data.transform().to_owned(),
            dense_features: data.dense_features(),
            sparse_names: data.sparse_names().to_vec(),
            cardinality: data.cardinality().to_vec(),
            strips: layout.as_strips(),
            partitions: layout.partitioning.partitions,
            owners: layout.owners().map(<[u32]>::to_vec),
            table_of: Some(layout.table_of().to_vec()).filter(|shared| !shared.is_empty()),
            row_width: layout.width,
            row_state_len: layout.state_len,
            base: None,
            files: vec![],
        }
    }

    /// Examples of a step, of all workers.
    #[must_use]
    pub const fn global_batch(&self) -> u64 {
        (self.workers as u64).saturating_mul(self.batch_size as u64)
    }

    /// Strips of every field's table. `[fields]`
    #[must_use]
    pub fn strip_counts(&self) -> Vec<u32> {
        match &self.strips {
            Some(strips) => strips.of_field.clone(),
            None => vec![1; self.cardinality.len()],
        }
    }

    /// The row numbers of its tables; `None` where it says what cannot be.
    #[must_use]
    pub fn numbers(&self) -> Option<Vec<Numbers>> {
        let Self { cardinality, partitions, owners, .. } = self;
        let table_of = self.table_of.as_deref().unwrap_or_default();
        let counts = self.strip_counts();
        let strips: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        let first = self.strips.as_ref().map_or(0, |strips| strips.first_order);
        let width = u64::try_from(self.row_width).unwrap_or(u64::MAX);
        let columns = self.strips.is_none()
            || first < self.row_width && strips.saturating_mul(width) <= u64::from(u32::MAX);
        if counts.len() != cardinality.len()
            || counts.contains(&0)
            || strips > STRIPS_MAX
            || !columns
        {
            return None;
        }
        // An earlier field's, or its own: one that is its field's own, and as long and as wide.
        let fits = |(field, owner): (usize, &u32)| {
            let of = *owner as usize;
            of <= field
                && table_of[of] == *owner
                && (cardinality[of], counts[of]) == (cardinality[field], counts[field])
        };
        let as_many = table_of.is_empty() || table_of.len() == cardinality.len();
        if !as_many || !table_of.iter().enumerate().all(fits) {
            return None;
        }
        let counts: Vec<usize> = counts.into_iter().map(|count| count as usize).collect();
        let table_of = strips_of_tables(table_of, &starts(&counts));
        let cardinality: Vec<u64> =
            cardinality.iter().zip(counts).flat_map(|(rows, count)| vec![*rows; count]).collect();
        let mut numbers = vec![Numbers::default(); cardinality.len()];
        let filled = match owners {
            None => Numbering::deal(&cardinality, &table_of, &mut numbers),
            Some(owners) => {
                let fit = owners.len() == cardinality.len()
                    && owners.iter().all(|owner| owner < partitions);
                if !fit {
                    return None;
                }
                Numbering::place(&cardinality, &table_of, (*partitions, owners), &mut numbers)
            }
        };
        filled.ok().map(|()| numbers)
    }

    /// Rows of all tables; 0 where it says what cannot be.
    #[must_use]
    pub fn rows(&self) -> u64 {
        let numbers = self.numbers().unwrap_or_default();
        numbers.iter().map(|table| u64::from(table.own())).sum()
    }

    /// Where every tensor is, by name.
    #[must_use]
    pub fn tensors(&self) -> BTreeMap<&str, (&FileEntry, &TensorEntry)> {
        let files = self.files.iter();
        let all = files.flat_map(|file| file.tensors.iter().map(move |tensor| (file, tensor)));
        all.map(|(file, tensor)| (tensor.name.as_str(), (file, tensor))).collect()
    }

    /// Writes it to `folder`, and brings it to the disk. Returns what it is the base by.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn write(&self, folder: &Path) -> Result<Base, CheckpointError> {
        let path = folder.join(MANIFEST);
        let json = serde_json::to_string(self).map_err(|error| CheckpointError::Manifest {
            path: path.clone(),
            message: error.to_string(),
        })?;
        let mut file = File::create(&path).map_err(at(&path))?;
        file.write_all(enclose(&json).as_bytes()).map_err(at(&path))?;
        file.sync_all().map_err(at(&path))?;
        Ok(Base { step: self.steps, crc32: crc32fast::hash(json.as_bytes()) })
    }

    /// Reads the one in `folder`, and checks that all files are there as long as they were. With
    /// it, what it is the base by.
    ///
    /// # Errors
    /// When there is none, or it is damaged, or a file is.
    pub(super) fn read(folder: &Path) -> Result<(Self, Base), CheckpointError> {
        let read = Self::read_alone(folder)?;
        read.0.files.iter().try_for_each(|file| file.check_length(folder))?;
        Ok(read)
    }

    /// As [`read`](Self::read), without a look at the other files.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub(super) fn read_alone(folder: &Path) -> Result<(Self, Base), CheckpointError> {
        let path = folder.join(MANIFEST);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(CheckpointError::Missing { path: folder.to_owned() });
            }
            Err(source) => return Err(CheckpointError::Io { path, source }),
        };
        Self::parse(&text, &path)
    }

    /// Reads the text of one; `path` names it in messages. With it, what it is the base by.
    ///
    /// # Errors
    /// When it is damaged, or of another version.
    pub fn parse(text: &str, path: &Path) -> Result<(Self, Base), CheckpointError> {
        let malformed = |message: &str| {
            let (path, message) = (path.to_owned(), message.to_owned());
            CheckpointError::Manifest { path, message }
        };
        // Whatever an earlier version wrote: its number stands there in plain JSON.
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| malformed(&error.to_string()))?;
        let version = value.get("version").or_else(|| value.get("manifest")?.get("version"));
        match version.and_then(serde_json::Value::as_u64) {
            Some(got) if got != u64::from(VERSION) => {
                let got = u32::try_from(got).unwrap_or(u32::MAX);
                return Err(CheckpointError::Version { path: path.to_owned(), got });
            }
            _ => {}
        }
        let inner =
            text.get(BEFORE.len() + 8 + BETWEEN.len()..text.len().saturating_sub(AFTER.len()));
        let sound = inner.filter(|inner| enclose(inner) == text);
        let inner = sound.ok_or_else(|| malformed("its checksum is another: it is damaged"))?;
        let manifest: Self =
            serde_json::from_str(inner).map_err(|error| malformed(&error.to_string()))?;
        if manifest.sparse_names.len() != manifest.cardinality.len() {
            return Err(malformed("it names other tables than it has"));
        }
        let mut names = BTreeSet::new();
        let files = manifest.files.iter().enumerate();
        let mut tensors = files.flat_map(|(at, file)| file.tensors.iter().map(move |it| (at, it)));
        // Ranks that share a replica may each say where its method is; the model stands there once.
        let once = |(at, it): &(usize, &TensorEntry)| {
            if it.name.starts_with("dense.") { usize::MAX } else { *at }
        };
        let twice = tensors.find(|tensor| !names.insert((once(tensor), &tensor.1.name)));
        if let Some((_, twice)) = twice {
            return Err(malformed(&format!("it lists {} twice", twice.name)));
        }
        let base = Base { step: manifest.steps, crc32: crc32fast::hash(inner.as_bytes()) };
        Ok((manifest, base))
    }
}

/// The line of a manifest.
fn enclose(json: &str) -> String {
    format!("{BEFORE}{:08x}{BETWEEN}{json}{AFTER}", crc32fast::hash(json.as_bytes()))
}

const BEFORE: &str = "{\"crc32\":\"";
const BETWEEN: &str = "\",\"manifest\":";
const AFTER: &str = "}\n";

#[cfg(test)]
impl Manifest {
    /// One that says something of everything, and lists a file.
    pub(super) fn example() -> Self {
        let tensor = |name: &str, offset, crc32| TensorEntry {
            name: name.to_owned(),
            kind: crate::state::Kind::F32,
            shape: vec![2],
            offset,
            crc32,
        };
        let tensors = vec![tensor("a", 80, 1), tensor("b", 88, u32::MAX)];
        let name = "rank-00000.safetensors".to_owned();
        Self {
            version: VERSION,
            git: "0123abc".to_owned(),
            simd: "plain".to_owned(),
            config: "seed = 1\n".to_owned(),
            method: "bsp".to_owned(),
            steps: 12,
            updates: 24,
            trainers: 2,
            workers: 4,
            batch_size: 128,
            lanes: 8,
            data_fingerprint: "absent".to_owned(),
            vocabulary: None,
            transform: String::new(),
            dense_features: 3,
            sparse_names: vec!["user \"id\"".to_owned()],
            cardinality: vec![7],
            strips: None,
            partitions: 4,
            owners: None,
            table_of: None,
            row_width: 8,
            row_state_len: 1,
            base: Some(Base { step: 10, crc32: 7 }),
            files: vec![FileEntry { name, bytes: 96, header_crc32: 5, tensors }],
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = Manifest::example();
        let base = manifest.write(folder.path()).unwrap();
        std::fs::write(folder.path().join("rank-00000.safetensors"), [0; 96]).unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), (manifest.clone(), base));
        assert_eq!(manifest.tensors()["b"].1.offset, 88);
        // Any program reads it.
        let text = fs::read_to_string(folder.path().join(MANIFEST)).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["manifest"]["files"][0]["tensors"][1]["name"], "b");
    }

    #[test]
    fn owners_that_cannot_be_have_no_row_numbers() {
        let of = |owners: Option<Vec<u32>>, cardinality: Vec<u64>| {
            Manifest { partitions: 2, owners, cardinality, ..Manifest::example() }.numbers()
        };
        let firsts = |numbers: Vec<Numbers>| {
            numbers.iter().map(|table| (table.first, table.step)).collect::<Vec<_>>()
        };
        assert_eq!(of(None, vec![3, 4]).map(firsts), Some(vec![(0, 1), (3, 1)]));
        assert_eq!(of(Some(vec![1, 1]), vec![3, 4]).map(firsts), Some(vec![(1, 2), (7, 2)]));
        assert_eq!(of(Some(vec![1]), vec![3, 4]), None, "a table without one");
        assert_eq!(of(Some(vec![1, 2]), vec![3, 4]), None, "a partition that is not there");
        assert_eq!(of(Some(vec![1, 1]), vec![3, u64::MAX]), None, "too many rows");
        assert_eq!(of(None, vec![3, u64::from(u32::MAX)]), None, "too many rows");
    }

    #[test]
    fn damage_anywhere_is_seen() {
        let path = Path::new("manifest.json");
        let whole = enclose(&serde_json::to_string(&Manifest::example()).unwrap());
        Manifest::parse(&whole, path).unwrap();
        for place in 0..whole.len() {
            for bit in 0..7 {
                let mut damaged = whole.clone().into_bytes();
                damaged[place] ^= 1 << bit;
                let Ok(damaged) = String::from_utf8(damaged) else { continue };
                assert!(Manifest::parse(&damaged, path).is_err(), "bit {bit} of {place}");
            }
            assert!(Manifest::parse(&whole[..place], path).is_err(), "cut at {place}");
        }
    }

    /// Under a checksum that is right.
    #[test]
    fn what_contradicts_itself_is_refused() {
        let refused = |manifest: Manifest| {
            let text = enclose(&serde_json::to_string(&manifest).unwrap());
            Manifest::parse(&text, Path::new("manifest.json")).unwrap_err().to_string()
        };
        let mut twice = Manifest::example();
        twice.files[0].tensors[1].name = "a".to_owned();
        assert!(refused(twice).contains("it lists a twice"));
        let tables = Manifest { cardinality: vec![7, 9], ..Manifest::example() };
        assert!(refused(tables).contains("other tables"));
        let many = Manifest { workers: 1 << 33, batch_size: 1 << 33, ..Manifest::example() };
        assert_eq!(many.global_batch(), u64::MAX);
    }

    #[test]
    fn another_version_is_named() {
        let path = Path::new("manifest.json");
        for text in
            ["{\"version\": 1, \"git\": \"\"}", "{\"crc32\":\"0\",\"manifest\":{\"version\":3}}"]
        {
            let error = Manifest::parse(text, path).unwrap_err();
            assert!(matches!(error, CheckpointError::Version { .. }), "{error}");
        }
    }
}
