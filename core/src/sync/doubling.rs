//! Sums over ranks by recursive halving and doubling: who exchanges which stretch with whom.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
//! MPICH", Int. J. High Performance Computing Applications 19 (2005): reduce-scatter by halving the
//! vector, all-gather by doubling it. Here the distance between partners doubles while the vector
//! halves: at level k, role r exchanges with role r ^ 2^k, so what a role holds before level k is
//! the sum over the 2^k aligned roles around it, a subtree of the tree that
//! [`sum_into_first`](super::reduction::sum_into_first) adds. Lower block plus upper block, in this
//! order: bits are the same.
//!
//! Roles are numbered up to the next power of two. Role r is rank r's; a role past the last rank
//! has no term of its own, not even a zero, since -0.0 + 0.0 is another number. It is played by the
//! rank half of all roles before it, becomes a holder when a partner first gives it something, and
//! is needed because its last partner is the very rank that plays it.
//!
//! A stretch that is short is exchanged whole, there and back in one message, instead of in halves
//! down and up: on the last two levels that moves at most a third more, and a short message costs
//! what its start costs.
//!
//! Invariants: partners agree on every stretch, whatever the number of ranks; a role gives at a
//! level exactly when its partner takes. A rank sends at most one message down and one up per level
//! for each of its roles: 2 log2 (ranks), twice that on a rank with two roles.

use core::ops::Range;

/// The exchanges of all ranks for vectors of any length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubling {
    ranks: usize,
    /// Longest stretch that is exchanged whole, elements.
    whole_max: usize,
}

/// What one role does at one level.
///
/// Down, level 0 first: it sends `given` if it `gives`, and if it `takes`, receives the partner's
/// part of `kept` and adds it to its own, if it has one. Up, the last level first, where it halves:
/// it sends `kept` if it `takes`, and receives `given` if it `gives`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The other role.
    pub partner: usize,
    /// The rank that plays it.
    pub peer: usize,
    /// Whether the role has something: it is added to what comes, and the partner gets its part.
    pub gives: bool,
    /// Whether the partner has something.
    pub takes: bool,
    /// Whether this role's block is the first term of the sum.
    pub first: bool,
    /// Whether the stretch is halved; else `given` and `kept` are all of it.
    pub halves: bool,
    /// What stays with this role. Elements.
    pub kept: Range<usize>,
    /// What goes to the partner. Elements.
    pub given: Range<usize>,
}

impl Doubling {
    /// Sums over `ranks` ranks, at least 1, which exchange stretches of up to `whole_max` elements
    /// whole.
    #[must_use]
    pub const fn new(ranks: usize, whole_max: usize) -> Self {
        let whole_max = if whole_max == 0 { 1 } else { whole_max };
        Self { ranks, whole_max }
    }

    /// Levels: the logarithm of the number of roles.
    #[must_use]
    pub const fn levels(&self) -> u32 {
        self.ranks.next_power_of_two().trailing_zeros()
    }

    /// The roles that `rank` plays: its own, and one past the last rank or none.
    #[must_use]
    pub const fn roles(&self, rank: usize) -> (usize, Option<usize>) {
        let roles = self.ranks.next_power_of_two();
        let second = rank + roles / 2;
        let missing = second >= self.ranks && second < roles;
        (rank, if missing { Some(second) } else { None })
    }

    /// The rank that plays `role`.
    #[must_use]
    pub const fn rank_of(&self, role: usize) -> usize {
        if role < self.ranks { role } else { role - self.ranks.next_power_of_two() / 2 }
    }

    /// What `role` does at `level` for a vector of `len` elements.
    #[must_use]
    pub fn exchange(&self, role: usize, level: u32, len: usize) -> Exchange {
        let mut stretch = 0..len;
        for before in 0..level {
            if self.halves(&stretch) {
                stretch = half(stretch, role >> before & 1 == 1);
            }
        }
        let bit = 1 << level;
        let partner = role ^ bit;
        // A block has a term if its first role is a rank's.
        let holds = |role: usize| role & !(bit - 1) < self.ranks;
        let halves = self.halves(&stretch);
        let part = |upper| if halves { half(stretch.clone(), upper) } else { stretch.clone() };
        let upper = role & bit != 0;
        Exchange {
            partner,
            peer: self.rank_of(partner),
            gives: holds(role),
            takes: holds(partner),
            first: !upper,
            halves,
            kept: part(upper),
            given: part(!upper),
        }
    }

    const fn halves(&self, stretch: &Range<usize>) -> bool {
        stretch.end - stretch.start > self.whole_max
    }
}

const fn half(stretch: Range<usize>, upper: bool) -> Range<usize> {
    let middle = stretch.start + (stretch.end - stretch.start) / 2;
    if upper { middle..stretch.end } else { stretch.start..middle }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::super::reduction::{add, sum_into_first};
    use super::*;
    use crate::rng::{Purpose, Stream};

    /// Terms of ten decades, some -0.0: the order of adding shows, and so does a zero too many.
    fn term(rank: usize, element: usize) -> f32 {
        let stream = Stream::new(rank as u64, Purpose::Test(7));
        let i = 3 * element as u64;
        let decade = i32::try_from(stream.below(i, 10)).unwrap();
        match stream.below(i + 1, 4) {
            0 => -0.0,
            _ => stream.normal(i + 2) * 10f32.powi(decade),
        }
    }

    /// All ranks' exchanges, one level after the other; what each rank has in the end, and the
    /// messages it sent to others.
    fn simulate(schedule: Doubling, terms: &[Vec<f32>]) -> (Vec<Vec<f32>>, Vec<u32>) {
        let (ranks, len) = (terms.len(), terms[0].len());
        let roles = ranks.next_power_of_two();
        // What nobody has written yet is not a number.
        let mut held = terms.to_vec();
        held.resize(roles, vec![f32::NAN; len]);
        let mut sent = vec![0; ranks];
        let mut send = |from: usize, exchange: &Exchange| {
            let rank = schedule.rank_of(from);
            sent[rank] += u32::from(rank != exchange.peer);
        };
        for level in 0..schedule.levels() {
            let before = held.clone();
            for (role, held) in held.iter_mut().enumerate() {
                let own = schedule.exchange(role, level, len);
                let theirs = schedule.exchange(own.partner, level, len);
                assert_eq!((own.gives, &own.given), (theirs.takes, &theirs.kept));
                assert!(own.first != theirs.first && own.halves == theirs.halves);
                if own.gives {
                    send(role, &own);
                }
                if own.takes {
                    let came = &before[own.partner][own.kept.clone()];
                    let kept = &mut held[own.kept.clone()];
                    if !own.gives {
                        kept.copy_from_slice(came);
                    } else if own.first {
                        add(kept, came);
                    } else {
                        let mut sum = came.to_vec();
                        add(&mut sum, kept);
                        kept.copy_from_slice(&sum);
                    }
                }
            }
        }
        for level in (0..schedule.levels()).rev() {
            let before = held.clone();
            for (role, held) in held.iter_mut().enumerate() {
                let own = schedule.exchange(role, level, len);
                if own.halves && own.takes {
                    send(role, &own);
                }
                if own.halves && own.gives {
                    let came = &before[own.partner][own.given.clone()];
                    held[own.given.clone()].copy_from_slice(came);
                }
            }
        }
        held.truncate(ranks);
        (held, sent)
    }

    /// Up to 64 ranks, lengths around every boundary: the tree's bits on all ranks, with messages
    /// that grow with the logarithm of the ranks.
    #[test]
    fn bits_are_the_tree_s_and_messages_few() {
        for ranks in 1..=64 {
            for (len, whole_max) in [
                (1, 1),
                (2, 1),
                (3, 1),
                (ranks, 1),
                (2 * ranks + 1, 2),
                (97, 0),
                (97, 13),
                (97, 97),
            ] {
                let terms: Vec<Vec<f32>> =
                    (0..ranks).map(|rank| (0..len).map(|i| term(rank, i)).collect()).collect();
                let schedule = Doubling::new(ranks, whole_max);
                let (sums, sent) = simulate(schedule, &terms);
                let mut tree = terms;
                sum_into_first(&mut tree, |to, from| add(to, from));
                let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                for (rank, sums) in sums.iter().enumerate() {
                    assert_eq!(bits(sums), bits(&tree[0]), "rank {rank} of {ranks}, {len}");
                    let two = schedule.roles(rank).1.is_some();
                    let most = 2 * schedule.levels() * if two { 2 } else { 1 };
                    assert!(sent[rank] <= most, "{ranks} ranks, {len}: {sent:?}");
                    let once = schedule.levels() * if two { 2 } else { 1 };
                    assert!(len > whole_max.max(1) || sent[rank] <= once, "whole: {sent:?}");
                }
            }
        }
    }

    #[test]
    fn every_role_has_one_rank_and_none_more_than_two() {
        for ranks in 1..=1100 {
            let schedule = Doubling::new(ranks, 1);
            let mut played = vec![0; ranks.next_power_of_two()];
            for rank in 0..ranks {
                let (own, second) = schedule.roles(rank);
                for role in [Some(own), second].into_iter().flatten() {
                    assert_eq!(schedule.rank_of(role), rank);
                    played[role] += 1;
                }
            }
            assert!(played.iter().all(|times| *times == 1), "{ranks} ranks: {played:?}");
        }
    }
}
