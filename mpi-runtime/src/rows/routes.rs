//! The messages of a worker about rows: what it asks and pushes, destination by destination, and
//! where answers belong.
//!
//! Rows that are near (`near.rs`) are in none of them.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use umbra_core::rows::permits::{Misuse, Permits, Slot};
use umbra_core::sync::token::Ticket;

use crate::comm::watch::{Lost, Watch};
use crate::rows::bags::{BagScratch, Pooled};
use crate::rows::lookup::Lookup;
use crate::rows::near::Near;
use crate::rows::outbox::Outbox;
use crate::rows::router::Answer;
use crate::rows::tables::TableLayout;
use crate::rows::wire::{
    Asker, HEADER_LEN, Header, Kind, LookupToken, PushToken, write_lookup, write_push,
};

/// How a worker reaches the partitions.
pub struct Routes {
    pub(super) worker: u32,
    /// The worker's number on this rank.
    pub(super) local: usize,
    pub(super) outbox: Arc<Outbox>,
    /// Answers for this worker.
    pub(super) answers: Receiver<Answer>,
    pub(super) permits: Permits<Vec<Slot>>,
    /// The batch under way, where batches are handed out.
    pub(super) ticket: Option<Ticket>,
    /// Where those who hold rows pool.
    pub(super) pooled: Option<Pooled>,
    /// Partitions whose rows are used where they are.
    pub(super) near: Near,
    pub(super) watch: Arc<Watch>,
}

impl Routes {
    /// The way of a worker: its number over all trainers and on this rank; `permits` steps may be
    /// between lookup and taken push. Bags are pooled here, and no row is near.
    #[must_use]
    pub fn new(
        (worker, local): (u32, usize),
        outbox: &Arc<Outbox>,
        answers: Receiver<Answer>,
        permits: usize,
        watch: &Arc<Watch>,
    ) -> Self {
        let permits = Permits::new(vec![Slot::default(); permits]);
        let (outbox, watch) = (Arc::clone(outbox), Arc::clone(watch));
        let near = Near::default();
        Self { worker, local, outbox, answers, permits, ticket: None, pooled: None, near, watch }
    }

    /// Bags are pooled elsewhere, if they are.
    #[must_use]
    pub fn pooled(self, pooled: Option<Pooled>) -> Self {
        Self { pooled, ..self }
    }

    /// These partitions are used where they are.
    #[must_use]
    pub fn beside(self, near: Near) -> Self {
        Self { near, ..self }
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

    pub(super) fn send_lookups(&self, lookup: &mut Lookup, kind: Kind) {
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
    pub(super) fn send_pushes(&self, brought: &Brought<'_>, scratch: &mut BagScratch) -> u32 {
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
    pub(super) fn push_token(
        &self,
        it: &Brought<'_>,
        ticket: Ticket,
        scratch: &mut BagScratch,
    ) -> u32 {
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

    /// Rows of a lookup that the destination at place `to` is asked for, or bags that it has a part
    /// in.
    fn rows_at(&self, lookup: &Lookup, to: usize) -> u32 {
        if let Some(bags) = &lookup.bags {
            return bags.at(to);
        }
        let partitions = &self.outbox.destinations()[to].partitions;
        if partitions.first().is_some_and(|partition| self.near.has(*partition)) {
            return 0;
        }
        partitions.iter().map(|partition| lookup.count(*partition)).sum()
    }

    /// Adds the vectors up that have come of a lookup's bags.
    pub(super) fn add_up(&self, lookup: &mut Lookup, width: usize, scratch: &mut BagScratch) {
        let Lookup { bags: Some(bags), rows, clock, .. } = lookup else { return };
        bags.add_up(rows, width, self.worker, scratch, |words| self.outbox.recycle(words))
            .unwrap_or_else(|malformed| panic!("pooled bags of step {clock}: {malformed}"));
    }

    pub(super) fn wait(&self, what: &dyn core::fmt::Display) -> Result<Answer, Lost> {
        Ok(self.watch.receive(&self.answers, what)?.unwrap_or_else(|| {
            panic!("the threads that answer this worker have ended; it waited for {what}")
        }))
    }

    /// Puts an answer where it belongs.
    pub(super) fn sort_in(
        &mut self,
        answer: Answer,
        ahead: &mut VecDeque<Lookup>,
        layout: &TableLayout,
    ) {
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
            let record = layout.record().without_state();
            let start = HEADER_LEN + lookup.before[to] as usize * record.words();
            let mut rest = answer.words[start..].chunks_exact(record.words());
            for partition in &self.outbox.destinations()[to].partitions {
                let (places, _, rows) = lookup.split(*partition);
                for (place, row) in places.iter().zip(&mut rest) {
                    let values = &mut rows[*place as usize * layout.width..][..layout.width];
                    record.unpack(row, bytemuck::cast_slice_mut(values));
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
pub(super) struct Brought<'a> {
    pub(super) lookup: &'a Lookup,
    /// `[rows, width]` or `[0]`
    pub(super) gradients: &'a [f32],
    pub(super) width: usize,
    pub(super) rate: f32,
}

/// A worker that misuses its permits is a defect of the training loop.
pub(super) fn fits(outcome: Result<(), Misuse>) {
    outcome.unwrap_or_else(|misuse| panic!("{misuse}"));
}
