//! A parameter server as data, and who builds its protocols.

use super::super::instances::Instances;
use super::super::method::{Algorithm, Machine, Method};
use super::super::token::Rule;
use super::{ServerWorker, Updates};

/// A parameter server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Serving {
    /// Which gradients are applied together, and when workers get their next batch.
    pub rule: Rule,
    /// Servers, each with a slice of the replica; 0 is 1.
    pub servers: usize,
    /// How they follow a gradient.
    pub updates: Updates,
    /// Steps that the data of a worker may be ahead of another's.
    pub window: u64,
    /// Ranks that hold rows, each with a relay.
    pub relays: usize,
    /// Streams of data: batches of a step.
    pub streams: usize,
}

impl Serving {
    /// Servers.
    #[must_use]
    pub const fn servers(&self) -> usize {
        if self.servers > 0 { self.servers } else { 1 }
    }

    /// Batches under way at a time, when so many workers train: each has one.
    #[must_use]
    pub const fn places(&self, workers: usize) -> usize {
        workers
    }
}

impl Method<'_> {
    /// Its parameter server, if it has one.
    #[must_use]
    pub const fn serving(&self) -> Option<Serving> {
        match self.algorithm {
            Algorithm::Server(serving) => Some(serving),
            _ => None,
        }
    }

    /// The protocol of a worker of a parameter server, over `staging: [replica + TAIL]`; `None`
    /// where a method has none.
    #[must_use]
    pub fn worker<'m>(&self, staging: &'m mut [f32], all: Instances) -> Option<Machine<'m>> {
        let servers = self.serving()?.servers();
        let servers = all.center(0)..all.center(servers);
        Some(Machine::Worker(ServerWorker::new(staging, servers, self.dispatcher(all))))
    }

    /// Ranks that hold rows and have a relay.
    #[must_use]
    pub const fn relays(&self) -> usize {
        match self.algorithm {
            Algorithm::Server(serving) => serving.relays,
            _ => 0,
        }
    }

    /// The instance that hands out batches, where one does: the last.
    #[must_use]
    pub const fn dispatcher(&self, all: Instances) -> usize {
        all.center(self.slices() + self.relays())
    }
}
