//! What the root attributes of a dataset say, and the checksum over all of it.
//!
//! HDF5 keeps attributes of more than 64 kB outside its checksummed blocks, and files of version 1
//! have none at all. So the attribute `metadata` has the XXH3-64 of everything that the others say,
//! and each opening compares it.

use std::path::Path;

use hdf5::File;
use xxhash_rust::xxh3::xxh3_64;

use super::attributes;
use crate::DatasetError;

/// The attributes, each `None` where it is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Described {
    pub(super) version: Option<u64>,
    pub(super) rows: Option<u64>,
    pub(super) dense_names: Option<Vec<String>>,
    pub(super) sparse_names: Option<Vec<String>>,
    pub(super) cardinality: Option<Vec<u64>>,
    pub(super) values_per_row_max: Option<u64>,
    pub(super) transform: Option<String>,
    /// XXH3-64 of the key list of every field, 0 for a field without one. `[S]`
    pub(super) vocabulary: Option<Vec<u64>>,
    pub(super) fingerprint: Option<String>,
}

impl Described {
    /// Reads and, where the file has a checksum of them, checks them.
    pub(super) fn read(file: &File, path: &Path) -> Result<Self, DatasetError> {
        let described = Self {
            version: attributes::integer(file, path, "umbra_version")?,
            rows: attributes::integer(file, path, "rows")?,
            dense_names: attributes::strings(file, path, "dense_names")?,
            sparse_names: attributes::strings(file, path, "sparse_names")?,
            cardinality: attributes::integers(file, path, "cardinality")?,
            values_per_row_max: attributes::integer(file, path, "values_per_row_max")?,
            transform: attributes::string(file, path, "transform")?,
            vocabulary: attributes::integers(file, path, "vocabulary")?,
            fingerprint: attributes::string(file, path, "fingerprint")?,
        };
        let stated = attributes::integer(file, path, METADATA)?;
        let got = described.checksum();
        if let Some(stated) = stated
            && stated != got
        {
            return Err(DatasetError::mismatch(
                path,
                "attributes of the file",
                format!("those with the checksum {stated:016x} (attribute `{METADATA}`)"),
                format!(
                    "{got:016x}: the file is damaged or was edited: copy or prepare it again, or \
                     remove the attribute `{METADATA}`"
                ),
            ));
        }
        Ok(described)
    }

    /// Writes all that there are, and their checksum.
    pub(super) fn write(&self, file: &File, path: &Path) -> Result<(), DatasetError> {
        let integers = [
            ("umbra_version", self.version),
            ("rows", self.rows),
            ("values_per_row_max", self.values_per_row_max),
            (METADATA, Some(self.checksum())),
        ];
        for (name, value) in integers {
            value.map_or(Ok(()), |value| attributes::write_integer(file, path, name, value))?;
        }
        for (name, list) in
            [("dense_names", &self.dense_names), ("sparse_names", &self.sparse_names)]
        {
            list.as_ref().map_or(Ok(()), |l| attributes::write_strings(file, path, name, l))?;
        }
        for (name, list) in [("cardinality", &self.cardinality), ("vocabulary", &self.vocabulary)] {
            list.as_ref().map_or(Ok(()), |l| attributes::write_slice(file, path, name, l))?;
        }
        for (name, text) in [("transform", &self.transform), ("fingerprint", &self.fingerprint)] {
            text.as_ref().map_or(Ok(()), |t| attributes::write_string(file, path, name, t))?;
        }
        Ok(())
    }

    /// Over all parts in order, each with how many words or bytes it has.
    fn checksum(&self) -> u64 {
        let mut bytes = Vec::new();
        let mut part = |there: bool, length: usize, content: &mut dyn FnMut(&mut Vec<u8>)| {
            bytes.push(u8::from(there));
            bytes.extend_from_slice(&(length as u64).to_le_bytes());
            content(&mut bytes);
        };
        for number in [self.version, self.rows, self.values_per_row_max] {
            part(number.is_some(), 1, &mut |to| {
                to.extend_from_slice(&number.unwrap_or(0).to_le_bytes());
            });
        }
        for list in [&self.cardinality, &self.vocabulary] {
            let numbers = list.as_deref().unwrap_or_default();
            part(list.is_some(), numbers.len(), &mut |to| {
                numbers.iter().for_each(|number| to.extend_from_slice(&number.to_le_bytes()));
            });
        }
        let texts = [&self.transform, &self.fingerprint];
        let lists = texts.map(|text| text.as_ref().map(core::slice::from_ref));
        let names = [self.dense_names.as_deref(), self.sparse_names.as_deref()];
        for list in names.into_iter().chain(lists) {
            let texts = list.unwrap_or_default();
            part(list.is_some(), texts.len(), &mut |_| ());
            for text in texts {
                part(true, text.len(), &mut |to| to.extend_from_slice(text.as_bytes()));
            }
        }
        xxh3_64(&bytes)
    }
}

/// The attribute with the checksum.
const METADATA: &str = "metadata";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_sees_every_part_and_where_it_ends() {
        let list = |texts: &[&str]| Some(texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>());
        let empty = Described::default();
        let all = [
            empty.clone(),
            Described { version: Some(2), ..empty.clone() },
            Described { rows: Some(2), ..empty.clone() },
            Described { rows: Some(0), ..empty.clone() },
            Described { values_per_row_max: Some(2), ..empty.clone() },
            Described { dense_names: list(&["ab", "c"]), ..empty.clone() },
            Described { dense_names: list(&["a", "bc"]), ..empty.clone() },
            Described { sparse_names: list(&["a", "bc"]), ..empty.clone() },
            Described { dense_names: list(&[]), ..empty.clone() },
            Described { cardinality: Some(vec![1, 2]), ..empty.clone() },
            Described { vocabulary: Some(vec![1, 2]), ..empty.clone() },
            Described { transform: Some("a".into()), ..empty.clone() },
            Described { fingerprint: Some("a".into()), ..empty },
        ];
        let mut sums: Vec<u64> = all.iter().map(Described::checksum).collect();
        sums.sort_unstable();
        sums.dedup();
        assert_eq!(sums.len(), all.len());
    }
}
