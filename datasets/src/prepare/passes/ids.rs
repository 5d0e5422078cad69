//! Where the ids of a run come from: counted in its own text, taken from another file, or hashed.

use std::path::Path;
use std::slice;

use rayon::ThreadPool;
use rayon::prelude::*;

use super::plan::Plan;
use super::recipe::Recipe;
use super::run::Counts;
use crate::prepare::error::PrepareError;
use crate::prepare::keys::encoder::Encoder;
use crate::prepare::keys::rule::IdRule;
use crate::prepare::keys::vocabulary::{Counter, KeyList};
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

type Field<'a> = (((Option<Counter>, &'a mut KeyList), &'a IdRule), &'a String);

impl Ids {
    /// Nothing but what the plan says.
    pub(crate) fn new(plan: &Plan) -> Self {
        let rules = plan.rules();
        Self { lists: vec![KeyList::default(); rules.len()], rules, own: true }
    }

    /// Fields that have a vocabulary. `[S]`
    pub(crate) fn counted(&self) -> Vec<bool> {
        self.rules.iter().map(|rule| matches!(rule, IdRule::Counted(_))).collect()
    }

    /// Adds the keys that were counted to those that are known. Returns what was seen of each field
    /// that has a vocabulary.
    pub(crate) fn add(
        &mut self,
        plan: &Plan,
        pool: &ThreadPool,
        counts: Counts,
    ) -> Result<Vec<Option<KeysSeen>>, PrepareError> {
        self.own = true;
        let names = &plan.layout.sparse_names;
        let fields = counts.counters.into_par_iter().zip(&mut self.lists);
        let fields = fields.zip(&self.rules).zip(names);
        let add = |(((counter, list), rule), name): Field<'_>| {
            let (Some(counter), IdRule::Counted(counting)) = (counter, rule) else {
                return Ok(None);
            };
            let counted = counter.finish(counting, core::mem::take(list));
            let counted = counted.map_err(|key| misspelt(&plan.inputs[0].path, name, key))?;
            let keys = counted.list.len() as u64;
            if keys + u64::from(counting.unknown.count) > u64::from(u32::MAX) {
                return Err(PrepareError::TooManyKeys { field: name.clone(), keys });
            }
            *list = counted.list;
            Ok(Some(KeysSeen { all: counted.keys, left_out: counted.keys_left_out }))
        };
        pool.install(|| fields.map(add).collect())
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

    /// Turns the lists, which are then let go, into maps. `path` is the file they come from.
    pub(crate) fn into_encoders(
        self,
        plan: &Plan,
        pool: &ThreadPool,
        path: &Path,
    ) -> Result<Vec<Encoder>, PrepareError> {
        let spelling = plan.layout.spelling;
        let fields = self.rules.into_par_iter().zip(self.lists).zip(&plan.layout.sparse_names);
        let encoders = fields.map(|((rule, list), name)| {
            Encoder::new(rule, &list, spelling).map_err(|key| misspelt(path, name, key))
        });
        pool.install(|| encoders.collect())
    }
}

fn misspelt(path: &Path, field: &str, key: u64) -> PrepareError {
    PrepareError::DamagedVocabulary {
        path: path.into(),
        field: field.into(),
        reason: format!("key number {key} is not spelt as this format does"),
    }
}
