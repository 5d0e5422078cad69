//! A saved model, read without the runtime's help: what is compared between runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// A checkpoint with its partitioning undone.
#[derive(Debug, PartialEq, Eq)]
pub struct SavedModel {
    /// `dense.*`: the tensors of the model, then their optimizer state.
    pub dense: Vec<u8>,
    /// Records of all rows, by row number. `[rows][record]`
    pub rows: Vec<Vec<u8>>,
}

impl SavedModel {
    /// Reads the checkpoint in `dir`: row g is record g / P of `rows.{g mod P}`, or the rows of
    /// tables that are whole come one after the other in those of their partitions; or what of a
    /// record has changed since that was written, if another checkpoint has it.
    #[must_use]
    pub fn read(dir: &Path) -> Self {
        let manifest = manifest(dir);
        let count: u64 = list(&manifest["cardinality"]).iter().map(number).sum();
        let partitions = usize::try_from(number(&manifest["partitions"])).unwrap();
        let mut rows = vec![vec![]; usize::try_from(count).unwrap()];
        let base = manifest["base"]["step"].as_u64();
        let whole = base.map_or(dir.to_owned(), |step| dir.join("..").join(format!("step-{step}")));
        for partition in 0..partitions {
            let named = |dir: &Path, name: &str| {
                let name = format!("rows.{partition}{name}");
                tensors(dir, |other| other == name)
            };
            let mut records = named(&whole, "");
            let places: Vec<usize> = match manifest["owners"].as_array() {
                None => (partition..rows.len()).step_by(partitions).collect(),
                Some(owners) => {
                    let mut first = 0;
                    let tables = list(&manifest["cardinality"]).iter().map(number).map(|count| {
                        let table = first..first + usize::try_from(count).unwrap();
                        first = table.end;
                        table
                    });
                    let own = tables.zip(owners).filter(|(_, owner)| **owner == partition);
                    own.flat_map(|(table, _)| table).collect()
                }
            };
            let record = records.len() / places.len().max(1);
            if base.is_some() {
                let (index, changed) = (named(dir, ".index"), named(dir, ".changed"));
                let (places, _) = index.as_chunks::<8>();
                for (place, new) in places.iter().zip(changed.chunks_exact(record)) {
                    let place = usize::try_from(u64::from_le_bytes(*place)).unwrap();
                    records[place * record..][..record].copy_from_slice(new);
                }
            }
            for (place, record) in places.into_iter().zip(records.chunks_exact(record.max(1))) {
                rows[place] = record.to_vec();
            }
        }
        Self { dense: tensors(dir, |name| name.starts_with("dense.")), rows }
    }
}

/// The numbers of every tensor of a checkpoint that is trained, by name: parameters, rows, and
/// their optimizer state.
#[must_use]
pub fn numbers(dir: &Path) -> BTreeMap<String, Vec<f32>> {
    let manifest = manifest(dir);
    let names = list(&manifest["files"]).iter().flat_map(|file| {
        list(&file["tensors"]).iter().map(|tensor| tensor["name"].as_str().unwrap())
    });
    let trained = names.filter(|name| name.starts_with("dense.") || name.starts_with("rows."));
    trained
        .map(|name| {
            let bytes = tensors(dir, |other| other == name);
            let words = bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word));
            (name.to_owned(), words.collect())
        })
        .collect()
}

/// The values of the tensors that are wanted, one after the other as the manifest lists
/// them.
#[must_use]
pub fn tensors(dir: &Path, wanted: impl Fn(&str) -> bool) -> Vec<u8> {
    let mut values = vec![];
    for file in list(&manifest(dir)["files"]) {
        let bytes = read(&dir.join(file["name"].as_str().unwrap()));
        for tensor in list(&file["tensors"]) {
            if wanted(tensor["name"].as_str().unwrap()) {
                let bytes_of_a_value = match tensor["kind"].as_str().unwrap() {
                    "F32" => 4,
                    "U64" => 8,
                    "BF16" => 2,
                    kind => panic!("{kind}"),
                };
                let first = usize::try_from(number(&tensor["offset"])).unwrap();
                let length: u64 = list(&tensor["shape"]).iter().map(number).product();
                let length = bytes_of_a_value * usize::try_from(length).unwrap();
                values.extend_from_slice(&bytes[first..first + length]);
            }
        }
    }
    values
}

/// The manifest of the checkpoint in `dir`.
#[must_use]
pub fn manifest(dir: &Path) -> Value {
    let whole: Value = serde_json::from_slice(&read(&dir.join("manifest.json"))).unwrap();
    whole["manifest"].clone()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
