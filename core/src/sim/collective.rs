//! What half a reduction takes: its values up to where they are summed, or their sums back.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
//! MPICH", International Journal of High Performance Computing Applications 19 (2005), for ring,
//! binomial tree, and halving and doubling.
//!
//! | [`Collective`] | half of it, R ranks, a buffer of B bytes |
//! | --- | --- |
//! | `Direct` | everybody exchanges (R − 1)/R · B with all others at once, in R − 1 messages |
//! | `Doubling` | ⌈log₂ R⌉ steps, in each messages of B/2, B/4, … between partners (`sync::doubling`) |
//! | `Ring` | R − 1 steps, in each a message of B/R from every rank to the next |
//! | `Tree` | ⌈log₂ R⌉ steps, in each messages of B between pairs of a binomial tree |
//!
//! Invariants: a leaf's uplink carries what its nodes send to other leaves, and what comes from
//! there, each direction in turn; the spine above never blocks. All ranks of a reduction end
//! together.

use alloc::vec::Vec;

use super::cluster::Collective;
use super::network::{Port, exchange};
use crate::sync::doubling::Doubling;

/// A message of a step: the places of two members, and bytes.
type Flow = (usize, usize, u64);

/// Which half of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// Values go where they are summed.
    Scatter,
    /// Sums come back.
    Gather,
}

/// What each of `ranks` members sends in half a reduction of `bytes`. bytes
pub(super) fn sends(collective: Collective, half: Half, ranks: usize, bytes: u64) -> Vec<u64> {
    let Collective::Doubling { whole } = collective else {
        return alloc::vec![bytes * (ranks as u64 - 1) / ranks as u64; ranks];
    };
    let mut sent = alloc::vec![0; ranks];
    for (from, _, bytes) in doubling(half, ranks, bytes, whole).into_iter().flatten() {
        sent[from] += bytes;
    }
    sent
}

/// The steps of a half by halving and doubling. The longer messages come first on the way to the
/// sums and last on the way back; their time is the same.
fn doubling(half: Half, ranks: usize, bytes: u64, whole: usize) -> Vec<Vec<Flow>> {
    let schedule = Doubling::new(ranks, whole);
    let len = usize::try_from(bytes).unwrap_or(usize::MAX);
    let step = |level: u32| {
        (0..ranks.next_power_of_two()).filter_map(move |role| {
            let exchange = schedule.exchange(role, level, len);
            let (sends, stretch) = match half {
                Half::Scatter => (exchange.gives, exchange.given),
                Half::Gather => (exchange.takes && exchange.halves, exchange.kept),
            };
            let (from, to) = (schedule.rank_of(role), exchange.peer);
            (sends && from != to).then_some((from, to, stretch.len() as u64))
        })
    };
    (0..schedule.levels()).map(|level| step(level).collect()).collect()
}

/// Nodes, and the leaf switches above them.
pub(super) struct Fabric<'a> {
    /// Of nodes.
    pub(super) ports: &'a mut [Port],
    /// Of leaves, towards the spine; empty where one switch has all nodes.
    pub(super) uplinks: &'a mut [Port],
    /// Nodes of a leaf.
    pub(super) nodes: usize,
}

impl Fabric<'_> {
    /// When half a reduction of `bytes` over the nodes `members`, in their order, has ended, which
    /// may begin `now`.
    pub(super) fn half(
        &mut self,
        collective: Collective,
        half: Half,
        members: &[usize],
        now: u64,
        bytes: u64,
    ) -> u64 {
        let count = members.len();
        match collective {
            Collective::Direct => self.direct(members, now, bytes),
            Collective::Doubling { whole } => {
                self.in_turn(members, now, &doubling(half, count, bytes, whole))
            }
            Collective::Ring => {
                let next = |place: usize| (place, (place + 1) % count, bytes / count as u64);
                let step: Vec<_> = (0..count).map(next).collect();
                self.in_turn(members, now, &alloc::vec![step; count - 1])
            }
            Collective::Tree => {
                let levels = usize::BITS - (count - 1).leading_zeros();
                let level = |level: u32| -> Vec<_> {
                    let (near, far) = (1 << level, 2 << level);
                    let pairs = (near..count).filter(|place| place % far == near);
                    pairs.map(|place| (place, place - near, bytes)).collect()
                };
                let steps: Vec<Vec<_>> = (0..levels).map(level).collect();
                self.in_turn(members, now, &steps)
            }
        }
    }

    fn direct(&mut self, members: &[usize], now: u64, bytes: u64) -> u64 {
        let ranks = members.len() as u64;
        let mut end = exchange(self.ports, members, now, bytes * (ranks - 1) / ranks);
        let leaves: Vec<usize> = members.iter().map(|node| node / self.nodes).collect();
        for (leaf, uplink) in self.uplinks.iter_mut().enumerate() {
            let here = leaves.iter().filter(|of| **of == leaf).count() as u64;
            let crossing = bytes / ranks * here * (ranks - here);
            if crossing > 0 {
                let sent = uplink.send(now, crossing, 1.0);
                end = end.max(sent.last).max(uplink.receive(sent.first, sent.last, crossing, 1.0));
            }
        }
        end
    }

    /// Steps one after the other: what a node sends in one, and what it receives, goes in turn.
    fn in_turn(&mut self, members: &[usize], now: u64, steps: &[Vec<Flow>]) -> u64 {
        let free = members.iter().map(|node| self.ports[*node].free()).max();
        let mut end = now.max(free.unwrap_or(0));
        // Bytes out and into: of members, of leaves.
        let mut moved = alloc::vec![[0u64; 2]; members.len()];
        let mut crossing = alloc::vec![[0u64; 2]; self.uplinks.len()];
        for flows in steps {
            moved.fill([0, 0]);
            crossing.fill([0, 0]);
            for &(from, to, bytes) in flows {
                moved[from][0] += bytes;
                moved[to][1] += bytes;
                let (own, other) = (members[from] / self.nodes, members[to] / self.nodes);
                if own != other && !crossing.is_empty() {
                    crossing[own][0] += bytes;
                    crossing[other][1] += bytes;
                }
            }
            let ports = members.iter().map(|node| &self.ports[*node]).zip(&moved);
            let uplinks = self.uplinks.iter().zip(&crossing);
            let takes = |(port, [out, into]): (&Port, &[u64; 2])| match *out.max(into) {
                0 => 0,
                most => port.takes(most),
            };
            end += ports.chain(uplinks).map(takes).max().unwrap_or(0);
        }
        for &node in members {
            self.ports[node].hold(end);
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::super::cluster::Link;
    use super::*;
    use crate::sync::sum_plan::{MessageSizes, SumPlan};
    use crate::units::Nanos;

    /// Ports of a byte per ns, a latency of 100 and an overhead of 10; leaves of two with uplinks
    /// of half a byte per ns.
    fn half(collective: Collective, members: &[usize], leaves: bool) -> u64 {
        let link =
            |bytes_per_second| Link { bytes_per_second, latency: Nanos(100), overhead: Nanos(10) };
        let mut ports: Vec<Port> = (0..4).map(|_| Port::new(link(1e9))).collect();
        let count = if leaves { 2 } else { 0 };
        let mut uplinks: Vec<Port> = (0..count).map(|_| Port::new(link(5e8))).collect();
        let mut fabric = Fabric { ports: &mut ports, uplinks: &mut uplinks, nodes: 2 };
        fabric.half(collective, Half::Scatter, members, 0, 4000)
    }

    #[test]
    fn halves_by_hand() {
        let all = [0, 1, 2, 3];
        // 3 messages of 1000 at once.
        assert_eq!(half(Collective::Direct, &all, false), 100 + 3 * 10 + 3000);
        // 3 steps of 1000; 2 steps of 4000.
        assert_eq!(half(Collective::Ring, &all, false), 3 * (100 + 10 + 1000));
        assert_eq!(half(Collective::Tree, &all, false), 2 * (100 + 10 + 4000));
        // A message of 2000, then one of 1000; with stretches of 2000 whole, two of 2000.
        let doubling = |whole| Collective::Doubling { whole };
        assert_eq!(half(doubling(1), &all, false), 2 * (100 + 10) + 2000 + 1000);
        assert_eq!(half(doubling(2000), &all, false), 2 * (100 + 10) + 2 * 2000);
        // Of three, rank 1 plays role 3 as well, and receives for both.
        assert_eq!(half(doubling(1), &[0, 1, 2], false), 2 * (100 + 10) + 2 * 2000 + 1000);
    }

    /// What is on the wire is what the sums of real ranks send.
    #[test]
    fn halves_send_what_a_sum_sends() {
        for ranks in 2..=9 {
            for bytes in [4000, 40_000] {
                let sizes = MessageSizes { most: 1 << 20, whole: 8192 };
                let plan = SumPlan::new(ranks, bytes, 1, sizes);
                let collective = Collective::Doubling { whole: 8192 };
                let halves = [Half::Scatter, Half::Gather];
                let [there, back] = halves.map(|half| sends(collective, half, ranks, bytes as u64));
                for place in 0..ranks {
                    let sent = there[place] + back[place];
                    assert_eq!(sent, plan.sends(place).bytes, "{ranks} ranks, {bytes}, {place}");
                }
            }
        }
    }

    #[test]
    fn an_uplink_carries_what_leaves_its_leaf() {
        let all = [0, 1, 2, 3];
        // Two nodes send 2 × 1000 each to the other leaf.
        assert_eq!(half(Collective::Direct, &all, true), 100 + 10 + 2 * 4000);
        // In every step one of a leaf's two flows crosses; out of order both do.
        assert_eq!(half(Collective::Ring, &all, true), 3 * (100 + 10 + 2 * 1000));
        assert_eq!(half(Collective::Ring, &[0, 2, 1, 3], true), 3 * (100 + 10 + 2 * 2000));
        // Only the second step of the tree crosses.
        assert_eq!(half(Collective::Tree, &all, true), (110 + 4000) + (110 + 2 * 4000));
        assert_eq!(half(Collective::Direct, &[0, 1], true), 100 + 10 + 2000, "a group of one leaf");
    }
}
