//! How a vector is summed over ranks, and what that sends: pure arithmetic, the same on every rank.
//!
//! By recursive halving and doubling (`doubling.rs`): 2 log2 (ranks) messages, or half of that for
//! a vector that is short and goes whole, and 2 (ranks - 1) / ranks of the vector per rank, up to
//! twice that on a rank that plays a second role. Messages are bounded, so a long vector goes in
//! pieces, whose first message carries half of them.

use super::doubling::Doubling;

/// Bounds of messages, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSizes {
    /// The longest message.
    pub most: usize,
    /// The longest that doubling exchanges whole.
    pub whole: usize,
}

/// Messages between a rank and others, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Messages.
    pub messages: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// How a vector of some length is summed over some ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumPlan {
    ranks: usize,
    len: usize,
    element_bytes: usize,
    /// Elements.
    piece: usize,
    schedule: Doubling,
}

impl SumPlan {
    /// For `len` elements of `element_bytes` bytes over `ranks` ranks, at least 1.
    #[must_use]
    pub const fn new(ranks: usize, len: usize, element_bytes: usize, sizes: MessageSizes) -> Self {
        let most = match sizes.most / element_bytes {
            0 => 1,
            most => most,
        };
        let schedule = Doubling::new(ranks, sizes.whole / element_bytes);
        Self { ranks, len, element_bytes, piece: 2 * most, schedule }
    }

    /// Elements of every piece but the last.
    #[must_use]
    pub const fn piece(&self) -> usize {
        self.piece
    }

    /// The exchanges of a piece.
    #[must_use]
    pub const fn schedule(&self) -> Doubling {
        self.schedule
    }

    /// What `rank` sends.
    #[must_use]
    pub fn sends(&self, rank: usize) -> Sent {
        self.of_all(rank, true)
    }

    /// What `rank` receives.
    #[must_use]
    pub fn receives(&self, rank: usize) -> Sent {
        self.of_all(rank, false)
    }

    fn of_all(&self, rank: usize, sends: bool) -> Sent {
        if self.ranks == 1 {
            return Sent::default();
        }
        let (whole, last) = (self.len / self.piece, self.len % self.piece);
        let (of_whole, of_last) =
            (self.of_piece(rank, self.piece, sends), self.of_piece(rank, last, sends));
        let of_last = if last == 0 { Sent::default() } else { of_last };
        Sent {
            messages: whole as u64 * of_whole.messages + of_last.messages,
            bytes: whole as u64 * of_whole.bytes + of_last.bytes,
        }
    }

    fn of_piece(&self, rank: usize, len: usize, sends: bool) -> Sent {
        let (own, second) = self.schedule.roles(rank);
        let mut traffic = Sent::default();
        let mut add = |is: bool, elements: usize| {
            if is {
                traffic.messages += 1;
                traffic.bytes += elements as u64 * self.element_bytes as u64;
            }
        };
        for role in [Some(own), second].into_iter().flatten() {
            for level in 0..self.schedule.levels() {
                let exchange = self.schedule.exchange(role, level, len);
                // A rank's two roles meet without a message.
                let other = exchange.peer != rank;
                // Terms on the way out, and where the vector was halved, sums on the way back.
                let (out, back) = (exchange.given.len(), exchange.kept.len());
                let (gives, takes) = (other && exchange.gives, other && exchange.takes);
                if sends {
                    add(gives, out);
                    add(takes && exchange.halves, back);
                } else {
                    add(takes, back);
                    add(gives && exchange.halves, out);
                }
            }
        }
        traffic
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    const SIZES: MessageSizes = MessageSizes { most: 60_000, whole: 8192 };

    /// What all roles send by the schedule, role by role, equals what is predicted rank by rank,
    /// and what all send is what all receive.
    #[test]
    fn predictions_are_what_the_schedule_sends() {
        for ranks in 1..=64 {
            for len in [0, 1, 5, 300, 2048, 2049, 30_000, 61_234] {
                let plan = SumPlan::new(ranks, len, 4, SIZES);
                let mut counted = vec![Sent::default(); ranks];
                let mut received = vec![0; ranks];
                let pieces = (0..len).step_by(plan.piece());
                for piece in pieces.map(|start| plan.piece().min(len - start)) {
                    for role in 0..ranks.next_power_of_two() {
                        let rank = plan.schedule().rank_of(role);
                        for level in 0..plan.schedule().levels() {
                            let own = plan.schedule().exchange(role, level, piece);
                            let (down, up) = (own.gives, own.takes && own.halves);
                            if own.peer == rank {
                                continue;
                            }
                            for (sends, stretch) in [(down, &own.given), (up, &own.kept)] {
                                let sends = u64::from(sends);
                                counted[rank].messages += sends;
                                counted[rank].bytes += 4 * sends * stretch.len() as u64;
                                received[own.peer] += 4 * sends * stretch.len() as u64;
                            }
                        }
                    }
                }
                let predicted: Vec<Sent> = (0..ranks).map(|rank| plan.sends(rank)).collect();
                assert_eq!(predicted, counted, "{ranks} ranks, {len}");
                let total: u64 = predicted.iter().map(|sent| sent.bytes).sum();
                assert_eq!(total, received.iter().sum::<u64>());
                // Every rank needs all of the sum, and all but one had to give their terms away.
                let least = 4 * 2 * (ranks as u64 - 1) * len as u64;
                assert!(total >= least, "{ranks} ranks, {len}");
                // Reached where nobody plays two roles and stretches are halved to the last.
                if ranks.is_power_of_two() && len == plan.piece() && ranks <= 8 {
                    assert_eq!(total, least, "{ranks} ranks, {len}");
                }
            }
        }
    }

    /// The figures of a sum of gradients: 1 kB, 64 kB, 1 MB of f32.
    #[test]
    fn messages_grow_with_the_logarithm_of_ranks() {
        let messages = |len| {
            [2, 4, 8, 64, 1024].map(|ranks| SumPlan::new(ranks, len, 4, SIZES).sends(0).messages)
        };
        assert_eq!(messages(256), [1, 2, 3, 6, 10]);
        assert_eq!(messages(16 << 10), [2, 4, 6, 9, 13]);
        assert_eq!(messages(1 << 18), [18, 36, 54, 90, 126]);
    }
}
