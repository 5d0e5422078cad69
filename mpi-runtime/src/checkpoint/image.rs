//! The state of a rank as it was at one moment, in memory of its own.
//!
//! It is taken between two stretches of training, so all of a job is of one moment: a row and its
//! optimizer state, replicas and what the method remembers. Copying on write instead would have to
//! look at every row that is updated while a file is being written, and would copy nearly all of
//! them: at a hundred steps a second a batch touches most pages of a table within a second.
//!
//! The image of the last checkpoint is still there when the next one is taken, so the rows that
//! have changed are seen while copying, and an update pays nothing. Which have changed since the
//! last checkpoint with all rows, the base, is remembered, and those after it have these alone. So
//! one is read with its base and without the others.

use std::collections::BTreeMap;
use std::io;

use super::contents::{self, Contents, Item, Source};
use super::file::Tensor;
use crate::state::Kind;
use crate::state::section::half;

/// A copy of a rank's state.
#[derive(Debug)]
pub struct Image {
    tensors: Vec<Tensor>,
    /// Of all tensors, one after the other.
    words: Vec<u32>,
    /// Of tensors of rows, by their names.
    changed: BTreeMap<String, Changed>,
    /// Of these tensors only the records that have changed are written.
    only_changed: bool,
}

/// Which records of a tensor are others than those of the last image that was taken whole.
#[derive(Debug)]
struct Changed {
    /// Words of a record.
    record: usize,
    /// A bit each.
    bits: Vec<u64>,
}

impl Image {
    /// An image that has memory for `contents` and holds nothing yet.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub fn for_contents(contents: &Contents<'_>) -> io::Result<Self> {
        let length = contents.items().iter().map(|item| item.tensor.words()).sum();
        let mut words = vec![];
        words.try_reserve_exact(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // Touched, so that it is there when training waits for a copy.
        words.resize(length, 0);
        Ok(Self { tensors: vec![], words, changed: BTreeMap::new(), only_changed: false })
    }

    /// Takes the image of `contents`: to be written whole, or, with `only_changed`, but for the
    /// rows that are as they were when the last one was taken that is written whole. Nothing may
    /// train meanwhile.
    ///
    /// # Panics
    /// When they are larger than those that it has memory for; with `only_changed`, when they are
    /// others than those of the image before.
    pub fn take(&mut self, contents: &Contents<'_>, only_changed: bool) {
        let before = core::mem::take(&mut self.tensors);
        let mut left = &mut *self.words;
        for Item { tensor, record, mut words } in contents.items() {
            let (own, others) = left.split_at_mut(tensor.words());
            match record {
                Some(record) if only_changed => {
                    let changed = self.changed.get_mut(&tensor.name);
                    let changed = changed.unwrap_or_else(|| panic!("{} is new", tensor.name));
                    assert_eq!(changed.record, record, "{}", tensor.name);
                    changed.copy(&mut words, own);
                }
                Some(record) => {
                    words.fill(own);
                    let bits = vec![0; (own.len() / record).div_ceil(64)];
                    self.changed.insert(tensor.name.clone(), Changed { record, bits });
                }
                None => {
                    words.fill(own);
                }
            }
            left = others;
            self.tensors.push(tensor);
        }
        assert!(!only_changed || self.tensors == before, "an image of something else");
        self.only_changed = only_changed;
    }

    /// What is to be written, in the order in which it was.
    pub(super) fn items(&self) -> Vec<Item<'_>> {
        let (mut left, mut items) = (&*self.words, vec![]);
        for tensor in &self.tensors {
            let (own, others) = left.split_at(tensor.words());
            left = others;
            match self.changed.get(&tensor.name).filter(|_| self.only_changed) {
                Some(changed) => items.extend(changed.items(tensor, own)),
                None => {
                    let (tensor, words) = (tensor.clone(), Source::Copied(own));
                    items.push(Item { tensor, record: None, words });
                }
            }
        }
        items
    }
}

impl Changed {
    /// Copies the records of `words` that are others than those in `own`, and remembers them.
    fn copy(&mut self, words: &mut Source<'_>, own: &mut [u32]) {
        let mut block = vec![0; (BLOCK / self.record).max(1) * self.record];
        let records = block.len() / self.record;
        for (number, old) in own.chunks_mut(block.len()).enumerate() {
            let new = &mut block[..old.len()];
            words.fill(new);
            let pairs = old.chunks_exact_mut(self.record).zip(new.chunks_exact(self.record));
            for (place, (old, new)) in (number * records..).zip(pairs) {
                if old != new {
                    old.copy_from_slice(new);
                    self.bits[place / 64] |= 1 << (place % 64);
                }
            }
        }
    }

    /// Places of those that have changed, ascending.
    fn places(&self) -> impl Iterator<Item = usize> + '_ {
        let of_word = |(number, word): (usize, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * number + bit)
        };
        self.bits.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(of_word)
    }

    /// The tensors that stand for `tensor`, whose words are `own`: which records, and them.
    fn items<'a>(&'a self, tensor: &Tensor, own: &'a [u32]) -> [Item<'a>; 2] {
        let count = self.bits.iter().map(|word| u64::from(word.count_ones())).sum();
        let [index, changed] = contents::changed(&tensor.name);
        let record = self.record;
        let indices = self.places().flat_map(|place| [0, 1].map(|word| half(place as u64, word)));
        let records = self.places().flat_map(move |place| &own[place * record..][..record]);
        let item = |name, kind, shape, words| {
            let tensor = Tensor { name, kind, shape };
            Item { tensor, record: None, words: Source::Words(words) }
        };
        [
            item(index, Kind::U64, vec![count], Box::new(indices)),
            item(changed, tensor.kind, vec![count, record as u64], Box::new(records.copied())),
        ]
    }
}

/// Words compared at a time: they stay in the first cache.
const BLOCK: usize = 1 << 12;
