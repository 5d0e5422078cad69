//! `umbra doctor`: is this machine, this MPI and this launch fit to train? With cures.
//!
//! `doctor/node.rs` what a rank sees of its node · `doctor/network.rs` messages and sums, measured
//! · `doctor/findings.rs` what that means, and what to do about it.

mod findings;
mod network;
mod node;

use core::time::Duration;

use umbra_core::kernel;

use self::findings::{Finding, Launch, of_launch, of_network, of_nodes};
use self::node::Node;
use crate::comm::{Comm, loss};
use crate::error::Error;
use crate::launch::environment;
use crate::launch::world::World;
use crate::record::build_hash;
use crate::run::sameness;

/// Longest wait for another rank: nothing here takes long.
const LIMIT: Duration = Duration::from_secs(60);

/// Looks, and prints on rank 0. *Collective over `control`.*
///
/// # Errors
/// A launch that is not what it seems, ranks that are different programs, and a rank that does not
/// answer.
pub(super) fn run(world: &World, control: &Comm) -> Result<(), Error> {
    world.watch().set_limit(LIMIT);
    let env = |name: &str| std::env::var(name).ok();
    let launch = environment::check(&env, world.rank, world.size);
    let builds = sameness::programs(world, control)?;
    // Other programs have other things to say.
    let (nodes, network) = if builds.is_none() {
        let own = serde_json::to_string(&Node::look(&world.host));
        let own = own.map_err(|error| Error::Failure(format!("findings as JSON: {error}")))?;
        let said = control.all_gather_varied(own.as_bytes(), "nodes of all ranks")?;
        let nodes: Vec<Node> =
            said.iter().filter_map(|text| serde_json::from_slice(text).ok()).collect();
        let hosts: Vec<String> = nodes.iter().map(|node| node.host.clone()).collect();
        let network = if world.size > 1 {
            let comm = world.communicator(world.watch())?;
            Some(network::measure(comm, &network::partners(&hosts))?)
        } else {
            None
        };
        (nodes, network)
    } else {
        (vec![], None)
    };
    // Wrongly started processes are each alone and would all speak.
    if environment::launched_rank(&env).unwrap_or(world.rank) == 0 {
        let about = Launch {
            version: format!("{} ({})", env!("CARGO_PKG_VERSION"), build_hash()),
            library: world.library(),
            threads: world.threads,
            survives: loss::is_survivable(),
            ranks: world.size,
            error: launch.as_ref().err().map(ToString::to_string),
            builds: builds.as_ref().map(ToString::to_string),
            simd: kernel::selected(),
            hdf5: hdf5::library_version(),
            deflate: hdf5::filters::deflate_available(),
        };
        let yields = env("OMPI_MCA_mpi_yield_when_idle").is_some_and(|value| value == "1");
        let mut found = of_launch(&about);
        found.extend(of_nodes(&nodes, yields));
        found.extend(network.iter().flat_map(|network| of_network(network, &nodes)));
        print(&found);
    }
    if launch.is_err() || builds.is_some() {
        return Err(Error::Elsewhere { rank: 0, code: 5 });
    }
    Ok(())
}

fn print(found: &[Finding]) {
    use std::io::Write;
    let text: String = found.iter().map(ToString::to_string).collect();
    // A closed stdout is no failure.
    let _ = write!(std::io::stdout().lock(), "{text}");
}
