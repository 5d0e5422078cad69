//! What sending what matters came to on a rank.

use core::time::Duration;

/// What coding came to on a rank, both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Elements that were sent.
    pub kept: u64,
    /// Elements that there were.
    pub elements: u64,
    /// Bytes that left this rank.
    pub bytes: u64,
    /// Bytes that would have left it.
    pub bytes_plain: u64,
    /// Time for thresholds, writing and reading; of what crosses between the parts of a replica for
    /// waiting, too.
    pub time: Duration,
}

impl Ledger {
    /// `kept` of so many elements were sent to so many ranks.
    pub const fn count(&mut self, elements: usize, kept: usize, ranks: u64) {
        self.kept += kept as u64 * ranks;
        self.elements += elements as u64 * ranks;
        self.bytes_plain += 4 * elements as u64 * ranks;
    }

    /// Both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            kept: self.kept + other.kept,
            elements: self.elements + other.elements,
            bytes: self.bytes + other.bytes,
            bytes_plain: self.bytes_plain + other.bytes_plain,
            time: self.time + other.time,
        }
    }

    /// As words.
    #[must_use]
    pub fn to_words(self) -> [u64; LEDGER_WORDS] {
        let Self { kept, elements, bytes, bytes_plain, time } = self;
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        [kept, elements, bytes, bytes_plain, time]
    }
}

/// Words of a [`Ledger`].
pub const LEDGER_WORDS: usize = 5;
