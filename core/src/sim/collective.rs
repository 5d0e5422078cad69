//! What half a reduction takes: its values up to where they are summed, or their sums back.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
//! MPICH", International Journal of High Performance Computing Applications 19 (2005), for ring and
//! binomial tree.
//!
//! | [`Collective`] | half of it, R ranks, a buffer of B bytes |
//! | --- | --- |
//! | `Direct` | everybody exchanges (R − 1)/R · B with all others at once, in R − 1 messages |
//! | `Ring` | R − 1 steps, in each a message of B/R from every rank to the next |
//! | `Tree` | ⌈log₂ R⌉ steps, in each messages of B between pairs of a binomial tree |
//!
//! Invariants: a leaf's uplink carries what its nodes send to other leaves, and what comes from
//! there, each direction in turn; the spine above never blocks. All ranks of a reduction end
//! together.

use alloc::vec::Vec;

use super::cluster::Collective;
use super::network::{Port, exchange};

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
        members: &[usize],
        now: u64,
        bytes: u64,
    ) -> u64 {
        let count = members.len();
        let ranks = count as u64;
        match collective {
            Collective::Direct => self.direct(members, now, bytes),
            Collective::Ring => {
                let next = |place: usize| (members[place], members[(place + 1) % count]);
                let flows: Vec<_> = (0..count).map(next).collect();
                self.in_turn(
                    members,
                    now,
                    core::iter::repeat_n(&flows[..], count - 1),
                    bytes / ranks,
                )
            }
            Collective::Tree => {
                let levels = usize::BITS - (count - 1).leading_zeros();
                let level = |level: u32| -> Vec<_> {
                    let (near, far) = (1 << level, 2 << level);
                    let pairs = (near..count).filter(|place| place % far == near);
                    pairs.map(|place| (members[place], members[place - near])).collect()
                };
                let steps: Vec<Vec<_>> = (0..levels).map(level).collect();
                self.in_turn(members, now, steps.iter().map(Vec::as_slice), bytes)
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

    /// Steps one after the other, each with flows of `bytes` from node to node.
    fn in_turn<'f>(
        &mut self,
        members: &[usize],
        now: u64,
        steps: impl Iterator<Item = &'f [(usize, usize)]>,
        bytes: u64,
    ) -> u64 {
        let free = members.iter().map(|node| self.ports[*node].free()).max();
        let mut end = now.max(free.unwrap_or(0));
        // Bytes out of a leaf and into it.
        let mut crossing = alloc::vec![[0u64; 2]; self.uplinks.len()];
        for flows in steps {
            crossing.fill([0, 0]);
            let mut longest = 0;
            for &(from, to) in flows {
                longest =
                    longest.max(self.ports[from].takes(bytes)).max(self.ports[to].takes(bytes));
                let (own, other) = (from / self.nodes, to / self.nodes);
                if own != other && !crossing.is_empty() {
                    crossing[own][0] += bytes;
                    crossing[other][1] += bytes;
                }
            }
            for (uplink, [out, into]) in self.uplinks.iter().zip(&crossing) {
                let most = *out.max(into);
                longest = longest.max(if most > 0 { uplink.takes(most) } else { 0 });
            }
            end += longest;
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
        fabric.half(collective, members, 0, 4000)
    }

    #[test]
    fn halves_by_hand() {
        let all = [0, 1, 2, 3];
        // 3 messages of 1000 at once.
        assert_eq!(half(Collective::Direct, &all, false), 100 + 3 * 10 + 3000);
        // 3 steps of 1000; 2 steps of 4000.
        assert_eq!(half(Collective::Ring, &all, false), 3 * (100 + 10 + 1000));
        assert_eq!(half(Collective::Tree, &all, false), 2 * (100 + 10 + 4000));
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
