//! Messages between the instances of a method: a word, and values, a note or nothing.
//!
//! Every rank has one post, used by one thread, which carries for all instances of the rank; where
//! each of them is, all ranks know alike. A message is `u32` words: the instances it goes from and
//! to, the word (low half first), the number of values, the values' bits; a note stands in the
//! place of values, and the highest bit of their number says so. It goes in pieces of
//! [`PIECE`], a few at a time, so that other messages to the same rank (rows of embeddings) find
//! their way between them; MPI keeps the order of a sender's pieces, and each message is put
//! together again.
//!
//! Invariants: messages from one instance to another arrive in the order in which they were sent.
//! Every rank has a queue and a window of its own: one that stands still delays nobody but itself.
//! A message that is not asked for waits its turn.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use umbra_core::sync::Note;

use crate::comm::Mailbox;
use crate::comm::reduce::PIECE;
use crate::comm::traffic::Traffic;
use crate::comm::watch::{Backoff, Lost, Waiting, Watch};

/// A rank's end.
pub struct Post {
    rank: usize,
    /// Ranks of the instances.
    rank_of: Arc<[usize]>,
    /// The way to other ranks; `None` where there are none.
    remote: Option<Remote>,
    /// Messages that are here in full, in the order in which they became so.
    ready: VecDeque<Vec<u32>>,
    /// Memory for the next messages, empty.
    spare: Vec<Vec<u32>>,
}

/// The way to other ranks.
struct Remote {
    mailbox: Mailbox,
    /// By receiver, messages that wait or are being sent: how many words of each are with MPI.
    /// `[size]`
    outgoing: Vec<VecDeque<(Vec<u32>, usize)>>,
    /// By sender, what has come of its next message.
    incoming: BTreeMap<usize, Vec<u32>>,
    /// Pieces that were received or handed to MPI.
    pieces: u64,
}

/// A message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Sending instance.
    pub from: usize,
    /// The word.
    pub word: u64,
    /// Values that came with it.
    pub elements: usize,
    /// The note that came with it.
    pub note: Option<Note>,
}

/// Words before the values: from, to, the word, and how many values there are.
const HEADER: usize = 5;

/// What follows the header is a note.
const NOTE: u32 = 1 << 31;

/// What the sender of a message with so many values sends to another rank.
#[must_use]
pub const fn of_message(values: usize) -> Traffic {
    let bytes = size_of::<u32>() * (HEADER + values);
    let (messages_sent, bytes_sent) = (bytes.div_ceil(PIECE) as u64, bytes as u64);
    Traffic { messages_sent, bytes_sent, messages_received: 0, bytes_received: 0 }
}

/// Pieces for one receiver with MPI at a time: enough to keep a fast link busy between two looks.
const WINDOW: usize = 4;

impl Post {
    /// Of rank `rank`; `rank_of` has the rank of every instance. `mailbox` reaches other ranks.
    #[must_use]
    pub fn new(rank: usize, rank_of: Arc<[usize]>, mailbox: Option<Mailbox>) -> Self {
        assert!(u32::try_from(rank_of.len()).is_ok(), "instances are numbered in u32");
        let remote = mailbox.map(Remote::new);
        Self { rank, rank_of, remote, ready: VecDeque::new(), spare: vec![] }
    }

    /// What its mailbox has sent and received so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.remote.as_ref().map_or(Traffic::default(), |remote| remote.mailbox.comm().traffic())
    }

    /// Pieces of messages that were received or handed to MPI so far: while they flow, the next is
    /// near.
    #[must_use]
    pub fn pieces(&self) -> u64 {
        self.remote.as_ref().map_or(0, |remote| remote.pieces)
    }

    /// The rank of an instance.
    #[must_use]
    pub fn rank_of(&self, instance: usize) -> usize {
        self.rank_of[instance]
    }

    /// Starts sending from one instance to another; goes on in [`Post::receive`] and
    /// [`Post::flush`]. Returns the bytes that leave this rank.
    pub fn send(&mut self, from: usize, to: usize, word: u64, values: &[f32]) -> u64 {
        let mut words = self.spare.pop().unwrap_or_default();
        write(&mut words, (from, to), word, values);
        self.start(to, words)
    }

    /// The same with a note.
    pub fn send_note(&mut self, from: usize, to: usize, word: u64, note: &Note) -> u64 {
        let mut words = self.spare.pop().unwrap_or_default();
        write(&mut words, (from, to), word, bytemuck::cast_slice(note));
        words[HEADER - 1] |= NOTE;
        self.start(to, words)
    }

    fn start(&mut self, to: usize, words: Vec<u32>) -> u64 {
        let rank = self.rank_of[to];
        if rank == self.rank {
            self.ready.push_back(words);
            return 0;
        }
        let Some(remote) = &mut self.remote else {
            unreachable!("a message to rank {rank} from the only one")
        };
        let bytes = size_of_val(&*words) as u64;
        remote.outgoing[rank].push_back((words, 0));
        remote.push(&mut self.spare);
        bytes
    }

    /// Waits until all that was sent has left: nothing moves while its thread is elsewhere. Takes
    /// in what comes meanwhile: two that send to each other wait for each other here.
    ///
    /// # Errors
    /// When a receiver does not take it in time.
    pub fn flush(&mut self, watch: &Watch, poll: Duration) -> Result<(), Lost> {
        let (mut waiting, mut backoff) = (Waiting::default(), Backoff::default());
        while self.is_sending() {
            waiting.check(watch, &"the last parameters to be sent")?;
            backoff.rest(poll);
        }
        Ok(())
    }

    fn is_sending(&mut self) -> bool {
        self.take_in();
        self.remote.as_mut().is_some_and(|remote| {
            remote.mailbox.sending() > 0 || remote.outgoing.iter().any(|queue| !queue.is_empty())
        })
    }

    /// The next message that is here for instance `to`, of instance `from` alone if it is given;
    /// its values go to the front of `values`. Others wait their turn.
    pub fn receive(
        &mut self,
        to: usize,
        from: Option<usize>,
        values: &mut [f32],
    ) -> Option<Received> {
        self.take_in();
        let asked = |words: &Vec<u32>| {
            words[1] as usize == to && from.is_none_or(|from| words[0] as usize == from)
        };
        let place = self.ready.iter().position(asked)?;
        let mut words = self.ready.remove(place)?;
        let received = read(&words, values);
        words.clear();
        self.spare.push(words);
        Some(received)
    }

    /// Puts together what has come, and sends on.
    fn take_in(&mut self) {
        let Some(remote) = &mut self.remote else { return };
        let spare = &mut self.spare;
        while let Some((from, piece)) = remote.mailbox.receive() {
            remote.pieces += 1;
            let message =
                remote.incoming.entry(from).or_insert_with(|| spare.pop().unwrap_or_default());
            message.extend_from_slice(&piece);
            remote.mailbox.recycle(piece);
            if message.len() == HEADER + (message[HEADER - 1] & !NOTE) as usize {
                self.ready.extend(remote.incoming.remove(&from));
            }
        }
        remote.push(spare);
    }
}

impl Remote {
    fn new(mailbox: Mailbox) -> Self {
        let outgoing = (0..mailbox.comm().size()).map(|_| VecDeque::new()).collect();
        Self { mailbox, outgoing, incoming: BTreeMap::new(), pieces: 0 }
    }

    /// Hands pieces to MPI while their receivers have room for them.
    fn push(&mut self, spare: &mut Vec<Vec<u32>>) {
        for (to, queue) in self.outgoing.iter_mut().enumerate() {
            while self.mailbox.sending_to(to) < WINDOW
                && let Some((words, sent)) = queue.front_mut()
            {
                let end = words.len().min(*sent + PIECE / size_of::<u32>());
                let mut piece = self.mailbox.buffer();
                piece.extend_from_slice(&words[*sent..end]);
                self.mailbox.send(to, piece);
                self.pieces += 1;
                *sent = end;
                if end == words.len()
                    && let Some((mut words, _)) = queue.pop_front()
                {
                    words.clear();
                    spare.push(words);
                }
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "fewer instances than u32 counts: `new`")]
fn write(words: &mut Vec<u32>, (from, to): (usize, usize), word: u64, values: &[f32]) {
    words.clear();
    words.extend([from as u32, to as u32]);
    words.extend(bytemuck::cast::<u64, [u32; 2]>(word));
    // Eight gigabytes of parameters are beyond a replica.
    words.push(u32::try_from(values.len()).unwrap_or(NOTE - 1));
    words.extend_from_slice(bytemuck::cast_slice(values));
}

/// A message in parts; its values go to the front of `values`.
fn read(words: &[u32], values: &mut [f32]) -> Received {
    let (header, received) = words.split_at(HEADER);
    let word = bytemuck::cast::<[u32; 2], u64>([header[2], header[3]]);
    let from = header[0] as usize;
    if header[HEADER - 1] & NOTE != 0 {
        let mut note = Note::default();
        let words: &mut [u32] = bytemuck::cast_slice_mut(&mut note);
        words.iter_mut().zip(received).for_each(|(to, word)| *to = *word);
        return Received { from, word, elements: 0, note: Some(note) };
    }
    values[..received.len()].copy_from_slice(bytemuck::cast_slice(received));
    Received { from, word, elements: received.len(), note: None }
}
