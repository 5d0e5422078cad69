//! A worker's side of the embedding tables.
//!
//! A batch's distinct rows are asked for ahead of time and come back while earlier batches are
//! computed; its row gradients are pushed once, coalesced. A permit goes out with every lookup and
//! comes back when all partitions have taken the push (PERSIA's bounded staleness): a slow embedding
//! PS makes workers wait instead of filling memory.
//!
//! Two ways to the rows: *local*, one rank without a synchronization method, where workers share the
//! tables Hogwild-fashion and nothing is sent; and *routed*, through the partitions' threads, here
//! or on other ranks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use umbra_core::sparse::{coalesce, heads_len};
use umbra_datasets::BatchBuffer;

use crate::embedding_ps::{Asker, Request};
use crate::tables::{Partition, TableLayout};
use crate::watch::Watch;
use crate::wire::{HEADER_LEN, Header, Kind, body};

/// A batch and its rows.
#[derive(Default)]
pub struct Lookup {
    /// The examples.
    pub batch: BatchBuffer,
    /// Index into the distinct rows, for every id. `[values]`
    pub slot: Vec<u32>,
    /// Values of the distinct rows, complete once taken. `[rows, width]`
    pub rows: Vec<f32>,
    /// Row numbers of the distinct rows. `[rows]`
    unique: Vec<u32>,
    /// Places in `unique`, by partition.
    places: Vec<Vec<u32>>,
    clock: u32,
    /// Partitions that have not answered yet.
    awaited: usize,
}

impl Lookup {
    /// Distinct rows of the batch.
    #[must_use]
    pub fn rows_len(&self) -> usize {
        self.unique.len()
    }
}

/// Access of one worker to all tables.
pub struct Client {
    layout: TableLayout,
    way: Way,
    heads: Vec<u32>,
    scratch: Vec<f32>,
    /// Lookups under way, oldest first.
    ahead: VecDeque<Lookup>,
    /// Lookups to use again.
    spare: Vec<Lookup>,
}

enum Way {
    Local(Partition),
    Routed(Routes),
}

/// How a worker reaches the partitions.
pub struct Routes {
    /// The worker's number over all trainers.
    pub worker: u32,
    /// The worker's number on this rank.
    pub local: usize,
    /// By partition: its thread, or the rank that holds it.
    pub partitions: Vec<Route>,
    /// To the embedding communicator; `None` on one rank.
    pub link: Option<Sender<(usize, Vec<u32>)>>,
    /// Answers for this worker.
    pub answers: Receiver<Vec<u32>>,
    /// Synchronous mode: every partition hears of every step.
    pub synchronous: bool,
    /// Steps between lookup and taken push, at most.
    pub permits: usize,
    /// Deadlines.
    pub watch: Arc<Watch>,
    /// Pushes not yet taken by all partitions: step and partitions that owe an answer.
    pub untaken: VecDeque<(u32, usize)>,
    /// Buffers to use again.
    pub buffers: Vec<Vec<u32>>,
}

/// Where a partition is.
#[derive(Clone)]
pub enum Route {
    /// On this rank.
    Here(Sender<Request>),
    /// On that rank.
    There(usize),
}

impl Client {
    /// A worker that shares the tables of its rank.
    #[must_use]
    pub const fn local(layout: TableLayout, partition: Partition) -> Self {
        Self::new(layout, Way::Local(partition))
    }

    /// A worker that asks the partitions' threads.
    #[must_use]
    pub const fn routed(layout: TableLayout, routes: Routes) -> Self {
        Self::new(layout, Way::Routed(routes))
    }

    const fn new(layout: TableLayout, way: Way) -> Self {
        Self { layout, way, heads: vec![], scratch: vec![], ahead: VecDeque::new(), spare: vec![] }
    }

    /// Lookups under way.
    #[must_use]
    pub fn ahead(&self) -> usize {
        self.ahead.len()
    }

    /// Whether another lookup may start: a permit is free. Takes answers that are here.
    pub fn may_ask(&mut self) -> bool {
        let Way::Routed(routes) = &mut self.way else { return self.ahead.is_empty() };
        while let Ok(words) = routes.answers.try_recv() {
            routes.sort_in(words, &mut self.ahead, &self.layout);
        }
        self.ahead.len() + routes.untaken.len() < routes.permits
    }

    /// Starts the lookup of `batch` for training step `clock`; see [`Self::may_ask`].
    pub fn ask(&mut self, batch: BatchBuffer, clock: u32) {
        self.start(batch, clock, Kind::Lookup);
    }

    /// Starts a lookup of rows as they are now, for evaluation.
    pub fn ask_now(&mut self, batch: BatchBuffer, ticket: u32) {
        self.start(batch, ticket, Kind::LookupNow);
    }

    fn start(&mut self, batch: BatchBuffer, clock: u32, kind: Kind) {
        let mut lookup = self.spare.pop().unwrap_or_default();
        let values = batch.values.len();
        grow(&mut self.heads, heads_len(values));
        lookup.unique.resize(values, 0);
        lookup.slot.resize(values, 0);
        let found = coalesce(
            batch.batch().bags,
            self.layout.numbering(),
            &mut self.heads[..heads_len(values)],
            &mut lookup.unique,
            &mut lookup.slot,
        );
        lookup.unique.truncate(found);
        lookup.rows.resize(found * self.layout.width, 0.0);
        (lookup.batch, lookup.clock, lookup.awaited) = (batch, clock, 0);
        if let Way::Routed(routes) = &mut self.way {
            routes.send_lookups(&mut lookup, &self.layout, kind);
        }
        self.ahead.push_back(lookup);
    }

    /// The oldest lookup, complete; waits for its rows. Returns the nanoseconds waited.
    pub fn take(&mut self) -> Option<(Lookup, u64)> {
        let start = Instant::now();
        match &mut self.way {
            Way::Local(partition) => {
                let lookup = self.ahead.front_mut()?;
                let rows = lookup.unique.iter().map(|row| *row as usize);
                partition.table().read(rows, &mut lookup.rows);
            }
            Way::Routed(routes) => {
                while self.ahead.front()?.awaited > 0 {
                    let clock = self.ahead.front().map_or(0, |lookup| lookup.clock);
                    let words = routes.wait(&format_args!("embedding rows of step {clock}"));
                    routes.sort_in(words, &mut self.ahead, &self.layout);
                }
            }
        }
        let waited = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.ahead.pop_front().map(|lookup| (lookup, waited))
    }

    /// Pushes the gradients of a lookup's rows; none, to leave the rows as they are. `gradients:
    /// [rows, width]` or `[0]`
    pub fn push(&mut self, lookup: &Lookup, gradients: &[f32], rate: f32) {
        let width = self.layout.width;
        match &mut self.way {
            Way::Local(partition) => {
                self.scratch.resize(self.layout.record_len(), 0.0);
                let rows = lookup.unique.iter().map(|row| *row as usize);
                let optimizer = &self.layout.optimizer;
                partition.table().update(optimizer, rate, rows, gradients, &mut self.scratch);
            }
            Way::Routed(routes) => routes.send_pushes(lookup, gradients, width, rate),
        }
    }

    /// Gives a lookup's memory back and returns its batch.
    pub fn recycle(&mut self, mut lookup: Lookup) -> BatchBuffer {
        let batch = core::mem::take(&mut lookup.batch);
        self.spare.push(lookup);
        batch
    }

    /// Waits until a permit is free (`all` = until every push is taken), unless there are lookups ahead:
    /// their steps come first, and the way of a push and back is then hidden. Returns the nanoseconds waited.
    pub fn settle(&mut self, all: bool) -> u64 {
        let start = Instant::now();
        if let Way::Routed(routes) = &mut self.way {
            let bound = if all { 1 } else { routes.permits };
            while (all || self.ahead.is_empty()) && routes.untaken.len() >= bound {
                let step = routes.untaken.front().map_or(0, |(step, _)| *step);
                let words = routes.wait(&format_args!("gradients of step {step} to be taken"));
                routes.sort_in(words, &mut self.ahead, &self.layout);
            }
        }
        u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Routes {
    fn send_lookups(&mut self, lookup: &mut Lookup, layout: &TableLayout, kind: Kind) {
        lookup.places.resize_with(self.partitions.len(), Vec::new);
        lookup.places.iter_mut().for_each(Vec::clear);
        for (place, row) in (0u32..).zip(&lookup.unique) {
            lookup.places[layout.partitioning.partition(*row) as usize].push(place);
        }
        for partition in 0..self.partitions.len() {
            if lookup.places[partition].is_empty() {
                continue;
            }
            let mut words = self.message(kind, partition, lookup.clock, 0.0);
            let rows = lookup.places[partition].iter();
            words.extend(rows.map(|place| lookup.unique[*place as usize]));
            self.send(partition, words);
            lookup.awaited += 1;
        }
    }

    fn send_pushes(&mut self, lookup: &Lookup, gradients: &[f32], width: usize, rate: f32) {
        let mut owed = 0;
        for partition in 0..self.partitions.len() {
            let places = if gradients.is_empty() { &[][..] } else { &lookup.places[partition] };
            if places.is_empty() && !self.synchronous {
                continue;
            }
            let mut words = self.message(Kind::Push, partition, lookup.clock, rate);
            words.extend(places.iter().map(|place| lookup.unique[*place as usize]));
            for place in places {
                let gradient = &gradients[*place as usize * width..][..width];
                words.extend_from_slice(bytemuck::cast_slice(gradient));
            }
            self.send(partition, words);
            owed += 1;
        }
        if owed > 0 {
            self.untaken.push_back((lookup.clock, owed));
        }
    }

    fn message(&mut self, kind: Kind, partition: usize, clock: u32, rate: f32) -> Vec<u32> {
        let mut words = self.buffers.pop().unwrap_or_default();
        let partition = u32::try_from(partition).unwrap_or(u32::MAX);
        Header { kind, partition, worker: self.worker, clock, rate }.write(&mut words);
        words
    }

    fn send(&self, partition: usize, words: Vec<u32>) {
        let gone = match (&self.partitions[partition], &self.link) {
            (Route::Here(thread), _) => {
                thread.send(Request { words, from: Asker::Worker(self.local) }).is_err()
            }
            (Route::There(rank), Some(link)) => link.send((*rank, words)).is_err(),
            (Route::There(_), None) => true,
        };
        assert!(!gone, "the thread that serves or carries to partition {partition} has ended");
    }

    fn wait(&self, what: &dyn core::fmt::Display) -> Vec<u32> {
        self.watch.receive(&self.answers, what).unwrap_or_else(|| {
            panic!("the threads that answer this worker have ended; it waited for {what}")
        })
    }

    /// Puts an answer where it belongs.
    fn sort_in(&mut self, words: Vec<u32>, ahead: &mut VecDeque<Lookup>, layout: &TableLayout) {
        let Some(header) = Header::read(&words) else { return };
        if header.kind == Kind::Rows {
            let lookup = ahead.iter_mut().find(|lookup| lookup.clock == header.clock);
            let Some(lookup) = lookup else { panic!("rows nobody asked for") };
            let values: &[f32] = bytemuck::cast_slice(body(&words));
            let places = &lookup.places[header.partition as usize];
            for (place, row) in places.iter().zip(values.chunks_exact(layout.width)) {
                let start = *place as usize * layout.width;
                lookup.rows[start..start + layout.width].copy_from_slice(row);
            }
            lookup.awaited -= 1;
        } else if let Some(at) = self.untaken.iter().position(|(step, _)| *step == header.clock) {
            self.untaken[at].1 -= 1;
            if self.untaken[at].1 == 0 {
                self.untaken.remove(at);
            }
        }
        debug_assert!(words.len() >= HEADER_LEN);
        if self.buffers.len() < 2 * self.partitions.len() * self.permits {
            self.buffers.push(words);
        }
    }
}

fn grow(words: &mut Vec<u32>, len: usize) {
    if words.len() < len {
        words.resize(len, 0);
    }
}
