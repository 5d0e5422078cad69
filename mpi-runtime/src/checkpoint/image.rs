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
//!
//! Between two checkpoints the rows that come first (`rows::usage`) are copied into it while others
//! train, and written alone. Such a row may be one half of an update older than the other, and rows
//! are of different moments, which only those that are lost may be.

use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeMap;
use std::io;

use umbra_core::recovery::largest::Histogram;

use super::contents::{self, Contents, Item, Source};
use super::file::Tensor;
use crate::rows::tables::{Partition, TableLayout};
use crate::rows::usage::SaveFirst;
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
    /// Places of the records that come first, by the tensors' names.
    first: BTreeMap<String, Vec<u32>>,
    /// What of it is to be written.
    extent: Extent,
}

/// What of a state is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    #[default]
    All,
    /// Of rows those that have changed.
    Changed,
    /// The rows that come first, and nothing else: no checkpoint.
    First,
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
        let (changed, first) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { tensors: vec![], words, changed, first, extent: Extent::All })
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
        for Item { tensor, mut words } in contents.items() {
            let record = tensor.record.map(|record| record.words());
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
        self.extent = if only_changed { Extent::Changed } else { Extent::All };
    }

    /// Takes the rows of `partitions` that `rule` has first, to be written alone. Others may train
    /// meanwhile.
    pub(super) fn take_first(
        &mut self,
        rule: &SaveFirst,
        layout: &TableLayout,
        partitions: &[Partition],
        histogram: &mut Histogram,
    ) {
        let mut left = &mut *self.words;
        for tensor in &self.tensors {
            let (own, others) = left.split_at_mut(tensor.words());
            left = others;
            let is_own = |partition: &&Partition| contents::rows(partition.number) == tensor.name;
            let partition = partitions.iter().find(is_own);
            let (Some(partition), Some(changed)) = (partition, self.changed.get_mut(&tensor.name))
            else {
                continue;
            };
            let places = rule.choose(layout, partition, own, histogram);
            for place in &places {
                let record = partition.table().record(*place as usize);
                let old = &mut own[*place as usize * changed.record..][..changed.record];
                for (old, new) in old.iter_mut().zip(record) {
                    let new = new.load(Relaxed);
                    if *old != new {
                        *old = new;
                        set(&mut changed.bits, *place as usize);
                    }
                }
            }
            self.first.insert(tensor.name.clone(), places);
        }
        self.extent = Extent::First;
    }

    /// What is to be written, in the order in which it was.
    pub(super) fn items(&self) -> Vec<Item<'_>> {
        let (mut left, mut items) = (&*self.words, vec![]);
        for tensor in &self.tensors {
            let (own, others) = left.split_at(tensor.words());
            left = others;
            match (self.extent, self.changed.get(&tensor.name)) {
                (Extent::Changed, Some(changed)) => items.extend(changed.items(tensor, own)),
                (Extent::First, Some(changed)) => {
                    let first = self.first.get(&tensor.name).map_or(&[][..], Vec::as_slice);
                    let places = first.iter().map(|place| *place as usize);
                    items.extend(some(tensor, changed.record, places, own));
                }
                (Extent::First, None) => {}
                _ => {
                    let (tensor, words) = (tensor.clone(), Source::Copied(own));
                    items.push(Item { tensor, words });
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
                    set(&mut self.bits, place);
                }
            }
        }
    }

    /// Places of those that have changed, ascending.
    fn places(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        let of_word = |(number, word): (usize, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * number + bit)
        };
        self.bits.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(of_word)
    }

    /// The tensors that stand for `tensor`, whose words are `own`: which records, and them.
    fn items<'a>(&'a self, tensor: &Tensor, own: &'a [u32]) -> [Item<'a>; 2] {
        some(tensor, self.record, self.places(), own)
    }
}

const fn set(bits: &mut [u64], place: usize) {
    bits[place / 64] |= 1 << (place % 64);
}

/// The tensors with the records at `places`, ascending, of `tensor`, whose words are `own`: which
/// records, and them.
fn some<'a>(
    tensor: &Tensor,
    record: usize,
    places: impl Iterator<Item = usize> + Clone + 'a,
    own: &'a [u32],
) -> [Item<'a>; 2] {
    let [index, changed] = contents::changed(&tensor.name);
    let count = places.clone().count() as u64;
    let mut next = places.clone();
    let indices = move |out: &mut [u32]| {
        pieces(out, 2, &mut next, |place, out| {
            out.copy_from_slice(&[0, 1].map(|word| half(place as u64, word)));
        })
    };
    let mut next = places;
    let records = move |out: &mut [u32]| {
        pieces(out, record, &mut next, |place, out| {
            out.copy_from_slice(&own[place * record..][..record]);
        })
    };
    let item = |name, kind, shape, words, record| {
        let tensor = Tensor { name, kind, shape, record };
        Item { tensor, words: Source::Pieces(words) }
    };
    [
        item(index, Kind::U64, vec![count], Box::new(indices), None),
        item(changed, tensor.kind, vec![count, tensor.shape[1]], Box::new(records), tensor.record),
    ]
}

/// Words compared at a time: they stay in the first cache.
const BLOCK: usize = 1 << 12;

/// Writes `length` words of each of the next places to `out`, as many as there is room for. Returns
/// how many words that were.
fn pieces(
    out: &mut [u32],
    length: usize,
    places: &mut impl Iterator<Item = usize>,
    write: impl Fn(usize, &mut [u32]),
) -> usize {
    // The room first: it ends, and must not take a place with it.
    let written = out.chunks_exact_mut(length).zip(places).map(|(out, place)| write(place, out));
    length * written.count()
}
