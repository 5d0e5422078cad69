//! The embedding PS: one thread owns one partition of rows.
//!
//! Only the owner writes to its rows, so there are no locks. When pushes are applied and lookups
//! answered is the intake's affair (`umbra_core::rows::intake`); the thread moves messages and
//! calls the table.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use umbra_core::rows::intake::{Intake, Lockstep, Part, Push, Refused, Taken};
use umbra_core::rows::row_sums::{Entry, sums_len};
use umbra_core::sparse::Table;

use crate::rows::router::{Bundle, Errand, Router};
use crate::rows::tables::{Partition, TableLayout};
use crate::rows::wire::{HEADER_LEN, Header, Kind, Section, sections};

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

/// Serves `partition` until it is told to end. With `contributors`, pushes are taken in lockstep.
/// *Not collective; talks no MPI.*
pub fn serve(
    partition: &Partition,
    layout: &TableLayout,
    contributors: Option<&Contributors>,
    inbox: &Receiver<Errand>,
    router: &Router,
) {
    let ranks = contributors.map_or(&[][..], |contributors| &contributors.ranks);
    let mut pushes: Vec<Option<Share>> = ranks.iter().map(|_| None).collect();
    let (intake, sums) = match contributors {
        None => (Intake::AtOnce, vec![]),
        Some(Contributors { workers, first_step, .. }) => {
            let sums = vec![0.0; sums_len(*workers, layout.width)];
            (Intake::Lockstep(Lockstep::new(&mut pushes, *workers, *first_step)), sums)
        }
    };
    let mut service = Service {
        number: partition.number,
        table: partition.table(),
        layout,
        router,
        ranks,
        intake,
        held: VecDeque::new(),
        scratch: vec![0.0; layout.record_len()],
        entries: vec![],
        sums,
    };
    while let Ok(Errand::Serve(bundle)) = inbox.recv() {
        if let Err(refused) = service.take(bundle) {
            panic!("partition {}: {refused}", partition.number);
        }
    }
}

struct Service<'a> {
    number: u32,
    table: Table<'a>,
    layout: &'a TableLayout,
    router: &'a Router,
    /// Ranks of the contributors, in order.
    ranks: &'a [usize],
    intake: Intake<'a, Share>,
    /// Lookups and pushes for later steps.
    held: VecDeque<Arc<Bundle>>,
    scratch: Vec<f32>,
    entries: Vec<Entry>,
    sums: Vec<f32>,
}

/// A push, as far as it is this partition's.
struct Share {
    bundle: Arc<Bundle>,
    partition: u32,
    width: usize,
}

impl Share {
    fn sections(&self) -> impl Iterator<Item = Section<'_>> + Clone {
        own_sections(&self.bundle, self.partition, self.width)
    }
}

fn own_sections(
    bundle: &Bundle,
    partition: u32,
    width: usize,
) -> impl Iterator<Item = Section<'_>> + Clone {
    let all = sections(&bundle.words, bundle.header.kind, width);
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
        bytemuck::cast_slice(&self.bundle.words[at as usize..][..width])
    }
}

impl Service<'_> {
    fn take(&mut self, bundle: Arc<Bundle>) -> Result<(), Refused> {
        let Header { kind, clock, .. } = bundle.header;
        match kind {
            Kind::Lookup if !self.intake.serves(clock) => self.held.push_back(bundle),
            Kind::Lookup | Kind::LookupNow => self.look_up(bundle),
            Kind::Push => return self.push(bundle),
            Kind::Rows | Kind::Ack => unreachable!("the router brings requests"),
        }
        Ok(())
    }

    /// Finds the rows asked for.
    fn look_up(&mut self, bundle: Arc<Bundle>) {
        let width = self.layout.width;
        let own = own_sections(&bundle, self.number, width);
        let count: usize = own.clone().map(|section| section.rows.len()).sum();
        let found = (count > 0).then(|| {
            let mut found = self.router.pool.take();
            found.clear();
            found.resize(HEADER_LEN + count * width, 0);
            let values = bytemuck::cast_slice_mut(&mut found[HEADER_LEN..]);
            let partitioning = self.layout.partitioning;
            let index = move |row: &u32| partitioning.index(*row) as usize;
            self.table.read(own.flat_map(|section| section.rows.iter().map(index)), values);
            found
        });
        self.router.finish(bundle, self.number, found);
    }

    fn push(&mut self, bundle: Arc<Bundle>) -> Result<(), Refused> {
        let (clock, from) = (bundle.header.clock, bundle.from);
        let contributor = self.ranks.iter().position(|rank| *rank == from);
        let share =
            Share { bundle: Arc::clone(&bundle), partition: self.number, width: self.layout.width };
        match self.intake.push(contributor.unwrap_or(self.ranks.len()), clock, share)? {
            Taken::Apply(share) => self.apply(&share),
            Taken::Kept => {}
            // The last answer says that the step is in: who saves the rows next waits for it.
            Taken::Complete => self.conclude()?,
            Taken::Early(share) => {
                self.held.push_back(share.bundle);
                return Ok(());
            }
        }
        self.router.finish(bundle, self.number, None);
        Ok(())
    }

    /// Applies a push as it is.
    fn apply(&mut self, share: &Share) {
        for section in share.sections() {
            let Section { rate, rows, at, .. } = section;
            let indices = rows.iter().map(|row| self.layout.partitioning.index(*row) as usize);
            let gradients = &share.bundle.words[at..][..rows.len() * self.layout.width];
            let gradients = bytemuck::cast_slice(gradients);
            let (optimizer, scratch) = (&self.layout.optimizer, &mut self.scratch);
            self.table.update(optimizer, rate, indices, gradients, scratch);
        }
    }

    /// Applies the pushes of the step in hand, opens the next, and does what was held for it.
    fn conclude(&mut self) -> Result<(), Refused> {
        let Self { intake, entries, sums, scratch, table, layout, router, held, .. } = self;
        let Intake::Lockstep(lockstep) = intake else { return Ok(()) };
        let needed = lockstep.entries_len();
        if entries.len() < needed {
            entries.resize(needed, Entry::default());
        }
        lockstep.sum(layout.width, entries, sums, |row, rate, gradient| {
            let index = core::iter::once(layout.partitioning.index(row) as usize);
            table.update(&layout.optimizer, rate, index, gradient, scratch);
        })?;
        lockstep.advance(|share| router.release(share.bundle))?;
        let held = core::mem::take(held);
        held.into_iter().try_for_each(|bundle| self.take(bundle))
    }
}
