//! The way of a message: to another rank over a link, to a thread of this rank without MPI.
//!
//! What comes for the partitions of this rank goes to all of them, shared, not copied: each takes
//! its own sections, and the last to finish sends the one answer. An answer goes to the worker that
//! asked, or to all of them.
//!
//! Invariants: a pair of ranks always uses the same link, in both directions, so their messages
//! keep their order. Every request is answered exactly once.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::Sender;

use crate::rows::wire::{Asker, Header, Kind, sections, values};

/// A request on the rank of its partitions, shared by them.
pub struct Bundle {
    /// The message.
    pub words: Vec<u32>,
    /// Its header.
    pub header: Header,
    /// The rank that asks.
    pub from: usize,
    /// Partitions that have not finished with it.
    left: AtomicUsize,
    /// A lookup's rows, by partition: a header, then values in the order of its sections.
    found: Mutex<Vec<(u32, Vec<u32>)>>,
}

/// What a partition's thread is told.
pub enum Errand {
    /// To do its part of a request.
    Serve(Arc<Bundle>),
    /// To end.
    End,
}

/// An answer, shared by the workers it is for.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The rank that answers.
    pub from: usize,
    /// Header and values.
    pub words: Arc<Vec<u32>>,
}

/// A message that does not belong where it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stray {
    /// No message of ours, or a damaged one.
    #[error("rank {from} sent a message that is none of ours")]
    Unknown {
        /// Who sent it.
        from: usize,
    },
    /// A request for rows that this rank does not hold.
    #[error("rank {from} asked for partition {partition}, which is not here")]
    Partition {
        /// Who sent it.
        from: usize,
        /// The partition.
        partition: u32,
    },
    /// An answer to a worker of another rank.
    #[error("rank {from} answered worker {worker}, which is not here")]
    Worker {
        /// Who sent it.
        from: usize,
        /// The worker.
        worker: u32,
    },
}

/// Messages and bytes between this rank and others.
#[derive(Debug, Default)]
pub struct Counters {
    sent: [AtomicU64; 2],
    received: [AtomicU64; 2],
}

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Messages.
    pub messages: u64,
    /// Bytes of their words.
    pub bytes: u64,
}

/// What the links of a rank have carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To other ranks.
    pub sent: Amount,
    /// From other ranks.
    pub received: Amount,
}

impl Counters {
    /// A message of `words` goes out.
    pub fn sent(&self, words: usize) {
        count(&self.sent, words);
    }

    /// A message of `words` came in.
    pub fn received(&self, words: usize) {
        count(&self.received, words);
    }

    /// What was counted so far.
    #[must_use]
    pub fn read(&self) -> Traffic {
        let amount = |[messages, bytes]: &[AtomicU64; 2]| Amount {
            messages: messages.load(Ordering::Relaxed),
            bytes: bytes.load(Ordering::Relaxed),
        };
        Traffic { sent: amount(&self.sent), received: amount(&self.received) }
    }
}

fn count([messages, bytes]: &[AtomicU64; 2], words: usize) {
    messages.fetch_add(1, Ordering::Relaxed);
    bytes.fetch_add(4 * words as u64, Ordering::Relaxed);
}

/// Used buffers of this rank's rows: messages go round between threads.
#[derive(Debug)]
pub struct Pool {
    buffers: Mutex<Vec<Vec<u32>>>,
    most: usize,
}

impl Pool {
    /// Keeps up to `most` buffers; more are freed.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { buffers: Mutex::new(vec![]), most }
    }

    /// A buffer, a used one where there is one.
    #[must_use]
    pub fn take(&self) -> Vec<u32> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Gives a used buffer back.
    pub fn give(&self, words: Vec<u32>) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.len() < self.most {
            buffers.push(words);
        }
    }
}

/// Where messages go on this rank, and how they leave it.
pub struct Router {
    /// This process.
    pub rank: usize,
    /// f32s of a row.
    pub width: usize,
    /// Number and thread of every partition of this rank, ascending.
    pub partitions: Vec<(u32, Sender<Errand>)>,
    /// The workers of this rank.
    pub workers: Vec<Sender<Answer>>,
    /// Number over all trainers of the first of them.
    pub first_worker: u32,
    /// The links; none on one rank.
    pub links: Vec<Sender<(usize, Vec<u32>)>>,
    /// Used buffers.
    pub pool: Pool,
}

impl Router {
    /// Sends a message to `rank`, which may be this one. A thread that has gone needs none any
    /// more: its run has ended, and ours is about to.
    pub fn send(&self, rank: usize, words: Vec<u32>) {
        if rank == self.rank {
            self.deliver(rank, words).unwrap_or_else(|stray| panic!("{stray}"));
        } else {
            // The same for both ranks of a pair.
            let link = (self.rank + rank) % self.links.len();
            drop(self.links[link].send((rank, words)));
        }
    }

    /// Hands a message of rank `from` to its threads here.
    ///
    /// # Errors
    /// When it is none of ours, or for somebody else.
    pub fn deliver(&self, from: usize, words: Vec<u32>) -> Result<(), Stray> {
        let Some(header) = Header::read(&words) else { return Err(Stray::Unknown { from }) };
        match header.kind {
            Kind::Lookup | Kind::LookupNow | Kind::Push => {
                let mut found = sections(&words, header.kind, self.width);
                if !found.whole() {
                    return Err(Stray::Unknown { from });
                }
                let here = |partition: u32| {
                    self.partitions.binary_search_by_key(&partition, |(number, _)| *number).is_ok()
                };
                if let Some(section) = found.find(|section| !here(section.partition)) {
                    return Err(Stray::Partition { from, partition: section.partition });
                }
                let left = AtomicUsize::new(self.partitions.len());
                let bundle = Bundle { words, header, from, left, found: Mutex::default() };
                let bundle = Arc::new(bundle);
                for (_, thread) in &self.partitions {
                    drop(thread.send(Errand::Serve(Arc::clone(&bundle))));
                }
            }
            Kind::Rows | Kind::Ack => {
                let answer = Answer { from, words: Arc::new(words) };
                let to = match header.asker {
                    Asker::All => &self.workers[..],
                    Asker::Worker(worker) => {
                        let local = worker.checked_sub(self.first_worker).map(|n| n as usize);
                        let to = local.and_then(|n| self.workers.get(n..=n));
                        to.ok_or(Stray::Worker { from, worker })?
                    }
                };
                to.iter().for_each(|worker| drop(worker.send(answer.clone())));
            }
        }
        Ok(())
    }

    /// A partition has done its part of `bundle`: of a lookup, it found these values behind the
    /// room for a header, if it was asked for any. The last one's call sends the answer.
    pub fn finish(&self, bundle: Arc<Bundle>, partition: u32, found: Option<Vec<u32>>) {
        if let Some(found) = found {
            let mut all = bundle.found.lock().unwrap_or_else(PoisonError::into_inner);
            all.push((partition, found));
        }
        if bundle.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let answer = self.answer(&bundle);
            self.send(bundle.from, answer);
        }
        self.release(bundle);
    }

    /// Gives back the buffer of a request once nobody has it any more.
    pub fn release(&self, bundle: Arc<Bundle>) {
        if let Some(bundle) = Arc::into_inner(bundle) {
            self.pool.give(bundle.words);
        }
    }

    fn answer(&self, bundle: &Bundle) -> Vec<u32> {
        let mut found = bundle.found.lock().unwrap_or_else(PoisonError::into_inner);
        let Header { kind, clock, asker } = bundle.header;
        let kind = if kind == Kind::Push { Kind::Ack } else { Kind::Rows };
        let header = Header { kind, clock, asker };
        let mut answer = self.pool.take();
        header.write(&mut answer);
        // Rows in the order in which they were asked for, whoever found them.
        let mut rest: Vec<(u32, &[f32])> =
            found.iter().map(|(partition, words)| (*partition, values(words))).collect();
        for section in sections(&bundle.words, bundle.header.kind, self.width) {
            let by = rest.iter_mut().find(|(partition, _)| *partition == section.partition);
            // A push has sections and no rows to send.
            let Some((_, values)) = by else { continue };
            let (own, later) = values.split_at(section.rows.len() * self.width);
            answer.extend_from_slice(bytemuck::cast_slice(own));
            *values = later;
        }
        found.drain(..).for_each(|(_, words)| self.pool.give(words));
        answer
    }
}
