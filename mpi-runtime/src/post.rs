//! Messages between the trainers of a slice and its center: a word, and values or none.
//!
//! Invariants: a rank that is both trainer and center of a slice has two threads that want to talk; the
//! center's has the communicator, and the two talk through channels, so a communicator is still used by one
//! thread. A message is `u32` words: the word, low half first, then the values' bits.

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::comm::Mailbox;

/// One thread's end.
pub struct Post {
    rank: usize,
    mailbox: Option<Mailbox>,
    local: Option<Local>,
}

/// The way to the other thread of this rank.
struct Local {
    out: Sender<Vec<u32>>,
    inbox: Receiver<Vec<u32>>,
    /// The last message, whose memory the next one takes.
    spare: Vec<u32>,
}

impl Post {
    /// For a thread that has the communicator to itself.
    #[must_use]
    pub const fn remote(rank: usize, mailbox: Mailbox) -> Self {
        Self { rank, mailbox: Some(mailbox), local: None }
    }

    /// For trainer and center of one rank, in this order; `mailbox` reaches other trainers.
    #[must_use]
    pub fn both(rank: usize, mailbox: Option<Mailbox>) -> (Self, Self) {
        let ((ask, asked), (answer, answered)) = (unbounded(), unbounded());
        let local = |out, inbox| Some(Local { out, inbox, spare: vec![] });
        let trainer = Self { rank, mailbox: None, local: local(ask, answered) };
        (trainer, Self { rank, mailbox, local: local(answer, asked) })
    }

    /// Starts sending to rank `to`. Returns the bytes that leave this rank.
    pub fn send(&mut self, to: usize, word: u64, values: &[f32]) -> u64 {
        let write = |words: &mut Vec<u32>| {
            words.clear();
            words.extend(bytemuck::cast::<u64, [u32; 2]>(word));
            words.extend_from_slice(bytemuck::cast_slice(values));
        };
        match (&mut self.local, &mut self.mailbox) {
            (Some(local), _) if to == self.rank => {
                let mut words = core::mem::take(&mut local.spare);
                write(&mut words);
                // A thread that has ended needs no answer.
                let _ = local.out.send(words);
                0
            }
            (_, Some(mailbox)) => {
                let mut words = mailbox.buffer();
                write(&mut words);
                let bytes = 4 * words.len() as u64;
                mailbox.send(to, words);
                bytes
            }
            _ => unreachable!("a message to rank {to} from one that cannot reach it"),
        }
    }

    /// The next message that is here: its sender and word; its values go to the front of `values`.
    pub fn receive(&mut self, values: &mut [f32]) -> Option<(usize, u64)> {
        if let Some(local) = &mut self.local
            && let Ok(words) = local.inbox.try_recv()
        {
            let word = open(&words, values);
            local.spare = words;
            return Some((self.rank, word));
        }
        let mailbox = self.mailbox.as_mut()?;
        let (from, words) = mailbox.receive()?;
        let word = open(&words, values);
        mailbox.recycle(words);
        Some((from, word))
    }
}

/// The word of a message; its values go to the front of `values`.
fn open(words: &[u32], values: &mut [f32]) -> u64 {
    let (word, received) = words.split_at(2);
    values[..received.len()].copy_from_slice(bytemuck::cast_slice(received));
    bytemuck::cast::<[u32; 2], u64>([word[0], word[1]])
}
