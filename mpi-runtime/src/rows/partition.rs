//! The embedding PS: one thread owns one partition of rows.
//!
//! Only the owner writes to its rows, and workers of its node where they use rows in place
//! (`near.rs`), Hogwild-fashion: there are no locks. When pushes are applied and lookups
//! answered is the intake's affair (`umbra_core::rows::intake`); the thread moves messages and
//! calls the table.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use umbra_core::rows::intake::{Intake, Lockstep, Part, Push, Refused, Taken};
use umbra_core::rows::row_sums::{Entry, sums_len};
use umbra_core::rows::tokens::{self, RowDivisor, Tokens};
use umbra_core::sparse::Table;
use umbra_core::sync::News;
use umbra_core::sync::server::member;
use umbra_core::sync::token::{Aggregate, Came, Place};

use crate::rows::pooling::PoolScratch;
use crate::rows::router::{Bundle, Errand, Router};
use crate::rows::tables::{Partition, TableLayout};
use crate::rows::wire::{HEADER_LEN, Header, Kind, LookupToken, PushToken, Section, sections};

/// Who pushes in lockstep.
#[derive(Clone, Debug)]
pub struct Contributors {
    /// The ranks of the trainers, in order.
    pub ranks: Vec<usize>,
    /// Workers of all of them.
    pub workers: u32,
    /// The first step that they push for.
    pub first_step: u32,
}

/// How pushes are taken.
#[derive(Clone, Debug)]
pub enum Taking {
    /// As they come.
    AtOnce,
    /// Those of a step together.
    Lockstep(Contributors),
    /// Those of an aggregate together.
    Tokens(TokenRule),
}

/// How pushes of batches that were handed out are taken.
#[derive(Clone, Copy, Debug)]
pub struct TokenRule {
    /// Gradients of an aggregate.
    pub members: u32,
    /// Batches under way at a time.
    pub places: usize,
    /// What the gradient of a row is divided by.
    pub divisor: RowDivisor,
}

/// Serves `partition` until it is told to end. *Not collective; talks no MPI.*
pub fn serve(
    partition: &Partition,
    layout: &TableLayout,
    taking: &Taking,
    inbox: &Receiver<Errand>,
    router: &Router,
) {
    let (mut pushes, mut places, mut members) = (vec![], vec![], vec![]);
    let (mut intake, mut tokens, mut ranks) = (Intake::AtOnce, None, &[][..]);
    let mut sums = vec![];
    match taking {
        Taking::AtOnce => {}
        Taking::Lockstep(Contributors { workers, first_step, ranks: from }) => {
            pushes.resize_with(from.len(), || None);
            ranks = from;
            sums = vec![0.0; sums_len(*workers, layout.width)];
            intake = Intake::Lockstep(Lockstep::new(&mut pushes, *workers, *first_step));
        }
        Taking::Tokens(rule) => {
            places.resize_with(rule.places, Place::default);
            members.resize_with(rule.members as usize, || None);
            let it = Tokens::new(&mut places, &mut members, rule.divisor, 0);
            sums = vec![0.0; it.sums_len(layout.width)];
            tokens = Some(it);
        }
    }
    let mut service = Service {
        number: partition.number,
        table: partition.table(),
        layout,
        router,
        ranks,
        intake,
        tokens,
        rate: 0.0,
        held: VecDeque::new(),
        pool_scratch: PoolScratch::default(),
        entries: vec![],
        sums,
    };
    while let Ok(errand) = inbox.recv() {
        let done = match errand {
            Errand::Serve(bundle) => service.take(bundle),
            Errand::News(news) => service.hear(news),
            // Nobody waits any more where the receiver has gone.
            Errand::Settle(done) => {
                let _ = done.send(());
                Ok(())
            }
            Errand::End => return,
        };
        if let Err(refused) = done {
            panic!("partition {}: {refused}", partition.number);
        }
    }
}

/// What a partition can't do, by how it takes pushes.
#[derive(Debug, thiserror::Error)]
enum Defect {
    #[error(transparent)]
    Step(#[from] Refused),
    #[error(transparent)]
    Token(#[from] tokens::Refused),
    #[error("a batch that was handed out, or news of one, where none is")]
    NoTokens,
}

struct Service<'a> {
    number: u32,
    table: Table<'a>,
    layout: &'a TableLayout,
    router: &'a Router,
    /// Ranks of the contributors, in order.
    ranks: &'a [usize],
    intake: Intake<'a, Share>,
    /// Where batches are handed out.
    tokens: Option<Tokens<'a, Share>>,
    /// Learning rate of the last member.
    rate: f32,
    /// Lookups and pushes for later steps.
    held: VecDeque<Arc<Bundle>>,
    pool_scratch: PoolScratch,
    entries: Vec<Entry>,
    sums: Vec<f32>,
}

/// A push, as far as it is this partition's.
struct Share {
    bundle: Arc<Bundle>,
    /// Where gradients of pooled bags came: those of this partition's rows.
    of_rows: Option<Vec<u32>>,
    partition: u32,
    width: usize,
}

impl Share {
    fn words(&self) -> &[u32] {
        self.of_rows.as_ref().unwrap_or(&self.bundle.words)
    }

    fn sections(&self) -> impl Iterator<Item = Section<'_>> + Clone {
        let kind = self.of_rows.as_ref().map_or(self.bundle.header.kind, |_| Kind::Push);
        own_sections((self.words(), kind), self.partition, self.width)
    }

    /// Gives its buffers back.
    fn release(self, router: &Router) {
        router.release(self.into_bundle(router));
    }

    /// The request, without what was made of it.
    fn into_bundle(self, router: &Router) -> Arc<Bundle> {
        if let Some(words) = self.of_rows {
            router.pool.give(words);
        }
        self.bundle
    }
}

fn own_sections(
    (words, kind): (&[u32], Kind),
    partition: u32,
    width: usize,
) -> impl Iterator<Item = Section<'_>> + Clone {
    let all = sections(words, kind, width);
    all.filter(move |section| section.partition == partition)
}

impl Push for Share {
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        self.sections().map(|Section { worker, rate, rows, at, .. }| Part {
            worker,
            rate,
            rows,
            at: u32::try_from(at)
                .unwrap_or_else(|_| panic!("a push of more words than {}", u32::MAX)),
        })
    }

    fn gradient(&self, at: u32, width: usize) -> &[f32] {
        bytemuck::cast_slice(&self.words()[at as usize..][..width])
    }
}

impl Service<'_> {
    fn take(&mut self, bundle: Arc<Bundle>) -> Result<(), Defect> {
        let Header { kind, clock, .. } = bundle.header;
        match kind {
            Kind::Lookup | Kind::BagLookup if !self.intake.serves(clock) => {
                self.held.push_back(bundle);
            }
            Kind::Lookup | Kind::LookupNow | Kind::BagLookup | Kind::BagLookupNow => {
                self.look_up(bundle);
            }
            Kind::TokenLookup | Kind::TokenBagLookup => {
                let token = LookupToken::read(&bundle.words).ok_or(Defect::NoTokens)?;
                let tokens = self.tokens.as_ref().ok_or(Defect::NoTokens)?;
                if tokens.serves(token.version) {
                    self.look_up(bundle);
                } else {
                    self.held.push_back(bundle);
                }
            }
            Kind::Push | Kind::BagPush => return self.push(bundle),
            Kind::TokenPush | Kind::TokenBagPush => return self.push_token(bundle),
            Kind::Rows | Kind::Pooled | Kind::Ack => unreachable!("the router brings requests"),
        }
        Ok(())
    }

    /// A push of a batch that was handed out: kept until the dispatcher has counted it.
    fn push_token(&mut self, bundle: Arc<Bundle>) -> Result<(), Defect> {
        let token = PushToken::read(&bundle.words).ok_or(Defect::NoTokens)?;
        let share = self.share(&bundle);
        let tokens = self.tokens.as_mut().ok_or(Defect::NoTokens)?;
        match tokens.push(token.place as usize, token.batch, share)? {
            Came::Kept => {}
            Came::Twin(share) => share.release(self.router),
            Came::Early(share) => {
                self.held.push_back(share.into_bundle(self.router));
                return Ok(());
            }
        }
        self.router.finish(bundle, self.number, None);
        Ok(())
    }

    /// What the dispatcher says.
    fn hear(&mut self, news: News) -> Result<(), Defect> {
        let tokens = self.tokens.as_mut().ok_or(Defect::NoTokens)?;
        match news {
            News::Begin { version } => tokens.begin(version)?,
            News::Member(note) => {
                let member = member(note);
                let rate = tokens
                    .waiting(member.place)
                    .and_then(|share| PushToken::read(&share.bundle.words).map(|token| token.rate));
                match tokens.count(&member)? {
                    Some(dropped) => dropped.release(self.router),
                    None => self.rate = rate.unwrap_or(self.rate),
                }
                if let Some(aggregate) = member.completes {
                    self.apply_aggregate(&aggregate)?;
                }
            }
            News::Flush(aggregate) => self.apply_aggregate(&aggregate)?,
            News::End => return Ok(()),
        }
        // A place is free, or another version there.
        let held = core::mem::take(&mut self.held);
        held.into_iter().try_for_each(|bundle| self.take(bundle))
    }

    /// Applies the aggregate in hand.
    fn apply_aggregate(&mut self, aggregate: &Aggregate) -> Result<(), Defect> {
        let Self { tokens, rate, entries, sums, table, layout, router, .. } = self;
        let tokens = tokens.as_mut().ok_or(Defect::NoTokens)?;
        grow(entries, tokens.entries_len());
        let table = table.at(clock_of(aggregate.number), 0);
        tokens.sum(aggregate, layout.width, entries, sums, |row, gradient| {
            let index = core::iter::once(layout.partitioning.index(row) as usize);
            table.update(&layout.optimizer, *rate, index, gradient);
        })?;
        tokens.advance(|share| share.release(router));
        Ok(())
    }

    /// This partition's part of a push.
    fn share(&mut self, bundle: &Arc<Bundle>) -> Share {
        let pooling = self.router.pooling.as_ref().filter(|_| bundle.header.kind.is_bag_push());
        let of_rows = pooling.map(|pooling| {
            let words = self.router.pool.take();
            pooling.push_of(bundle, self.number, &mut self.pool_scratch, words)
        });
        let (partition, width) = (self.number, self.layout.width);
        Share { bundle: Arc::clone(bundle), of_rows, partition, width }
    }

    /// Finds the rows asked for, or adds them up.
    fn look_up(&mut self, bundle: Arc<Bundle>) {
        if let (Some(asked), Some(pooling)) = (&bundle.asked, &self.router.pooling) {
            let (own, words) = ((self.number, self.table), self.router.pool.take());
            let found = pooling.sums_of((&bundle, asked), own, &mut self.pool_scratch, words);
            let found = found.map_err(|unused| self.router.pool.give(unused)).ok();
            self.router.finish(bundle, self.number, found);
            return;
        }
        let kind = bundle.header.kind;
        let own = own_sections((&bundle.words, kind), self.number, self.layout.width);
        let count: usize = own.clone().map(|section| section.rows.len()).sum();
        let found = (count > 0).then(|| {
            let mut found = self.router.pool.take();
            // Whatever is in it is written over.
            found.resize(HEADER_LEN + count * self.layout.record().value_words(), 0);
            let values = bytemuck::cast_slice_mut(&mut found[HEADER_LEN..]);
            let partitioning = self.layout.partitioning;
            let index = move |row: &u32| partitioning.index(*row) as usize;
            let indices = own.flat_map(|section| section.rows.iter().map(index));
            self.table.as_stored().read(indices, values);
            found
        });
        self.router.finish(bundle, self.number, found);
    }

    fn push(&mut self, bundle: Arc<Bundle>) -> Result<(), Defect> {
        let (clock, from) = (bundle.header.clock, bundle.from);
        let contributor = self.ranks.iter().position(|rank| *rank == from);
        let share = self.share(&bundle);
        match self.intake.push(contributor.unwrap_or(self.ranks.len()), clock, share)? {
            Taken::Apply(share) => {
                self.apply(&share);
                share.release(self.router);
            }
            Taken::Kept => {}
            // The last answer says that the step is in: who saves the rows next waits for it.
            Taken::Complete => self.conclude()?,
            Taken::Early(share) => {
                self.held.push_back(share.into_bundle(self.router));
                return Ok(());
            }
        }
        self.router.finish(bundle, self.number, None);
        Ok(())
    }

    /// Applies a push as it is.
    fn apply(&mut self, share: &Share) {
        let clock = share.bundle.header.clock;
        for section in share.sections() {
            let Section { worker, rate, rows, at, .. } = section;
            let indices = rows.iter().map(|row| self.layout.partitioning.index(*row) as usize);
            let gradients = &share.words()[at..][..rows.len() * self.layout.width];
            let gradients = bytemuck::cast_slice(gradients);
            let table = self.table.at(clock, worker);
            table.update(&self.layout.optimizer, rate, indices, gradients);
        }
    }

    /// Applies the pushes of the step in hand, opens the next, and does what was held for it.
    fn conclude(&mut self) -> Result<(), Defect> {
        let Self { intake, entries, sums, table, layout, router, held, .. } = self;
        let Intake::Lockstep(lockstep) = intake else { return Ok(()) };
        grow(entries, lockstep.entries_len());
        let table = table.at(lockstep.step(), 0);
        lockstep.sum(layout.width, entries, sums, |row, rate, gradient| {
            let index = core::iter::once(layout.partitioning.index(row) as usize);
            table.update(&layout.optimizer, rate, index, gradient);
        })?;
        lockstep.advance(|share| share.release(router))?;
        let held = core::mem::take(held);
        held.into_iter().try_for_each(|bundle| self.take(bundle))
    }
}

/// What the rows of aggregate `number` are rounded by.
#[expect(clippy::cast_possible_truncation, reason = "another one after 2^32 of them will do")]
const fn clock_of(number: u64) -> u32 {
    number as u32
}

fn grow(entries: &mut Vec<Entry>, needed: usize) {
    if entries.len() < needed {
        entries.resize(needed, Entry::default());
    }
}
