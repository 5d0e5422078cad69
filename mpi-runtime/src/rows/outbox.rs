//! What the workers of a rank send: one message per pair of ranks and step.
//!
//! Where steps are *joint* (`bsp`), all workers of the rank put their sections into the same
//! message, and the last of them sends it. A worker never waits here, and asks for a step at the
//! latest when it needs its rows; what it needs for that are steps that all workers have made. So
//! nobody waits for a lookup that is never sent. Else each worker's step is a message of its own,
//! and none to ranks that hold none of its rows.
//!
//! Invariants: to one rank, the messages of a kind go out in the order of their steps. In joint
//! steps every rank that holds rows hears of every push, an empty one too: it keeps step by them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::rows::router::Router;
use crate::rows::wire::{HEADER_LEN, Header, Kind};

/// The messages from this rank's workers to others.
pub struct Outbox {
    router: Arc<Router>,
    destinations: Vec<Destination>,
    /// Workers that a joint message waits for; `None` where steps are not joint.
    joint: Option<usize>,
}

/// A rank that holds rows.
pub struct Destination {
    /// The rank.
    pub rank: usize,
    /// The partitions it holds.
    pub partitions: Vec<u32>,
    /// Joint messages that some workers have not come to.
    lookups: Mutex<VecDeque<Gathering>>,
    pushes: Mutex<VecDeque<Gathering>>,
}

/// A joint message while workers come to it.
struct Gathering {
    clock: u32,
    words: Vec<u32>,
    rows: u32,
    came: usize,
}

impl Destination {
    /// A rank with the partitions that it holds.
    #[must_use]
    pub fn new(rank: usize, partitions: Vec<u32>) -> Self {
        Self { rank, partitions, lookups: Mutex::default(), pushes: Mutex::default() }
    }
}

impl Outbox {
    /// To `destinations`, ascending by rank. `joint`: the workers of this rank, where they make
    /// their steps together.
    #[must_use]
    pub const fn new(
        router: Arc<Router>,
        destinations: Vec<Destination>,
        joint: Option<usize>,
    ) -> Self {
        Self { router, destinations, joint }
    }

    /// The ranks that hold rows, ascending.
    #[must_use]
    pub fn destinations(&self) -> &[Destination] {
        &self.destinations
    }

    /// The place of `rank` among the destinations.
    #[must_use]
    pub fn place_of(&self, rank: usize) -> Option<usize> {
        self.destinations.binary_search_by_key(&rank, |destination| destination.rank).ok()
    }

    /// Whether all workers of this rank make their steps together.
    #[must_use]
    pub const fn joint(&self) -> bool {
        self.joint.is_some()
    }

    /// Gives a used buffer back.
    pub fn recycle(&self, words: Vec<u32>) {
        self.router.pool.give(words);
    }

    /// A worker's message for itself: `write` adds its sections.
    pub fn send(&self, to: usize, header: Header, write: impl FnOnce(&mut Vec<u32>)) {
        let mut words = self.router.pool.take();
        header.write(&mut words);
        write(&mut words);
        self.router.send(self.destinations[to].rank, words);
    }

    /// A worker comes to the joint message of its step: `write` adds its sections, of `rows` rows.
    /// The last worker sends it; a lookup only if anybody wants rows. Returns how many rows are
    /// before the worker's.
    pub fn join(
        &self,
        to: usize,
        header: Header,
        rows: u32,
        write: impl FnOnce(&mut Vec<u32>),
    ) -> u32 {
        let (destination, push) = (&self.destinations[to], header.kind == Kind::Push);
        let gatherings = if push { &destination.pushes } else { &destination.lookups };
        let mut gatherings = gatherings.lock().unwrap_or_else(PoisonError::into_inner);
        let place = gatherings.iter().position(|other| other.clock == header.clock);
        let place = place.unwrap_or_else(|| {
            let mut words = self.router.pool.take();
            header.write(&mut words);
            gatherings.push_back(Gathering { clock: header.clock, words, rows: 0, came: 0 });
            gatherings.len() - 1
        });
        let gathering = &mut gatherings[place];
        let before = gathering.rows;
        write(&mut gathering.words);
        gathering.rows += rows;
        gathering.came += 1;
        let complete = self.joint.is_none_or(|workers| gathering.came == workers);
        if complete && let Some(Gathering { words, .. }) = gatherings.remove(place) {
            // Under the lock: the next step's message must not overtake this one.
            if push || words.len() > HEADER_LEN {
                self.router.send(destination.rank, words);
            } else {
                self.router.pool.give(words);
            }
        }
        before
    }
}
