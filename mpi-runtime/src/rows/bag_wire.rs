//! What trainers and embedding PSs say to each other about bags that the PSs pool.
//!
//! Messages have the header of `wire.rs`, and what a token needs; then sections, of which a worker
//! has one at most. Bags are those with a value on the rank, by their number in the batch,
//! ascending; their values are in the order of the bag.
//!
//! | message | a section |
//! | --- | --- |
//! | lookup | worker, bags n, values v, bytes of the bags, [flags](WEIGHTS), the bags; row numbers `[v]`; weights `[v]`; scales `[n]` |
//! | pooled | worker, bytes; vectors `[n, width]` as `umbra_core::compress` codes them |
//! | push | worker, learning rate, bytes, bytes of a value; the gradients at the positions that came |
//!
//! A bag is one number or two, seven bits to a byte, the least first, with the eighth bit where
//! more follow (LEB128): twice the bags since the last one, and one more if it has several values
//! here, whose count is then the second number. Bytes fill whole words.
//!
//! Invariant: whatever words come, reading them ends, and what is read fits together.

use core::ops::Range;

use crate::rows::wire::Kind;

/// Words of a section of a lookup beside what it lists.
pub const BAG_LOOKUP_SECTION_LEN: usize = 5;
/// Words of a section of an answer beside its bytes.
pub const POOLED_SECTION_LEN: usize = 2;
/// Words of a section of a push beside its bytes.
pub const BAG_PUSH_SECTION_LEN: usize = 4;

/// Flags of a lookup: values have weights, and
pub const WEIGHTS: u32 = 1;
/// bags have scales.
pub const SCALES: u32 = 2;

/// Bytes as whole words, the last filled up with zeros.
pub fn extend_bytes(words: &mut Vec<u32>, bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<4>();
    words.extend(whole.iter().map(|word| u32::from_ne_bytes(*word)));
    if !rest.is_empty() {
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        words.push(u32::from_ne_bytes(last));
    }
}

/// The first `length` bytes of words that hold as many.
fn bytes_of(words: &[u32], length: usize) -> Option<&[u8]> {
    // As they lie: both ends of a link are of one kind.
    bytemuck::cast_slice(words).get(..length)
}

/// What a worker wants of a rank, as it is written.
#[derive(Clone, Debug, Default)]
pub struct BagList {
    bytes: Vec<u8>,
    bags: u32,
    /// The bag after the last one.
    next: u32,
    /// Row number of every value.
    pub rows: Vec<u32>,
    /// Weight of every value; empty where all are 1.
    pub weights: Vec<f32>,
    /// What the sum of every bag is multiplied by; empty where that is 1.
    pub scales: Vec<f32>,
}

impl BagList {
    /// Forgets all.
    pub fn clear(&mut self) {
        let Self { bytes, rows, weights, scales, .. } = self;
        bytes.clear();
        rows.clear();
        weights.clear();
        scales.clear();
        (self.bags, self.next) = (0, 0);
    }

    /// Adds a bag, later than all before, of which the last `count` rows are, at least one.
    pub fn add(&mut self, bag: u32, count: u32) {
        let several = u32::from(count > 1);
        put(&mut self.bytes, u64::from(bag - self.next) << 1 | u64::from(several));
        if several == 1 {
            put(&mut self.bytes, u64::from(count));
        }
        self.bags += 1;
        self.next = bag + 1;
    }

    /// Bags in it.
    #[must_use]
    pub const fn bags(&self) -> u32 {
        self.bags
    }

    /// Adds it to a lookup as `worker`'s section.
    pub fn write(&self, words: &mut Vec<u32>, worker: u32) {
        let flag = |there: bool, flag| if there { flag } else { 0 };
        let flags = flag(!self.weights.is_empty(), WEIGHTS) | flag(!self.scales.is_empty(), SCALES);
        let (values, bytes) = (length(self.rows.len()), length(self.bytes.len()));
        words.extend([worker, self.bags, values, bytes, flags]);
        extend_bytes(words, &self.bytes);
        words.extend_from_slice(&self.rows);
        words.extend_from_slice(bytemuck::cast_slice(&self.weights));
        words.extend_from_slice(bytemuck::cast_slice(&self.scales));
    }
}

/// Fewer than a message has.
fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or_else(|_| panic!("a message of {length} elements"))
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push((number & 0x7f) as u8);
}

fn get(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut number = 0;
    for shift in (0..35).step_by(7) {
        let byte = bytes.next()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// A lookup, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BagLookup {
    /// Ascending by worker.
    pub sections: Vec<BagSection>,
    /// Number in its batch of every bag of all sections.
    pub bags: Vec<u32>,
    /// Values of each.
    pub counts: Vec<u32>,
}

/// What a worker wants of a rank, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BagSection {
    /// The worker's number over all trainers.
    pub worker: u32,
    /// Its bags, among those of the lookup.
    pub bags: Range<usize>,
    /// Where row numbers are, in words of the message.
    pub rows: Range<usize>,
    /// Where weights are; nowhere if there are none.
    pub weights: Range<usize>,
    /// Where scales are; nowhere if there are none.
    pub scales: Range<usize>,
}

impl BagLookup {
    /// Of the words of a message; `None` if they are no sections.
    #[must_use]
    pub fn read(words: &[u32], kind: Kind) -> Option<Self> {
        let mut lookup = Self::default();
        let mut at = kind.head_len();
        while at < words.len() {
            let head = words.get(at..)?.first_chunk::<BAG_LOOKUP_SECTION_LEN>()?;
            let [worker, _, _, _, flags] = *head;
            let [_, bags, values, bytes, _] = head.map(|word| word as usize);
            if flags & !(WEIGHTS | SCALES) != 0 {
                return None;
            }
            at += BAG_LOOKUP_SECTION_LEN;
            let first = lookup.bags.len();
            let listed = bytes_of(words.get(at..)?, bytes)?;
            lookup.read_bags(listed, bags, values)?;
            at += bytes.div_ceil(4);
            let mut next = |count: usize| {
                let range = at..at.checked_add(count)?;
                words.get(range.clone())?;
                at = range.end;
                Some(range)
            };
            let rows = next(values)?;
            let weights = next(if flags & WEIGHTS == 0 { 0 } else { values })?;
            let scales = next(if flags & SCALES == 0 { 0 } else { bags })?;
            let bags = first..first + bags;
            lookup.sections.push(BagSection { worker, bags, rows, weights, scales });
        }
        lookup.sections.sort_by_key(|section| section.worker);
        let twice = lookup.sections.windows(2).any(|pair| pair[0].worker == pair[1].worker);
        if twice { None } else { Some(lookup) }
    }

    /// Reads so many bags, which have so many values.
    fn read_bags(&mut self, bytes: &[u8], bags: usize, values: usize) -> Option<()> {
        let mut bytes = bytes.iter().copied();
        let (mut next, mut left) = (0u64, values as u64);
        for _ in 0..bags {
            let number = get(&mut bytes)?;
            let count = if number & 1 == 0 { 1 } else { get(&mut bytes).filter(|n| *n > 1)? };
            let bag = u32::try_from(next + (number >> 1)).ok()?;
            left = left.checked_sub(count)?;
            self.bags.push(bag);
            // It is at most the values, which a word counts.
            self.counts.push(u32::try_from(count).ok()?);
            next = u64::from(bag) + 1;
        }
        (left == 0 && bytes.next().is_none()).then_some(())
    }

    /// The section of a worker, and its number.
    #[must_use]
    pub fn of(&self, worker: u32) -> Option<(usize, &BagSection)> {
        let at = self.sections.binary_search_by_key(&worker, |section| section.worker).ok()?;
        Some((at, &self.sections[at]))
    }
}

/// Most words of a lookup of one rank: `values` values in `sections` sections.
#[must_use]
pub const fn bag_lookup_words_max(sections: usize, values: usize) -> usize {
    // Of a value its row, weight, and if it is a bag's only one the scale and ten bytes.
    Kind::TokenBagLookup
        .head_len()
        .saturating_add(sections.saturating_mul(BAG_LOOKUP_SECTION_LEN + 1))
        .saturating_add(values.saturating_mul(6))
}

/// A worker's part of an answer or a push.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BytesSection<'a> {
    /// The worker's number over all trainers.
    pub worker: u32,
    /// Learning rate; in an answer 0.
    pub rate: f32,
    /// Bytes of a value; in an answer 0.
    pub of_a_value: u32,
    /// What it has.
    pub bytes: &'a [u8],
}

/// Adds a section to an answer.
pub fn write_pooled(words: &mut Vec<u32>, worker: u32, bytes: &[u8]) {
    words.extend([worker, length(bytes.len())]);
    extend_bytes(words, bytes);
}

/// Adds a section to a push, with values of so many bytes.
pub fn write_bag_push(
    words: &mut Vec<u32>,
    (worker, rate): (u32, f32),
    bytes: &[u8],
    of_a_value: u32,
) {
    words.extend([worker, rate.to_bits(), length(bytes.len()), of_a_value]);
    extend_bytes(words, bytes);
}

/// The sections of an answer or a push. Ends where the words are no section.
#[must_use]
pub const fn byte_sections(words: &[u32], kind: Kind) -> ByteSections<'_> {
    ByteSections { words, at: kind.head_len(), push: kind.is_push() }
}

/// Such sections, in order.
#[derive(Clone, Debug)]
pub struct ByteSections<'a> {
    words: &'a [u32],
    at: usize,
    push: bool,
}

impl ByteSections<'_> {
    /// Whether the message is sections and nothing else.
    #[must_use]
    pub fn whole(&self) -> bool {
        let mut rest = self.clone();
        rest.by_ref().for_each(drop);
        rest.at == self.words.len()
    }
}

impl<'a> Iterator for ByteSections<'a> {
    type Item = BytesSection<'a>;

    fn next(&mut self) -> Option<BytesSection<'a>> {
        let rest = self.words.get(self.at..)?;
        let (worker, rate, bytes, of_a_value, head) = if self.push {
            let [worker, rate, bytes, of_a_value] = *rest.first_chunk::<BAG_PUSH_SECTION_LEN>()?;
            (worker, f32::from_bits(rate), bytes, of_a_value, BAG_PUSH_SECTION_LEN)
        } else {
            let [worker, bytes] = *rest.first_chunk::<POOLED_SECTION_LEN>()?;
            (worker, 0.0, bytes, 0, POOLED_SECTION_LEN)
        };
        let length = bytes as usize;
        let bytes = bytes_of(&rest[head..], length)?;
        self.at += head + length.div_ceil(4);
        Some(BytesSection { worker, rate, of_a_value, bytes })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rows::wire::{Asker, HEADER_LEN, Header};

    fn lookup(weights: bool, scales: bool) -> Vec<u32> {
        let mut words = vec![];
        Header { kind: Kind::BagLookup, clock: 7, asker: Asker::All }.write(&mut words);
        for (worker, bags) in [(5, &[(0, 1), (3, 2), (400, 300)][..]), (2, &[(1, 1)])] {
            let mut list = BagList::default();
            for (bag, count) in bags {
                list.rows.extend(0..*count);
                if weights {
                    list.weights.extend((0..*count).map(|i| i as f32));
                }
                if scales {
                    list.scales.push(0.5);
                }
                list.add(*bag, *count);
            }
            assert_eq!(list.bags() as usize, bags.len());
            list.write(&mut words, worker);
        }
        words
    }

    #[test]
    fn lookups_come_back_ascending_by_worker() {
        for (weights, scales) in [(false, false), (true, false), (false, true), (true, true)] {
            let words = lookup(weights, scales);
            let read = BagLookup::read(&words, Kind::BagLookup).unwrap();
            let workers: Vec<u32> = read.sections.iter().map(|section| section.worker).collect();
            assert_eq!(workers, [2, 5]);
            let (at, five) = read.of(5).unwrap();
            assert_eq!((at, &read.bags[five.bags.clone()]), (1, &[0, 3, 400][..]));
            assert_eq!(read.counts[five.bags.clone()], [1, 2, 300]);
            assert_eq!(words[five.rows.clone()][..4], [0, 0, 1, 0]);
            assert_eq!((five.rows.len(), five.weights.len()), (303, usize::from(weights) * 303));
            assert_eq!(five.scales.len(), usize::from(scales) * 3);
            assert_eq!(read.of(2).unwrap().1.bags, 3..4);
            assert_eq!(read.of(3), None);
        }
    }

    /// Most bags have one value here and are near the last: a byte each.
    #[test]
    fn a_bag_of_one_value_is_a_byte() {
        let mut list = BagList::default();
        for bag in 0..1000 {
            list.rows.push(bag);
            list.add(bag * 26 % 64 + bag * 60, 1);
        }
        let mut words = vec![];
        list.write(&mut words, 0);
        assert!(words.len() <= BAG_LOOKUP_SECTION_LEN + 250 + 1 + 1000 + 250, "{}", words.len());
        let mut dense = BagList::default();
        (0..1000).for_each(|bag| dense.add(bag, 1));
        assert_eq!(dense.bytes.len(), 1000);
    }

    /// Whatever comes over a link is looked at before it is believed.
    #[test]
    fn cut_off_and_garbled_lookups_are_refused() {
        for (weights, scales) in [(false, false), (true, true)] {
            let words = lookup(weights, scales);
            for end in HEADER_LEN + 1..words.len() {
                let whole = BagLookup::read(&words[..end], Kind::BagLookup);
                // Between two sections it is a message of one.
                assert!(whole.is_none_or(|read| read.sections.len() == 1), "cut at {end}");
            }
            for at in HEADER_LEN..words.len() {
                for word in [0, 1, u32::MAX, u32::MAX - 1, 1 << 31, 0x8080_8080] {
                    let mut garbled = words.clone();
                    garbled[at] = word;
                    let Some(read) = BagLookup::read(&garbled, Kind::BagLookup) else { continue };
                    for section in &read.sections {
                        let counts = &read.counts[section.bags.clone()];
                        let values = counts.iter().map(|count| *count as usize).sum::<usize>();
                        assert_eq!(section.rows.len(), values);
                        assert!(garbled.get(section.scales.clone()).is_some());
                        let bags = &read.bags[section.bags.clone()];
                        assert!(bags.windows(2).all(|pair| pair[0] < pair[1]));
                    }
                }
            }
        }
        let mut twice = lookup(false, false);
        let section = twice[HEADER_LEN..].to_vec();
        twice.extend(section);
        assert_eq!(BagLookup::read(&twice, Kind::BagLookup), None, "a worker's second section");
    }

    #[test]
    fn answers_and_pushes_come_back_and_cut_off_ones_do_not() {
        for kind in [Kind::Pooled, Kind::BagPush] {
            let mut words = vec![];
            Header { kind, clock: 1, asker: Asker::All }.write(&mut words);
            assert!(byte_sections(&words, kind).whole());
            for (worker, bytes) in [(4, &[1u8, 2, 3, 4, 5][..]), (1, &[]), (9, &[6; 8])] {
                if kind == Kind::Pooled {
                    write_pooled(&mut words, worker, bytes);
                } else {
                    write_bag_push(&mut words, (worker, 0.5), bytes, 2);
                }
            }
            let found = byte_sections(&words, kind);
            assert!(found.whole());
            let found: Vec<_> = found.map(|it| (it.worker, it.bytes.to_vec())).collect();
            assert_eq!(found, [(4, vec![1, 2, 3, 4, 5]), (1, vec![]), (9, vec![6; 8])]);
            let heads = if kind == Kind::Pooled { POOLED_SECTION_LEN } else { 4 };
            let ends = [heads + 2, 2 * heads + 2].map(|end| HEADER_LEN + end);
            for end in HEADER_LEN + 1..words.len() {
                let whole = byte_sections(&words[..end], kind).whole();
                assert_eq!(whole, ends.contains(&end), "cut at {end}");
            }
            let mut huge = words.clone();
            huge[HEADER_LEN + heads - 1] = u32::MAX;
            huge[HEADER_LEN + 1] = u32::MAX;
            huge[HEADER_LEN + 2] = u32::MAX;
            assert!(!byte_sections(&huge, kind).whole());
        }
    }
}
