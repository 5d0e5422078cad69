//! The embedding PS: one thread owns one partition of rows.
//!
//! Only the owner writes to its rows, so there are no locks. Two ways to take gradients:
//!
//! - *asynchronous*: a push is applied when it comes, lookups see whatever is there;
//! - *synchronous* (`bsp`): the pushes of a step are kept until every worker's is here, summed per
//!   row as a tree over the workers and applied once; lookups for step t wait until the
//!   updates of step t − 1 are in.
//!
//! Invariants: every request is answered exactly once; in synchronous mode the result depends on
//! the contents of the pushes, never on the order they came in.

use core::ops::Range;

use crossbeam_channel::{Receiver, Sender};
use umbra_core::sparse::Table;

use crate::rows::tables::{Partition, TableLayout};
use crate::rows::wire::{Header, Kind, body, push_body};
use umbra_core::sync::reduction::add;

/// A message to a partition, and where its answer goes.
pub struct Request {
    /// The message.
    pub words: Vec<u32>,
    /// Who asked.
    pub from: Asker,
}

/// Where an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A worker of this rank, by its number on this rank.
    Worker(usize),
    /// A worker of another rank.
    Rank(usize),
}

/// The ways out of a partition's thread.
#[derive(Clone)]
pub struct Outlets {
    /// To the workers of this rank.
    pub workers: Vec<Sender<Vec<u32>>>,
    /// To the embedding communicator, which sends to other ranks; `None` on one rank.
    pub link: Option<Sender<(usize, Vec<u32>)>>,
}

/// Serves `partition` until every asker has gone. `contributors`: workers over all trainers in
/// synchronous mode, `None` in asynchronous mode. *Not collective; talks no MPI.*
pub fn serve(
    partition: &Partition,
    layout: &TableLayout,
    contributors: Option<usize>,
    inbox: &Receiver<Request>,
    outlets: &Outlets,
) {
    let mut service = Service {
        partition: partition.number,
        table: partition.table(),
        layout,
        outlets,
        scratch: vec![0.0; layout.record_len()],
        spare: vec![],
        gate: contributors.map(|workers| Gate::new(workers, layout.width)),
    };
    while let Ok(request) = inbox.recv() {
        service.take(request);
    }
}

/// Buffers kept for answers; more are freed.
const SPARE_MAX: usize = 64;

struct Service<'a> {
    partition: u32,
    table: Table<'a>,
    layout: &'a TableLayout,
    outlets: &'a Outlets,
    scratch: Vec<f32>,
    /// Buffers of the next answers: requests' buffers go round.
    spare: Vec<Vec<u32>>,
    gate: Option<Gate>,
}

/// Synchronous mode: what has come for the step in hand.
struct Gate {
    /// The step whose pushes are being collected; lookups up to it are answered.
    clock: u32,
    /// The push of every worker.
    pushes: Vec<Option<Vec<u32>>>,
    arrived: usize,
    /// Lookups and pushes for later steps.
    held: Vec<Request>,
    /// All pushed rows, sorted before they are summed.
    entries: Vec<Entry>,
    /// A partial sum per level of the tree. `[levels][width]`
    sums: Vec<Vec<f32>>,
}

/// Row number, worker, place in its push.
type Entry = (u32, u32, u32);

/// Sums the gradients of one row into `sums[0]` as a binary tree over the workers of `range`, whose
/// length is a power of two; a worker without the row adds nothing.
fn tree_sum<'a>(
    entries: &[Entry],
    range: Range<usize>,
    gradient: &impl Fn(&Entry) -> &'a [f32],
    sums: &mut [Vec<f32>],
) {
    if let [entry] = entries {
        sums[0].copy_from_slice(gradient(entry));
        return;
    }
    let middle = range.start + range.len() / 2;
    let (left, right) =
        entries.split_at(entries.partition_point(|entry| (entry.1 as usize) < middle));
    match (left.is_empty(), right.is_empty()) {
        (true, _) => tree_sum(right, middle..range.end, gradient, sums),
        (_, true) => tree_sum(left, range.start..middle, gradient, sums),
        _ => {
            tree_sum(left, range.start..middle, gradient, sums);
            let (sum, deeper) = sums.split_at_mut(1);
            tree_sum(right, middle..range.end, gradient, deeper);
            add(&mut sum[0], &deeper[0]);
        }
    }
}

impl Gate {
    fn new(contributors: usize, width: usize) -> Self {
        let pushes = (0..contributors).map(|_| None).collect();
        let levels = contributors.next_power_of_two().ilog2() as usize + 1;
        let sums = vec![vec![0.0; width]; levels];
        Self { clock: 0, pushes, arrived: 0, held: vec![], entries: vec![], sums }
    }
}

impl Service<'_> {
    fn take(&mut self, request: Request) {
        let Some(header) = Header::read(&request.words) else {
            panic!("partition {}: a message that is none of ours", self.partition);
        };
        debug_assert_eq!(header.partition, self.partition);
        match (header.kind, &mut self.gate) {
            // A push for a later step comes early where nobody looks up rows of this partition.
            (Kind::Lookup | Kind::Push, Some(gate)) if header.clock > gate.clock => {
                gate.held.push(request);
            }
            (Kind::Lookup | Kind::LookupNow, _) => self.look_up(header, request),
            (Kind::Push, None) => {
                let (rows, gradients) = push_body(&request.words, self.layout.width);
                let indices = rows.iter().map(|row| self.layout.partitioning.index(*row) as usize);
                let (optimizer, scratch) = (&self.layout.optimizer, &mut self.scratch);
                self.table.update(optimizer, header.rate, indices, gradients, scratch);
                self.taken(header, request.from);
                self.recycle(request.words);
            }
            (Kind::Push, Some(gate)) => {
                assert_eq!(header.clock, gate.clock, "a push for another step than the one open");
                let place = &mut gate.pushes[header.worker as usize];
                assert!(place.is_none(), "two pushes of one worker for one step");
                *place = Some(request.words);
                gate.arrived += 1;
                let complete = gate.arrived == gate.pushes.len();
                // The last answer says that the step is in: who saves the rows next waits for it.
                if complete {
                    self.apply(header.rate);
                }
                self.taken(header, request.from);
            }
            (Kind::Rows | Kind::Ack, _) => panic!("an answer was sent to a partition"),
        }
    }

    /// Answers with the rows asked for.
    fn look_up(&mut self, asked: Header, request: Request) {
        let mut answer = self.spare.pop().unwrap_or_default();
        Header { kind: Kind::Rows, ..asked }.write(&mut answer);
        let rows = body(&request.words);
        let start = answer.len();
        answer.resize(start + rows.len() * self.layout.width, 0);
        let values = bytemuck::cast_slice_mut(&mut answer[start..]);
        let indices = rows.iter().map(|row| self.layout.partitioning.index(*row) as usize);
        self.table.read(indices, values);
        self.recycle(request.words);
        self.send(request.from, answer);
    }

    fn recycle(&mut self, words: Vec<u32>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(words);
        }
    }

    fn taken(&mut self, pushed: Header, to: Asker) {
        let mut answer = self.spare.pop().unwrap_or_default();
        Header { kind: Kind::Ack, rate: 0.0, ..pushed }.write(&mut answer);
        self.send(to, answer);
    }

    /// An asker that has gone needs no answer: its run has ended, and ours is about to.
    fn send(&self, to: Asker, words: Vec<u32>) {
        match to {
            Asker::Worker(worker) => drop(self.outlets.workers[worker].send(words)),
            Asker::Rank(rank) => {
                if let Some(link) = &self.outlets.link {
                    drop(link.send((rank, words)));
                }
            }
        }
    }

    /// Sums the pushes of the step in hand per row and applies them.
    fn apply(&mut self, rate: f32) {
        let Some(gate) = &mut self.gate else { return };
        let width = self.layout.width;
        gate.entries.clear();
        for (worker, words) in (0u32..).zip(&gate.pushes) {
            let rows = words.as_ref().map_or(&[][..], |words| push_body(words, width).0);
            gate.entries.extend((0u32..).zip(rows).map(|(place, row)| (*row, worker, place)));
        }
        gate.entries.sort_unstable();
        let (pushes, workers) = (&gate.pushes, gate.pushes.len());
        for same_row in gate.entries.chunk_by(|a, b| a.0 == b.0) {
            let gradient = |entry: &Entry| {
                let words = pushes[entry.1 as usize].as_deref().unwrap_or_default();
                &push_body(words, width).1[entry.2 as usize * width..][..width]
            };
            tree_sum(same_row, 0..workers.next_power_of_two(), &gradient, &mut gate.sums);
            let index = self.layout.partitioning.index(same_row[0].0) as usize;
            let optimizer = &self.layout.optimizer;
            let (row, scratch) = (core::iter::once(index), &mut self.scratch);
            self.table.update(optimizer, rate, row, &gate.sums[0], scratch);
        }
        let pushes = gate.pushes.iter_mut().filter_map(Option::take);
        self.spare.extend(pushes.take(SPARE_MAX.saturating_sub(self.spare.len())));
        gate.pushes.iter_mut().for_each(|push| *push = None);
        gate.arrived = 0;
        gate.clock += 1;
        let held = core::mem::take(&mut gate.held);
        held.into_iter().for_each(|request| self.take(request));
    }
}
