//! One split: a list of files read as one dataset.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::DatasetError;
use crate::hdf5::{FileInfo, Sparse, inspect};
use crate::order::Grid;

/// Opened and checked files, in the order given: rows of the second follow those of the first.
///
/// Holds no file open; cheap to clone.
#[derive(Clone, Debug)]
pub struct Dataset {
    parts: Arc<Parts>,
}

#[derive(Debug)]
struct Parts {
    files: Vec<FileInfo>,
    /// Where the files lie in the rows of the dataset. `[files]`
    grid: Vec<Grid>,
    rows: u64,
    dense_names: Vec<String>,
    sparse_names: Vec<String>,
    fingerprint: String,
    values_per_row_max: usize,
}

impl Dataset {
    /// Opens `paths` and checks the structure of every file, and that they belong together.
    ///
    /// # Errors
    /// When a file cannot be opened, is not laid out as the version says, or disagrees with the
    /// first in features, fields, cardinality, key lists, transform, labels, weights, groups or
    /// weights of ids.
    pub fn open(paths: &[PathBuf]) -> Result<Self, DatasetError> {
        let files = paths.iter().map(|p| inspect(p)).collect::<Result<Vec<_>, _>>()?;
        let Some((first, others)) = files.split_first() else { return Err(DatasetError::NoFiles) };
        for other in others {
            agree(first, other)?;
            let optional = [
                ("dataset `label`", first.has_label, other.has_label),
                ("dataset `weight`", first.has_weight, other.has_weight),
                ("dataset `group`", first.has_group, other.has_group),
                ("dataset `sparse_weights`", first.has_value_weights, other.has_value_weights),
            ];
            for (what, expected, got) in optional {
                same(first, other, what, &yes(expected), &yes(got))?;
            }
        }
        let mut grid = Vec::with_capacity(files.len());
        let mut rows = 0;
        for file in &files {
            grid.push(Grid { first: rows, rows: file.rows, chunk_rows: file.chunk_rows });
            rows += file.rows;
        }
        let values = files.iter().map(|f| f.values_per_row_max).max().unwrap_or(0);
        let values_per_row_max = usize::try_from(values).map_err(|_| {
            DatasetError::mismatch(
                &first.path,
                "attribute `values_per_row_max`",
                "a number that fits in memory",
                values.to_string(),
            )
        })?;
        let name = |prefix: &str, n: usize| (0..n).map(|i| format!("{prefix}{i}")).collect();
        let parts = Parts {
            dense_names: first
                .dense_names
                .clone()
                .unwrap_or_else(|| name("dense", first.dense_features)),
            sparse_names: first
                .sparse_names
                .clone()
                .unwrap_or_else(|| name("sparse", first.cardinality.len())),
            fingerprint: fingerprint(&files),
            values_per_row_max,
            grid,
            rows,
            files,
        };
        Ok(Self { parts: Arc::new(parts) })
    }

    /// Rows over all files; at least one.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.parts.rows
    }

    /// D.
    #[must_use]
    pub fn dense_features(&self) -> usize {
        self.parts.dense_names.len()
    }

    /// S.
    #[must_use]
    pub fn fields(&self) -> usize {
        self.parts.sparse_names.len()
    }

    /// Ids of every field are below it. `[S]`
    #[must_use]
    pub fn cardinality(&self) -> &[u64] {
        &self.parts.files[0].cardinality
    }

    /// Names of the dense features, `dense0`… where the file has none. `[D]`
    #[must_use]
    pub fn dense_names(&self) -> &[String] {
        &self.parts.dense_names
    }

    /// Names of the sparse fields, `sparse0`… where the file has none. `[S]`
    #[must_use]
    pub fn sparse_names(&self) -> &[String] {
        &self.parts.sparse_names
    }

    /// What was done to the raw values of the first file; empty when it does not say.
    #[must_use]
    pub fn transform(&self) -> &str {
        &self.parts.files[0].transform
    }

    /// Hash of the key list of every field ([`vocabulary_hash`](crate::vocabulary_hash)), 0 for a
    /// field without one; `None` when the first file does not say. `[S]`
    #[must_use]
    pub fn vocabulary(&self) -> Option<&[u64]> {
        self.parts.files[0].vocabulary.as_deref()
    }

    /// Fingerprint of the content, or `absent` when a file has none.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.parts.fingerprint
    }

    /// Rows carry a label; without, they can only be scored.
    #[must_use]
    pub fn has_labels(&self) -> bool {
        self.parts.files[0].has_label
    }

    /// Rows carry labels, as learning and figures need.
    ///
    /// # Errors
    /// Naming the first file when they do not.
    pub fn check_labels(&self) -> Result<(), DatasetError> {
        let first = &self.parts.files[0];
        if first.has_label {
            return Ok(());
        }
        let path = first.path.clone();
        let expected = "dataset `label`, f32 [rows]: rows without labels can only be scored, by \
                        `umbra predict`";
        Err(DatasetError::Missing { path, object: "label", expected: expected.into() })
    }

    /// Rows carry a group.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        self.parts.files[0].has_group
    }

    /// Rows carry a weight.
    #[must_use]
    pub fn has_weights(&self) -> bool {
        self.parts.files[0].has_weight
    }

    /// Ids carry a weight in their bags.
    #[must_use]
    pub fn has_value_weights(&self) -> bool {
        self.parts.files[0].has_value_weights
    }

    /// Most sparse values in one row: what a buffer for `n` rows must hold is `n` times this.
    #[must_use]
    pub fn values_per_row_max(&self) -> usize {
        self.parts.values_per_row_max
    }

    /// The files, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.files.iter().map(|f| f.path.as_path())
    }

    /// The files, in order, and the rows of each.
    pub fn rows_of_files(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.parts.files.iter().map(|f| (f.path.as_path(), f.rows))
    }

    /// `other` can be scored by a model of `self`: same features, fields and cardinality, and same
    /// names, key lists and transform where both have them.
    ///
    /// # Errors
    /// Naming both files and what differs.
    pub fn check_compatible(&self, other: &Self) -> Result<(), DatasetError> {
        agree(&self.parts.files[0], &other.parts.files[0])
    }

    /// The layouts of the files: their attributes `umbra_version`.
    pub fn versions(&self) -> impl Iterator<Item = u64> {
        self.parts.files.iter().map(|file| file.version)
    }

    /// Whether a row has any number of ids in a field, and not always one.
    #[must_use]
    pub fn has_bags(&self) -> bool {
        !self.one_hot()
    }

    pub(crate) fn grid(&self) -> &[Grid] {
        &self.parts.grid
    }

    /// Whether every bag holds exactly one id.
    pub(crate) fn one_hot(&self) -> bool {
        self.parts.files.iter().all(|f| !matches!(f.sparse, Sparse::Bags { .. }))
    }

    pub(crate) fn files(&self) -> &[FileInfo] {
        &self.parts.files
    }
}

/// Same features, fields, cardinality; same names, key lists, transform where both have them.
fn agree(first: &FileInfo, second: &FileInfo) -> Result<(), DatasetError> {
    let count = |n: usize| n.to_string();
    same(
        first,
        second,
        "number of dense features",
        &count(first.dense_features),
        &count(second.dense_features),
    )?;
    let fields = |f: &FileInfo| count(f.cardinality.len());
    same(first, second, "number of sparse fields", &fields(first), &fields(second))?;
    let field_name = |i: usize| {
        first.sparse_names.as_ref().map_or(String::new(), |names| format!(" (`{}`)", names[i]))
    };
    for (i, (&a, &b)) in first.cardinality.iter().zip(&second.cardinality).enumerate() {
        let what = format!("cardinality of field {i}{}", field_name(i));
        same(first, second, &what, &a.to_string(), &b.to_string())?;
    }
    let names = [
        ("dense feature", &first.dense_names, &second.dense_names),
        ("sparse field", &first.sparse_names, &second.sparse_names),
    ];
    for (what, a, b) in names {
        let (Some(a), Some(b)) = (a, b) else { continue };
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            same(first, second, &format!("name of {what} {i}"), a, b)?;
        }
    }
    if let (Some(a), Some(b)) = (&first.vocabulary, &second.vocabulary) {
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            let what = format!("hash of the keys behind the ids of field {i}{}", field_name(i));
            same(first, second, &what, &format!("{a:016x}"), &format!("{b:016x}"))?;
        }
    }
    // Files of version 1 may say there which rows of a log they are.
    if first.version.max(second.version) > 1
        && !first.transform.is_empty()
        && !second.transform.is_empty()
        && let Some((a, b)) = first_difference(&first.transform, &second.transform)
    {
        same(first, second, "what was done to the raw values (attribute `transform`)", &a, &b)?;
    }
    Ok(())
}

/// The first lines in which two texts differ; what the shorter one does not have is `nothing`.
#[must_use]
pub fn first_difference(first: &str, second: &str) -> Option<(String, String)> {
    let (mut a, mut b) = (first.lines(), second.lines());
    loop {
        let (a, b) = (a.next(), b.next());
        if a != b {
            let shown = |line: Option<&str>| line.unwrap_or("nothing").to_owned();
            return Some((shown(a), shown(b)));
        }
        a?;
    }
}

fn same(
    first: &FileInfo,
    second: &FileInfo,
    what: &str,
    expected: &str,
    got: &str,
) -> Result<(), DatasetError> {
    if expected == got {
        return Ok(());
    }
    Err(DatasetError::Incompatible {
        first: first.path.clone(),
        second: second.path.clone(),
        what: what.to_owned(),
        expected: expected.to_owned(),
        got: got.to_owned(),
    })
}

fn yes(there: bool) -> String {
    if there { "one" } else { "none" }.to_owned()
}

/// Fingerprint of a list: that of its only file, else CRC-32 over the files' own, word by word.
fn fingerprint(files: &[FileInfo]) -> String {
    let prints: Option<Vec<&str>> = files.iter().map(|f| f.fingerprint.as_deref()).collect();
    match prints.as_deref() {
        None => "absent".to_owned(),
        Some(&[one]) => one.to_owned(),
        Some(many) => (0..4)
            .map(|word| {
                let mut hasher = crc32fast::Hasher::new();
                for print in many {
                    let part = print.get(word * 8..(word + 1) * 8).unwrap_or(print);
                    hasher.update(part.as_bytes());
                }
                format!("{:08x}", hasher.finalize())
            })
            .collect(),
    }
}
