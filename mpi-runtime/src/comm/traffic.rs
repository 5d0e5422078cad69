//! What a communicator sends and receives, counted: messages and bytes, for comparison with what a
//! method is predicted to need.
//!
//! Point-to-point messages are counted as they are. What a collective sends is the library's
//! affair; it is counted as the algorithm that Open MPI's non-blocking collectives (libnbc) use
//! where nothing is known of the network:
//!
//! | call | messages a rank sends | their bytes |
//! | --- | --- | --- |
//! | barrier (dissemination) | ⌈log₂ size⌉ | 0 |
//! | all-gather, of any lengths (linear) | size − 1, none where it has nothing | its own, to each |
//! | all-to-all, of any lengths (linear) | one per rank that gets something | what each gets |
//! | broadcast to at most 4 ranks (linear) | the first: size − 1 | all |
//! | broadcast of less than 64 KiB (binomial tree) | one per child in the tree | all |
//! | longer broadcast (chain) | segments of 8 KiB, from 512 KiB on of 32 KiB; the last none | all |
//!
//! and as many are received as others send by the same rule. Making and freeing a communicator is
//! not counted. Messages to oneself are none.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Messages and bytes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages sent.
    pub messages_sent: u64,
    /// Bytes in them.
    pub bytes_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Bytes in them.
    pub bytes_received: u64,
}

impl Traffic {
    /// What came since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            messages_sent: self.messages_sent - earlier.messages_sent,
            bytes_sent: self.bytes_sent - earlier.bytes_sent,
            messages_received: self.messages_received - earlier.messages_received,
            bytes_received: self.bytes_received - earlier.bytes_received,
        }
    }

    /// As words.
    #[must_use]
    pub const fn to_words(self) -> [u64; TRAFFIC_WORDS] {
        [self.messages_sent, self.bytes_sent, self.messages_received, self.bytes_received]
    }

    /// From words.
    #[must_use]
    pub const fn from_words(words: [u64; TRAFFIC_WORDS]) -> Self {
        let [messages_sent, bytes_sent, messages_received, bytes_received] = words;
        Self { messages_sent, bytes_sent, messages_received, bytes_received }
    }

    /// Seen from the other side.
    #[must_use]
    pub const fn turned(self) -> Self {
        Self {
            messages_sent: self.messages_received,
            bytes_sent: self.bytes_received,
            messages_received: self.messages_sent,
            bytes_received: self.bytes_sent,
        }
    }

    /// So many of it.
    #[must_use]
    pub const fn times(self, count: u64) -> Self {
        Self {
            messages_sent: count * self.messages_sent,
            bytes_sent: count * self.bytes_sent,
            messages_received: count * self.messages_received,
            bytes_received: count * self.bytes_received,
        }
    }

    /// This and `other`.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            messages_sent: self.messages_sent + other.messages_sent,
            bytes_sent: self.bytes_sent + other.bytes_sent,
            messages_received: self.messages_received + other.messages_received,
            bytes_received: self.bytes_received + other.bytes_received,
        }
    }
}

/// Words of a [`Traffic`].
pub const TRAFFIC_WORDS: usize = 4;

/// Counts; any thread may read them.
#[derive(Debug, Default)]
pub struct Meter {
    messages_sent: AtomicU64,
    bytes_sent: AtomicU64,
    messages_received: AtomicU64,
    bytes_received: AtomicU64,
}

/// All communicators of the process together.
static PROCESS: Meter = Meter::new();

/// What this process has sent and received so far, over all its communicators.
#[must_use]
pub fn process_traffic() -> Traffic {
    PROCESS.read()
}

impl Meter {
    const fn new() -> Self {
        Self {
            messages_sent: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            messages_received: AtomicU64::new(0),
            bytes_received: AtomicU64::new(0),
        }
    }

    /// So far.
    #[must_use]
    pub fn read(&self) -> Traffic {
        Traffic {
            messages_sent: self.messages_sent.load(Relaxed),
            bytes_sent: self.bytes_sent.load(Relaxed),
            messages_received: self.messages_received.load(Relaxed),
            bytes_received: self.bytes_received.load(Relaxed),
        }
    }

    /// Counts here and for the process.
    pub(super) fn count(&self, traffic: Traffic) {
        for meter in [self, &PROCESS] {
            meter.messages_sent.fetch_add(traffic.messages_sent, Relaxed);
            meter.bytes_sent.fetch_add(traffic.bytes_sent, Relaxed);
            meter.messages_received.fetch_add(traffic.messages_received, Relaxed);
            meter.bytes_received.fetch_add(traffic.bytes_received, Relaxed);
        }
    }

    /// Counts a message of this many bytes.
    pub(super) fn sent(&self, bytes: usize) {
        let bytes_sent = bytes as u64;
        self.count(Traffic { messages_sent: 1, bytes_sent, ..Traffic::default() });
    }

    /// Counts a message of this many bytes.
    pub(super) fn received(&self, bytes: usize) {
        let bytes_received = bytes as u64;
        self.count(Traffic { messages_received: 1, bytes_received, ..Traffic::default() });
    }
}

/// Of a barrier of `size` ranks.
pub(super) const fn of_barrier(size: usize) -> Traffic {
    let rounds = size.next_power_of_two().ilog2() as u64;
    Traffic { messages_sent: rounds, bytes_sent: 0, messages_received: rounds, bytes_received: 0 }
}

/// Of a broadcast of the first of `size` ranks.
pub(super) fn of_broadcast(rank: usize, size: usize, bytes: usize) -> Traffic {
    let all = bytes as u64;
    let (sends, receives, messages) = if size <= 4 {
        (if rank == 0 { size - 1 } else { 0 }, rank > 0, 1)
    } else if bytes < 64 << 10 {
        // In round k those who have it, 2^k ranks, send it to the next 2^k.
        let rounds = (0..usize::BITS).map(|round| 1 << round).take_while(|next| *next < size);
        (rounds.filter(|next| rank < *next && rank + next < size).count(), rank > 0, 1)
    } else {
        let segment = if bytes < 512 << 10 { 8 << 10 } else { 32 << 10 };
        (usize::from(rank + 1 < size), rank > 0, bytes.div_ceil(segment) as u64)
    };
    let (sends, receives) = (sends as u64, u64::from(receives));
    Traffic {
        messages_sent: sends * messages,
        bytes_sent: sends * all,
        messages_received: receives * messages,
        bytes_received: receives * all,
    }
}

/// Of an exchange in which this rank `own` sends and receives these bytes, by rank.
#[must_use]
pub fn of_exchange(
    own: usize,
    sent: impl Iterator<Item = usize>,
    received: impl Iterator<Item = usize>,
) -> Traffic {
    let others = |(rank, bytes): &(usize, usize)| *rank != own && *bytes > 0;
    let total = |(messages, all): (u64, u64), (_, bytes)| (messages + 1, all + bytes as u64);
    let (messages_sent, bytes_sent) = sent.enumerate().filter(others).fold((0, 0), total);
    let (messages_received, bytes_received) =
        received.enumerate().filter(others).fold((0, 0), total);
    Traffic { messages_sent, bytes_sent, messages_received, bytes_received }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(
        messages_sent: u64,
        bytes_sent: u64,
        messages_received: u64,
        bytes_received: u64,
    ) -> Traffic {
        Traffic { messages_sent, bytes_sent, messages_received, bytes_received }
    }

    #[test]
    fn collectives_are_counted_as_their_algorithms_send() {
        for (size, rounds) in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1000, 10)] {
            assert_eq!(of_barrier(size), traffic(rounds, 0, rounds, 0), "{size} ranks");
        }
        // The rank's own share travels nowhere, and nothing is no message.
        let exchanged = of_exchange(1, [8, 99, 0, 4].into_iter(), [7, 99, 7, 7].into_iter());
        assert_eq!(exchanged, traffic(2, 12, 3, 21));
        assert_eq!(exchanged.plus(exchanged).since(exchanged), exchanged);
        assert_eq!(of_broadcast(0, 3, 10), traffic(2, 20, 0, 0));
        assert_eq!(of_broadcast(2, 3, 10), traffic(0, 0, 1, 10));
        // Every rank but the first gets it once, whatever the way.
        for (size, bytes, messages) in [(1, 9, 1), (4, 9, 1), (5, 9, 1), (23, 9, 1), (9, 65_537, 9)]
        {
            let all = (0..size).map(|rank| of_broadcast(rank, size, bytes));
            let all = all.fold(Traffic::default(), Traffic::plus);
            let (messages, bytes) =
                ((size as u64 - 1) * messages, (size - 1) as u64 * bytes as u64);
            assert_eq!(all, traffic(messages, bytes, messages, bytes), "{size} ranks");
        }
    }
}
