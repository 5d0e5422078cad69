//! What trainers and embedding PSs say to each other.
//!
//! A message is `u32` words: a header of [`HEADER_LEN`], then a body. f32s travel as their bits.
//!
//! | kind | from → to | clock | body |
//! | --- | --- | --- | --- |
//! | `Lookup` | trainer → PS | step that will use the rows | sections: row numbers |
//! | `LookupNow` | trainer → PS | ticket | sections: row numbers, for evaluation |
//! | `Rows` | PS → trainer | as asked | values in the order of the lookup, as they stand in memory (`umbra_core::sparse::Record`): f32s, or bf16s two to a word |
//! | `Push` | trainer → PS | step of the gradient | sections: rows, then gradients `[n, width]` |
//! | `Ack` | PS → trainer | as pushed | none: all partitions of the rank have taken the push |
//! | `TokenLookup` | trainer → PS | worker's count | [`LookupToken`], then as `Lookup` |
//! | `TokenPush` | trainer → PS | worker's count | [`PushToken`], then as `Push` |
//!
//! The last two are of batches that a dispatcher has handed out (`umbra_core::sync::server`). Where
//! PSs pool, there are `BagLookup`, `BagLookupNow`, `TokenBagLookup`, `Pooled`, `BagPush` and
//! `TokenBagPush` in the place of those, with other sections (`bag_wire.rs`).
//!
//! A message is between two *ranks*. Under `bsp` it is for all workers of the trainer and all
//! partitions of the PS at once; else, and in evaluations, for one worker and all partitions. A
//! section has what one worker wants of, or has for, one partition, and is there only if it has
//! rows: partition, count n, then n row numbers; in a push worker and learning rate come before
//! the row numbers, and the gradients after them.
//!
//! Invariants: between two ranks messages keep their order. A worker has at most
//! `embedding.prefetch + 1` steps between lookup and `Ack`, which bounds both the staleness of its
//! rows and the memory its messages can take anywhere.

/// Words of a header.
pub const HEADER_LEN: usize = 3;
/// Words of a section of a lookup beside its row numbers.
pub const LOOKUP_SECTION_LEN: usize = 2;
/// Words of a section of a push beside its row numbers and gradients.
pub const PUSH_SECTION_LEN: usize = 4;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Rows wanted for a training step.
    Lookup,
    /// Rows wanted as they are now.
    LookupNow,
    /// The rows asked for.
    Rows,
    /// Gradients of rows.
    Push,
    /// A push was taken.
    Ack,
    /// Rows wanted for a batch that was handed out, of its version or later.
    TokenLookup,
    /// Gradients of rows of a batch that was handed out.
    TokenPush,
    /// Pooled bags wanted for a training step.
    BagLookup,
    /// Pooled bags wanted of rows as they are now.
    BagLookupNow,
    /// The pooled bags asked for.
    Pooled,
    /// Gradients of pooled bags.
    BagPush,
    /// Pooled bags wanted for a batch that was handed out, of its version or later.
    TokenBagLookup,
    /// Gradients of pooled bags of a batch that was handed out.
    TokenBagPush,
}

/// By their numbers on the wire.
const KINDS: [Kind; 13] = [
    Kind::Lookup,
    Kind::LookupNow,
    Kind::Rows,
    Kind::Push,
    Kind::Ack,
    Kind::TokenLookup,
    Kind::TokenPush,
    Kind::BagLookup,
    Kind::BagLookupNow,
    Kind::Pooled,
    Kind::BagPush,
    Kind::TokenBagLookup,
    Kind::TokenBagPush,
];

impl Kind {
    /// Rows are asked for.
    #[must_use]
    pub const fn is_lookup(self) -> bool {
        matches!(self, Self::Lookup | Self::LookupNow | Self::TokenLookup) || self.is_bag_lookup()
    }

    /// Pooled bags are asked for.
    #[must_use]
    pub const fn is_bag_lookup(self) -> bool {
        matches!(self, Self::BagLookup | Self::BagLookupNow | Self::TokenBagLookup)
    }

    /// Gradients are brought.
    #[must_use]
    pub const fn is_push(self) -> bool {
        matches!(self, Self::Push | Self::TokenPush) || self.is_bag_push()
    }

    /// Gradients of pooled bags are brought.
    #[must_use]
    pub const fn is_bag_push(self) -> bool {
        matches!(self, Self::BagPush | Self::TokenBagPush)
    }

    /// The same about pooled bags.
    #[must_use]
    pub const fn of_bags(self) -> Self {
        match self {
            Self::Lookup => Self::BagLookup,
            Self::LookupNow => Self::BagLookupNow,
            Self::TokenLookup => Self::TokenBagLookup,
            Self::Push => Self::BagPush,
            Self::TokenPush => Self::TokenBagPush,
            other => other,
        }
    }

    /// Words before the first section.
    #[must_use]
    pub const fn head_len(self) -> usize {
        match self {
            Self::TokenLookup | Self::TokenBagLookup => HEADER_LEN + LookupToken::LEN,
            Self::TokenPush | Self::TokenBagPush => HEADER_LEN + PushToken::LEN,
            _ => HEADER_LEN,
        }
    }
}

/// What a lookup says of a batch that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupToken {
    /// The rows are to be of this version or later.
    pub version: u64,
}

/// What a push says of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PushToken {
    /// The place of its batch.
    pub place: u32,
    /// Its batch.
    pub batch: u64,
    /// Learning rate of its step.
    pub rate: f32,
}

impl LookupToken {
    const LEN: usize = 2;

    /// Adds it to a message that has a header.
    pub fn write(self, words: &mut Vec<u32>) {
        words.extend(halves(self.version));
    }

    /// That of a lookup; `None` if it has none.
    #[must_use]
    pub fn read(words: &[u32]) -> Option<Self> {
        let &[low, high] = words.get(HEADER_LEN..)?.first_chunk::<{ Self::LEN }>()?;
        Some(Self { version: joined(low, high) })
    }
}

impl PushToken {
    const LEN: usize = 4;

    /// Adds it to a message that has a header.
    pub fn write(self, words: &mut Vec<u32>) {
        let [low, high] = halves(self.batch);
        words.extend([self.place, low, high, self.rate.to_bits()]);
    }

    /// That of a push; `None` if it has none.
    #[must_use]
    pub fn read(words: &[u32]) -> Option<Self> {
        let &[place, low, high, rate] = words.get(HEADER_LEN..)?.first_chunk::<{ Self::LEN }>()?;
        Some(Self { place, batch: joined(low, high), rate: f32::from_bits(rate) })
    }
}

/// The low half first.
fn halves(number: u64) -> [u32; 2] {
    bytemuck::cast(number)
}

fn joined(low: u32, high: u32) -> u64 {
    bytemuck::cast([low, high])
}

/// Whose step a message is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// One worker's, by its number over all trainers, below `u32::MAX`.
    Worker(u32),
    /// All workers' of the trainer.
    All,
}

/// The first words of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// Training step, or ticket of an evaluation.
    pub clock: u32,
    /// Who asks or is answered.
    pub asker: Asker,
}

/// The number that stands for all workers.
const ALL: u32 = u32::MAX;

impl Header {
    /// Starts a message in an empty buffer.
    pub fn write(&self, words: &mut Vec<u32>) {
        words.clear();
        words.extend(self.words());
    }

    /// Heads a message for which there is room before its words.
    ///
    /// # Panics
    /// When there is none.
    pub fn write_before(&self, words: &mut [u32]) {
        words[..HEADER_LEN].copy_from_slice(&self.words());
    }

    fn words(&self) -> [u32; HEADER_LEN] {
        let asker = match self.asker {
            Asker::Worker(worker) => worker,
            Asker::All => ALL,
        };
        [self.kind as u32, self.clock, asker]
    }

    /// The header of a message, or `None` if it is no message of ours.
    #[must_use]
    pub fn read(words: &[u32]) -> Option<Self> {
        let &[kind, clock, asker] = words.first_chunk::<HEADER_LEN>()?;
        let kind = *KINDS.get(kind as usize)?;
        let asker = if asker == ALL { Asker::All } else { Asker::Worker(asker) };
        Some(Self { kind, clock, asker })
    }
}

/// f32s behind a header.
#[must_use]
pub fn values(words: &[u32]) -> &[f32] {
    bytemuck::cast_slice(&words[HEADER_LEN..])
}

/// What one worker wants of, or has for, one partition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Section<'a> {
    /// The partition.
    pub partition: u32,
    /// The worker's number over all trainers; in a lookup 0.
    pub worker: u32,
    /// Learning rate; in a lookup 0.
    pub rate: f32,
    /// Distinct row numbers.
    pub rows: &'a [u32],
    /// Where their gradients begin, in words of the message.
    pub at: usize,
}

/// Adds a section to a lookup. `rows` has `count` row numbers.
pub fn write_lookup(
    words: &mut Vec<u32>,
    partition: u32,
    count: u32,
    rows: impl Iterator<Item = u32>,
) {
    words.extend([partition, count]);
    words.extend(rows);
}

/// Adds a section to a push. `rows` has `count` row numbers; their gradients
/// `[count, width]` are the caller's to append, as bits.
pub fn write_push(
    words: &mut Vec<u32>,
    partition: u32,
    (worker, rate): (u32, f32),
    count: u32,
    rows: impl Iterator<Item = u32>,
) {
    words.extend([partition, count, worker, rate.to_bits()]);
    words.extend(rows);
}

/// The sections of a lookup or a push with rows of `width`. Ends where the words are no section.
#[must_use]
pub const fn sections(words: &[u32], kind: Kind, width: usize) -> Sections<'_> {
    Sections { words, at: kind.head_len(), push: kind.is_push(), width }
}

/// The sections of a message, in order.
#[derive(Clone, Debug)]
pub struct Sections<'a> {
    words: &'a [u32],
    at: usize,
    push: bool,
    width: usize,
}

impl Sections<'_> {
    /// Whether the message is sections and nothing else.
    #[must_use]
    pub fn whole(&self) -> bool {
        let mut rest = self.clone();
        rest.by_ref().for_each(drop);
        rest.at == self.words.len()
    }
}

impl<'a> Iterator for Sections<'a> {
    type Item = Section<'a>;

    fn next(&mut self) -> Option<Section<'a>> {
        let rest = self.words.get(self.at..)?;
        let (&[partition, count], _) = rest.split_first_chunk::<LOOKUP_SECTION_LEN>()?;
        let (head, gradients) =
            if self.push { (PUSH_SECTION_LEN, self.width) } else { (LOOKUP_SECTION_LEN, 0) };
        let (worker, rate) =
            if self.push { (*rest.get(2)?, f32::from_bits(*rest.get(3)?)) } else { (0, 0.0) };
        let count = count as usize;
        let rows = rest.get(head..head.checked_add(count)?)?;
        let at = self.at + head + count;
        let end = at.checked_add(count.checked_mul(gradients)?)?;
        self.words.get(..end)?;
        self.at = end;
        Some(Section { partition, worker, rate, rows, at })
    }
}

/// Most words of a push to one rank: `rows` rows of `width` in `sections` sections.
#[must_use]
pub const fn push_words_max(sections: usize, rows: usize, width: usize) -> usize {
    HEADER_LEN
        .saturating_add(sections.saturating_mul(PUSH_SECTION_LEN))
        .saturating_add(rows.saturating_mul(1 + width))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire_and_strangers_are_refused() {
        for (number, kind) in (0..).zip(KINDS) {
            assert_eq!(kind as u32, number);
            for asker in [Asker::Worker(0), Asker::Worker(9), Asker::All] {
                let header = Header { kind, clock: 77, asker };
                let mut words = vec![1, 2, 3, 4];
                header.write(&mut words);
                assert_eq!(words.len(), HEADER_LEN);
                assert_eq!(Header::read(&words), Some(header));
            }
        }
        assert_eq!(Header::read(&[99, 0, 0]), None);
        assert_eq!(Header::read(&[0, 0]), None);
    }

    #[test]
    fn tokens_stand_before_sections() {
        let (clock, asker) = (9, Asker::Worker(2));
        let mut words = vec![];
        Header { kind: Kind::TokenPush, clock, asker }.write(&mut words);
        let token = PushToken { place: 3, batch: 1 << 39 | 5, rate: 0.25 };
        token.write(&mut words);
        assert!(sections(&words, Kind::TokenPush, 1).whole(), "a push of no rows");
        write_push(&mut words, 1, (2, 0.25), 1, [9].into_iter());
        words.push(1.0f32.to_bits());
        assert_eq!(PushToken::read(&words), Some(token));
        let found = sections(&words, Kind::TokenPush, 1);
        assert!(found.whole());
        assert_eq!(found.map(|section| section.rows.to_vec()).collect::<Vec<_>>(), [[9]]);

        Header { kind: Kind::TokenLookup, clock, asker }.write(&mut words);
        let token = LookupToken { version: 1 << 33 | 7 };
        token.write(&mut words);
        write_lookup(&mut words, 1, 2, [2, 4].into_iter());
        assert_eq!(LookupToken::read(&words), Some(token));
        let found = sections(&words, Kind::TokenLookup, 1);
        assert!(found.whole());
        assert_eq!(found.map(|section| section.rows.to_vec()).collect::<Vec<_>>(), [[2, 4]]);
    }

    #[test]
    fn sections_come_back_in_order() {
        let mut words = vec![];
        Header { kind: Kind::Push, clock: 1, asker: Asker::All }.write(&mut words);
        write_push(&mut words, 3, (5, 0.25), 2, [7, 8].into_iter());
        words.extend([1.0f32, 2.0, 3.0, 4.0].map(f32::to_bits));
        write_push(&mut words, 4, (6, 0.0), 1, [9].into_iter());
        words.extend([5.0f32, 6.0].map(f32::to_bits));
        assert_eq!(words.len(), push_words_max(2, 3, 2));
        let found = sections(&words, Kind::Push, 2);
        assert!(found.whole());
        let found: Vec<_> = found.collect();
        let section =
            |partition, worker, rate, rows, at| Section { partition, worker, rate, rows, at };
        let first = HEADER_LEN + PUSH_SECTION_LEN + 2;
        let second = first + 4 + PUSH_SECTION_LEN + 1;
        assert_eq!(found, [section(3, 5, 0.25, &[7, 8], first), section(4, 6, 0.0, &[9], second)]);
        assert_eq!(words[second], 5.0f32.to_bits());

        Header { kind: Kind::Lookup, clock: 1, asker: Asker::Worker(2) }.write(&mut words);
        write_lookup(&mut words, 1, 3, [2, 4, 6].into_iter());
        let found = sections(&words, Kind::Lookup, 2);
        assert!(found.whole());
        let [only] = found.collect::<Vec<_>>()[..] else { panic!("one section") };
        assert_eq!((only.partition, only.rows), (1, &[2, 4, 6][..]));
    }

    /// Whatever comes over a link is looked at before it is believed.
    #[test]
    fn cut_off_sections_are_no_whole_message() {
        let mut words = vec![];
        Header { kind: Kind::Push, clock: 1, asker: Asker::All }.write(&mut words);
        assert!(sections(&words, Kind::Push, 2).whole(), "an empty push keeps step");
        write_push(&mut words, 3, (5, 0.25), 2, [7, 8].into_iter());
        words.extend([0; 4]);
        for end in HEADER_LEN + 1..words.len() {
            assert!(!sections(&words[..end], Kind::Push, 2).whole(), "cut at {end}");
        }
        let mut huge = words.clone();
        huge[HEADER_LEN + 1] = u32::MAX;
        assert!(!sections(&huge, Kind::Push, 2).whole());
        assert!(!sections(&words, Kind::Lookup, 2).whole(), "it is a push");
    }
}
