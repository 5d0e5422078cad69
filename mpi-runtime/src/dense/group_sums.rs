//! Sums over groups of trainers that change from round to round, by messages between their members.
//!
//! arXiv 2007.03298 (DS-Sync). No communicator is made for a group: the members of a round are
//! dealt by a pure function of its number (`umbra_core::sync::Dealing`), and each knows whom to
//! send to and from whom to expect.
//!
//! Invariants: elements are summed as a tree over the members in their order, with the same bits as
//! a sum over a communicator of these ranks (`reduce.rs`). Two trainers that share a group send
//! each other the same messages in the same order, round after round, so a message needs no name;
//! one of a later round waits in the post.

use core::time::Duration;

use umbra_core::sync::Dealing;
use umbra_core::sync::reduction::{add, sum_into_first};

use crate::comm::post::Post;
use crate::comm::watch::{Backoff, Waiting, Watch};

/// One trainer's part in the sums of its groups.
pub struct GroupSums<'a> {
    dealing: Dealing<'a>,
    /// Number of this trainer.
    trainer: usize,
    /// Ranks of the trainers. `[trainers]`
    ranks: &'a [usize],
    /// The members of a round, and memory for the others. `[trainers]`
    members: Vec<usize>,
    terms: Vec<f32>,
}

impl<'a> GroupSums<'a> {
    /// The groups of trainer number `trainer` of those with these `ranks: [trainers]`.
    #[must_use]
    pub fn new(dealing: Dealing<'a>, trainer: usize, ranks: &'a [usize]) -> Self {
        Self { dealing, trainer, ranks, members: vec![0; ranks.len()], terms: vec![] }
    }

    /// Sums `staging` over this trainer's group of `round`, in place. Returns the bytes that left
    /// this rank and the least of the members' `silent`. *Collective over the group.*
    pub fn sum(
        &mut self,
        post: &mut Post,
        round: u64,
        staging: &mut [f32],
        silent: u32,
        (watch, poll): (&Watch, Duration),
    ) -> (u64, u32) {
        let members = self.dealing.deal(round, self.trainer, &mut self.members);
        let (count, len) = (members.len(), staging.len());
        let Some(own) = members.iter().position(|member| *member == self.trainer) else {
            unreachable!("a trainer is in its group");
        };
        // Each begins with the one after it, so that not all send to the same at once.
        let others = || {
            let places = (own + 1..own + count).map(|place| place % count);
            places.map(|place| (place, self.ranks[members[place]]))
        };
        // A pair moves as much either way, and little is not worth a second way.
        let whole = count <= 2 || len * count <= SHORT || len < count;
        let stretch = |place: usize| {
            if whole { 0..len } else { len * place / count..len * (place + 1) / count }
        };
        let (mut bytes, mut least) = (0, silent);
        for (place, rank) in others() {
            bytes += post.send(rank, silent.into(), &staging[stretch(place)]);
        }
        let mine = stretch(own);
        self.terms.resize(count * mine.len(), 0.0);
        let mut terms: Vec<&mut [f32]> = self.terms.chunks_exact_mut(mine.len()).collect();
        terms[own].copy_from_slice(&staging[mine.clone()]);
        for (place, rank) in others() {
            let word = receive(post, rank, terms[place], watch, poll);
            least = least.min(u32::try_from(word).unwrap_or(u32::MAX));
        }
        sum_into_first(&mut terms, |to, from| add(to, from));
        staging[mine.clone()].copy_from_slice(terms[0]);
        if !whole {
            for (_, rank) in others() {
                bytes += post.send(rank, 0, terms[0]);
            }
            for (place, rank) in others() {
                receive(post, rank, &mut staging[stretch(place)], watch, poll);
            }
        }
        watch.or_end(post.flush(watch, poll));
        (bytes, least)
    }
}

/// The word of the next message of `rank`, whose values go to `values`.
fn receive(post: &mut Post, rank: usize, values: &mut [f32], watch: &Watch, poll: Duration) -> u64 {
    let (mut waiting, mut backoff) = (Waiting::default(), Backoff::default());
    loop {
        if let Some((_, word)) = post.receive(Some(rank), values) {
            return word;
        }
        watch.or_end(waiting.check(watch, &format_args!("the replica of rank {rank}")));
        backoff.rest(poll);
    }
}

/// Elements of all members' terms together up to which everybody sends everything to everybody.
const SHORT: usize = 16_384;
