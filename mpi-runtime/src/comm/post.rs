//! Messages between the trainers of a slice and its center: a word, and values or none.
//!
//! Invariants: a rank that is both trainer and center of a slice has two threads that want to talk;
//! the center's has the communicator, and the two talk through channels, so a communicator is still
//! used by one thread. A message is `u32` words: the word, low half first, the number of values,
//! the values' bits. It goes in pieces of [`PIECE`], a few at a time, so that other messages to the
//! same rank (rows of embeddings) find their way between them; MPI keeps the order of a sender's
//! pieces, and each message is put together again. Every receiver has a queue and a window of its
//! own: one that stands still delays nobody but itself. A message that is not asked for waits its
//! turn.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::comm::Mailbox;
use crate::comm::reduce::PIECE;
use crate::comm::watch::{Backoff, Lost, Waiting, Watch};

/// One thread's end.
pub struct Post {
    rank: usize,
    remote: Option<Remote>,
    local: Option<Local>,
}

/// The way to other ranks.
struct Remote {
    mailbox: Mailbox,
    /// By receiver, messages that wait or are being sent: how many words of each are with MPI.
    /// `[size]`
    outgoing: Vec<VecDeque<(Vec<u32>, usize)>>,
    /// By sender, what has come of its next message.
    incoming: BTreeMap<usize, Vec<u32>>,
    /// Messages that are here in full, with their senders, in the order in which they became so.
    ready: VecDeque<(usize, Vec<u32>)>,
    /// Memory for the next messages, empty.
    spare: Vec<Vec<u32>>,
}

/// The way to the other thread of this rank.
struct Local {
    out: Sender<Vec<u32>>,
    inbox: Receiver<Vec<u32>>,
    /// The last message, whose memory the next one takes.
    spare: Vec<u32>,
}

/// Words before the values: the word, and how many values there are.
const HEADER: usize = 3;

/// Pieces for one receiver with MPI at a time: enough to keep a fast link busy between two looks.
const WINDOW: usize = 4;

impl Post {
    /// For a thread that has the communicator to itself.
    #[must_use]
    pub fn remote(rank: usize, mailbox: Mailbox) -> Self {
        Self { rank, remote: Some(Remote::new(mailbox)), local: None }
    }

    /// For trainer and center of one rank, in this order; `mailbox` reaches other trainers.
    #[must_use]
    pub fn both(rank: usize, mailbox: Option<Mailbox>) -> (Self, Self) {
        let ((ask, asked), (answer, answered)) = (unbounded(), unbounded());
        let local = |out, inbox| Some(Local { out, inbox, spare: vec![] });
        let trainer = Self { rank, remote: None, local: local(ask, answered) };
        let remote = mailbox.map(Remote::new);
        (trainer, Self { rank, remote, local: local(answer, asked) })
    }

    /// Starts sending to rank `to`; goes on in [`Post::receive`] and [`Post::flush`]. Returns the
    /// bytes that leave this rank.
    pub fn send(&mut self, to: usize, word: u64, values: &[f32]) -> u64 {
        match (&mut self.local, &mut self.remote) {
            (Some(local), _) if to == self.rank => {
                let mut words = core::mem::take(&mut local.spare);
                write(&mut words, word, values);
                // A thread that has ended needs no answer.
                let _ = local.out.send(words);
                0
            }
            (_, Some(remote)) => {
                let mut words = remote.spare.pop().unwrap_or_default();
                write(&mut words, word, values);
                let bytes = size_of_val(&*words) as u64;
                remote.outgoing[to].push_back((words, 0));
                remote.push();
                bytes
            }
            _ => unreachable!("a message to rank {to} from one that cannot reach it"),
        }
    }

    /// Waits until all that was sent has left: nothing moves while its thread is elsewhere. Takes in
    /// what comes meanwhile: two that send to each other wait for each other here.
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
        self.remote.as_mut().is_some_and(|remote| {
            remote.take_in();
            remote.mailbox.sending() > 0 || remote.outgoing.iter().any(|queue| !queue.is_empty())
        })
    }

    /// The next message that is here, of rank `from` alone if it is given: its sender and word; its
    /// values go to the front of `values`. Others wait their turn.
    pub fn receive(&mut self, from: Option<usize>, values: &mut [f32]) -> Option<(usize, u64)> {
        if let Some(remote) = &mut self.remote {
            remote.take_in();
        }
        if from.is_none_or(|from| from == self.rank)
            && let Some(local) = &mut self.local
            && let Ok(words) = local.inbox.try_recv()
        {
            let word = read(&words, values);
            local.spare = words;
            return Some((self.rank, word));
        }
        let remote = self.remote.as_mut()?;
        let asked = |(sender, _): &(usize, _)| from.is_none_or(|from| from == *sender);
        let place = remote.ready.iter().position(asked)?;
        remote.read(place, values)
    }
}

impl Remote {
    fn new(mailbox: Mailbox) -> Self {
        let outgoing = (0..mailbox.comm().size()).map(|_| VecDeque::new()).collect();
        let (incoming, ready) = (BTreeMap::new(), VecDeque::new());
        Self { mailbox, outgoing, incoming, ready, spare: vec![] }
    }

    /// Puts together what has come, and sends on.
    fn take_in(&mut self) {
        while let Some((from, piece)) = self.mailbox.receive() {
            let spare = &mut self.spare;
            let message =
                self.incoming.entry(from).or_insert_with(|| spare.pop().unwrap_or_default());
            message.extend_from_slice(&piece);
            self.mailbox.recycle(piece);
            if message.len() == HEADER + message[HEADER - 1] as usize {
                self.ready.extend(self.incoming.remove(&from).map(|message| (from, message)));
            }
        }
        self.push();
    }

    /// The sender and the word of a message that is ready; its values go to the front of `values`.
    fn read(&mut self, place: usize, values: &mut [f32]) -> Option<(usize, u64)> {
        let (from, mut message) = self.ready.remove(place)?;
        let word = read(&message, values);
        message.clear();
        self.spare.push(message);
        Some((from, word))
    }

    /// Hands pieces to MPI while their receivers have room for them.
    fn push(&mut self) {
        for (to, queue) in self.outgoing.iter_mut().enumerate() {
            while self.mailbox.sending_to(to) < WINDOW
                && let Some((words, sent)) = queue.front_mut()
            {
                let end = words.len().min(*sent + PIECE / size_of::<u32>());
                let mut piece = self.mailbox.buffer();
                piece.extend_from_slice(&words[*sent..end]);
                self.mailbox.send(to, piece);
                *sent = end;
                if end == words.len()
                    && let Some((mut words, _)) = queue.pop_front()
                {
                    words.clear();
                    self.spare.push(words);
                }
            }
        }
    }
}

fn write(words: &mut Vec<u32>, word: u64, values: &[f32]) {
    words.clear();
    words.extend(bytemuck::cast::<u64, [u32; 2]>(word));
    // Sixteen gigabytes of parameters are beyond a replica.
    words.push(u32::try_from(values.len()).unwrap_or(u32::MAX));
    words.extend_from_slice(bytemuck::cast_slice(values));
}

/// The word of a message; its values go to the front of `values`.
fn read(words: &[u32], values: &mut [f32]) -> u64 {
    let (header, received) = words.split_at(HEADER);
    values[..received.len()].copy_from_slice(bytemuck::cast_slice(received));
    bytemuck::cast::<[u32; 2], u64>([header[0], header[1]])
}
