//! A saved model, read without the runtime's help: what is compared between runs.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// A checkpoint with its partitioning undone.
#[derive(Debug, PartialEq, Eq)]
pub struct SavedModel {
    /// `dense.f32`: replica and optimizer state.
    pub dense: Vec<u8>,
    /// Records of all rows, by row number. `[rows][record]`
    pub rows: Vec<Vec<u8>>,
}

impl SavedModel {
    /// Reads the checkpoint in `dir`: row g is record g / P of file g mod P.
    #[must_use]
    pub fn read(dir: &Path) -> Self {
        let manifest: Value = serde_json::from_slice(&read(&dir.join("manifest.json"))).unwrap();
        let number = |name: &str| usize::try_from(manifest[name].as_u64().unwrap()).unwrap();
        let cardinality = manifest["cardinality"].as_array().unwrap();
        let count: u64 = cardinality.iter().map(|rows| rows.as_u64().unwrap()).sum();
        let record = 4 * (number("row_width") + number("row_state_len"));
        let partitions = number("partitions");
        let mut rows = vec![vec![]; usize::try_from(count).unwrap()];
        for partition in 0..partitions {
            let bytes = read(&dir.join(format!("rows-{partition:05}.f32")));
            let places = (partition..rows.len()).step_by(partitions);
            assert_eq!(bytes.len(), record * places.clone().count(), "partition {partition}");
            for (place, bytes) in places.zip(bytes.chunks_exact(record)) {
                rows[place] = bytes.to_vec();
            }
        }
        Self { dense: read(&dir.join("dense.f32")), rows }
    }
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
