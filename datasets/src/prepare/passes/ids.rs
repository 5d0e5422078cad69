//! Where the ids of a run come from: counted in its own text, stored in another file, or hashed.

use std::path::Path;
use std::slice;

use rayon::ThreadPool;
use rayon::prelude::*;

use super::plan::{Plan, Recipe};
use super::run::{self, Reporter};
use crate::prepare::error::PrepareError;
use crate::prepare::keys::vocabulary::{Encoder, KeyList};
use crate::{Dataset, read_vocabulary, vocabulary_hash};

/// The ids of all fields, before they are put to use. `[S]` each
pub(crate) enum Ids {
    /// To be stored in the output.
    Counted(Vec<KeyList>),
    /// Of another file, and the hashes that it has of them.
    Stored(Vec<KeyList>, Option<Vec<u64>>),
    /// This many per field.
    Hashed(u32),
}

/// Distinct keys of a field that was counted: all, and those below the threshold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeysSeen {
    pub(crate) all: u64,
    pub(crate) below_threshold: u64,
}

impl Ids {
    /// Reads all of the text, and ranks the keys seen at least `min_count` times.
    pub(crate) fn count(
        plan: &Plan,
        pool: &ThreadPool,
        min_count: u32,
        reporter: &mut Reporter<'_>,
    ) -> Result<(Self, Vec<KeysSeen>), PrepareError> {
        let (counters, totals) = run::count(plan, pool, reporter)?;
        totals.check_rows(plan)?;
        let counted: Vec<_> = pool.install(|| {
            counters.into_par_iter().map(|counter| counter.finish(min_count)).collect()
        });
        let mut lists = Vec::with_capacity(counted.len());
        let mut seen = Vec::with_capacity(counted.len());
        for (counted, field) in counted.into_iter().zip(&plan.layout.sparse_names) {
            let keys = counted.list.cardinality() - 1;
            if keys >= u64::from(u32::MAX) {
                return Err(PrepareError::TooManyKeys { field: field.clone(), keys });
            }
            let below_threshold = counted.keys_below_threshold;
            seen.push(KeysSeen { all: counted.keys, below_threshold });
            lists.push(counted.list);
        }
        Ok((Self::Counted(lists), seen))
    }

    /// Takes the vocabulary of the dataset at `path`, and its recipe for ids.
    ///
    /// # Errors
    /// When the file has no vocabulary, or was made from other columns or in another way.
    pub(crate) fn stored(path: &Path, plan: &mut Plan) -> Result<Self, PrepareError> {
        let dataset = Dataset::open(slice::from_ref(&path.to_path_buf()))?;
        let no_vocabulary = |cure: String| PrepareError::NoVocabulary { path: path.into(), cure };
        let recipe: Recipe = toml::from_str(dataset.transform()).map_err(|_| {
            no_vocabulary("it was not written by `umbra prepare`: give the training split".into())
        })?;
        if let Some(size) = recipe.hash_size {
            return Err(no_vocabulary(format!(
                "it was written with --hash-size {size}: use that instead of --vocabulary"
            )));
        }
        let mismatch = |what, expected, got| PrepareError::VocabularyMismatch {
            path: path.into(),
            what,
            expected,
            got,
        };
        if let Some((what, expected, got)) = plan.recipe.difference(&recipe) {
            return Err(mismatch(what, expected, got));
        }
        for (what, ours, theirs) in [
            ("dense features", &plan.layout.dense_names, dataset.dense_names()),
            ("sparse fields", &plan.layout.sparse_names, dataset.sparse_names()),
        ] {
            if ours != theirs {
                return Err(mismatch(what, ours.join(", "), theirs.join(", ")));
            }
        }
        let mut lists = Vec::with_capacity(plan.layout.sparse_names.len());
        for (field, &cardinality) in dataset.cardinality().iter().enumerate() {
            let (bytes, offsets) = read_vocabulary(path, field)?.ok_or_else(|| {
                no_vocabulary(
                    "it was itself encoded with --vocabulary: give the training split".into(),
                )
            })?;
            let list = KeyList { bytes, offsets };
            if list.cardinality() != cardinality {
                return Err(PrepareError::DamagedVocabulary {
                    path: path.into(),
                    field: plan.layout.sparse_names[field].clone(),
                    reason: format!(
                        "expected {} keys for the cardinality {cardinality}, got {}",
                        cardinality.saturating_sub(1),
                        list.cardinality() - 1
                    ),
                });
            }
            lists.push(list);
        }
        plan.recipe = recipe;
        let hashes = dataset.vocabulary().map(<[u64]>::to_vec);
        Ok(Self::Stored(lists, hashes))
    }

    /// Size of the embedding table of each field.
    pub(crate) fn cardinality(&self, plan: &Plan) -> Vec<u64> {
        match self {
            Self::Counted(lists) | Self::Stored(lists, _) => {
                lists.iter().map(KeyList::cardinality).collect()
            }
            Self::Hashed(size) => vec![u64::from(*size); plan.layout.sparse_names.len()],
        }
    }

    /// The vocabulary that the output is to keep.
    pub(crate) fn to_store(&self) -> &[KeyList] {
        match self {
            Self::Counted(lists) => lists,
            Self::Stored(..) | Self::Hashed(_) => &[],
        }
    }

    /// Hashes of the key lists of another file, where ids are of those.
    pub(crate) fn hashes(&self) -> Option<Vec<u64>> {
        match self {
            // A file of version 1 does not say; its lists do.
            Self::Stored(lists, hashes) => Some(hashes.clone().unwrap_or_else(|| {
                lists.iter().map(|list| vocabulary_hash(&list.bytes, &list.offsets)).collect()
            })),
            Self::Counted(_) | Self::Hashed(_) => None,
        }
    }

    /// Turns the lists, which are then let go, into maps. `path` is the file they come from.
    pub(crate) fn into_encoders(
        self,
        plan: &Plan,
        pool: &ThreadPool,
        path: &Path,
    ) -> Result<Vec<Encoder>, PrepareError> {
        let spelling = plan.layout.spelling;
        let names = &plan.layout.sparse_names;
        match self {
            Self::Hashed(size) => {
                Ok(names.iter().map(|_| Encoder::Hash { size, spelling }).collect())
            }
            Self::Counted(lists) | Self::Stored(lists, _) => pool.install(|| {
                let encoders = lists.into_par_iter().zip(names).map(|(list, name)| {
                    Encoder::from_list(&list, spelling).map_err(|key| {
                        PrepareError::DamagedVocabulary {
                            path: path.into(),
                            field: name.clone(),
                            reason: format!("key number {key} is not spelt as this format does"),
                        }
                    })
                });
                encoders.collect()
            }),
        }
    }
}
