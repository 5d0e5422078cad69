//! What several ranks must agree on, checked by the ranks themselves: `tests/mpi.rs` runs this
//! under mpirun.
//!
//! `mpi_checks` prints "ok NAME" from rank 0 for every check that held on all ranks; a check that
//! does not hold panics, which ends the job with exit code 1. `mpi_checks NAME…` makes these checks
//! alone; `mpi_checks panic` panics on the last rank while the others wait for it.
//!
//! The level of thread support is that of `UMBRA_MPI_THREADS`, as in the program.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod calls;
mod checkpoints;
mod coded;
mod collectives;
mod driver;
mod mailbox;
mod memory;
mod parts;
mod post;
mod row_saves;
mod rows;
mod scores;
mod sections;

use core::time::Duration;
use std::sync::Arc;

use umbra_mpi::comm::watch::Watch;
use umbra_mpi::comm::{self, Comm};
use umbra_mpi::launch::signals::install_panic_hook;
use umbra_mpi::launch::world::World;

/// A check; collective over all ranks. Communicators are made by the check, on the main thread.
type Check = fn(&World, &Arc<Watch>, &Comm);

const CHECKS: [(&str, Check); 39] = [
    ("all_gather", collectives::all_gather),
    ("all_gather_varied", collectives::all_gather_varied),
    ("exchange", collectives::exchange),
    ("all_to_all_varied", collectives::all_to_all_varied),
    ("all_gather_stretches", collectives::all_gather_stretches),
    ("barrier", collectives::barrier),
    ("subset", collectives::subset),
    ("reduce", collectives::reduce),
    ("combined", collectives::combined),
    ("lost", collectives::lost),
    ("traffic", collectives::traffic),
    ("mailbox_ring", mailbox::ring),
    ("mailbox_storm", mailbox::storm),
    ("large_messages", mailbox::large_messages),
    ("receive_does_not_block", mailbox::receive_does_not_block),
    ("nobody_takes", mailbox::nobody_takes),
    ("a_silent_sender", mailbox::a_silent_sender),
    ("one_call_a_look", mailbox::one_call_a_look),
    ("post_pieces", post::pieces),
    ("post_selects", post::selects),
    ("a_receiver_that_stands_still", post::stands_still),
    ("model_average", driver::model_average),
    ("elastic", driver::elastic),
    ("protocol", driver::protocol),
    ("selecting_receive", driver::selects),
    ("missing_endpoint", driver::missing_endpoint),
    ("row_traffic", rows::traffic),
    ("near_rows", rows::near_rows),
    ("scores", scores::figures),
    ("evaluation", memory::evaluation),
    ("trace", memory::trace),
    ("checkpoints", checkpoints::checkpoints),
    ("image", checkpoints::image),
    ("row_saves", row_saves::row_saves),
    ("coded_sum", coded::coded_sum),
    ("coded_averages", coded::coded_averages),
    ("coded_groups", coded::coded_groups),
    ("parts", parts::whole_and_released),
    ("sections", sections::listed_once),
];

fn main() {
    let world = World::init(Duration::from_secs(120)).unwrap();
    install_panic_hook(world.rank, world.size, &world.host, comm::abort_saying);
    let watch = Arc::clone(world.watch());
    let control = world.communicator(&watch).unwrap();
    if std::env::args().nth(1).as_deref() == Some("panic") {
        if world.rank + 1 == world.size {
            // Not the main thread: nobody would notice but for the hook.
            std::thread::spawn(|| panic!("as asked")).join().unwrap_err();
        }
        control.barrier("a rank that never comes", false).unwrap();
    }
    let names: Vec<String> = std::env::args().skip(1).collect();
    let asked = |name: &str| names.is_empty() || names.iter().any(|asked| asked == name);
    for (name, check) in CHECKS.into_iter().filter(|(name, _)| asked(name)) {
        check(&world, &watch, &control);
        control.barrier(name, false).unwrap();
        if world.rank == 0 {
            println!("ok {name}");
        }
    }
}

/// Says to ranks that stand still, and so cannot be sent to, that `what` is done. One folder is the
/// working directory of all.
fn say_done(what: &str) {
    std::fs::write(what, "").unwrap();
}

/// Stands still, without a call of MPI, until another rank has said that `what` is done.
fn stand_still_until(what: &str) {
    while !std::path::Path::new(what).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
}
