//! A worker's side of the embedding tables.
//!
//! A batch's distinct rows are asked for ahead of time and come back while earlier batches are
//! computed; its row gradients are pushed once, coalesced. A permit goes out with every lookup and
//! comes back when all embedding PSs have taken the push (`umbra_core::rows::permits`): a slow
//! one makes workers wait instead of filling memory.
//!
//! Two ways to the rows: *local*, one rank without a synchronization method, where workers share
//! the tables Hogwild-fashion, pool longer bags from them (`direct.rs`) or let a training step read
//! and update rows (`umbra_core::sparse::TiledRows`), and send nothing; and
//! *routed*, through the partitions' threads, here or on other ranks, but for rows on this node
//! where pushes are applied as they come (`near.rs`). The second (`routes.rs`) has two things to
//! ask for: rows, or bags that those who hold the rows have pooled (`bags.rs`).

use std::collections::VecDeque;
use std::time::Instant;

use umbra_core::batch::Jagged;
use umbra_core::model::Pooling;
use umbra_core::sparse::{TiledRows, coalesce, heads_len};
use umbra_core::sync::token::Ticket;
use umbra_datasets::BatchBuffer;

use crate::comm::loss;
use crate::comm::watch::Lost;
use crate::rows::bags::{BagScratch, Places};
use crate::rows::direct::{self, DirectScratch};
use crate::rows::lookup::Lookup;
use crate::rows::routes::{Brought, Routes, fits};
use crate::rows::tables::{Partition, TableLayout};
use crate::rows::wire::Kind;

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
    Local(Partition, Pooling, u32),
    Routed(Routes),
}

impl Client {
    /// A worker that shares the tables of its rank: its number, and how a bag becomes a vector.
    #[must_use]
    pub fn local(layout: TableLayout, partition: Partition, of: (u32, Pooling)) -> Self {
        let (worker, pooling) = of;
        Self::new(layout, Way::Local(partition, pooling, worker))
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
        let mut cut = core::mem::take(&mut lookup.cut);
        let of_fields = batch.batch().bags;
        cut.fill(self.layout.strips(), of_fields);
        let jagged = cut.instead(of_fields);
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
            let touched = bags.deal(jagged, pooled.pooling, &places);
            lookup.unique.clear();
            lookup.slot.clear();
            lookup.slot.extend((0u32..).take(touched));
            lookup.rows.fit(touched * self.layout.width);
            (lookup.cut, lookup.batch) = (cut, batch);
            (lookup.clock, lookup.awaited) = (clock, 0);
            routes.send_lookups(&mut lookup, kind.of_bags());
            self.ahead.push_back(lookup);
            return;
        }
        lookup.bags = None;
        lookup.is_direct = matches!(self.way, Way::Local(..)) && direct::pays(jagged);
        let vectors = if lookup.is_direct {
            lookup.direct.prepare(jagged, self.layout.numbering())
        } else {
            self.coalesce(jagged, &mut lookup)
        };
        let by_step = matches!(self.way, Way::Local(..)) && kind == Kind::Lookup;
        if by_step && !lookup.is_direct {
            lookup.tiles.get_or_insert_default();
        } else {
            lookup.tiles = None;
            lookup.rows.fit(vectors * self.layout.width);
        }
        (lookup.cut, lookup.batch) = (cut, batch);
        (lookup.clock, lookup.awaited) = (clock, 0);
        if let Way::Routed(routes) = &self.way {
            lookup.deal(self.layout.partitioning);
            routes.send_lookups(&mut lookup, kind);
        }
        self.ahead.push_back(lookup);
    }

    /// Finds the distinct rows of a lookup's bags, and returns how many there are.
    fn coalesce(&mut self, bags: Jagged<'_>, lookup: &mut Lookup) -> usize {
        let (values, Lookup { unique, slot, .. }) = (bags.values.len(), lookup);
        grow(&mut self.heads, heads_len(values));
        unique.resize(values, 0);
        slot.resize(values, 0);
        let heads = &mut self.heads[..heads_len(values)];
        let found = coalesce(bags, self.layout.numbering(), heads, unique, slot);
        unique.truncate(found);
        found
    }

    /// The oldest lookup, complete, and the nanoseconds waited for its rows; `None` when none is
    /// under way.
    ///
    /// # Errors
    /// When the rows did not come in time.
    pub fn take(&mut self) -> Result<Option<(Lookup, u64)>, Lost> {
        let start = Instant::now();
        match &mut self.way {
            Way::Local(partition, pooling, _) => {
                let Some(lookup) = self.ahead.front_mut() else { return Ok(None) };
                if lookup.tiles.is_some() {
                    return Ok(self.ahead.pop_front().map(|lookup| (lookup, nanoseconds(start))));
                }
                if lookup.is_direct {
                    lookup.direct.pool(*pooling, &partition.table(), &mut lookup.rows);
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
                    // Who has waited has heard of it; rows that are near wait for nobody.
                    if loss::has_happened() {
                        let what = format!("embedding rows of step {}", lookup.clock);
                        return Err(Lost::Gone { what });
                    }
                    routes.add_up(lookup, self.layout.width, &mut self.bag_scratch);
                    routes.near.read(lookup, &self.layout);
                }
            }
        }
        Ok(self.ahead.pop_front().map(|lookup| (lookup, nanoseconds(start))))
    }

    /// The rows of a lookup [in tiles](Lookup::prepare_tiles), for the step that reads and updates
    /// them, at learning rate `rate`; `None` where they were read before. `copies: [places, width]`
    #[must_use]
    pub fn rows_for_step<'a>(
        &'a self,
        lookup: &'a Lookup,
        copies: &'a mut [f32],
        rate: f32,
    ) -> Option<TiledRows<'a>> {
        let (Way::Local(partition, _, worker), Some(plan)) = (&self.way, lookup.tile_plan()) else {
            return None;
        };
        let table = partition.table().at(lookup.clock, *worker);
        let optimizer = &self.layout.optimizer;
        Some(TiledRows { table, optimizer, rate, plan, copies, spoilt: false })
    }

    /// Pushes the gradients of a lookup's rows, or of its bags' vectors; none, to leave the rows as
    /// they are, or where the step has updated them. `gradients: [rows, width]` or `[0]`
    pub fn push(&mut self, lookup: &Lookup, gradients: &[f32], rate: f32) {
        let width = self.layout.width;
        match &mut self.way {
            Way::Local(..) if gradients.is_empty() || lookup.tiles.is_some() => {}
            Way::Local(partition, pooling, worker) if lookup.is_direct => {
                let direct = &lookup.direct;
                let table = (&partition.table().at(lookup.clock, *worker), width);
                let how = (&self.layout.optimizer, rate);
                grow(&mut self.heads, heads_len(direct.rows.len()));
                let scratch = (&mut self.direct_scratch, &mut self.heads[..]);
                direct.update(*pooling, table, how, gradients, scratch);
            }
            Way::Local(partition, _, worker) => {
                let rows = lookup.unique.iter().map(|row| *row as usize);
                let optimizer = &self.layout.optimizer;
                let table = partition.table().at(lookup.clock, *worker);
                table.update(optimizer, rate, rows, gradients);
            }
            Way::Routed(routes) => {
                if !gradients.is_empty() {
                    let how = (routes.worker, rate);
                    routes.near.update(lookup, &self.layout, how, gradients);
                }
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

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn grow(words: &mut Vec<u32>, len: usize) {
    if words.len() < len {
        words.resize(len, 0);
    }
}
