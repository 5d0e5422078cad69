//! Where the ids of a run come from: counted in its own text, taken from another file, or hashed.

use std::path::Path;
use std::slice;

use rayon::ThreadPool;
use rayon::prelude::*;

use super::plan::Plan;
use super::recipe::Recipe;
use super::run::{FieldNumbers, Numberer};
use crate::prepare::error::PrepareError;
use crate::prepare::keys::encoder::Encoder;
use crate::prepare::keys::rule::IdRule;
use crate::prepare::keys::vocabulary::{KeyList, Numbering};
use crate::{Dataset, read_vocabulary, vocabulary_hash};

/// The ids of all fields, before they are put to use. `[S]` each
pub(crate) struct Ids {
    rules: Vec<IdRule>,
    /// Empty where a field is hashed.
    lists: Vec<KeyList>,
    /// The lists are this run's own, or have grown: the output is to keep them.
    own: bool,
}

/// Distinct keys of a field that was counted: all, and those that are not kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeysSeen {
    pub(crate) all: u64,
    pub(crate) left_out: u64,
}

impl Ids {
    /// Nothing but what the plan says.
    pub(crate) fn new(plan: &Plan) -> Self {
        let rules = plan.rules();
        Self { lists: vec![KeyList::default(); rules.len()], rules, own: true }
    }

    /// Whether a field has a vocabulary.
    pub(crate) fn has_vocabulary(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule, IdRule::Counted(_)))
    }

    /// What numbers the keys of every field, beginning with those that are known, or hashes them.
    /// `[S]`
    pub(crate) fn numbers(
        &mut self,
        plan: &Plan,
        pool: &ThreadPool,
        path: &Path,
    ) -> Result<Vec<FieldNumbers>, PrepareError> {
        let spelling = plan.layout.spelling;
        let fields = self.rules.par_iter().zip(&mut self.lists).zip(&plan.layout.sparse_names);
        let numbers = fields.map(|((rule, list), name)| {
            let numberer = match rule {
                IdRule::Counted(counting) => Numbering::new(spelling, core::mem::take(list))
                    .map(|numbering| Numberer::Counted(numbering, *counting)),
                IdRule::Hashed(_) => Encoder::new(*rule, list, spelling).map(Numberer::Hashed),
            };
            let numberer = numberer.map_err(|key| misspelt(path, name, key))?;
            Ok(FieldNumbers::new(numberer))
        });
        pool.install(|| numbers.collect())
    }

    /// Settles the lists by what was counted. Returns what gives ids to numbers, and what was seen
    /// of each field that has a vocabulary. `[S]` each
    pub(crate) fn count(
        &mut self,
        plan: &Plan,
        pool: &ThreadPool,
        numbers: Vec<FieldNumbers>,
    ) -> Result<(Vec<Encoder>, Vec<Option<KeysSeen>>), PrepareError> {
        self.own = true;
        let names = &plan.layout.sparse_names;
        let fields = numbers.into_par_iter().zip(&mut self.lists).zip(names);
        let count = |((numbers, list), name): ((FieldNumbers, &mut KeyList), &String)| {
            let (numbering, counting) = match numbers.numberer {
                Numberer::Counted(numbering, counting) => (numbering, counting),
                Numberer::Hashed(encoder) => {
                    return Ok((Encoder::given(encoder.ids_per_key()), None));
                }
            };
            let counted = numbering.finish(&counting);
            let keys = counted.list.len() as u64 + counted.keys_left_out;
            if keys + u64::from(counting.unknown.count) > u64::from(u32::MAX) {
                return Err(PrepareError::TooManyKeys { field: name.clone(), keys });
            }
            *list = counted.list;
            let seen = KeysSeen { all: counted.keys, left_out: counted.keys_left_out };
            Ok((Encoder::numbered(counted.ids, counting.unknown.count), Some(seen)))
        };
        pool.install(|| fields.map(count).collect())
    }

    /// Takes the vocabulary of the dataset at `path`, and its recipe.
    ///
    /// # Errors
    /// When the file has no vocabulary, or was made from other columns or in another way.
    pub(crate) fn stored(path: &Path, plan: &mut Plan) -> Result<Self, PrepareError> {
        let dataset = Dataset::open(slice::from_ref(&path.to_path_buf()))?;
        let no_vocabulary =
            |cure: &str| PrepareError::NoVocabulary { path: path.into(), cure: cure.into() };
        let recipe: Recipe = toml::from_str(dataset.transform()).map_err(|_| {
            no_vocabulary("it was not written by `umbra prepare`: give the training split")
        })?;
        if recipe.has_old_hash() {
            return Err(no_vocabulary(
                "its ids are hashed as umbra no longer does: prepare it again",
            ));
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
                return Err(mismatch(what.into(), ours.join(", "), theirs.join(", ")));
            }
        }
        plan.follow(recipe);
        let rules = plan.rules();
        let mut lists = Vec::with_capacity(rules.len());
        for (field, (rule, &cardinality)) in rules.iter().zip(dataset.cardinality()).enumerate() {
            let IdRule::Counted(counting) = rule else {
                lists.push(KeyList::default());
                continue;
            };
            let (bytes, offsets) = read_vocabulary(path, field)?.ok_or_else(|| {
                no_vocabulary("it was itself encoded with --vocabulary: give the training split")
            })?;
            let list = KeyList { bytes, offsets };
            let expected = cardinality.saturating_sub(u64::from(counting.unknown.count));
            if list.len() as u64 != expected {
                return Err(PrepareError::DamagedVocabulary {
                    path: path.into(),
                    field: plan.layout.sparse_names[field].clone(),
                    reason: format!(
                        "expected {expected} keys for the cardinality {cardinality}, got {}",
                        list.len()
                    ),
                });
            }
            lists.push(list);
        }
        Ok(Self { rules, lists, own: false })
    }

    /// Size of the embedding table of each field.
    pub(crate) fn cardinality(&self) -> Vec<u64> {
        let size = |(rule, list): (&IdRule, &KeyList)| match rule {
            IdRule::Counted(counting) => list.len() as u64 + u64::from(counting.unknown.count),
            IdRule::Hashed(hashing) => u64::from(hashing.size),
        };
        self.rules.iter().zip(&self.lists).map(size).collect()
    }

    /// Hashes of the lists, 0 for a hashed field; `None` where all are. `[S]`
    pub(crate) fn hashes(&self) -> Option<Vec<u64>> {
        let hash = |(rule, list): (&IdRule, &KeyList)| match rule {
            IdRule::Counted(_) => vocabulary_hash(&list.bytes, &list.offsets),
            IdRule::Hashed(_) => 0,
        };
        let hashes: Vec<u64> = self.rules.iter().zip(&self.lists).map(hash).collect();
        hashes.iter().any(|hash| *hash != 0).then_some(hashes)
    }

    /// The lists that the output is to keep, with the numbers of their fields.
    pub(crate) fn to_store(&self) -> impl Iterator<Item = (usize, &KeyList)> {
        let fields = self.rules.iter().zip(&self.lists).enumerate();
        let counted = fields.filter(|(_, (rule, _))| matches!(rule, IdRule::Counted(_)));
        counted.map(|(field, (_, list))| (field, list)).filter(|_| self.own)
    }

    /// What gives ids to keys as they stand in the text. `path` is the file of the lists. `[S]`
    pub(crate) fn encoders(
        &self,
        plan: &Plan,
        pool: &ThreadPool,
        path: &Path,
    ) -> Result<Vec<Encoder>, PrepareError> {
        let spelling = plan.layout.spelling;
        let fields = self.rules.par_iter().zip(&self.lists).zip(&plan.layout.sparse_names);
        let encoders = fields.map(|((rule, list), name)| {
            Encoder::new(*rule, list, spelling).map_err(|key| misspelt(path, name, key))
        });
        pool.install(|| encoders.collect())
    }
}

fn misspelt(path: &Path, field: &str, key: u64) -> PrepareError {
    PrepareError::DamagedVocabulary {
        path: path.into(),
        field: field.into(),
        reason: format!("key number {key} is not spelt as this format does, or stands there twice"),
    }
}
