//! A worker's side of the embedding tables.
//!
//! A batch's distinct rows are asked for ahead of time and come back while earlier batches are
//! computed; its row gradients are pushed once, coalesced. A permit goes out with every lookup and
//! comes back when all embedding PSs have taken the push (`umbra_core::rows::permits`): a slow
//! one makes workers wait instead of filling memory.
//!
//! Two ways to the rows: *local*, one rank without a synchronization method, where workers share
//! the tables Hogwild-fashion, pool longer bags from them (`direct.rs`) and send nothing; and
//! *routed*, through the partitions' threads, here or on other ranks. The second has two things to
//! ask for: rows, or bags that those who hold the rows have pooled (`bags.rs`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Receiver;
use umbra_core::model::Pooling;
use umbra_core::rows::permits::{Misuse, Permits, Slot};
use umbra_core::sparse::{coalesce, heads_len};
use umbra_core::sync::token::Ticket;
use umbra_datasets::BatchBuffer;

use crate::comm::watch::{Lost, Watch};
use crate::memory::fit;
use crate::rows::bags::{BagScratch, Places, Pooled};
use crate::rows::direct::{self, DirectScratch};
use crate::rows::lookup::Lookup;
use crate::rows::outbox::Outbox;
use crate::rows::router::Answer;
use crate::rows::tables::{Partition, TableLayout};
use crate::rows::wire::{
    Asker, Header, Kind, LookupToken, PushToken, values, write_lookup, write_push,
};

/// Access of one worker to all tables.
pub struct Client {
    layout: TableLayout,
    way: Way,
    heads: Vec<u32>,
    bag_scratch: BagScratch,
    direct_scratch: DirectScratch,
    /// Lookups under way, oldest first.
    ahead: VecDeque<Lookup>,
    /// Lookups to use again.
    spare: Vec<Lookup>,
}

enum Way {
    Local(Partition, Pooling),
    Routed(Routes),
}

/// How a worker reaches the partitions.
pub struct Routes {
    worker: u32,
    /// The worker's number on this rank.
    local: usize,
    outbox: Arc<Outbox>,
    /// Answers for this worker.
    answers: Receiver<Answer>,
    permits: Permits<Vec<Slot>>,
    /// The batch under way, where batches are handed out.
    ticket: Option<Ticket>,
    /// Where those who hold rows pool.
    pooled: Option<Pooled>,
    watch: Arc<Watch>,
}

impl Routes {
    /// The way of a worker: its number over all trainers and on this rank; `permits` steps may be
    /// between lookup and taken push. `pooled`: bags are pooled elsewhere.
    #[must_use]
    pub fn new(
        (worker, local): (u32, usize),
        outbox: &Arc<Outbox>,
        answers: Receiver<Answer>,
        permits: usize,
        pooled: Option<Pooled>,
        watch: &Arc<Watch>,
    ) -> Self {
        let permits = Permits::new(vec![Slot::default(); permits]);
        let (outbox, watch) = (Arc::clone(outbox), Arc::clone(watch));
        Self { worker, local, outbox, answers, permits, ticket: None, pooled, watch }
    }
}

impl Client {
    /// A worker that shares the tables of its rank. `pooling`: how a bag becomes a vector.
    #[must_use]
    pub fn local(layout: TableLayout, partition: Partition, pooling: Pooling) -> Self {
        Self::new(layout, Way::Local(partition, pooling))
    }

    /// A worker that asks the partitions' threads.
    #[must_use]
    pub fn routed(layout: TableLayout, routes: Routes) -> Self {
        Self::new(layout, Way::Routed(routes))
    }

    fn new(layout: TableLayout, way: Way) -> Self {
        Self {
            layout,
            way,
            heads: vec![],
            bag_scratch: BagScratch::default(),
            direct_scratch: DirectScratch::default(),
            ahead: VecDeque::new(),
            spare: vec![],
        }
    }

    /// Lookups under way.
    #[must_use]
    pub fn ahead(&self) -> usize {
        self.ahead.len()
    }

    /// Whether another lookup may start: a permit is free. Takes answers that are here.
    pub fn may_ask(&mut self) -> bool {
        let Way::Routed(routes) = &mut self.way else { return self.ahead.is_empty() };
        while let Ok(answer) = routes.answers.try_recv() {
            routes.sort_in(answer, &mut self.ahead, &self.layout);
        }
        routes.permits.free() > 0
    }

    /// Starts the lookup of `batch` for training step `clock`; see [`Self::may_ask`].
    pub fn ask(&mut self, batch: BatchBuffer, clock: u32) {
        if let Way::Routed(routes) = &mut self.way {
            fits(routes.permits.ask(clock));
        }
        self.start(batch, clock, Kind::Lookup);
    }

    /// The same of a batch that was handed out, the only one under way: its rows are of the
    /// ticket's version or later.
    pub fn ask_for(&mut self, batch: BatchBuffer, clock: u32, ticket: Ticket) {
        if let Way::Routed(routes) = &mut self.way {
            fits(routes.permits.ask(clock));
            routes.ticket = Some(ticket);
        }
        self.start(batch, clock, Kind::TokenLookup);
    }

    /// Starts a lookup of rows as they are now, for evaluation.
    pub fn ask_now(&mut self, batch: BatchBuffer, ticket: u32) {
        self.start(batch, ticket, Kind::LookupNow);
    }

    /// The same where bags are pooled elsewhere: what comes of their vectors is what comes in
    /// training.
    pub fn ask_pooled_now(&mut self, batch: BatchBuffer, ticket: u32) {
        self.start(batch, ticket, Kind::BagLookupNow);
    }

    fn start(&mut self, batch: BatchBuffer, clock: u32, kind: Kind) {
        let mut lookup = self.spare.pop().unwrap_or_default();
        if let Way::Routed(routes) = &self.way
            && let Some(pooled) = routes.pooled.as_ref().filter(|_| kind != Kind::LookupNow)
        {
            let places = Places {
                numbering: self.layout.numbering(),
                partitioning: self.layout.partitioning,
                destination: &pooled.destination,
                destinations: routes.outbox.destinations().len(),
            };
            let bags = lookup.bags.get_or_insert_default();
            let touched = bags.deal(batch.batch().bags, pooled.pooling, &places);
            lookup.unique.clear();
            lookup.slot.clear();
            lookup.slot.extend((0u32..).take(touched));
            fit(&mut lookup.rows, touched * self.layout.width);
            (lookup.batch, lookup.clock, lookup.awaited) = (batch, clock, 0);
            routes.send_lookups(&mut lookup, kind.of_bags());
            self.ahead.push_back(lookup);
            return;
        }
        let values = batch.values.len();
        grow(&mut self.heads, heads_len(values));
        lookup.bags = None;
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
        lookup.is_direct = matches!(self.way, Way::Local(..)) && direct::pays(batch.batch().bags);
        let mut vectors = found;
        if lookup.is_direct {
            core::mem::swap(&mut lookup.slot, &mut lookup.direct.slot);
            vectors = lookup.direct.prepare(batch.batch().bags, &lookup.unique);
        }
        fit(&mut lookup.rows, vectors * self.layout.width);
        (lookup.batch, lookup.clock, lookup.awaited) = (batch, clock, 0);
        if let Way::Routed(routes) = &self.way {
            lookup.deal(self.layout.partitioning);
            routes.send_lookups(&mut lookup, kind);
        }
        self.ahead.push_back(lookup);
    }

    /// The oldest lookup, complete, and the nanoseconds waited for its rows; `None` when none is
    /// under way.
    ///
    /// # Errors
    /// When the rows did not come in time.
    pub fn take(&mut self) -> Result<Option<(Lookup, u64)>, Lost> {
        let start = Instant::now();
        match &mut self.way {
            Way::Local(partition, pooling) => {
                let Some(lookup) = self.ahead.front_mut() else { return Ok(None) };
                if lookup.is_direct {
                    let Lookup { batch, direct, rows, .. } = lookup;
                    direct.pool(batch.batch().bags, *pooling, &partition.table(), rows);
                    return Ok(self.ahead.pop_front().map(|lookup| (lookup, nanoseconds(start))));
                }
                let rows = lookup.unique.iter().map(|row| *row as usize);
                partition.table().read(rows, &mut lookup.rows);
            }
            Way::Routed(routes) => {
                while let Some(&Lookup { awaited: 1.., clock, .. }) = self.ahead.front() {
                    let answer = routes.wait(&format_args!("embedding rows of step {clock}"))?;
                    routes.sort_in(answer, &mut self.ahead, &self.layout);
                }
                if let Some(lookup) = self.ahead.front_mut() {
                    routes.add_up(lookup, self.layout.width, &mut self.bag_scratch);
                }
            }
        }
        Ok(self.ahead.pop_front().map(|lookup| (lookup, nanoseconds(start))))
    }

    /// Pushes the gradients of a lookup's rows, or of its bags' vectors; none, to leave the rows as
    /// they are. `gradients: [rows, width]` or `[0]`
    pub fn push(&mut self, lookup: &Lookup, gradients: &[f32], rate: f32) {
        let width = self.layout.width;
        match &mut self.way {
            Way::Local(..) if gradients.is_empty() => {}
            Way::Local(partition, pooling) if lookup.is_direct => {
                let Lookup { batch, direct, unique, .. } = lookup;
                let bags = (batch.batch().bags, *pooling);
                let table = (&partition.table(), width);
                let how = (&self.layout.optimizer, rate);
                direct.update(bags, unique, table, how, gradients, &mut self.direct_scratch);
            }
            Way::Local(partition, _) => {
                let rows = lookup.unique.iter().map(|row| *row as usize);
                let optimizer = &self.layout.optimizer;
                partition.table().update(optimizer, rate, rows, gradients);
            }
            Way::Routed(routes) => {
                let (ticket, scratch) = (routes.ticket.take(), &mut self.bag_scratch);
                let brought = Brought { lookup, gradients, width, rate };
                let owed = match ticket {
                    Some(ticket) => routes.push_token(&brought, ticket, scratch),
                    None => routes.send_pushes(&brought, scratch),
                };
                fits(routes.permits.push(lookup.clock, owed));
            }
        }
    }

    /// Gives a lookup's memory back and returns its batch.
    pub fn recycle(&mut self, mut lookup: Lookup) -> BatchBuffer {
        let batch = core::mem::take(&mut lookup.batch);
        self.spare.push(lookup);
        batch
    }

    /// Waits until a permit is free (`all` = until every push is taken), unless there are lookups
    /// ahead: their steps come first, and the way of a push and back is then hidden. Returns the
    /// nanoseconds waited.
    ///
    /// # Errors
    /// When a push was not taken in time.
    pub fn settle(&mut self, all: bool) -> Result<u64, Lost> {
        let start = Instant::now();
        if let Way::Routed(routes) = &mut self.way {
            while let Some(step) = routes.permits.oldest_pushed()
                && (all || (self.ahead.is_empty() && routes.permits.free() == 0))
            {
                let what = format_args!("gradients of step {step} to be taken");
                let answer = routes.wait(&what)?;
                routes.sort_in(answer, &mut self.ahead, &self.layout);
            }
        }
        Ok(nanoseconds(start))
    }
}

impl Routes {
    /// The places of destinations, from one of its own for each worker: they share its lock.
    fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.outbox.destinations().len();
        let first = self.local;
        (0..count).map(move |at| (first + at) % count)
    }

    fn header(&self, kind: Kind, clock: u32) -> Header {
        let now = matches!(kind, Kind::LookupNow | Kind::BagLookupNow);
        let joint = self.outbox.joint() && !now;
        let asker = if joint { Asker::All } else { Asker::Worker(self.worker) };
        Header { kind, clock, asker }
    }

    fn send_lookups(&self, lookup: &mut Lookup, kind: Kind) {
        let header = self.header(kind, lookup.clock);
        lookup.joint = header.asker == Asker::All;
        lookup.before.clear();
        lookup.before.resize(self.outbox.destinations().len(), 0);
        for to in self.in_turn() {
            let partitions = &self.outbox.destinations()[to].partitions;
            let rows = self.rows_at(lookup, to);
            let handed = matches!(kind, Kind::TokenLookup | Kind::TokenBagLookup);
            let token = self.ticket.filter(|_| handed);
            let write = |words: &mut Vec<u32>| {
                if let Some(Ticket { version, .. }) = token {
                    LookupToken { version }.write(words);
                }
                if let Some(bags) = &lookup.bags {
                    return bags.write_lookup(words, to, self.worker);
                }
                for partition in partitions {
                    let count @ 1.. = lookup.count(*partition) else { continue };
                    let places = lookup.places(*partition).iter();
                    let rows = places.map(|place| lookup.unique[*place as usize]);
                    write_lookup(words, *partition, count, rows);
                }
            };
            match header.asker {
                Asker::All => {
                    let before = self.outbox.join(to, header, rows, write);
                    lookup.before[to] = before;
                }
                Asker::Worker(_) if rows > 0 => self.outbox.send(to, header, write),
                Asker::Worker(_) => {}
            }
            lookup.awaited += usize::from(rows > 0);
        }
    }

    /// Returns how many acknowledgements will come.
    fn send_pushes(&self, brought: &Brought<'_>, scratch: &mut BagScratch) -> u32 {
        let Brought { lookup, gradients, .. } = brought;
        let bags = lookup.bags.is_some();
        let kind = if bags { Kind::BagPush } else { Kind::Push };
        let header = self.header(kind, lookup.clock);
        let mut owed = 0;
        for to in self.in_turn() {
            // Who has pooled hears that no gradients come, too: it keeps what it has sent for them.
            let heard = bags || !gradients.is_empty();
            let rows = if heard { self.rows_at(lookup, to) } else { 0 };
            let write = |words: &mut Vec<u32>| self.write_sections(words, to, brought, scratch);
            match header.asker {
                Asker::All => {
                    self.outbox.join(to, header, rows, write);
                }
                Asker::Worker(_) if rows > 0 => self.outbox.send(to, header, write),
                Asker::Worker(_) => continue,
            }
            owed += 1;
        }
        owed
    }

    /// The push of a batch that was handed out: every rank that holds rows hears of it. Returns
    /// how many acknowledgements will come.
    fn push_token(&self, it: &Brought<'_>, ticket: Ticket, scratch: &mut BagScratch) -> u32 {
        let bags = it.lookup.bags.is_some();
        let kind = if bags { Kind::TokenBagPush } else { Kind::TokenPush };
        let header = self.header(kind, it.lookup.clock);
        // The rule of a coordinator has fewer places than that.
        let place = u32::try_from(ticket.place).unwrap_or(u32::MAX);
        let token = PushToken { place, batch: ticket.batch, rate: it.rate };
        for to in self.in_turn() {
            self.outbox.send(to, header, |words| {
                token.write(words);
                self.write_sections(words, to, it, scratch);
            });
        }
        u32::try_from(self.outbox.destinations().len()).unwrap_or(u32::MAX)
    }

    /// What a lookup's gradients have for the destination at place `to`.
    fn write_sections(
        &self,
        words: &mut Vec<u32>,
        to: usize,
        &Brought { lookup, gradients, width, rate }: &Brought<'_>,
        scratch: &mut BagScratch,
    ) {
        if gradients.is_empty() {
            return;
        }
        if let (Some(bags), Some(Pooled { values, .. })) = (&lookup.bags, &self.pooled) {
            let own = (self.worker, rate);
            bags.write_push(words, to, own, (gradients, width), *values, scratch);
            return;
        }
        for partition in &self.outbox.destinations()[to].partitions {
            let places = lookup.places(*partition);
            let count @ 1.. = lookup.count(*partition) else { continue };
            let rows = places.iter().map(|place| lookup.unique[*place as usize]);
            write_push(words, *partition, (self.worker, rate), count, rows);
            for place in places {
                let gradient = &gradients[*place as usize * width..][..width];
                words.extend_from_slice(bytemuck::cast_slice(gradient));
            }
        }
    }

    /// Rows of a lookup that the destination at place `to` holds, or bags that it has a part in.
    fn rows_at(&self, lookup: &Lookup, to: usize) -> u32 {
        if let Some(bags) = &lookup.bags {
            return bags.at(to);
        }
        let partitions = &self.outbox.destinations()[to].partitions;
        partitions.iter().map(|partition| lookup.count(*partition)).sum()
    }

    /// Adds the vectors up that have come of a lookup's bags.
    fn add_up(&self, lookup: &mut Lookup, width: usize, scratch: &mut BagScratch) {
        let Lookup { bags: Some(bags), rows, clock, .. } = lookup else { return };
        bags.add_up(rows, width, self.worker, scratch, |words| self.outbox.recycle(words))
            .unwrap_or_else(|malformed| panic!("pooled bags of step {clock}: {malformed}"));
    }

    fn wait(&self, what: &dyn core::fmt::Display) -> Result<Answer, Lost> {
        Ok(self.watch.receive(&self.answers, what)?.unwrap_or_else(|| {
            panic!("the threads that answer this worker have ended; it waited for {what}")
        }))
    }

    /// Puts an answer where it belongs.
    fn sort_in(&mut self, answer: Answer, ahead: &mut VecDeque<Lookup>, layout: &TableLayout) {
        let Some(Header { kind, clock, asker }) = Header::read(&answer.words) else { return };
        let joint = asker == Asker::All;
        let is_its = |lookup: &&mut Lookup| (lookup.clock, lookup.joint) == (clock, joint);
        if kind == Kind::Ack {
            fits(self.permits.acknowledge(clock));
        } else if let Some(to) = self.outbox.place_of(answer.from)
            && let Some(lookup) = ahead.iter_mut().find(is_its)
            && self.rows_at(lookup, to) > 0
        {
            lookup.awaited -= 1;
            if let Some(bags) = &mut lookup.bags {
                bags.came(to, answer.words);
                return;
            }
            let start = lookup.before[to] as usize * layout.width;
            let mut rest = values(&answer.words)[start..].chunks_exact(layout.width);
            for partition in &self.outbox.destinations()[to].partitions {
                let (places, rows) = lookup.split(*partition);
                for (place, row) in places.iter().zip(&mut rest) {
                    let start = *place as usize * layout.width;
                    rows[start..start + layout.width].copy_from_slice(row);
                }
            }
        } else {
            // The answer to a joint lookup comes to all workers, also to those without rows there.
            assert!(joint, "rows of step {clock} that nobody asked for");
        }
        if let Some(words) = Arc::into_inner(answer.words) {
            self.outbox.recycle(words);
        }
    }
}

/// Gradients on their way to those who hold the rows.
struct Brought<'a> {
    lookup: &'a Lookup,
    /// `[rows, width]` or `[0]`
    gradients: &'a [f32],
    width: usize,
    rate: f32,
}

/// A worker that misuses its permits is a defect of the training loop.
fn fits(outcome: Result<(), Misuse>) {
    outcome.unwrap_or_else(|misuse| panic!("{misuse}"));
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn grow(words: &mut Vec<u32>, len: usize) {
    if words.len() < len {
        words.resize(len, 0);
    }
}
