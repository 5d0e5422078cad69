//! A folder of arrays that PyTorch compares: `arrays.txt` names every array with its type and
//! shape, one per line; the array itself is `NAME.bin`, little-endian, row-major.

use core::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use umbra_core::batch::Batch;

/// A folder under way.
#[derive(Debug)]
pub struct Arrays {
    folder: PathBuf,
    names: String,
}

impl Arrays {
    /// Makes the folder.
    #[must_use]
    pub fn create(folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        Self { folder: folder.to_owned(), names: String::new() }
    }

    /// Rows of every table.
    pub fn cardinality(&mut self, cardinality: &[u64]) {
        let bytes = cardinality.iter().copied().map(u64::to_le_bytes);
        self.write("cardinality", "u64", &[cardinality.len()], bytes);
    }

    /// The examples as `batch.NUMBER.COLUMN`.
    pub fn batch(&mut self, number: usize, batch: &Batch<'_>) {
        let (n, ids) = (batch.len(), batch.bags.values.len());
        let name = |column: &str| format!("batch.{number}.{column}");
        self.f32(&name("label"), &[n], batch.label);
        self.f32(&name("weight"), &[batch.weight.len()], batch.weight);
        self.f32(&name("dense"), &[n, batch.dense.len() / n], batch.dense);
        let words = |x: &[u32]| x.iter().map(|x| x.to_le_bytes()).collect::<Vec<_>>();
        self.write(&name("values"), "u32", &[ids], words(batch.bags.values));
        self.write(&name("offsets"), "u32", &[batch.bags.offsets.len()], words(batch.bags.offsets));
    }

    /// An array of f32s.
    pub fn f32(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        self.write(name, "f32", shape, values.iter().map(|x| x.to_le_bytes()));
    }

    /// An array of f64s.
    pub fn f64(&mut self, name: &str, shape: &[usize], values: &[f64]) {
        self.write(name, "f64", shape, values.iter().map(|x| x.to_le_bytes()));
    }

    fn write<const N: usize>(
        &mut self,
        name: &str,
        kind: &str,
        shape: &[usize],
        values: impl IntoIterator<Item = [u8; N]>,
    ) {
        let bytes: Vec<u8> = values.into_iter().flatten().collect();
        fs::write(self.folder.join(format!("{name}.bin")), bytes).unwrap();
        write!(self.names, "{name} {kind}").unwrap();
        for extent in shape {
            write!(self.names, " {extent}").unwrap();
        }
        self.names.push('\n');
    }

    /// Writes the list of names: the folder is whole.
    pub fn finish(self) {
        fs::write(self.folder.join("arrays.txt"), self.names).unwrap();
    }
}
