//! The world of ranks: start, the communicators in their fixed order, the end.
//!
//! MPI 3.1 chapters 6 and 8. Every communicator is made here, on the main thread, in one order:
//! control, heartbeat, dense (trainers), embedding, the method's. Each is used by one thread.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use mpi::environment::Universe;
use mpi::traits::Communicator;

use crate::comm::guard::ThreadLevel;
use crate::comm::library;
use crate::comm::watch::{Lost, Watch};
use crate::comm::{self, Alarm, Comm, Everyone};
use crate::error::Error;
use crate::launch::environment::{self, Cores};

/// What the launch gives the busiest node, and which rank is where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Most ranks on any node.
    pub ranks: usize,
    /// Fewest cores that the ranks of a node may use between them.
    pub cores: usize,
    /// A number for the node of every rank. `[ranks]`
    pub node_of: Vec<usize>,
    /// Hosts in the order of their first ranks, and how many ranks each has.
    pub hosts: Vec<(String, usize)>,
}

/// This process among the ranks. Dropped last: it finalises MPI.
pub struct World {
    /// This process's rank.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// Name of the machine.
    pub host: String,
    /// What this process's threads may do.
    pub threads: ThreadLevel,
    /// Deadlines of this rank.
    watch: Arc<Watch>,
    everyone: Everyone,
    /// Its end is MPI's; `None` of those that are left after a loss.
    universe: Option<Universe>,
}

impl World {
    /// Starts MPI at the best thread level there is, or the one that `UMBRA_MPI_THREADS` names.
    /// From now on waits take `limit` at most; a start or an end of MPI that takes longer ends the
    /// process. *Collective over all processes, main thread only.*
    ///
    /// # Errors
    /// When MPI was started before, or its library does not support threads.
    pub fn init(limit: Duration) -> Result<Self, Error> {
        let named = std::env::var(ThreadLevel::VARIABLE).ok();
        // The command line refuses a name that is no level.
        let wanted = named.and_then(|name| name.parse().ok());
        let asked = ThreadLevel::to_ask(wanted);
        let env = |name: &str| std::env::var(name).ok();
        let launched = environment::launched_processes(&env);
        let (rank, host) = (environment::launched_rank(&env).unwrap_or(0), environment::host());
        let starting = Arc::new(Watch::new(limit, prefix(rank, launched, &host)));
        let alarm = Alarm::set(&starting, format!("MPI_Init_thread of {launched} ranks"));
        let Some((mut universe, provided)) = mpi::initialize_with_threading(asked) else {
            return Err(Error::Launch("MPI was started twice in this process".into()));
        };
        let Some(threads) = ThreadLevel::of(wanted, provided) else {
            let needed = wanted.unwrap_or(ThreadLevel::Serialized);
            return Err(Error::Launch(format!(
                "this MPI library gives thread level {provided:?}; umbra needs {needed:?} \
                 ({needed}) at least: use an MPI built with thread support"
            )));
        };
        drop(alarm);
        threads.keep();
        universe.set_buffer_size(0);
        let world = universe.world();
        let number = |n: i32| usize::try_from(n).unwrap_or(0);
        let (rank, size) = (number(world.rank()), number(world.size()));
        let host = mpi::environment::processor_name().unwrap_or(host);
        let watch = Arc::new(Watch::new(limit, prefix(rank, size, &host)));
        let everyone = Everyone::at_first();
        Ok(Self { rank, size, host, threads, watch, everyone, universe: Some(universe) })
    }

    /// "[rank/size host]"
    #[must_use]
    pub fn prefix(&self) -> &str {
        self.watch.prefix()
    }

    /// The deadline keeper of this rank.
    #[must_use]
    pub const fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// A communicator over all ranks. *Collective, main thread only, in one order on all ranks.*
    ///
    /// # Errors
    /// When not all ranks come.
    pub fn communicator(&self, watch: &Arc<Watch>) -> Result<Comm, Lost> {
        self.everyone.communicator(Arc::clone(watch))
    }

    /// The ranks that are left after a loss, and who of the old ones each of them was. The next
    /// epoch begins. *Collective over those left, main thread only; all other threads that used MPI
    /// have ended, and this world is of no more use.*
    ///
    /// # Errors
    /// When those left can't be found, or one more is lost meanwhile.
    pub fn left(&self) -> Result<(Self, Comm, Vec<usize>), Error> {
        let everyone = self.everyone.left(&self.watch).ok_or_else(|| {
            Error::Failure("the MPI library can't say which ranks are left".to_owned())
        })?;
        let (rank, size) = everyone.place(&self.watch);
        let limit = self.watch.limit();
        let watch = Arc::new(Watch::new(limit, prefix(rank, size, &self.host)));
        let control = everyone.communicator(Arc::clone(&watch))?;
        let before = control.all_gather_varied(&[self.rank as u64], "the ranks that are left")?;
        let before = before.into_iter().flatten();
        let before = before.map(|rank| usize::try_from(rank).unwrap_or(usize::MAX)).collect();
        let (host, threads) = (self.host.clone(), self.threads);
        Ok((Self { rank, size, host, threads, watch, everyone, universe: None }, control, before))
    }

    /// Name and version of the MPI library.
    #[must_use]
    pub fn library(&self) -> String {
        library::running()
    }

    /// The most crowded node, most ranks and fewest cores, and where ranks are. *Collective.*
    ///
    /// # Errors
    /// When not all ranks come.
    pub fn node_facts(&self, control: &Comm, cores: &Cores) -> Result<NodeFacts, Lost> {
        let own = format!("{}\n{cores}", self.host);
        let all = control.all_gather_varied(own.as_bytes(), "hosts and cores")?;
        let mut nodes: BTreeMap<String, (usize, Cores)> = BTreeMap::new();
        let mut first = BTreeMap::new();
        let (mut node_of, mut hosts) = (vec![], Vec::<(String, usize)>::new());
        for rank in &all {
            let text = String::from_utf8_lossy(rank);
            let (host, list) = text.split_once('\n').unwrap_or((&text, ""));
            match hosts.iter_mut().find(|(known, _)| known == host) {
                Some((_, ranks)) => *ranks += 1,
                None => hosts.push((host.to_owned(), 1)),
            }
            node_of.push(*first.entry(host.to_owned()).or_insert(node_of.len()));
            let node = nodes.entry(host.to_owned()).or_default();
            node.0 += 1;
            node.1.join(&Cores::parse(list));
        }
        Ok(NodeFacts {
            ranks: nodes.values().map(|node| node.0).max().unwrap_or(1),
            cores: nodes.values().map(|node| node.1.count()).min().unwrap_or(1),
            node_of,
            hosts,
        })
    }

    /// Ends the job on every rank. *Not collective.*
    pub fn abort(&self, code: u8) -> ! {
        comm::abort(i32::from(code))
    }
}

impl Drop for World {
    /// Finalising waits for all ranks.
    fn drop(&mut self) {
        if self.universe.is_none() {
            return;
        }
        let _alarm = Alarm::set(&self.watch, format!("MPI_Finalize of {} ranks", self.size));
        drop(self.universe.take());
    }
}

fn prefix(rank: usize, size: usize, host: &str) -> String {
    format!("[{rank}/{size} {host}]")
}
