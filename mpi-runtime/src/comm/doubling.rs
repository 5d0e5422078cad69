//! Vectors combined over all ranks by recursive halving and doubling
//! (`umbra_core::sync::doubling`), by messages between pairs of ranks.
//!
//! A vector goes in pieces; each piece is a small state machine per role of this rank, which sends
//! and receives without blocking, so several pieces and vectors are under way side by side.
//!
//! Invariants: all ranks combine the same vectors, in the same pieces, in the same order; messages
//! of a pair of ranks that could be confused have different tags. MPI keeps the order of a
//! sender's messages of one tag, so a tag may come again in a later sum. A buffer lent to MPI
//! outlives its request: a wait that is given up leaks it.

use core::slice::ChunksMut;
use std::collections::VecDeque;

use bytemuck::Pod;
use mpi::traits::{AsRaw, Equivalence};
use umbra_core::sync::doubling::{Doubling, Exchange};
use umbra_core::sync::sum_plan::SumPlan;

use super::pending::Request;
use super::{Comm, count, raw, reading, writing};
use crate::comm::reduce::Combine;
use crate::comm::watch::{Backoff, Lost, Waiting};

/// A vector on its way: pieces that wait, and pieces under way.
pub(super) struct Vector<'a, T> {
    schedule: Doubling,
    combine: Combine<T>,
    /// Vectors under way side by side have lanes of their own.
    lane: usize,
    waiting: ChunksMut<'a, T>,
    under_way: VecDeque<Piece<'a, T>>,
    under_way_max: usize,
    started: usize,
    spare: &'a mut Vec<Memory<T>>,
}

/// What a role works in, for the next to use.
#[derive(Debug)]
pub(super) struct Memory<T> {
    /// The piece, of which the role's stretches are its own. `[piece]`
    held: Vec<T>,
    /// What comes in. `[at most piece]`
    came: Vec<T>,
}

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Self { held: vec![], came: vec![] }
    }
}

struct Piece<'a, T> {
    values: &'a mut [T],
    number: usize,
    own: Player<T>,
    second: Option<Player<T>>,
}

/// A role's part in a piece.
struct Player<T> {
    role: usize,
    /// Levels down, then levels up.
    step: u32,
    memory: Memory<T>,
    /// Of this step: what is sent, what is received.
    requests: Option<[Option<Request>; 2]>,
}

/// What a look at a vector found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Ended,
    Moved,
    Still,
}

impl<'a, T: Pod> Vector<'a, T> {
    /// `values` in the pieces of `plan`, at most `under_way_max` at a time, on this `lane`: 0 or 1.
    pub(super) fn new(
        plan: &SumPlan,
        values: &'a mut [T],
        combine: Combine<T>,
        (lane, under_way_max): (usize, usize),
        spare: &'a mut Vec<Memory<T>>,
    ) -> Self {
        assert!(lane < LANES, "lane {lane}");
        Self {
            schedule: plan.schedule(),
            combine,
            lane,
            waiting: values.chunks_mut(plan.piece()),
            under_way: VecDeque::new(),
            under_way_max: under_way_max.clamp(1, PIECES - 1),
            started: 0,
            spare,
        }
    }

    /// Starts what may start and takes every piece as far as it goes without waiting.
    pub(super) fn look(&mut self, comm: &Comm) -> Look {
        let mut look = Look::Still;
        while self.under_way.len() < self.under_way_max {
            let Some(values) = self.waiting.next() else { break };
            let piece = Piece::new(values, self.started, self.schedule, comm.rank, self.spare);
            self.started += 1;
            self.under_way.push_back(piece);
            look = Look::Moved;
        }
        for piece in &mut self.under_way {
            if piece.advance(comm, self.schedule, self.combine, self.lane) {
                look = Look::Moved;
            }
        }
        let steps = 2 * self.schedule.levels();
        while self.under_way.front().is_some_and(|piece| piece.has_ended(steps)) {
            self.spare.extend(self.under_way.pop_front().into_iter().flat_map(Piece::finish));
        }
        if self.under_way.is_empty() && self.waiting.len() == 0 { Look::Ended } else { look }
    }
}

/// Takes two vectors to their ends, side by side. *Collective over `comm`.*
///
/// # Errors
/// When nothing came for as long as a wait may take.
pub(super) fn finish<A: Pod, B: Pod>(
    comm: &Comm,
    mut a: Vector<'_, A>,
    mut b: Vector<'_, B>,
    what: &str,
) -> Result<(), Lost> {
    let rested = || (Waiting::patient(comm.grace), Backoff::default());
    let (mut waiting, mut backoff) = rested();
    loop {
        match (a.look(comm), b.look(comm)) {
            (Look::Ended, Look::Ended) => return Ok(()),
            (Look::Moved, _) | (_, Look::Moved) => {
                (waiting, backoff) = rested();
            }
            _ => {
                let of = comm.size;
                waiting.check(&comm.watch, &format_args!("{what} of {of} ranks"))?;
                comm.pause(&mut backoff);
            }
        }
    }
}

impl<'a, T: Pod> Piece<'a, T> {
    fn new(
        values: &'a mut [T],
        number: usize,
        schedule: Doubling,
        rank: usize,
        spare: &mut Vec<Memory<T>>,
    ) -> Self {
        let (own, second) = schedule.roles(rank);
        let mut player = |role| {
            let mut memory = spare.pop().unwrap_or_default();
            memory.held.clear();
            memory.held.extend_from_slice(values);
            Player { role, step: 0, memory, requests: None }
        };
        let (own, second) = (player(own), second.map(player));
        Self { values, number, own, second }
    }

    /// Whether something was sent, came or was added.
    fn advance(
        &mut self,
        comm: &Comm,
        schedule: Doubling,
        combine: Combine<T>,
        lane: usize,
    ) -> bool {
        let tag = (self.number % PIECES * LANES + lane) * TAGS;
        let own = self.own.advance(comm, schedule, combine, tag);
        self.second.as_mut().is_some_and(|player| player.advance(comm, schedule, combine, tag))
            || own
    }

    fn has_ended(&self, steps: u32) -> bool {
        [Some(&self.own), self.second.as_ref()]
            .into_iter()
            .flatten()
            .all(|player| player.step == steps)
    }

    /// The result is the rank's own role's.
    fn finish(self) -> impl Iterator<Item = Memory<T>> {
        let Self { values, mut own, second, .. } = self;
        values.copy_from_slice(&own.memory.held);
        let memory = core::mem::take(&mut own.memory);
        let second = second.map(|mut player| core::mem::take(&mut player.memory));
        core::iter::once(memory).chain(second)
    }
}

impl<T: Pod> Player<T> {
    /// Goes on until something has to be waited for. Whether it went.
    fn advance(
        &mut self,
        comm: &Comm,
        schedule: Doubling,
        combine: Combine<T>,
        tag: usize,
    ) -> bool {
        let levels = schedule.levels();
        let mut moved = false;
        while self.step < 2 * levels {
            let down = self.step < levels;
            let level = if down { self.step } else { 2 * levels - 1 - self.step };
            let exchange = schedule.exchange(self.role, level, self.memory.held.len());
            match &mut self.requests {
                None => {
                    let requests = self.start(comm, schedule, &exchange, down, tag);
                    self.requests = Some(requests);
                    moved = true;
                }
                Some(requests) => {
                    // Each is looked at, so that the library works on both.
                    let open = requests.iter_mut().flatten().filter_map(|request| {
                        let open = !request.is_done();
                        open.then_some(())
                    });
                    if open.count() > 0 {
                        return moved;
                    }
                    self.requests = None;
                    if down && exchange.takes {
                        self.add(&exchange, combine);
                    }
                    self.step += 1;
                    moved = true;
                }
            }
        }
        moved
    }

    fn start(
        &mut self,
        comm: &Comm,
        schedule: Doubling,
        exchange: &Exchange,
        down: bool,
        tag: usize,
    ) -> [Option<Request>; 2] {
        let Exchange { partner, peer, gives, takes, halves, kept, given, .. } = exchange.clone();
        let Memory { held, came } = &mut self.memory;
        let tag_to = |role: usize| {
            let second = usize::from(role != schedule.rank_of(role));
            count(tag + 2 * self.step as usize + second)
        };
        let (to, from) = (tag_to(partner), tag_to(self.role));
        if down {
            let received = takes.then(|| {
                came.clear();
                came.resize(kept.len(), T::zeroed());
                receive(comm, peer, from, came)
            });
            [gives.then(|| comm.start_send(peer, to, &held[given])), received]
        } else {
            let received = (halves && gives).then(|| receive(comm, peer, from, &mut held[given]));
            [(halves && takes).then(|| comm.start_send(peer, to, &held[kept])), received]
        }
    }

    /// Adds what came to what the role has, the lower block first.
    fn add(&mut self, exchange: &Exchange, combine: Combine<T>) {
        let Memory { held, came } = &mut self.memory;
        let kept = &mut held[exchange.kept.clone()];
        match (exchange.gives, exchange.first) {
            (false, _) => kept.copy_from_slice(came),
            (true, true) => combine(kept, came),
            (true, false) => {
                combine(came, kept);
                kept.copy_from_slice(came);
            }
        }
    }
}

impl<T> Drop for Player<T> {
    /// Of a wait that was given up: MPI may still use the memory.
    fn drop(&mut self) {
        if self.requests.is_some() {
            core::mem::forget(core::mem::take(&mut self.memory));
        }
    }
}

/// Starts to receive what fills `values`.
fn receive<T: Pod>(comm: &Comm, from: usize, tag: i32, values: &mut [T]) -> Request {
    if from != comm.rank {
        comm.meter.received(size_of_val(values));
    }
    comm.start_receive(from, tag, values)
}

impl Comm {
    /// Starts what the caller completes, with `values` alive and as they are until then. A message
    /// to a rank's own second role is counted no more than others to oneself.
    pub(super) fn start_send<T: Pod>(&self, to: usize, tag: i32, values: &[T]) -> Request {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        if to != self.rank {
            self.meter.sent(bytes.len());
        }
        let (length, to) = (count(bytes.len()), count(to));
        // SAFETY: the buffer holds the count given, and outlives the request by the caller's duty.
        Request::of(|request| unsafe {
            let message = (reading(bytes), length, u8::equivalent_datatype().as_raw());
            raw::send(message, (to, tag), self.handle, request);
        })
    }

    /// Starts what the caller completes, with `values` alive and untouched until then. Who
    /// knows how much came counts it.
    pub(super) fn start_receive<T: Pod>(&self, from: usize, tag: i32, values: &mut [T]) -> Request {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        let (length, from) = (count(bytes.len()), count(from));
        // SAFETY: as in `start_send`.
        Request::of(|request| unsafe {
            raw::MPI_Irecv(
                writing(bytes),
                length,
                u8::equivalent_datatype().as_raw(),
                from,
                tag,
                self.handle,
                request,
            );
        })
    }
}

/// Vectors side by side.
const LANES: usize = 2;
/// Pieces after which tags come again: more than are ever under way.
const PIECES: usize = 64;
/// Tags of a piece: two per step, of which there are two per level, of which there are fewer than
/// 32. All tags together stay below 2^14; every library allows 2^15 - 1 (MPI_TAG_UB).
const TAGS: usize = 128;
