//! The threads that serve embedding rows for the length of a run, and the workers' ways to them.

use core::sync::atomic::Ordering::Relaxed;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use crossbeam_channel::{Receiver, Sender, unbounded};
use umbra_core::compress::Coding;
use umbra_core::model::Model;

use crate::comm::watch::{Backoff, Lost, Waiting, Watch};
use crate::comm::{Comm, Mailbox};
use crate::launch::roles::Roles;
use crate::rows::bags::Pooled;
use crate::rows::client::Client;
use crate::rows::link::{Ending, carry};
use crate::rows::near::{Near, Reach};
use crate::rows::outbox::{Destination, Outbox};
use crate::rows::partition::{Contributors, Taking, TokenRule, serve};
use crate::rows::pooling::{PoolLedger, PoolRules, Pooling};
use crate::rows::router::{Counters, Errand, Pool, Router, Traffic};
use crate::rows::routes::Routes;
use crate::rows::tables::{Partition, TableLayout};

/// How this rank takes part in serving rows.
pub struct ServiceConfig<'a> {
    /// This process.
    pub rank: usize,
    /// Roles of all ranks.
    pub roles: &'a Roles,
    /// Layout of the tables.
    pub layout: &'a TableLayout,
    /// Workers per trainer.
    pub workers: usize,
    /// Pushes are collected from all workers and applied once per step.
    pub synchronous: bool,
    /// Batches are handed out, and their pushes applied as the dispatcher says.
    pub tokens: Option<TokenRule>,
    /// The first step that is trained.
    pub first_step: u32,
    /// Steps between lookup and taken push, at most.
    pub permits: usize,
    /// Workers share the one partition directly, without threads or messages.
    pub local: bool,
    /// Bags are pooled by those who hold their rows, and this of the vectors is sent; `None`: by
    /// workers.
    pub pooled: Option<Coding>,
    /// How far workers reach for rows themselves: nowhere, unless pushes are applied as they come
    /// and rows travel.
    pub reach: Reach<'a>,
    /// Deadlines.
    pub watch: &'a Arc<Watch>,
}

/// Why rows can't be served.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// No more memory or threads.
    #[error(transparent)]
    Resources(#[from] io::Error),
    /// Not all ranks came.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Workers are numbered over all trainers, and one number stands for all of them.
    #[error("{workers} workers over all trainers; fewer than {} can be numbered", u32::MAX)]
    Workers {
        /// How many there are.
        workers: usize,
    },
}

/// The serving threads of this rank.
pub struct Services {
    /// The records this rank holds.
    pub partitions: Vec<Partition>,
    /// The way of messages; `None` where workers share the tables.
    router: Option<Arc<Router>>,
    /// The ways in to the partitions' threads.
    requests: Vec<Sender<Errand>>,
    threads: Vec<JoinHandle<()>>,
    links: Vec<JoinHandle<()>>,
    ending: Arc<Ending>,
    counters: Arc<Counters>,
}

impl Services {
    /// Makes this rank's partitions, if they are not there `before`, and starts their threads;
    /// returns a client per worker. `links` are the embedding communicators, none on one rank.
    /// *Collective where workers reach for the rows of their node, main thread only.*
    ///
    /// # Errors
    /// When the system gives no more memory or threads, there are too many workers, or not all
    /// ranks come.
    pub fn start(
        config: &ServiceConfig<'_>,
        model: &Model,
        seed: u64,
        links: Vec<Comm>,
        before: Option<Vec<Partition>>,
    ) -> Result<(Self, Vec<Client>), ServiceError> {
        let ServiceConfig { rank, roles, layout, workers, .. } = *config;
        let initial = || {
            let own = roles.partitions_of(rank);
            own.map(|number| Partition::initialized(number, layout, model, seed)).collect()
        };
        let mut partitions = before.map_or_else(initial, io::Result::Ok)?;
        if let Reach::Node(..) = config.reach {
            partitions = partitions.into_iter().map(Partition::to_lend).collect();
        }
        let near = Near::find(config.reach, (layout, seed), &partitions)?;
        let mut services = Self {
            partitions,
            router: None,
            requests: vec![],
            threads: vec![],
            links: vec![],
            ending: Arc::default(),
            counters: Arc::default(),
        };
        let trainers: Vec<usize> = roles.trainers.ranks().to_vec();
        let trainer = roles.trainers.number_of(rank);
        let here = if trainer.is_some() { workers } else { 0 };
        if config.local {
            let own = &services.partitions[0];
            let of = |worker| (worker, model.pooling());
            let client = |worker| Client::local(layout.clone(), own.clone(), of(worker));
            let clients = (0..).take(here).map(client).collect();
            return Ok((services, clients));
        }
        let all = workers * trainers.len();
        let too_many = || ServiceError::Workers { workers: all };
        let number = |worker: usize| {
            let number = u32::try_from(worker).ok().filter(|worker| *worker < u32::MAX);
            number.ok_or_else(too_many)
        };
        let all_workers = number(all)?;
        let first_worker = number(trainer.unwrap_or(0) * workers)?;
        let (answers_in, answers): (Vec<_>, Vec<_>) = (0..here).map(|_| unbounded()).unzip();
        let (links_in, links_out): (Vec<_>, Vec<_>) = links.iter().map(|_| unbounded()).unzip();
        let numbers = services.partitions.iter().map(|partition| partition.number);
        let (partitions_in, inboxes): (Vec<_>, Vec<_>) = numbers
            .map(|number| {
                let (requests, inbox) = unbounded();
                ((number, requests), inbox)
            })
            .unzip();
        services.requests = partitions_in.iter().map(|(_, requests)| requests.clone()).collect();
        let destinations = destinations(roles);
        // A lookup, a push and what partitions find, on the way to and from every rank.
        let buffers = 4 * destinations.len().max(trainers.len()) * config.permits;
        let router = Arc::new(Router {
            rank,
            width: layout.width,
            value_words: layout.record().value_words(),
            row_ends: partitions_in.iter().map(|it| layout.row_end_of(it.0)).collect(),
            partitions: partitions_in,
            workers: answers_in,
            first_worker,
            links: links_in,
            pool: Pool::new(buffers + 2 * inboxes.len()),
            pooling: config
                .pooled
                .map(|coding| Pooling::new(PoolRules::new(layout, model, coding), rank)),
        });
        let first_step = config.first_step;
        let contributors = Contributors { ranks: trainers, workers: all_workers, first_step };
        let taking = match config.tokens {
            Some(rule) => Taking::Tokens(rule),
            None if config.synchronous => Taking::Lockstep(contributors),
            None => Taking::AtOnce,
        };
        services.start_partitions(layout, &taking, inboxes, &router)?;
        services.router = Some(Arc::clone(&router));
        services.start_links(links, links_out, &router)?;
        let joint = config.synchronous.then_some(workers);
        let outbox = Arc::new(Outbox::new(router, destinations, joint));
        let clients =
            (first_worker..).zip(answers).enumerate().map(|(local, (worker, answers))| {
                let numbers = (worker, local);
                let pooled = config
                    .pooled
                    .map(|coding| Pooled::new(model.pooling(), coding.values, &outbox));
                let permits = config.permits;
                let routes = Routes::new(numbers, &outbox, answers, permits, config.watch);
                Client::routed(layout.clone(), routes.pooled(pooled).beside(near.clone()))
            });
        let clients = clients.collect();
        Ok((services, clients))
    }

    /// One thread per partition of this rank.
    fn start_partitions(
        &mut self,
        layout: &TableLayout,
        taking: &Taking,
        inboxes: Vec<Receiver<Errand>>,
        router: &Arc<Router>,
    ) -> io::Result<()> {
        for (partition, inbox) in self.partitions.iter().zip(inboxes) {
            let (partition, layout) = (partition.clone(), layout.clone());
            let (taking, router) = (taking.clone(), Arc::clone(router));
            let name = format!("partition-{}", partition.number);
            self.threads.push(Builder::new().name(name).spawn(move || {
                serve(&partition, &layout, &taking, &inbox, &router);
            })?);
        }
        Ok(())
    }

    /// One thread per embedding communicator.
    fn start_links(
        &mut self,
        comms: Vec<Comm>,
        outgoing: Vec<Receiver<(usize, Vec<u32>)>>,
        router: &Arc<Router>,
    ) -> io::Result<()> {
        for (number, (comm, outgoing)) in comms.into_iter().zip(outgoing).enumerate() {
            let (ending, counters) = (Arc::clone(&self.ending), Arc::clone(&self.counters));
            let router = Arc::clone(router);
            let name = format!("embedding-link-{number}");
            self.links.push(Builder::new().name(name).spawn(move || {
                carry(Mailbox::new(comm), &outgoing, &router, &ending, &counters);
            })?);
        }
        Ok(())
    }

    /// Who tells the partitions of this rank what the dispatcher says.
    #[must_use]
    pub fn router(&self) -> Option<&Arc<Router>> {
        self.router.as_ref()
    }

    /// Messages and bytes that this rank's links have carried so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.counters.read()
    }

    /// What bags that are pooled here have come to so far.
    #[must_use]
    pub fn pooled(&self) -> PoolLedger {
        let pooling = self.router.as_ref().and_then(|router| router.pooling.as_ref());
        pooling.map(Pooling::ledger).unwrap_or_default()
    }

    /// Sends nothing more and waits until what was sent has been taken. Every client of every rank
    /// must have been dropped, and the ranks have met.
    ///
    /// # Errors
    /// When a message was not taken in time.
    pub fn quiesce(&self, watch: &Watch) -> Result<(), Lost> {
        self.ending.quiet.store(true, Relaxed);
        let (mut waiting, mut backoff) = (Waiting::default(), Backoff::default());
        while self.ending.drained.load(Relaxed) < self.links.len() {
            waiting.check(watch, &"embedding messages to be taken")?;
            backoff.wait();
        }
        Ok(())
    }

    /// Ends the threads; returns the records. Every rank's services must be quiet, and the ranks
    /// have met.
    pub fn finish(mut self) -> Vec<Partition> {
        self.ending.stop.store(true, Relaxed);
        // Links bring requests: they go first.
        self.links.drain(..).for_each(join);
        self.requests.drain(..).for_each(|requests| drop(requests.send(Errand::End)));
        self.threads.drain(..).for_each(join);
        self.partitions
    }

    /// As [`finish`](Self::finish), when a rank is lost: of what was under way, what is here is
    /// done, and nothing else.
    pub fn abandon(mut self) -> Vec<Partition> {
        self.ending.stop.store(true, Relaxed);
        let end = |threads: &mut Vec<JoinHandle<()>>| {
            // Some were left by unwinding.
            threads.drain(..).for_each(|thread| drop(thread.join()));
        };
        end(&mut self.links);
        self.requests.drain(..).for_each(|requests| drop(requests.send(Errand::End)));
        end(&mut self.threads);
        self.partitions
    }
}

/// The ranks that hold rows, ascending, with their partitions.
fn destinations(roles: &Roles) -> Vec<Destination> {
    let mut held = std::collections::BTreeMap::<usize, Vec<u32>>::new();
    for partition in 0..roles.partitions {
        held.entry(roles.rank_of(partition)).or_default().push(partition);
    }
    held.into_iter().map(|(rank, partitions)| Destination::new(rank, partitions)).collect()
}

/// A thread that panicked has ended the job already.
fn join(thread: JoinHandle<()>) {
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
