//! Reductions under way: who has come, and what they get.
//!
//! Invariants: a reduction starts when the last of its group has come, and all of the group get its
//! outcome at one moment; the arithmetic and its order are those of every driver
//! (`sync::reduction`).

use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;

use super::cluster::{Collective, nanoseconds};
use super::collective::{Fabric, Half, sends};
use super::driver::WORD_BYTES;
use super::run::{Event, Simulation};
use super::trace::{Deed, Who};
use crate::dense::replica::{load, store};
use crate::sync::reduction::{QUIET, add, conclude, sum_into_first};
use crate::sync::{Action, Completion, Group};

impl Simulation<'_, '_> {
    /// An instance has come to a reduction; the last of the group starts it.
    pub(super) fn join_reduction(&mut self, number: u32, group: Group) {
        let instance = &self.drivers[number as usize].instance;
        let (channel, came) = &mut self.channels[instance.channel as usize];
        let members: Vec<u32> = match (group, instance.dealing) {
            (Group::Dealt { round }, Some(dealing)) => {
                let place = channel.partition_point(|member| *member < number);
                self.dealt.resize(channel.len(), 0);
                let places = dealing.deal(round, place, &mut self.dealt);
                let members: Vec<u32> = places.iter().map(|place| channel[*place]).collect();
                let here = |member: &u32| self.drivers[*member as usize].joined == Some(group);
                if !members.iter().all(here) {
                    return;
                }
                members
            }
            _ => {
                *came += 1;
                if *came < channel.len() {
                    return;
                }
                *came = 0;
                channel.clone()
            }
        };
        for &member in &members {
            self.drivers[member as usize].joined = None;
        }
        let scattered = self.exchange(&members, Half::Scatter);
        let free = self.reductions.iter().position(Vec::is_empty);
        let place = free.unwrap_or(self.reductions.len());
        self.reductions.resize(self.reductions.len().max(place + 1), Vec::new());
        self.reductions[place] = members;
        #[expect(clippy::cast_possible_truncation, reason = "at most one for each instance")]
        self.at(scattered, Event::Scattered(place as u32));
    }

    /// The second half of a reduction; all get the mean when it ends.
    pub(super) fn scattered(&mut self, reduction: u32) {
        let members = core::mem::take(&mut self.reductions[reduction as usize]);
        let gathered = self.exchange(&members, Half::Gather);
        let completion = if self.sums_gradients(&members) {
            self.add_gradients(&members);
            Completion::Done
        } else {
            self.add_stagings(&members)
        };
        for &member in &members {
            let since = self.drivers[member as usize].since;
            self.drivers[member as usize].completion = completion;
            self.record(Who::Instance(member), Deed::Reduce, since, gathered);
            self.at(self.awake(member, gathered), Event::Resume(member));
        }
    }

    fn sums_gradients(&self, members: &[u32]) -> bool {
        let action = members.first().map(|member| self.drivers[*member as usize].action);
        matches!(action, Some(Action::ReduceSum { .. }))
    }

    /// Every member's gradient becomes the sum of all.
    fn add_gradients(&mut self, members: &[u32]) {
        let gradient = |member: &u32| self.gradient(self.drivers[*member as usize].node());
        let gradients: Vec<_> = members.iter().map(gradient).collect();
        let term = |gradient: &&[AtomicU32]| {
            let mut term = alloc::vec![0.0; gradient.len()];
            load(gradient, &mut term);
            term
        };
        let mut terms: Vec<Vec<f32>> = gradients.iter().map(term).collect();
        sum_into_first(&mut terms, |to, from| add(to, from));
        gradients.iter().for_each(|gradient| store(gradient, &terms[0]));
    }

    /// Every member's staging becomes the mean of all, unless a group has been silent for so long
    /// that words alone were exchanged.
    fn add_stagings(&mut self, members: &[u32]) -> Completion {
        let least = self.least_silent(members);
        if let Some(silent @ QUIET..) = least {
            return Completion::Reduced { weight: 0.0, silent };
        }
        let mut all: Vec<&mut [f32]> = Vec::with_capacity(members.len());
        let mut drivers = self.drivers.iter_mut();
        let mut next = 0;
        for &member in members {
            // Members ascend, as they were listed.
            if let Some(driver) = drivers.nth(member as usize - next) {
                all.push(driver.instance.protocol.staging());
            }
            next = member as usize + 1;
        }
        sum_into_first(&mut all, |to, from| add(to, from));
        let mut completion = Completion::Done;
        if let Some((first, others)) = all.split_first_mut() {
            completion = conclude(first, least);
            others.iter_mut().for_each(|other| other.copy_from_slice(first));
        }
        completion
    }

    /// The least of what a dealt group says; a reduction of all has votes.
    fn least_silent(&self, members: &[u32]) -> Option<u32> {
        let of = |member: &u32| match self.drivers[*member as usize].action {
            Action::ReduceMean { group: Group::Dealt { .. }, silent, .. } => Some(silent),
            _ => None,
        };
        members.iter().filter_map(of).min()
    }

    /// Half a reduction, from now on: its end.
    fn exchange(&mut self, members: &[u32], half: Half) -> u64 {
        let ranks = members.len();
        if ranks == 1 {
            return self.now;
        }
        let node = |member: &u32| self.drivers[*member as usize].node();
        let nodes: Vec<usize> = members.iter().map(node).collect();
        let first = &self.drivers[members[0] as usize].instance;
        let (mut bytes, grouped) = (first.bytes, first.dealing.is_some());
        if self.least_silent(members).is_some_and(|silent| silent >= QUIET) {
            bytes = WORD_BYTES;
        }
        let mut collective = if grouped { Collective::Direct } else { self.cluster.collective };
        let (mut begins, mut reading) = (self.now, 0);
        if let Some(coded) = self.cluster.coded {
            // Everybody codes all of its own for the owners of its parts, who read what all have
            // sent, and code and send all the sums of theirs.
            let parts = match half {
                Half::Scatter => 1.0,
                Half::Gather => 1.0 / ranks as f64,
            };
            begins += nanoseconds(coded.code_ns_per_byte * parts, bytes as f64);
            reading = nanoseconds(coded.read_ns_per_byte, bytes as f64);
            (bytes, collective) = (coded.sent(bytes), Collective::Direct);
        }
        for (&member, bytes) in members.iter().zip(sends(collective, half, ranks, bytes)) {
            self.sent(member, bytes);
        }
        let leaf = self.cluster.leaves.map_or(usize::MAX, |leaves| leaves.nodes);
        let (ports, uplinks) = (&mut self.ports, &mut self.uplinks);
        let fabric = &mut Fabric { ports, uplinks, nodes: leaf };
        fabric.half(collective, half, &nodes, begins, bytes) + reading
    }
}
