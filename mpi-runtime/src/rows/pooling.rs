//! Bags that an embedding PS pools: what it answers, and what becomes of the gradients that come
//! back.
//!
//! DCT, arXiv 2010.08899, model parallelism (`umbra_core::compress::activations`). Each partition
//! adds up what it has of a lookup's bags; the last to finish adds their sums up, in the order of
//! partitions, and codes what passes. The lookup and its masks stay here until the gradients of the
//! vectors come, and each partition makes of those an ordinary push: distinct rows with a gradient
//! each.
//!
//! Invariants: sections are coded ascending by worker, whatever their order in the message, and
//! lookups of a rank in their order, so thresholds do not depend on who came first. As many lookups
//! are kept as permits are out.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use umbra_core::compress::activations::{FieldThreshold, Refresh, Vectors, send};
use umbra_core::compress::{Coding, Counts, Mask, Values, len_max, mask_len, scatter};
use umbra_core::model::Model;
use umbra_core::sparse::{PartialBags, Partitioning, RowUse, Table};

use crate::rows::bag_wire::{
    BAG_PUSH_SECTION_LEN, BagLookup, BagSection, BytesSection, POOLED_SECTION_LEN, byte_sections,
    write_pooled,
};
use crate::rows::router::{Bundle, Stray};
use crate::rows::tables::TableLayout;
use crate::rows::wire::{
    Asker, HEADER_LEN, Header, Kind, LOOKUP_SECTION_LEN, PUSH_SECTION_LEN, values, write_push,
};

/// How bags are pooled, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolRules {
    /// How rows are dealt to partitions.
    pub partitioning: Partitioning,
    /// f32s of a row.
    pub width: usize,
    /// Fields of an example.
    pub fields: u32,
    /// Columns of a row, its first, that pass every threshold.
    pub always: usize,
    /// What passes.
    pub coding: Coding,
}

impl PoolRules {
    /// Of these tables and this model.
    #[must_use]
    pub fn new(layout: &TableLayout, model: &Model, coding: Coding) -> Self {
        Self {
            partitioning: layout.partitioning,
            width: layout.width,
            fields: u32::try_from(layout.numbering().fields()).unwrap_or(u32::MAX),
            always: model.first_order_columns(),
            coding,
        }
    }
}

/// What pooled bags came to between this rank and others, both directions, without evaluations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolLedger {
    /// Elements of vectors that were sent.
    pub kept: u64,
    /// Elements that there were.
    pub elements: u64,
    /// Bytes of lookups, vectors and gradients.
    pub bytes: u64,
    /// Bytes that these would have been with all elements sent, as they are.
    pub bytes_plain: u64,
    /// Bytes that distinct rows and their gradients would have been.
    pub bytes_rows: u64,
    /// Time for thresholds, writing and reading.
    pub coding_ns: u64,
}

/// Words of a [`PoolLedger`].
pub const POOL_LEDGER_WORDS: usize = 6;

impl PoolLedger {
    /// As words, in the order of its fields.
    #[must_use]
    pub const fn to_words(self) -> [u64; POOL_LEDGER_WORDS] {
        let Self { kept, elements, bytes, bytes_plain, bytes_rows, coding_ns } = self;
        [kept, elements, bytes, bytes_plain, bytes_rows, coding_ns]
    }

    /// From such words.
    #[must_use]
    pub const fn from_words(words: [u64; POOL_LEDGER_WORDS]) -> Self {
        let [kept, elements, bytes, bytes_plain, bytes_rows, coding_ns] = words;
        Self { kept, elements, bytes, bytes_plain, bytes_rows, coding_ns }
    }

    /// This and `other`.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let (mut sum, other) = (self.to_words(), other.to_words());
        sum.iter_mut().zip(other).for_each(|(sum, word)| *sum += word);
        Self::from_words(sum)
    }
}

/// A lookup of bags, read.
#[derive(Debug)]
pub struct Asked {
    /// Its sections.
    pub lookup: BagLookup,
    /// Which elements were sent of each section's vectors.
    masks: OnceLock<Vec<Vec<u32>>>,
}

impl Asked {
    /// Not answered yet.
    #[must_use]
    pub const fn new(lookup: BagLookup) -> Self {
        Self { lookup, masks: OnceLock::new() }
    }

    fn mask(&self, section: usize) -> Option<Mask<'_>> {
        self.masks.get()?.get(section).map(|words| Mask::told(words))
    }
}

/// A step of a worker or of all workers of a rank.
type StepOf = (usize, Option<u32>, u32);

/// Bags that this rank pools.
pub struct Pooling {
    rules: PoolRules,
    /// This process.
    rank: usize,
    /// Lookups that are answered and whose gradients have not come.
    answered: Mutex<HashMap<StepOf, Arc<Bundle>>>,
    coder: Mutex<Coder>,
    ledger: [AtomicU64; POOL_LEDGER_WORDS],
}

/// What codes, and its memory.
struct Coder {
    /// By asking rank: thresholds of its fields, and lookups so far.
    thresholds: BTreeMap<usize, (Vec<FieldThreshold>, u32)>,
    elements: Vec<f32>,
    counts: Box<Counts>,
    fields: Vec<u32>,
    bytes: Vec<u8>,
}

/// Memory of a partition's thread for pooling.
#[derive(Default)]
pub struct PoolScratch {
    uses: Vec<RowUse>,
    rows: Vec<f32>,
    gradients: Vec<f32>,
}

fn bags<'a>(words: &'a [u32], lookup: &'a BagLookup, section: &BagSection) -> PartialBags<'a> {
    PartialBags {
        counts: &lookup.counts[section.bags.clone()],
        rows: &words[section.rows.clone()],
        weights: bytemuck::cast_slice(&words[section.weights.clone()]),
        scales: bytemuck::cast_slice(&words[section.scales.clone()]),
    }
}

const fn step_of(from: usize, Header { clock, asker, .. }: Header) -> StepOf {
    let worker = match asker {
        Asker::Worker(worker) => Some(worker),
        Asker::All => None,
    };
    (from, worker, clock)
}

impl Pooling {
    /// By these rules, on `rank`.
    #[must_use]
    pub fn new(rules: PoolRules, rank: usize) -> Self {
        let coder = Coder {
            thresholds: BTreeMap::new(),
            elements: vec![],
            counts: Box::new([0; 1 << 15]),
            fields: vec![],
            bytes: vec![],
        };
        let (answered, coder) = (Mutex::default(), Mutex::new(coder));
        Self { rules, rank, answered, coder, ledger: Default::default() }
    }

    /// How bags are pooled.
    #[must_use]
    pub const fn rules(&self) -> &PoolRules {
        &self.rules
    }

    /// What was counted so far.
    #[must_use]
    pub fn ledger(&self) -> PoolLedger {
        PoolLedger::from_words(core::array::from_fn(|at| self.ledger[at].load(Relaxed)))
    }

    fn count(&self, from: usize, counted: PoolLedger) {
        // What is on the same rank does not travel.
        let counted = if from == self.rank {
            PoolLedger { coding_ns: counted.coding_ns, ..PoolLedger::default() }
        } else {
            counted
        };
        for (sum, word) in self.ledger.iter().zip(counted.to_words()) {
            sum.fetch_add(word, Relaxed);
        }
    }

    /// Row numbers of a lookup that is read.
    pub fn rows<'a>(words: &'a [u32], lookup: &'a BagLookup) -> impl Iterator<Item = u32> {
        lookup.sections.iter().flat_map(|section| &words[section.rows.clone()]).copied()
    }

    /// What `partition` has of the bags that are asked for: room for a header, then the sum of
    /// every bag; `None` where it has nothing. `words` is a buffer to use.
    pub fn sums_of(
        &self,
        (bundle, asked): (&Bundle, &Asked),
        (partition, table): (u32, Table<'_>),
        scratch: &mut PoolScratch,
        mut words: Vec<u32>,
    ) -> Result<Vec<u32>, Vec<u32>> {
        let PoolRules { partitioning, width, .. } = self.rules;
        words.clear();
        words.resize(HEADER_LEN + asked.lookup.bags.len() * width, 0);
        let vectors: &mut [f32] = bytemuck::cast_slice_mut(&mut words[HEADER_LEN..]);
        let mut any = false;
        for section in &asked.lookup.sections {
            let bags = bags(&bundle.words, &asked.lookup, section);
            let PoolScratch { uses, rows, .. } = &mut *scratch;
            uses.clear();
            uses.extend(bags.of_partition(partitioning, partition));
            any |= !uses.is_empty();
            rows.resize(uses.len() * width, 0.0);
            table.read(uses.iter().map(|it| partitioning.index(it.row) as usize), rows);
            let vectors = &mut vectors[section.bags.start * width..section.bags.end * width];
            bags.pool(uses.iter().copied(), rows, width, vectors);
        }
        if any { Ok(words) } else { Err(words) }
    }

    /// Writes the answer to a lookup from what its partitions `found`, and keeps the lookup for the
    /// gradients that will come.
    pub fn answer(
        &self,
        bundle: &Arc<Bundle>,
        found: &mut [(u32, Vec<u32>)],
        words: &mut Vec<u32>,
    ) {
        let Some(asked) = &bundle.asked else { return };
        let begun = Instant::now();
        let PoolRules { width, fields, always, coding, .. } = self.rules;
        let trains = bundle.header.kind != Kind::BagLookupNow;
        found.sort_unstable_by_key(|(partition, _)| *partition);
        let mut empty = vec![];
        let vectors = match found.split_first_mut() {
            Some(((_, first), rest)) => {
                let sums: &mut [f32] = bytemuck::cast_slice_mut(&mut first[HEADER_LEN..]);
                for (_, more) in rest {
                    sums.iter_mut().zip(values(more)).for_each(|(sum, x)| *sum += x);
                }
                sums
            }
            None => {
                empty.resize(asked.lookup.bags.len() * width, 0.0);
                &mut empty[..]
            }
        };
        let mut counted = PoolLedger::default();
        let mut masks = vec![];
        let coder = &mut *self.coder.lock().unwrap_or_else(PoisonError::into_inner);
        let Coder { thresholds, elements, counts, fields: field_of, bytes } = coder;
        let (thresholds, turn) = thresholds.entry(bundle.from).or_default();
        thresholds.resize(fields as usize, FieldThreshold::default());
        let mut plain = HEADER_LEN;
        for section in &asked.lookup.sections {
            let own = &mut vectors[section.bags.start * width..section.bags.end * width];
            bags(&bundle.words, &asked.lookup, section).apply_scales(width, own);
            field_of.clear();
            field_of.extend(asked.lookup.bags[section.bags.clone()].iter().map(|bag| bag % fields));
            grow(elements, own.len());
            grow(bytes, len_max(own.len(), coding.values));
            let mut mask = vec![0; mask_len(own.len())];
            let refresh = trains.then(|| {
                *turn = turn.wrapping_add(1);
                Refresh { elements, counts, turn: *turn }
            });
            let it = Vectors { values: own, fields: field_of, width, always };
            let how = (coding.keep, coding.values);
            let kept = send(it, thresholds, how, refresh, &mut mask, bytes);
            write_pooled(words, section.worker, &bytes[..kept.bytes]);
            plain += POOLED_SECTION_LEN + len_max(own.len(), Values::F32) / 4;
            counted.kept += kept.elements as u64;
            counted.elements += own.len() as u64;
            masks.push(mask);
        }
        if trains {
            let _ = asked.masks.set(masks);
            let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
            answered.insert(step_of(bundle.from, bundle.header), Arc::clone(bundle));
            let asked = bundle.words.len();
            counted.bytes = 4 * (asked + words.len()) as u64;
            counted.bytes_plain = 4 * (asked + plain) as u64;
            counted.coding_ns = nanoseconds(begun);
            self.count(bundle.from, counted);
        }
    }

    /// The lookup whose gradients these are; `None` when `from` asked for no bags of this rank.
    ///
    /// # Errors
    /// When they are not gradients of the vectors that were sent.
    pub fn lookup_of(
        &self,
        from: usize,
        header: Header,
        words: &[u32],
    ) -> Result<Option<Arc<Bundle>>, Stray> {
        let unknown = Stray::Unknown { from };
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let lookup = answered.remove(&step_of(from, header));
        drop(answered);
        let asked = lookup.as_ref().and_then(|bundle| bundle.asked.as_ref());
        let sections = byte_sections(words, header.kind);
        if !sections.whole() {
            return Err(unknown);
        }
        let mut plain = header.kind.head_len();
        for BytesSection { worker, of_a_value, bytes, .. } in sections {
            let (number, section) = asked.and_then(|it| it.lookup.of(worker)).ok_or(unknown)?;
            let mask = asked.and_then(|it| it.mask(number)).ok_or(unknown)?;
            let values = of_wire(of_a_value).ok_or(unknown)?;
            if bytes.len() != mask.count() * values as usize {
                return Err(unknown);
            }
            plain += BAG_PUSH_SECTION_LEN + section.bags.len() * self.rules.width;
        }
        let heads = lookup
            .as_ref()
            .map_or(0, |it| it.header.kind.head_len() + HEADER_LEN + header.kind.head_len());
        let counted = PoolLedger {
            bytes: 4 * words.len() as u64,
            bytes_plain: 4 * plain as u64,
            bytes_rows: 4 * heads as u64,
            ..PoolLedger::default()
        };
        self.count(from, counted);
        Ok(lookup)
    }

    /// What a push of gradients of vectors is for `partition`: a push of gradients of rows. `words`
    /// is a buffer to use.
    pub fn push_of(
        &self,
        push: &Bundle,
        partition: u32,
        scratch: &mut PoolScratch,
        mut words: Vec<u32>,
    ) -> Vec<u32> {
        let PoolRules { partitioning, width, .. } = self.rules;
        Header { kind: Kind::Push, ..push.header }.write(&mut words);
        let lookup = push.answered.as_ref();
        let asked = lookup.and_then(|it| it.asked.as_ref().map(|asked| (&it.words, asked)));
        let Some((wanted, asked)) = asked else { return words };
        let begun = Instant::now();
        let mut rows_words = 0;
        let PoolScratch { uses, gradients, .. } = scratch;
        for it in byte_sections(&push.words, push.header.kind) {
            let BytesSection { worker, rate, of_a_value, bytes } = it;
            let Some((number, section)) = asked.lookup.of(worker) else { continue };
            let (Some(mask), Some(how)) = (asked.mask(number), of_wire(of_a_value)) else {
                continue;
            };
            let bags = bags(wanted, &asked.lookup, section);
            uses.clear();
            uses.extend(bags.of_partition(partitioning, partition));
            if uses.is_empty() {
                continue;
            }
            uses.sort_unstable();
            gradients.clear();
            gradients.resize(section.bags.len() * width, 0.0);
            // Its length was looked at when it came.
            let _ = scatter(bytes, &mask, how, gradients);
            let rows = || uses.chunk_by(|a, b| a.row == b.row);
            let distinct = rows().count();
            let count = u32::try_from(distinct).unwrap_or(u32::MAX);
            write_push(&mut words, partition, (worker, rate), count, rows().map(|it| it[0].row));
            for of_row in rows() {
                let at = words.len();
                words.resize(at + width, 0);
                let gradient = bytemuck::cast_slice_mut(&mut words[at..]);
                bags.row_gradient(of_row, gradients, width, gradient);
            }
            rows_words += LOOKUP_SECTION_LEN + PUSH_SECTION_LEN + 2 * distinct * (1 + width);
        }
        let counted = PoolLedger {
            bytes_rows: 4 * rows_words as u64,
            coding_ns: nanoseconds(begun),
            ..PoolLedger::default()
        };
        self.count(push.from, counted);
        words
    }
}

/// How values of so many bytes are written.
const fn of_wire(bytes: u32) -> Option<Values> {
    Values::of_bytes(bytes as usize)
}

fn grow<T: Copy + Default>(memory: &mut Vec<T>, needed: usize) {
    if memory.len() < needed {
        memory.resize(needed, T::default());
    }
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
