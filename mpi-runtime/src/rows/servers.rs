//! The threads that serve embedding rows for the length of a run, and the workers' ways to them.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use crossbeam_channel::{Receiver, Sender, unbounded};
use umbra_core::model::Model;

use crate::comm::watch::{Backoff, Waiting, Watch};
use crate::comm::{Comm, Mailbox};
use crate::launch::roles::Roles;
use crate::rows::client::{Client, Route, Routes};
use crate::rows::link::{Ending, Inlets, carry};
use crate::rows::partition::{Outlets, Request, serve};
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
    /// Steps between lookup and taken push, at most.
    pub permits: usize,
    /// Workers share the one partition directly, without threads or messages.
    pub local: bool,
    /// Deadlines.
    pub watch: &'a Arc<Watch>,
}

/// The serving threads of this rank.
pub struct Services {
    /// The records this rank holds.
    pub partitions: Vec<Partition>,
    threads: Vec<JoinHandle<()>>,
    link: Option<JoinHandle<()>>,
    ending: Arc<Ending>,
    bytes_sent: Arc<AtomicU64>,
    /// Kept until the end, so that partitions serve until then.
    requests: Vec<Sender<Request>>,
}

impl Services {
    /// Makes this rank's partitions and starts their threads; returns a client per worker.
    /// `comm` is the embedding communicator, `None` on one rank. *Not collective.*
    ///
    /// # Errors
    /// When the system gives no more memory or threads.
    pub fn start(
        config: &ServiceConfig<'_>,
        model: &Model,
        seed: u64,
        comm: Option<Comm>,
    ) -> io::Result<(Self, Vec<Client>)> {
        let ServiceConfig { rank, roles, layout, .. } = *config;
        let partitions: Vec<Partition> = roles
            .partitions_of(rank)
            .map(|number| Partition::initialized(number, layout, model, seed))
            .collect::<io::Result<_>>()?;
        let mut services = Self {
            partitions,
            threads: vec![],
            link: None,
            ending: Arc::default(),
            bytes_sent: Arc::default(),
            requests: vec![],
        };
        let workers = if roles.trainers.contains(rank) { config.workers } else { 0 };
        if config.local {
            let client = || Client::local(layout.clone(), services.partitions[0].clone());
            let clients = (0..workers).map(|_| client()).collect();
            return Ok((services, clients));
        }
        let (answer_in, answer_out): (Vec<_>, Vec<_>) =
            (0..workers).map(|_| unbounded::<Vec<u32>>()).unzip();
        let (link_in, link_out) = unbounded();
        let link_in = comm.as_ref().map(|_| link_in);
        let outlets = Outlets { workers: answer_in.clone(), link: link_in.clone() };
        let here = services.start_partitions(config, &outlets)?;
        if let Some(comm) = comm {
            let first_worker = roles.trainers.number_of(rank).unwrap_or(0) * config.workers;
            let inlets = Inlets { partitions: here.clone(), workers: answer_in, first_worker };
            services.start_link(comm, link_out, inlets)?;
        }
        let routes: Vec<Route> = (0u32..)
            .zip(here)
            .map(|(number, here)| here.map_or(Route::There(roles.rank_of(number)), Route::Here))
            .collect();
        let client = |(local, answers)| {
            let number = roles.trainers.number_of(rank).unwrap_or(0);
            let worker = number * config.workers + local;
            let routes = Routes {
                worker: u32::try_from(worker).unwrap_or(u32::MAX),
                local,
                partitions: routes.clone(),
                link: link_in.clone(),
                answers,
                synchronous: config.synchronous,
                permits: config.permits,
                watch: Arc::clone(config.watch),
                untaken: std::collections::VecDeque::new(),
                buffers: vec![],
            };
            Client::routed(layout.clone(), routes)
        };
        let clients = answer_out.into_iter().enumerate().map(client).collect();
        Ok((services, clients))
    }

    /// One thread per partition of this rank. Returns the ways in, by partition of all ranks.
    fn start_partitions(
        &mut self,
        config: &ServiceConfig<'_>,
        outlets: &Outlets,
    ) -> io::Result<Vec<Option<Sender<Request>>>> {
        let contributors = config.roles.trainers.len() * config.workers;
        let contributors = config.synchronous.then_some(contributors);
        let mut here = vec![None; config.roles.partitions as usize];
        for partition in &self.partitions {
            let (requests, inbox): (_, Receiver<Request>) = unbounded();
            here[partition.number as usize] = Some(requests.clone());
            self.requests.push(requests);
            let (partition, layout, outlets) =
                (partition.clone(), config.layout.clone(), outlets.clone());
            let name = format!("partition-{}", partition.number);
            self.threads.push(Builder::new().name(name).spawn(move || {
                serve(&partition, &layout, contributors, &inbox, &outlets);
            })?);
        }
        Ok(here)
    }

    fn start_link(
        &mut self,
        comm: Comm,
        outgoing: Receiver<(usize, Vec<u32>)>,
        inlets: Inlets,
    ) -> io::Result<()> {
        let (ending, bytes) = (Arc::clone(&self.ending), Arc::clone(&self.bytes_sent));
        self.link = Some(Builder::new().name("embedding-link".into()).spawn(move || {
            carry(Mailbox::new(comm), &outgoing, &inlets, &ending, &bytes);
        })?);
        Ok(())
    }

    /// Bytes of embedding messages that this rank has sent to others.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        self.bytes_sent.load(Relaxed)
    }

    /// Sends nothing more and waits until what was sent has been taken. Every client of every rank
    /// must have been dropped, and the ranks have met.
    pub fn quiesce(&self, watch: &Watch) {
        self.ending.quiet.store(true, Relaxed);
        let (mut waiting, mut backoff) = (Waiting::default(), Backoff::default());
        while self.link.is_some() && !self.ending.drained.load(Relaxed) {
            watch.or_end(waiting.check(watch, &"embedding messages to be taken"));
            backoff.wait();
        }
    }

    /// Ends the threads. Every rank's services must be quiet, and the ranks have met.
    pub fn finish(mut self) {
        self.ending.stop.store(true, Relaxed);
        // The link holds ways in to the partitions: it goes first.
        if let Some(link) = self.link.take() {
            join(link);
        }
        self.requests.clear();
        self.threads.drain(..).for_each(join);
    }
}

/// A thread that panicked has ended the job already.
fn join(thread: JoinHandle<()>) {
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
