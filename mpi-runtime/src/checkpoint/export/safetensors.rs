//! A model as one file of the safetensors format.
//!
//! | tensor | extents |
//! | --- | --- |
//! | `NAME`, as in the model | its own, row-major |
//! | `embedding.FIELD`; a table that fields share has the first one's name | rows, values |

use std::collections::BTreeSet;
use std::path::Path;

use super::super::error::CheckpointError;
use super::super::file::{FileWriter, Tensor};
use super::super::manifest::MANIFEST;
use super::super::read::Checkpoint;
use super::{BLOCK, bytes};
use crate::state::Kind;

/// Before the names of the model's tensors.
const DENSE: &str = "dense.";

impl Checkpoint {
    /// Writes the file `name` in `folder`. Returns its bytes.
    pub(super) fn write_safetensors(
        &self,
        folder: &Path,
        name: String,
    ) -> Result<u64, CheckpointError> {
        // What a header of them is made of can be.
        self.numbers()?;
        self.record_words()?;
        let manifest = &self.manifest;
        let dense = manifest.files.iter().flat_map(|file| &file.tensors).filter_map(|tensor| {
            let name = tensor.name.strip_prefix(DENSE)?;
            (!name.contains(".state.")).then_some((name, tensor))
        });
        let dense: Vec<_> = dense.collect();
        let tensor =
            |name: String, shape: Vec<u64>| Tensor { name, kind: Kind::F32, shape, record: None };
        let width = manifest.row_width as u64;
        let numbers = self.numbers()?;
        let fields = manifest.sparse_names.iter().zip(&numbers).filter(|(_, table)| !table.shared);
        // Of the file's tensors of rows the one of a table.
        let of = |table: usize| numbers[..table].iter().filter(|table| !table.shared).count();
        let tensors = dense.iter().map(|(name, it)| tensor((*name).to_owned(), it.shape.clone()));
        let tensors = tensors.chain(fields.map(|(field, table)| {
            tensor(format!("embedding.{field}"), vec![table.rows.into(), width])
        }));
        let tensors: Vec<Tensor> = tensors.collect();
        let mut names = BTreeSet::new();
        if let Some(twice) = tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
            let message = format!("it says {} of two tables", twice.name);
            return Err(CheckpointError::Manifest { path: self.dir().join(MANIFEST), message });
        }
        let mut file = FileWriter::create(folder, name, tensors)?;
        for (number, (_, entry)) in dense.iter().enumerate() {
            let mut left = entry.values().unwrap_or(0);
            let mut reader = self.reader(&entry.name, (left, 1))?;
            while left > 0 {
                let block = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK);
                let mut words = vec![0; block];
                reader.read(&mut words)?;
                file.append(number, &bytes(&words))?;
                left -= words.len() as u64;
            }
            reader.finish()?;
        }
        self.read_tables(|table, block| file.append(dense.len() + of(table), &bytes(block)))?;
        Ok(file.finish()?.bytes)
    }
}
