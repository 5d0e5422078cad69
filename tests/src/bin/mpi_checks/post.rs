//! Messages of the post: put together from their pieces, taken in the order asked for, and
//! independent of each other's receivers.

use core::time::Duration;
use std::sync::Arc;

use umbra_core::rng::{Purpose, Stream};
use umbra_mpi::comm::post::{Body, Post};
use umbra_mpi::comm::reduce::PIECE;
use umbra_mpi::comm::watch::{Backoff, Waiting, Watch};
use umbra_mpi::comm::{Comm, Mailbox};
use umbra_mpi::launch::world::World;

use crate::{say_done, stand_still_until};

const POLL: Duration = Duration::from_micros(50);

/// Words before the values of a message.
const HEADER: usize = 5;

/// What `from` sends to `to` as its `number`-th message.
fn values(from: usize, to: usize, number: usize, length: usize) -> Vec<f32> {
    let stream = Stream::new((1000 * from + to) as u64, Purpose::Test(number as u32));
    let first = stream.normal(0);
    (0..length).map(|i| first + i as f32).collect()
}

/// Waits for the next message, of `from` alone if it is given, and compares its values with those
/// that `expected` makes of its sender and word.
fn next(
    (post, to): (&mut Post, usize),
    from: Option<usize>,
    watch: &Watch,
    expected: impl FnOnce(usize, u64) -> Vec<f32>,
) -> (usize, u64) {
    let (mut waiting, mut backoff) = (Waiting::default(), Backoff::default());
    loop {
        if let Some(message) = post.receive(to, from) {
            let (sender, word) = (message.from(), message.word());
            assert!(from.is_none_or(|from| from == sender), "{sender} instead of {from:?}");
            let expected = expected(sender, word);
            let is_it = message.body() == Body::Values(&expected);
            assert!(is_it, "other values of rank {sender}, word {word}");
            post.recycle(message);
            return (sender, word);
        }
        watch.or_end(waiting.check(watch, &"a message of the check"));
        backoff.rest(POLL);
    }
}

/// The post of this rank, whose number is its instance's; the first rank has instance `size` too.
pub(super) fn post(world: &World, watch: &Arc<Watch>) -> Post {
    let rank_of: Arc<[usize]> = (0..=world.size).map(|number| number % world.size).collect();
    Post::new(world.rank, rank_of, Some(Mailbox::new(world.communicator(watch).unwrap())))
}

/// Around the ends of pieces, and many of them.
const LENGTHS: [usize; 7] = [
    0,
    1,
    PIECE / 4 - HEADER - 1,
    PIECE / 4 - HEADER,
    PIECE / 4 - HEADER + 1,
    2 * PIECE / 4 - HEADER,
    LONGEST,
];
const LONGEST: usize = 100_000;

/// Messages of one piece and of many between all ranks at once, taken from one sender after the
/// other, the last rank first: each comes out as it went in, in order.
pub(super) fn pieces(world: &World, watch: &Arc<Watch>, _: &Comm) {
    const ROUNDS: usize = 3;
    let (rank, size) = (world.rank, world.size);
    let mut post = post(world, watch);
    let others = || (0..size).filter(|other| *other != rank);
    let lengths = || (0..ROUNDS).flat_map(|_| LENGTHS).enumerate();
    for (number, length) in lengths() {
        for to in others() {
            let bytes = post.send(
                rank,
                to,
                number as u64 | 1 << 40,
                &Body::Values(&values(rank, to, number, length)),
            );
            assert_eq!(bytes, 4 * (HEADER + length) as u64);
        }
    }
    for from in others().collect::<Vec<_>>().into_iter().rev() {
        for (number, length) in lengths() {
            let made = |from, _| values(from, rank, number, length);
            let (_, word) = next((&mut post, rank), Some(from), watch, made);
            assert_eq!(word, number as u64 | 1 << 40, "of rank {from}");
        }
    }
    watch.or_end(post.flush(watch, POLL));
}

/// The two ends of the first rank and all others send to its center, which takes the messages in an
/// order of its own: its own trainer's and those of others wait their turn.
pub(super) fn selects(world: &World, watch: &Arc<Watch>, _: &Comm) {
    let (rank, size) = (world.rank, world.size);
    let mut post = post(world, watch);
    let center = size;
    let made = |from, word| values(from, 0, word as usize, LONGEST / 2);
    for word in 0..2 {
        let bytes = post.send(rank, center, word, &Body::Values(&made(rank, word)));
        assert_eq!(bytes == 0, rank == 0, "to an instance of the same rank nothing leaves it");
    }
    if rank > 0 {
        return watch.or_end(post.flush(watch, POLL));
    }
    for word in 0..2 {
        for from in (0..size).rev() {
            assert_eq!(next((&mut post, center), Some(from), watch, made), (from, word));
        }
    }
    // And whatever comes first; what is for another instance of the rank is not.
    post.send(center, 0, 8, &Body::Values(&made(0, 8)));
    post.send(rank, center, 7, &Body::Values(&made(rank, 7)));
    assert_eq!(next((&mut post, center), None, watch, made), (0, 7));
    assert_eq!(next((&mut post, 0), None, watch, |_, word| made(0, word)), (center, 8));
}

/// The last rank stands still, without a call of MPI, while large messages to it wait: the others
/// get every answer. When it moves again it gets its own.
pub(super) fn stands_still(world: &World, watch: &Arc<Watch>, _: &Comm) {
    const ROUNDS: u64 = 5;
    let (rank, size) = (world.rank, world.size);
    let still = size - 1;
    let mut post = post(world, watch);
    let sent = |from, to, word| values(from, to, word as usize, LONGEST);
    if rank == still {
        stand_still_until("still: others are through");
        for word in 0..2 {
            assert_eq!(
                next((&mut post, rank), None, watch, |from, word| sent(from, still, word)),
                (0, word)
            );
        }
    } else if rank == 0 {
        for word in 0..2 {
            post.send(0, still, word, &Body::Values(&sent(0, still, word)));
        }
        // Each asks so often, and says when it is through.
        let asked = |from, word| if word < ROUNDS { sent(from, 0, word) } else { vec![] };
        for _ in 0..(ROUNDS + 1) * (size as u64 - 2) {
            let (from, word) = next((&mut post, rank), None, watch, asked);
            if word < ROUNDS {
                post.send(0, from, word, &Body::Values(&sent(0, from, word)));
            }
        }
        say_done("still: others are through");
    } else {
        for word in 0..ROUNDS {
            post.send(rank, 0, word, &Body::Values(&sent(rank, 0, word)));
            let answer = next((&mut post, rank), Some(0), watch, |_, word| sent(0, rank, word));
            assert_eq!(answer, (0, word));
        }
        post.send(rank, 0, ROUNDS, &Body::Values(&[]));
    }
    watch.or_end(post.flush(watch, POLL));
}
