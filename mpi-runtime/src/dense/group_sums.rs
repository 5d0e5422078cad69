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
use umbra_core::sync::reduction::{QUIET, TAIL, add, sum_into_first};

use crate::comm::post::{Body, Post, of_message};
use crate::comm::traffic::Traffic;
use crate::comm::watch::{Backoff, Lost, Waiting, Watch};
use crate::dense::coded_groups::CodedGroups;
use crate::dense::endpoints::DriveError;

/// One trainer's part in the sums of its groups.
pub struct GroupSums<'a> {
    dealing: Dealing<'a>,
    /// Number of this trainer, which is that of its instance.
    trainer: usize,
    /// The members of a round, and memory for the others. `[trainers]`
    members: Vec<usize>,
    terms: Vec<f32>,
    /// How averages are of what has moved, where they are.
    coded: Option<&'a mut CodedGroups>,
}

/// What a sum came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSum {
    /// Bytes that left this rank.
    pub bytes: u64,
    /// The least of the members' `silent`.
    pub silent: u32,
    /// Of the members, where the slice is their mean already and no sum.
    pub mean_of: Option<usize>,
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
    /// The groups of trainer number `trainer` of `trainers`; `coded`: how averages are of what has
    /// moved, where they are.
    #[must_use]
    pub fn new(
        dealing: Dealing<'a>,
        (trainer, trainers): (usize, usize),
        coded: Option<&'a mut CodedGroups>,
    ) -> Self {
        Self { dealing, trainer, members: vec![0; trainers], terms: vec![], coded }
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
    ) -> Result<GroupSum, DriveError> {
        let Some(coded) = self.coded.take() else {
            return Ok(self.sum_all(post, round, staging, silent, patience)?);
        };
        let moved = self.average_moved(coded, post, round, staging, silent, patience)?;
        let sum = match moved {
            Ok(average) => average,
            Err(bytes) => {
                let sum = self.sum_all(post, round, staging, silent, patience)?;
                let (values, tail) = staging.split_at(staging.len() - TAIL);
                if sum.silent < QUIET && tail[0] > 0.0 {
                    let mean: Vec<f32> = values.iter().map(|x| x / tail[0]).collect();
                    coded.agree(&mean);
                }
                GroupSum { bytes: sum.bytes + bytes, ..sum }
            }
        };
        self.coded = Some(coded);
        Ok(sum)
    }

    /// Averages what has moved of `staging`, if all members have something to compare with and a
    /// say in the round; else the bytes that left this rank for finding that out.
    fn average_moved(
        &mut self,
        coded: &mut CodedGroups,
        post: &mut Post,
        round: u64,
        staging: &mut [f32],
        silent: u32,
        patience: Patience<'_>,
    ) -> Result<Result<GroupSum, u64>, DriveError> {
        let own_number = self.trainer;
        let members = self.dealing.deal(round, own_number, &mut self.members);
        let count = members.len();
        let own = place_of(members, own_number);
        let (values, tail) = staging.split_at_mut(staging.len() - TAIL);
        let stretches: Vec<Range<usize>> =
            (0..count).map(|p| values.len() * p / count..values.len() * (p + 1) / count).collect();
        let others: Vec<(usize, usize)> =
            (own + 1..own + count).map(|p| p % count).map(|p| (p, members[p])).collect();
        let is_able = coded.has_agreed() && tail[0] == 1.0;
        if is_able {
            coded.code(values, &stretches);
        }
        let mut bytes = 0;
        for (place, member) in &others {
            let body = if is_able { coded.sent_to(*place) } else { &[] };
            let word = u64::from(silent) | if is_able { 0 } else { WHOLE };
            bytes += post.send(own_number, *member, word, &Body::CodedChange(body));
        }
        let (mut least, mut all_able) = (silent, is_able);
        let mut came = vec![vec![]; others.len()];
        for ((_, member), came) in others.iter().zip(&mut came) {
            let word = wait(post, (own_number, *member), patience, |body| {
                if let Body::CodedChange(bytes) = body {
                    came.extend_from_slice(bytes);
                }
            })?;
            all_able &= word & WHOLE == 0;
            least = least.min(u32::try_from(word & !WHOLE).unwrap_or(u32::MAX));
        }
        if !all_able {
            return Ok(Err(bytes));
        }
        let mean_of = Some(count);
        if least >= QUIET {
            post.flush(patience.watch, patience.poll)?;
            return Ok(Ok(GroupSum { bytes, silent: least, mean_of }));
        }
        let answers = coded.average(values, &stretches[own], &came)?;
        for ((_, member), answer) in others.iter().zip(&answers) {
            bytes += post.send(own_number, *member, 0, &Body::Values(answer));
        }
        for (place, member) in &others {
            let mut means = vec![];
            wait(post, (own_number, *member), patience, |body| {
                if let Body::Values(values) = body {
                    means.extend_from_slice(values);
                }
            })?;
            coded.take(values, (*place, &stretches[*place]), &means)?;
        }
        post.flush(patience.watch, patience.poll)?;
        Ok(Ok(GroupSum { bytes, silent: least, mean_of }))
    }

    /// The sum of all elements.
    fn sum_all(
        &mut self,
        post: &mut Post,
        round: u64,
        staging: &mut [f32],
        silent: u32,
        patience: Patience<'_>,
    ) -> Result<GroupSum, Lost> {
        let Self { dealing, trainer, members, terms, .. } = self;
        let own_number = *trainer;
        let members = dealing.deal(round, own_number, members);
        let (count, len) = (members.len(), staging.len());
        let own = place_of(members, own_number);
        // Each begins with the one after it, so that not all send to the same at once.
        let others = || {
            let places = (own + 1..own + count).map(|place| place % count);
            places.map(|place| (place, members[place]))
        };
        let parts = Parts::new(count, len);
        let stretch = |place| parts.stretch(place);
        let mut sum = GroupSum { bytes: 0, silent, mean_of: None };
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

/// The place of a trainer in its group.
fn place_of(members: &[usize], trainer: usize) -> usize {
    let Some(own) = members.iter().position(|member| *member == trainer) else {
        unreachable!("a trainer is in its group");
    };
    own
}

/// The word of the next message of instance `from` to `to`, whose values go to `values`.
fn receive(
    post: &mut Post,
    way: (usize, usize),
    values: &mut [f32],
    patience: Patience<'_>,
) -> Result<u64, Lost> {
    wait(post, way, patience, |body| {
        if let Body::Values(received) = body {
            values[..received.len()].copy_from_slice(received);
        }
    })
}

/// The word of the next message of instance `from` to `to`; `take` takes what came with it.
fn wait(
    post: &mut Post,
    (to, from): (usize, usize),
    Patience { watch, grace, poll }: Patience<'_>,
    take: impl FnOnce(&Body<'_>),
) -> Result<u64, Lost> {
    let (mut waiting, mut backoff) = (Waiting::patient(grace), Backoff::default());
    loop {
        if let Some(message) = post.receive(to, Some(from)) {
            take(&message.body());
            let word = message.word();
            post.recycle(message);
            return Ok(word);
        }
        let rank = post.rank_of(from);
        waiting.check(watch, &format_args!("the replica of rank {rank}"))?;
        backoff.rest(poll);
    }
}

/// In a word: the member can't average what has moved.
const WHOLE: u64 = 1 << 32;

/// Elements of all members' terms together up to which everybody sends everything to everybody.
const SHORT: usize = 16_384;
