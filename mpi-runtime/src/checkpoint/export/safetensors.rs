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
        let (numbers, mut next) = (self.numbers()?, 0);
        let own: Vec<bool> = manifest
            .strip_counts()
            .iter()
            .map(|count| {
                next += *count as usize;
                !numbers[next - 1].shared
            })
            .collect();
        let rows = manifest.cardinality.iter().zip(self.widths());
        let fields = manifest.sparse_names.iter().zip(rows).zip(&own).filter(|(_, own)| **own);
        // Of the file's tensors of rows the one of a field.
        let of = |field: usize| own[..field].iter().filter(|own| **own).count();
        let tensors = dense.iter().map(|(name, it)| tensor((*name).to_owned(), it.shape.clone()));
        let tensors = tensors.chain(fields.map(|((field, (rows, width)), _)| {
            tensor(format!("embedding.{field}"), vec![*rows, width as u64])
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
        self.read_tables(folder, |field, block| {
            file.append(dense.len() + of(field), &bytes(block))
        })?;
        Ok(file.finish()?.bytes)
    }
}
