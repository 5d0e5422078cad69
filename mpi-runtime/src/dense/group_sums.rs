//! Sums over groups of trainers that change from round to round, by messages between their members.
//!
//! arXiv 2007.03298 (DS-Sync). No communicator is made for a group: the members of a round are
//! dealt by a pure function of its number (`umbra_core::sync::Dealing`), and each knows whom to
//! send to and from whom to expect.
//!
//! | a member | sends first | then |
//! | --- | --- | --- |
//! | silent for less than [`QUIET`] rounds | its word and its values | |
//! | silent for longer | its word | its values, if any member sent values with its word |
//!
//! So a group that has nothing to say to each other exchanges words alone.
//!
//! Invariants: elements are summed as a tree over the members in their order, with the same bits as
//! a sum over a communicator of these ranks (`comm/reduce.rs`). Two trainers that share a group
//! send each other the same messages in the same order, round after round, so a message needs no
//! name; one of a later round waits in the post.

use core::ops::Range;
use core::time::Duration;

use umbra_core::sync::Dealing;
use umbra_core::sync::reduction::{QUIET, add, sum_into_first};

use crate::comm::post::{Body, Post, of_message};
use crate::comm::traffic::Traffic;
use crate::comm::watch::{Backoff, Lost, Waiting, Watch};

/// One trainer's part in the sums of its groups.
pub struct GroupSums<'a> {
    dealing: Dealing<'a>,
    /// Number of this trainer, which is that of its instance.
    trainer: usize,
    /// The members of a round, and memory for the others. `[trainers]`
    members: Vec<usize>,
    terms: Vec<f32>,
}

/// What a sum came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSum {
    /// Bytes that left this rank.
    pub bytes: u64,
    /// The least of the members' `silent`.
    pub silent: u32,
}

/// How a wait for a member looks for its message.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// Deadlines.
    pub watch: &'a Watch,
    /// By how much longer than that a member may take, whose rounds its pace holds back.
    pub grace: Duration,
    /// First sleep between two looks.
    pub poll: Duration,
}

impl<'a> GroupSums<'a> {
    /// The groups of trainer number `trainer` of `trainers`.
    #[must_use]
    pub fn new(dealing: Dealing<'a>, trainer: usize, trainers: usize) -> Self {
        Self { dealing, trainer, members: vec![0; trainers], terms: vec![] }
    }

    /// Sums `staging` over this trainer's group of `round`, in place; leaves it alone where all
    /// members have been silent for [`QUIET`] rounds. *Collective over the group.*
    ///
    /// # Errors
    /// When a member does not come.
    pub fn sum(
        &mut self,
        post: &mut Post,
        round: u64,
        staging: &mut [f32],
        silent: u32,
        patience: Patience<'_>,
    ) -> Result<GroupSum, Lost> {
        let Self { dealing, trainer, members, terms } = self;
        let own_number = *trainer;
        let members = dealing.deal(round, own_number, members);
        let (count, len) = (members.len(), staging.len());
        let Some(own) = members.iter().position(|member| *member == own_number) else {
            unreachable!("a trainer is in its group");
        };
        // Each begins with the one after it, so that not all send to the same at once.
        let others = || {
            let places = (own + 1..own + count).map(|place| place % count);
            places.map(|place| (place, members[place]))
        };
        let parts = Parts::new(count, len);
        let stretch = |place| parts.stretch(place);
        let mut sum = GroupSum { bytes: 0, silent };
        let speaks = silent < QUIET;
        for (place, member) in others() {
            let values = if speaks { &staging[stretch(place)] } else { &[] };
            sum.bytes += post.send(own_number, member, silent.into(), &Body::Values(values));
        }
        let mine = stretch(own);
        terms.resize(count * mine.len(), 0.0);
        let mut terms: Vec<&mut [f32]> = terms.chunks_exact_mut(mine.len().max(1)).collect();
        terms[own].copy_from_slice(&staging[mine.clone()]);
        let mut quiet = vec![];
        for (place, member) in others() {
            let word = receive(post, (own_number, member), terms[place], patience)?;
            let heard = u32::try_from(word).unwrap_or(u32::MAX);
            sum.silent = sum.silent.min(heard);
            if heard >= QUIET {
                quiet.push((place, member));
            }
        }
        if sum.silent >= QUIET {
            post.flush(patience.watch, patience.poll)?;
            return Ok(sum);
        }
        if !speaks {
            for (place, member) in others() {
                let values = Body::Values(&staging[stretch(place)]);
                sum.bytes += post.send(own_number, member, silent.into(), &values);
            }
        }
        for (place, member) in quiet {
            receive(post, (own_number, member), terms[place], patience)?;
        }
        sum_into_first(&mut terms, |to, from| add(to, from));
        staging[mine.clone()].copy_from_slice(terms[0]);
        if !parts.whole {
            for (_, member) in others() {
                sum.bytes += post.send(own_number, member, 0, &Body::Values(terms[0]));
            }
            for (place, member) in others() {
                let values = &mut staging[stretch(place)];
                receive(post, (own_number, member), values, patience)?;
            }
        }
        post.flush(patience.watch, patience.poll)?;
        Ok(sum)
    }
}

/// What the member in `place` of `count` sends and receives in a sum of `len` elements.
#[must_use]
pub fn of_group_sum(count: usize, place: usize, len: usize) -> Traffic {
    let parts = Parts::new(count, len);
    let others = (0..count).filter(|other| *other != place);
    others.fold(Traffic::default(), |sum, other| {
        let there = of_message(parts.stretch(other).len());
        let here = of_message(parts.stretch(place).len());
        let exchanged = sum.plus(there).plus(here.turned());
        // Sums of stretches go the opposite way.
        if parts.whole { exchanged } else { exchanged.plus(here).plus(there.turned()) }
    })
}

/// Who of a group adds what.
#[derive(Clone, Copy)]
struct Parts {
    count: usize,
    len: usize,
    /// Every member adds all.
    whole: bool,
}

impl Parts {
    const fn new(count: usize, len: usize) -> Self {
        // A pair moves as much either way, and little is not worth a second way.
        let whole = count <= 2 || len * count <= SHORT || len < count;
        Self { count, len, whole }
    }

    /// What the member in this place adds.
    const fn stretch(self, place: usize) -> Range<usize> {
        if self.whole {
            return 0..self.len;
        }
        self.len * place / self.count..self.len * (place + 1) / self.count
    }
}

/// The word of the next message of instance `from` to `to`, whose values go to `values`.
fn receive(
    post: &mut Post,
    (to, from): (usize, usize),
    values: &mut [f32],
    Patience { watch, grace, poll }: Patience<'_>,
) -> Result<u64, Lost> {
    let (mut waiting, mut backoff) = (Waiting::patient(grace), Backoff::default());
    loop {
        if let Some(message) = post.receive(to, Some(from)) {
            if let Body::Values(received) = message.body() {
                values[..received.len()].copy_from_slice(received);
            }
            let word = message.word();
            post.recycle(message);
            return Ok(word);
        }
        let rank = post.rank_of(from);
        waiting.check(watch, &format_args!("the replica of rank {rank}"))?;
        backoff.rest(poll);
    }
}

/// Elements of all members' terms together up to which everybody sends everything to everybody.
const SHORT: usize = 16_384;
