//! Messages between the instances of a method: a word, and a body.
//!
//! Every rank has one post, used by one thread, which carries for all instances of the rank; where
//! each of them is, all ranks know alike. A message is `u32` words: the instances it goes from and
//! to, the word (low half first), how many words the body has, the body ([`Body`]; its kind is in
//! the highest bits of the sending instance). It goes in pieces of
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

/// What goes with a word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Body<'a> {
    /// Values as they are, or none.
    Values(&'a [f32]),
    /// A few numbers.
    Note(Note),
    /// Values as they are, to which a [`Body::CodedState`] that follows has the difference.
    State(&'a [f32]),
    /// What matters of a change.
    CodedChange(&'a [u8]),
    /// What matters of the difference to the state that came before.
    CodedState(&'a [u8]),
}

impl Body<'_> {
    const fn kind(&self) -> u32 {
        match self {
            Self::Values(_) => 0,
            Self::Note(_) => 1,
            Self::State(_) => 2,
            Self::CodedChange(_) => 3,
            Self::CodedState(_) => 4,
        }
    }
}

/// A message that was received.
#[derive(Debug)]
pub struct Message {
    words: Vec<u32>,
}

impl Message {
    /// What pieces make, which one sender of a method of so many instances has sent, in order;
    /// `None` while something is missing.
    ///
    /// # Errors
    /// When they are no message.
    pub fn of_pieces<'a>(
        pieces: impl IntoIterator<Item = &'a [u32]>,
        instances: usize,
    ) -> Result<Option<Self>, Torn> {
        let mut words = vec![];
        for piece in pieces {
            if append(&mut words, piece, instances)? {
                return Ok(Some(Self { words }));
            }
        }
        Ok(None)
    }

    /// Sending instance.
    #[must_use]
    pub fn from(&self) -> usize {
        (self.words[0] & INSTANCE) as usize
    }

    /// The word.
    #[must_use]
    pub fn word(&self) -> u64 {
        bytemuck::cast::<[u32; 2], u64>([self.words[2], self.words[3]])
    }

    /// What goes with it. Bytes are followed by zeros, up to three.
    #[must_use]
    pub fn body(&self) -> Body<'_> {
        let (header, body) = self.words.split_at(HEADER);
        match header[0] >> INSTANCE.trailing_ones() {
            1 => {
                let mut note = Note::default();
                let words: &mut [u32] = bytemuck::cast_slice_mut(&mut note);
                words.iter_mut().zip(body).for_each(|(to, word)| *to = *word);
                Body::Note(note)
            }
            2 => Body::State(bytemuck::cast_slice(body)),
            3 => Body::CodedChange(bytemuck::cast_slice(body)),
            4 => Body::CodedState(bytemuck::cast_slice(body)),
            _ => Body::Values(bytemuck::cast_slice(body)),
        }
    }
}

/// The last kind of a body.
const KIND_MAX: u32 = 4;

/// Words before the body: from and what it is, to, the word, and how many words it has.
const HEADER: usize = 5;

/// The bits of an instance; those above are the kind of the body.
const INSTANCE: u32 = u32::MAX >> 3;

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
        assert!(rank_of.len() <= INSTANCE as usize, "instances are numbered in 29 bits");
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
    pub fn send(&mut self, from: usize, to: usize, word: u64, body: &Body<'_>) -> u64 {
        let mut words = self.spare.pop().unwrap_or_default();
        write(&mut words, (from, to), word, body);
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

    /// The next message that is here for instance `to`, of instance `from` alone if it is given.
    /// Others wait their turn.
    pub fn receive(&mut self, to: usize, from: Option<usize>) -> Option<Message> {
        self.take_in();
        let asked = |words: &Vec<u32>| {
            let by = (words[0] & INSTANCE) as usize;
            words[1] as usize == to && from.is_none_or(|from| by == from)
        };
        let place = self.ready.iter().position(asked)?;
        self.ready.remove(place).map(|words| Message { words })
    }

    /// Takes the memory of a message back.
    pub fn recycle(&mut self, message: Message) {
        let Message { mut words } = message;
        words.clear();
        self.spare.push(words);
    }

    /// Puts together what has come, and sends on.
    fn take_in(&mut self) {
        let Some(remote) = &mut self.remote else { return };
        let spare = &mut self.spare;
        while let Some((from, piece)) = remote.mailbox.receive() {
            remote.pieces += 1;
            let message =
                remote.incoming.entry(from).or_insert_with(|| spare.pop().unwrap_or_default());
            let complete = append(message, &piece, self.rank_of.len());
            remote.mailbox.recycle(piece);
            if complete.unwrap_or_else(|torn| panic!("rank {from} sent {torn}")) {
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

/// Words that are no message between instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("words that are no message between instances of a method")]
pub struct Torn;

/// Adds a piece to what has come of a message between `instances` instances. Returns whether that
/// is all of it.
///
/// # Errors
/// When it is none: another kind or instance than there is, or more words than it says.
fn append(message: &mut Vec<u32>, piece: &[u32], instances: usize) -> Result<bool, Torn> {
    message.extend_from_slice(piece);
    let &[from, to, _, _, length] = message.first_chunk::<HEADER>().ok_or(Torn)?;
    let (kind, length) = (from >> INSTANCE.trailing_ones(), HEADER + length as usize);
    let known = |instance: u32| (instance as usize) < instances;
    if kind > KIND_MAX || !known(from & INSTANCE) || !known(to) || message.len() > length {
        return Err(Torn);
    }
    Ok(message.len() == length)
}

#[expect(clippy::cast_possible_truncation, reason = "fewer instances than u32 counts: `new`")]
fn write(words: &mut Vec<u32>, (from, to): (usize, usize), word: u64, body: &Body<'_>) {
    words.clear();
    words.extend([from as u32 | body.kind() << INSTANCE.trailing_ones(), to as u32]);
    words.extend(bytemuck::cast::<u64, [u32; 2]>(word));
    words.push(0);
    match body {
        Body::Values(values) | Body::State(values) => {
            words.extend_from_slice(bytemuck::cast_slice(values));
        }
        Body::Note(note) => words.extend_from_slice(bytemuck::cast_slice(note)),
        Body::CodedChange(bytes) | Body::CodedState(bytes) => {
            words.resize(HEADER + bytes.len().div_ceil(size_of::<u32>()), 0);
            let to: &mut [u8] = bytemuck::cast_slice_mut(&mut words[HEADER..]);
            to[..bytes.len()].copy_from_slice(bytes);
        }
    }
    // Sixteen gigabytes of parameters are beyond a replica.
    words[HEADER - 1] = u32::try_from(words.len() - HEADER).unwrap_or(u32::MAX);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A message of three values from instance 1 to 0, in the pieces of a sender.
    fn pieces(change: impl FnOnce(&mut Vec<u32>), length: usize) -> Result<Option<Message>, Torn> {
        let mut words = vec![];
        write(&mut words, (1, 0), 7 << 40, &Body::Values(&[0.5, 1.5, 2.5]));
        change(&mut words);
        Message::of_pieces(words.chunks(length), 2)
    }

    #[test]
    fn pieces_make_a_message_and_torn_ones_none() {
        let message = pieces(|_| (), HEADER + 1).unwrap().unwrap();
        assert_eq!((message.from(), message.word()), (1, 7 << 40));
        assert_eq!(message.body(), Body::Values(&[0.5, 1.5, 2.5]));
        let cut = pieces(|words| words.truncate(HEADER + 2), HEADER);
        assert!(cut.unwrap().is_none(), "a word is missing");
        assert!(pieces(|_| (), HEADER - 1).is_err(), "a piece without a header");
        let changes: [fn(&mut Vec<u32>); 4] = [
            |words| words.push(0),
            |words| words[0] = 2,
            |words| words[0] |= 5 << INSTANCE.trailing_ones(),
            |words| words[1] = 2,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert!(pieces(change, 100).is_err(), "change {number}");
        }
    }
}
