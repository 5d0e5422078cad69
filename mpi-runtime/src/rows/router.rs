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

use crossbeam_channel::{Receiver, Sender, unbounded};

use umbra_core::sync::News;

use crate::rows::bag_wire::BagLookup;
use crate::rows::pooling::{Asked, Pooling};
use crate::rows::wire::{Asker, HEADER_LEN, Header, Kind, sections};

/// A request on the rank of its partitions, shared by them.
pub struct Bundle {
    /// The message.
    pub words: Vec<u32>,
    /// Its header.
    pub header: Header,
    /// The rank that asks.
    pub from: usize,
    /// A lookup of bags, read.
    pub asked: Option<Asked>,
    /// Of gradients of pooled bags: the lookup that they are of, if there was one.
    pub answered: Option<Arc<Self>>,
    /// Partitions that have not finished with it.
    left: AtomicUsize,
    /// A lookup's rows, by partition: a header, then values in the order of its sections; of a
    /// lookup of bags the sums of all bags.
    found: Mutex<Vec<(u32, Vec<u32>)>>,
}

/// What a partition's thread is told.
pub enum Errand {
    /// To do its part of a request.
    Serve(Arc<Bundle>),
    /// What the dispatcher says of aggregates.
    News(News),
    /// To say that it has done all that it was told.
    Settle(Sender<()>),
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
    /// A request for a row that no table has.
    #[error("rank {from} asked for row {row}, which partition {partition} has not")]
    Row {
        /// Who sent it.
        from: usize,
        /// The partition.
        partition: u32,
        /// The row's number.
        row: u32,
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
    /// f32s of a row's gradient.
    pub width: usize,
    /// Words of its values in an answer.
    pub value_words: usize,
    /// Number and thread of every partition of this rank, ascending.
    pub partitions: Vec<(u32, Sender<Errand>)>,
    /// By partition of this rank, a number behind those of its rows. `[partitions]`
    pub row_ends: Vec<u64>,
    /// The workers of this rank.
    pub workers: Vec<Sender<Answer>>,
    /// Number over all trainers of the first of them.
    pub first_worker: u32,
    /// The links; none on one rank.
    pub links: Vec<Sender<(usize, Vec<u32>)>>,
    /// Used buffers.
    pub pool: Pool,
    /// Where bags are pooled by those who hold their rows: those that this rank pools.
    pub pooling: Option<Pooling>,
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
            kind if kind.is_lookup() || kind.is_push() => {
                let (asked, answered) = self.check(from, header, &words)?;
                let left = AtomicUsize::new(self.partitions.len());
                let found = Mutex::default();
                let bundle = Arc::new(Bundle { words, header, from, asked, answered, left, found });
                for (_, thread) in &self.partitions {
                    drop(thread.send(Errand::Serve(Arc::clone(&bundle))));
                }
            }
            _ => {
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

    /// Looks at a request: what is read of it, where it is of bags.
    fn check(
        &self,
        from: usize,
        header: Header,
        words: &[u32],
    ) -> Result<(Option<Asked>, Option<Arc<Bundle>>), Stray> {
        let here = |partition: u32, rows: &[u32]| {
            let found = self.partitions.binary_search_by_key(&partition, |(number, _)| *number);
            let end = found.ok().and_then(|place| self.row_ends.get(place));
            let end = *end.ok_or(Stray::Partition { from, partition })?;
            let stray = rows.iter().find(|row| u64::from(**row) >= end);
            stray.map_or(Ok(()), |row| Err(Stray::Row { from, partition, row: *row }))
        };
        let unknown = Stray::Unknown { from };
        let pooling = self.pooling.as_ref().ok_or(unknown);
        if header.kind.is_bag_lookup() {
            let partitioning = pooling?.rules().partitioning;
            let lookup = BagLookup::read(words, header.kind).ok_or(unknown)?;
            Pooling::rows(words, &lookup)
                .try_for_each(|row| here(partitioning.partition(row), &[row]))?;
            return Ok((Some(Asked::new(lookup)), None));
        }
        if header.kind.is_bag_push() {
            let answered = pooling?.lookup_of(from, header, words)?;
            return Ok((None, answered));
        }
        let mut found = sections(words, header.kind, self.width);
        if !found.whole() {
            return Err(unknown);
        }
        found.try_for_each(|section| here(section.partition, section.rows))?;
        Ok((None, None))
    }

    /// Tells every partition of this rank.
    pub fn tell(&self, news: News) {
        for (_, thread) in &self.partitions {
            drop(thread.send(Errand::News(news)));
        }
    }

    /// Every partition of this rank says, on what is returned, when it has done all that it was
    /// told so far.
    #[must_use]
    pub fn settle(&self) -> Receiver<()> {
        let (done, settled) = unbounded();
        for (_, thread) in &self.partitions {
            drop(thread.send(Errand::Settle(done.clone())));
        }
        settled
    }

    /// A partition has done its part of `bundle`: of a lookup, it found these values behind the
    /// room for a header, if it was asked for any. The last one's call sends the answer.
    pub fn finish(&self, bundle: Arc<Bundle>, partition: u32, found: Option<Vec<u32>>) {
        if let Some(found) = found {
            let mut all = bundle.found.lock().unwrap_or_else(PoisonError::into_inner);
            all.push((partition, found));
        }
        if bundle.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.send(bundle.from, self.answer(&bundle));
        }
        self.release(bundle);
    }

    /// Gives back the buffer of a request once nobody has it any more.
    pub fn release(&self, bundle: Arc<Bundle>) {
        if let Some(bundle) = Arc::into_inner(bundle) {
            self.pool.give(bundle.words);
            if let Some(lookup) = bundle.answered.and_then(Arc::into_inner) {
                self.pool.give(lookup.words);
            }
        }
    }

    fn answer(&self, bundle: &Arc<Bundle>) -> Vec<u32> {
        let mut found = bundle.found.lock().unwrap_or_else(PoisonError::into_inner);
        let Header { kind, clock, asker } = bundle.header;
        let answers = match kind {
            kind if kind.is_push() => Kind::Ack,
            kind if kind.is_bag_lookup() => Kind::Pooled,
            _ => Kind::Rows,
        };
        let header = Header { kind: answers, clock, asker };
        // All rows are one partition's: as it has written them, they leave.
        if let (Kind::Rows, [_]) = (answers, &found[..])
            && let Some((_, mut words)) = found.pop()
        {
            header.write_before(&mut words);
            return words;
        }
        let mut answer = self.pool.take();
        header.write(&mut answer);
        if let (Kind::Pooled, Some(pooling)) = (answers, &self.pooling) {
            pooling.answer(bundle, &mut found, &mut answer);
            found.drain(..).for_each(|(_, words)| self.pool.give(words));
            return answer;
        }
        if answers == Kind::Ack {
            return answer;
        }
        // Rows in the order in which they were asked for, whoever found them.
        let mut rest: Vec<(u32, &[u32])> =
            found.iter().map(|(partition, words)| (*partition, &words[HEADER_LEN..])).collect();
        for section in sections(&bundle.words, bundle.header.kind, self.width) {
            let by = rest.iter_mut().find(|(partition, _)| *partition == section.partition);
            let Some((_, values)) = by else { continue };
            let (own, later) = values.split_at(section.rows.len() * self.value_words);
            answer.extend_from_slice(own);
            *values = later;
        }
        found.drain(..).for_each(|(_, words)| self.pool.give(words));
        answer
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rows::wire::{values, write_lookup};

    /// Rank 2 with partitions 4 and 6, workers 3 and 4, and three links.
    #[expect(clippy::type_complexity, reason = "the ends of its channels")]
    fn router()
    -> (Router, Vec<Receiver<Errand>>, Vec<Receiver<Answer>>, Vec<Receiver<(usize, Vec<u32>)>>)
    {
        let (partitions, errands) = [4, 6]
            .map(|number| {
                let (sender, receiver) = unbounded();
                ((number, sender), receiver)
            })
            .into_iter()
            .unzip();
        let (workers, answers) = (0..2).map(|_| unbounded()).unzip();
        let (links, out) = (0..3).map(|_| unbounded()).unzip();
        let pool = Pool::new(2);
        let router = Router {
            rank: 2,
            width: 2,
            value_words: 2,
            partitions,
            row_ends: vec![100, 100],
            workers,
            first_worker: 3,
            links,
            pool,
            pooling: None,
        };
        (router, errands, answers, out)
    }

    fn lookup(asker: Asker, wanted: &[(u32, &[u32])]) -> Vec<u32> {
        let mut words = vec![];
        Header { kind: Kind::Lookup, clock: 5, asker }.write(&mut words);
        for (partition, rows) in wanted {
            let count = u32::try_from(rows.len()).unwrap();
            write_lookup(&mut words, *partition, count, rows.iter().copied());
        }
        words
    }

    fn bundle(errands: &Receiver<Errand>) -> Arc<Bundle> {
        let Ok(Errand::Serve(bundle)) = errands.try_recv() else { panic!("no request") };
        bundle
    }

    /// Room for a header, then two values for every row.
    fn found(rows: &[u8]) -> Option<Vec<u32>> {
        let mut words = vec![0; HEADER_LEN];
        words.extend(rows.iter().flat_map(|row| [f32::from(*row), 0.5].map(f32::to_bits)));
        Some(words)
    }

    #[test]
    fn the_last_partition_sends_all_rows_in_the_order_of_the_lookup() {
        let (router, errands, _, out) = router();
        let wanted: [(u32, &[u32]); 4] = [(6, &[10]), (4, &[20, 30]), (6, &[40]), (4, &[50])];
        router.deliver(0, lookup(Asker::All, &wanted)).unwrap();
        router.finish(bundle(&errands[1]), 6, found(&[10, 40]));
        assert!(out.iter().all(Receiver::is_empty), "partition 4 has not finished");
        router.finish(bundle(&errands[0]), 4, found(&[20, 30, 50]));
        let sent: Vec<_> = out.iter().flat_map(Receiver::try_iter).collect();
        let [(0, words)] = &sent[..] else { panic!("one answer to rank 0: {sent:?}") };
        let header = Header { kind: Kind::Rows, clock: 5, asker: Asker::All };
        assert_eq!(Header::read(words), Some(header));
        let rows: Vec<f32> = values(words).chunks(2).map(|row| row[0]).collect();
        assert_eq!(rows, [10.0, 20.0, 30.0, 40.0, 50.0]);
    }

    #[test]
    fn a_push_is_acknowledged_once_by_all_partitions_together() {
        let (router, errands, _, out) = router();
        let mut words = vec![];
        Header { kind: Kind::Push, clock: 5, asker: Asker::Worker(0) }.write(&mut words);
        router.deliver(1, words).unwrap();
        for (partition, errands) in [4, 6].into_iter().zip(&errands) {
            assert!(out.iter().all(Receiver::is_empty));
            router.finish(bundle(errands), partition, None);
        }
        let sent: Vec<_> = out.iter().flat_map(Receiver::try_iter).collect();
        let [(1, words)] = &sent[..] else { panic!("one answer to rank 1: {sent:?}") };
        let header = Header { kind: Kind::Ack, clock: 5, asker: Asker::Worker(0) };
        assert_eq!((Header::read(words), words.len()), (Some(header), HEADER_LEN));
    }

    #[test]
    fn answers_go_to_the_worker_that_asked_or_to_all() {
        let (router, _, answers, _) = router();
        for (asker, expected) in
            [(Asker::Worker(3), [1, 0]), (Asker::Worker(4), [0, 1]), (Asker::All, [1, 1])]
        {
            let mut words = vec![];
            Header { kind: Kind::Rows, clock: 1, asker }.write(&mut words);
            router.deliver(9, words).unwrap();
            let came: Vec<usize> =
                answers.iter().map(|answers| answers.try_iter().count()).collect();
            assert_eq!(came, expected, "{asker:?}");
        }
    }

    #[test]
    fn what_is_for_somebody_else_is_refused() {
        let (router, errands, ..) = router();
        let refused = |words| router.deliver(7, words).unwrap_err();
        assert_eq!(refused(vec![1]), Stray::Unknown { from: 7 });
        assert_eq!(refused(vec![77, 0, 0]), Stray::Unknown { from: 7 });
        let mut cut = lookup(Asker::All, &[(4, &[1, 2])]);
        cut.pop();
        assert_eq!(refused(cut), Stray::Unknown { from: 7 });
        let elsewhere = lookup(Asker::All, &[(4, &[1]), (5, &[2])]);
        assert_eq!(refused(elsewhere), Stray::Partition { from: 7, partition: 5 });
        let beyond = lookup(Asker::All, &[(4, &[1, 100])]);
        assert_eq!(refused(beyond), Stray::Row { from: 7, partition: 4, row: 100 });
        for worker in [2, 5] {
            let mut words = vec![];
            Header { kind: Kind::Ack, clock: 1, asker: Asker::Worker(worker) }.write(&mut words);
            assert_eq!(refused(words), Stray::Worker { from: 7, worker });
        }
        assert!(errands.iter().all(Receiver::is_empty));
    }

    /// Rank r talks to rank 2 on the link on which rank 2 talks to rank r.
    #[test]
    fn both_ranks_of_a_pair_use_the_same_link() {
        let (router, _, _, out) = router();
        let (mut other, .., other_out) = self::router();
        for rank in [0, 1, 3, 4, 5, 6] {
            other.rank = rank;
            router.send(rank, vec![]);
            other.send(2, vec![]);
            let used = |out: &[Receiver<_>]| out.iter().position(|link| link.try_recv().is_ok());
            assert_eq!(used(&out), used(&other_out), "rank {rank}");
        }
    }
}
