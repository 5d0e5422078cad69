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
use crate::rows::wire::{HEADER_LEN, Header};

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
        let (destination, push) = (&self.destinations[to], header.kind.is_push());
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crossbeam_channel::{Receiver, unbounded};

    use super::*;
    use crate::rows::router::Pool;
    use crate::rows::wire::{Asker, Kind, sections, write_lookup, write_push};

    type Link = Receiver<(usize, Vec<u32>)>;

    /// Rank 0 with `joint` workers, rows on rank 1; what goes out.
    fn outbox(joint: Option<usize>) -> (Outbox, Link) {
        let (link, out) = unbounded();
        let router = Router {
            rank: 0,
            width: 2,
            value_words: 2,
            partitions: vec![],
            row_ends: vec![],
            workers: vec![],
            first_worker: 0,
            links: vec![link],
            pool: Pool::new(4),
            pooling: None,
        };
        let destinations = vec![Destination::new(1, vec![0, 1])];
        (Outbox::new(Arc::new(router), destinations, joint), out)
    }

    const fn header(kind: Kind, clock: u32) -> Header {
        Header { kind, clock, asker: Asker::All }
    }

    fn look_up(outbox: &Outbox, clock: u32, partition: u32, rows: &[u32]) -> u32 {
        let count = u32::try_from(rows.len()).unwrap();
        outbox.join(0, header(Kind::Lookup, clock), count, |words| {
            write_lookup(words, partition, count, rows.iter().copied());
        })
    }

    #[test]
    fn the_last_worker_of_a_step_sends_what_all_want() {
        let (outbox, out) = outbox(Some(3));
        assert_eq!(look_up(&outbox, 7, 1, &[5, 9]), 0);
        // Ahead of the others, as far as its permits go.
        assert_eq!(look_up(&outbox, 8, 0, &[4]), 0);
        assert_eq!(look_up(&outbox, 7, 0, &[2]), 2);
        assert!(out.is_empty(), "a worker is missing");
        assert_eq!(look_up(&outbox, 7, 1, &[9, 11, 13]), 3);
        let (to, words) = out.try_recv().unwrap();
        assert_eq!((to, Header::read(&words)), (1, Some(header(Kind::Lookup, 7))));
        let found: Vec<_> = sections(&words, Kind::Lookup, 2)
            .map(|section| (section.partition, section.rows.to_vec()))
            .collect();
        assert_eq!(found, [(1, vec![5, 9]), (0, vec![2]), (1, vec![9, 11, 13])]);
        assert!(out.is_empty(), "step 8 has one worker of three");
    }

    #[test]
    fn nobody_asks_for_nothing_but_every_push_is_heard() {
        let (outbox, out) = outbox(Some(2));
        for clock in 0..2 {
            for _ in 0..2 {
                outbox.join(0, header(Kind::Lookup, clock), 0, |_| ());
                outbox.join(0, header(Kind::Push, clock), 0, |_| ());
            }
        }
        let sent: Vec<_> = out.try_iter().map(|(_, words)| Header::read(&words)).collect();
        assert_eq!(sent, [Some(header(Kind::Push, 0)), Some(header(Kind::Push, 1))]);
    }

    #[test]
    fn alone_a_worker_waits_for_nobody() {
        let (outbox, out) = outbox(None);
        let header = Header { asker: Asker::Worker(1), ..header(Kind::Push, 3) };
        outbox.send(0, header, |words| {
            write_push(words, 1, (1, 0.5), 1, [9].into_iter());
            words.extend([1.0f32, 2.0].map(f32::to_bits));
        });
        let (to, words) = out.try_recv().unwrap();
        assert_eq!((to, Header::read(&words)), (1, Some(header)));
        assert!(sections(&words, Kind::Push, 2).whole());
    }

    /// Messages to one rank go out in the order of their steps, whoever comes last to each.
    #[test]
    fn steps_do_not_overtake_each_other() {
        const WORKERS: u32 = 4;
        const STEPS: u32 = 500;
        let (outbox, out) = outbox(Some(4));
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let outbox = &outbox;
                scope.spawn(move || {
                    for clock in 0..STEPS {
                        look_up(outbox, clock, 0, &[worker]);
                    }
                });
            }
        });
        let clocks: Vec<u32> =
            out.try_iter().map(|(_, words)| Header::read(&words).unwrap().clock).collect();
        assert_eq!(clocks, (0..STEPS).collect::<Vec<_>>());
    }
}
