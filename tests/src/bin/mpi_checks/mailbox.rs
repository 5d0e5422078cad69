//! Point-to-point messages: none lost, none changed, in order between every pair.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use umbra_core::rng::{Purpose, Stream};
use umbra_mpi::comm::watch::{Backoff, Watch};
use umbra_mpi::comm::{Comm, Mailbox};
use umbra_mpi::launch::world::World;

use crate::calls::tests;
use crate::{say_done, stand_still_until};

/// Waits for the next message.
fn next(mailbox: &mut Mailbox) -> (usize, Vec<u32>) {
    let mut backoff = Backoff::default();
    loop {
        match mailbox.receive() {
            Some(message) => return message,
            None => mailbox.comm().pause(&mut backoff),
        }
    }
}

/// A growing message goes round two hundred times.
pub(super) fn ring(world: &World, watch: &Arc<Watch>, _: &Comm) {
    const LAPS: usize = 200;
    // Words of a hop, so that the last messages are longer than those that MPI sends unasked.
    const WORDS: usize = 5;
    let (rank, size) = (world.rank, world.size);
    let mut mailbox = Mailbox::new(world.communicator(watch).unwrap());
    if rank == 0 {
        mailbox.send(1 % size, vec![]);
    }
    for lap in 0..LAPS {
        let (from, mut words) = next(&mut mailbox);
        assert_eq!(from, (rank + size - 1) % size);
        let hops = lap * size + if rank == 0 { size } else { rank } - 1;
        assert_eq!(words.len(), WORDS * hops, "lap {lap}");
        let hop_of = |place: usize| place / WORDS + 1;
        assert!((0..).zip(&words).all(|(place, word)| *word as usize == hop_of(place) % size));
        words.extend([rank as u32; WORDS]);
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
    let mut mailbox = Mailbox::new(world.communicator(watch).unwrap());
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

/// Words of a message far beyond what any library sends before its receiver has asked for it.
const LARGE: usize = 2 << 20;

/// The `number`-th message of `from`: large ones and a small one that must not overtake them.
fn large(from: usize, number: usize) -> Vec<u32> {
    let length = if number % 3 == 2 { 1 } else { LARGE + 1000 * from + number };
    let first = (from * 1_000_000_007 + number) as u32;
    (0..length as u32).map(|i| first.wrapping_add(i.wrapping_mul(2_654_435_761))).collect()
}

/// Large messages from every rank to every other at once, whatever the way of waiting.
pub(super) fn large_messages(world: &World, watch: &Arc<Watch>, _: &Comm) {
    const MESSAGES: usize = 6;
    let (rank, size) = (world.rank, world.size);
    for poll in [None, Some(Duration::ZERO), Some(Duration::from_micros(200))] {
        let mut comm = world.communicator(watch).unwrap();
        if let Some(poll) = poll {
            comm.set_poll(Some(poll));
        }
        let mut mailbox = Mailbox::new(comm);
        for number in 0..MESSAGES {
            (0..size).for_each(|to| mailbox.send(to, large(rank, number)));
        }
        let mut taken = vec![0; size];
        while taken.iter().sum::<usize>() < MESSAGES * size {
            let (from, words) = next(&mut mailbox);
            assert!(words == large(from, taken[from]), "message {} of rank {from}", taken[from]);
            taken[from] += 1;
            mailbox.recycle(words);
        }
        assert_eq!(taken, vec![MESSAGES; size], "{poll:?}");
    }
}

/// A receiver that looks while the sender of a large message does not does not wait for it.
pub(super) fn receive_does_not_block(world: &World, watch: &Arc<Watch>, control: &Comm) {
    const ASLEEP: Duration = Duration::from_millis(500);
    let (rank, last) = (world.rank, world.size - 1);
    let mut mailbox = Mailbox::new(world.communicator(watch).unwrap());
    control.barrier("the start", false).unwrap();
    if rank == last {
        // Announced, and nothing more: the library crosses the rest when its sender calls it again.
        mailbox.send(0, large(last, 0));
        std::thread::sleep(ASLEEP);
    } else if rank == 0 {
        let begun = Instant::now();
        let (mut longest, mut received) = (Duration::ZERO, None);
        while received.is_none() {
            let look = Instant::now();
            received = mailbox.receive();
            longest = longest.max(look.elapsed());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(received == Some((last, large(last, 0))), "another message");
        // A library may cross it without its sender; a wait for the sender would last nearly as
        // long.
        assert!(longest < ASLEEP / 2 || begun.elapsed() < ASLEEP / 2, "blocked {longest:?}");
    }
}

/// A mailbox ends while messages of all sizes are on their way to ranks that never look.
pub(super) fn nobody_takes(world: &World, watch: &Arc<Watch>, control: &Comm) {
    let (rank, size) = (world.rank, world.size);
    for looks in [false, true] {
        let mut mailbox = Mailbox::new(world.communicator(watch).unwrap());
        for number in 0..3 {
            mailbox.send((rank + 1) % size, large(rank, number));
        }
        if looks {
            // Perhaps half of one is here.
            drop(mailbox.receive());
        } else if rank == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(mailbox);
        // What comes after is not disturbed by it.
        let mut next_mailbox = Mailbox::new(world.communicator(watch).unwrap());
        next_mailbox.send((rank + 1) % size, vec![7]);
        let left = (rank + size - 1) % size;
        assert_eq!(next(&mut next_mailbox), (left, vec![7]));
        control.barrier("the end", false).unwrap();
    }
}

/// Words of a message that no library sends before its receiver has asked for it.
const ANNOUNCED: usize = 100_000;

/// The `number`-th announced message of `from`.
fn announced(from: usize, number: usize) -> Vec<u32> {
    let first = (from * 1000 + number) as u32;
    (0..ANNOUNCED as u32).map(|i| first.wrapping_mul(2_654_435_761).wrapping_add(i)).collect()
}

/// The last rank announces more messages than have a buffer at a time and stands still, without a
/// call of MPI: all that the others send arrives, and when it moves again, all of its own.
pub(super) fn a_silent_sender(world: &World, watch: &Arc<Watch>, control: &Comm) {
    const SILENT: usize = 70;
    const OTHERS: usize = 40;
    let (rank, size) = (world.rank, world.size);
    let mut mailbox = Mailbox::new(world.communicator(watch).unwrap());
    let silent = size - 1;
    let messages = |from: usize| if from == silent { SILENT } else { OTHERS };
    if rank == silent {
        (0..SILENT).for_each(|number| mailbox.send(0, announced(rank, number)));
        // A library that has more to announce than fits does it when it is called again.
        for _ in 0..200 {
            assert_eq!(mailbox.sending(), SILENT);
            std::thread::sleep(Duration::from_millis(1));
        }
        say_done("silent: announced");
        stand_still_until("silent: others are through");
    } else if rank == 0 {
        stand_still_until("silent: announced");
        // It takes up all of them before the others begin.
        for _ in 0..100 {
            assert!(mailbox.receive().is_none(), "a message whose sender stands still has crossed");
            std::thread::sleep(Duration::from_millis(1));
        }
        say_done("silent: taken up");
    } else {
        stand_still_until("silent: taken up");
    }
    if rank == 0 {
        let mut taken = vec![0; size];
        let mut take = |mailbox: &mut Mailbox| {
            let (from, words) = next(mailbox);
            assert!(words == announced(from, taken[from]), "message {} of {from}", taken[from]);
            taken[from] += 1;
            mailbox.recycle(words);
            from
        };
        for _ in 0..OTHERS * (size - 2) {
            let from = take(&mut mailbox);
            assert_ne!(from, silent, "a message whose sender stands still has crossed");
        }
        say_done("silent: others are through");
        (0..SILENT).for_each(|_| assert_eq!(take(&mut mailbox), silent));
        assert_eq!(taken[1..], (1..size).map(messages).collect::<Vec<_>>());
    } else if rank != silent {
        (0..OTHERS).for_each(|number| mailbox.send(0, announced(rank, number)));
    }
    let mut backoff = Backoff::default();
    while mailbox.sending() > 0 {
        backoff.wait();
    }
    control.barrier("the end", false).unwrap();
}

/// However many messages are under way, a look at them is one call of the library for those that
/// leave and one for those that come: each call runs its round over all connections.
pub(super) fn one_call_a_look(world: &World, watch: &Arc<Watch>, control: &Comm) {
    const MESSAGES: usize = 24;
    const LOOKS: u64 = 50;
    let (rank, size) = (world.rank, world.size);
    let mut mailbox = Mailbox::new(world.communicator(watch).unwrap());
    (0..MESSAGES).for_each(|number| mailbox.send((rank + 1) % size, announced(rank, number)));
    // Nobody has asked for them: all stay under way.
    let before = tests();
    (0..LOOKS).for_each(|_| assert_eq!(mailbox.sending(), MESSAGES));
    assert_eq!(tests() - before, LOOKS);
    control.barrier("looks at what leaves", false).unwrap();
    let (mut taken, mut backoff) = (0, Backoff::default());
    while taken < MESSAGES || mailbox.sending() > 0 {
        let before = tests();
        let received = mailbox.receive();
        let calls = tests() - before;
        assert!(calls <= 2, "{calls} calls in a look, {taken} messages taken");
        match received {
            Some((_, words)) => {
                taken += 1;
                mailbox.recycle(words);
            }
            None => backoff.wait(),
        }
    }
}
