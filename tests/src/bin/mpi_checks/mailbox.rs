//! Point-to-point messages: none lost, none changed, in order between every pair.

use std::collections::VecDeque;
use std::sync::Arc;

use umbra_core::rng::{Purpose, Stream};
use umbra_mpi::comm::{Comm, Mailbox};
use umbra_mpi::watch::{Backoff, Watch};
use umbra_mpi::world::World;

/// Waits for the next message.
fn next(mailbox: &mut Mailbox) -> (usize, Vec<u32>) {
    let mut backoff = Backoff::default();
    loop {
        match mailbox.receive() {
            Some(message) => return message,
            None => backoff.wait(),
        }
    }
}

/// A growing message goes round a thousand times.
pub(super) fn ring(world: &World, watch: &Arc<Watch>, _: &Comm) {
    const LAPS: usize = 1000;
    let (rank, size) = (world.rank, world.size);
    let mut mailbox = Mailbox::new(world.communicator(watch));
    if rank == 0 {
        mailbox.send(1 % size, vec![]);
    }
    for lap in 0..LAPS {
        let (from, mut words) = next(&mut mailbox);
        assert_eq!(from, (rank + size - 1) % size);
        let hops = lap * size + if rank == 0 { size } else { rank } - 1;
        assert_eq!(words.len(), hops, "lap {lap}");
        assert!(words.iter().enumerate().all(|(hop, word)| *word as usize == (hop + 1) % size));
        words.push(rank as u32);
        if rank > 0 || lap + 1 < LAPS {
            mailbox.send((rank + 1) % size, words);
        }
    }
    assert!(mailbox.receive().is_none(), "a message too many");
}

/// What `from` sends, in order: receiver and words. A function of the sender, so that every rank
/// knows what must come.
fn messages(from: usize, size: usize) -> impl Iterator<Item = (usize, Vec<u32>)> {
    const MESSAGES: u64 = 3000;
    let stream = Stream::new(1, Purpose::Test(from as u32));
    (0..MESSAGES).map(move |number| {
        let [to, kind, length, word] = stream.block(number);
        let length = match kind % 20 {
            0..6 => 0,
            6 => length % 30_000,
            _ => length % 100,
        };
        (to as usize % size, (0..length).map(|i| word.wrapping_add(i)).collect())
    })
}

/// Thousands of messages of all sizes between all ranks, oneself included, while receiving.
pub(super) fn storm(world: &World, watch: &Arc<Watch>, _: &Comm) {
    let (rank, size) = (world.rank, world.size);
    let mut mailbox = Mailbox::new(world.communicator(watch));
    let mut expected: Vec<VecDeque<Vec<u32>>> = (0..size)
        .map(|from| messages(from, size).filter(|(to, _)| *to == rank).map(|(_, w)| w).collect())
        .collect();
    let mut take = |mailbox: &mut Mailbox, (from, words): (usize, Vec<u32>)| {
        let wanted = expected[from].pop_front();
        assert!(wanted.as_ref() == Some(&words), "another message of rank {from} than the next");
        mailbox.recycle(words);
        expected.iter().map(VecDeque::len).sum::<usize>()
    };
    let mut left = usize::MAX;
    for (number, (to, content)) in messages(rank, size).enumerate() {
        let mut words = mailbox.buffer();
        assert!(words.is_empty(), "a buffer that is not empty");
        words.extend(content);
        mailbox.send(to, words);
        // Not after each: messages of every kind pile up.
        while number.is_multiple_of(16)
            && let Some(message) = mailbox.receive()
        {
            left = take(&mut mailbox, message);
        }
    }
    while left > 0 {
        let message = next(&mut mailbox);
        left = take(&mut mailbox, message);
    }
    let mut backoff = Backoff::default();
    while mailbox.sending() > 0 {
        assert!(mailbox.receive().is_none(), "a message too many");
        backoff.wait();
    }
}
