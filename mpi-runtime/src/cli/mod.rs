//! The program's command line: one file per verb, and how a verb starts and ends.
//!
//! `prepare`, `synth`, `bench`, `report` and every help text run without MPI. The other verbs start
//! MPI first, so that a mistake is one message from one rank and one exit code on all of them.

mod bench;
mod checkpoint;
mod data;
mod doctor;
mod eval;
mod export;
mod interrupt;
mod job_file;
mod launch;
mod leftovers;
mod plan;
mod predict;
mod prepare;
mod reference;
mod report;
mod simulate;
mod supervised;
mod supervisor;
mod synth;
mod table;
mod train;
mod verbosity;
mod version;

use core::time::Duration;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use umbra_core::kernel::{self, Simd, UnknownSimd};

use crate::comm::guard::ThreadLevel;
use crate::comm::{self, Comm, loss};
use crate::error::Error;
use crate::launch::data_guard;
use crate::launch::environment::{self, LaunchError};
use crate::launch::shared_segments;
use crate::launch::signals::{Signals, install_panic_hook};
use crate::launch::world::World;
use crate::record::say;
use crate::run::sameness;

/// Trains click-through-rate models on CPU clusters over MPI.
#[derive(Parser, Debug)]
#[command(name = "umbra", version = version::short(), subcommand_required = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Prepare(prepare::PrepareArguments),
    Synth(synth::SynthArguments),
    Train(train::TrainArguments),
    Eval(eval::EvalArguments),
    Predict(predict::PredictArguments),
    Bench(bench::BenchArguments),
    Simulate(simulate::SimulateArguments),
    Data(data::DataArguments),
    Checkpoint(checkpoint::CheckpointArguments),
    Export(export::ExportArguments),
    Launch(launch::LaunchArguments),
    Plan(plan::PlanArguments),
    Report(report::ReportArguments),
    Reference(reference::ReferenceArguments),
    /// Look at this machine, its MPI and this launch, and say what to mend
    Doctor,
}

/// The program.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            let asked_long = std::env::args_os().nth(1).is_some_and(|first| first == "--version");
            // Nothing can be done about a closed stream.
            return ExitCode::from(together(code, || match error.kind() {
                ErrorKind::DisplayVersion if asked_long => version::print(),
                _ => drop(error.print()),
            }));
        }
    };
    if let Err(error) = choose_simd().and_then(|()| check_threads()) {
        return ExitCode::from(together(error.exit_code(), || {
            speak(&error, "");
        }));
    }
    let code = match arguments.verb {
        Verb::Prepare(arguments) => alone("prepare", || prepare::run(arguments)),
        Verb::Synth(arguments) => alone("synth", || synth::run(&arguments)),
        Verb::Train(arguments) => {
            let signals = Signals::install()
                .map_err(|error| Error::Failure(format!("cannot handle signals: {error}")));
            // Before MPI is started, which has the job's deadline already.
            let config = arguments.config();
            let limit = config.as_ref().map_or(LIMIT, |config| config.run.watchdog());
            with_world(true, limit, |world, control| {
                let signals = Arc::new(control.agree(signals)?);
                let config = sameness::agree_on_files(world, control, config)?;
                sameness::check_config(world, control, &config)?;
                train::run(&arguments, config, world, control, &signals)
            })
        }
        Verb::Eval(arguments) => {
            with_world(true, LIMIT, |world, control| eval::run(&arguments, world, control))
        }
        Verb::Predict(arguments) => {
            with_world(true, LIMIT, |world, control| predict::run(&arguments, world, control))
        }
        Verb::Bench(arguments) => alone("bench", || bench::run(&arguments)),
        Verb::Simulate(arguments) => {
            with_world(true, LIMIT, |world, control| simulate::run(&arguments, world, control))
        }
        Verb::Data(arguments) => alone("data", || data::run(&arguments)),
        Verb::Checkpoint(arguments) => alone("checkpoint", || checkpoint::run(&arguments)),
        Verb::Report(arguments) => alone("report", || report::run(&arguments)),
        Verb::Plan(arguments) => match arguments.ranks() {
            Some(ranks) => with_world(true, LIMIT, |world, control| {
                plan::run_on(ranks, &arguments, world, control)
            }),
            None => alone("plan", || plan::run(&arguments)),
        },
        Verb::Reference(arguments) => {
            alone("reference", || reference::run(&arguments, Arguments::command()))
        }
        Verb::Export(arguments) => alone("export", || export::run(&arguments)),
        // It starts what starts MPI.
        Verb::Launch(arguments) => {
            launch::run(&arguments).unwrap_or_else(|error| speak(&error, ""))
        }
        // The doctor looks at the launch itself.
        Verb::Doctor => with_world(false, LIMIT, doctor::run),
    };
    ExitCode::from(code)
}

/// Uses the instruction set that `UMBRA_SIMD` names; the best one without it.
fn choose_simd() -> Result<(), Error> {
    let Some(name) = variable("UMBRA_SIMD") else { return Ok(()) };
    let refuse =
        |error: &dyn core::fmt::Display| Error::Usage(format!("UMBRA_SIMD={name}: {error}"));
    let simd: Simd = name.parse().map_err(|error: UnknownSimd| refuse(&error))?;
    kernel::select(simd).map_err(|error| refuse(&error))
}

/// Refuses an `UMBRA_MPI_THREADS` that names no thread level; MPI starts at the one it names.
fn check_threads() -> Result<(), Error> {
    let Some(name) = variable(ThreadLevel::VARIABLE) else { return Ok(()) };
    let named: Result<ThreadLevel, _> = name.parse();
    let refuse = |error| Error::Usage(format!("{}={name}: {error}", ThreadLevel::VARIABLE));
    named.map(drop).map_err(refuse)
}

/// A verb that is one process and never starts MPI.
fn alone(verb: &'static str, run: impl FnOnce() -> Result<(), Error>) -> u8 {
    let processes = environment::launched_processes(&variable);
    if processes > 1 {
        let error = Error::from(LaunchError::OneProcess { verb, processes });
        return together(error.exit_code(), || {
            speak(&error, "");
        });
    }
    data_guard::install(LIMIT_ALONE);
    run().map_or_else(|error| speak(&error, ""), |()| 0)
}

/// A verb of all ranks: starts MPI, checks the launch, runs, ends MPI; waits take `limit` at most.
/// Returns the exit code.
fn with_world(
    check: bool,
    limit: Duration,
    run: impl FnOnce(&World, &Comm) -> Result<(), Error>,
) -> u8 {
    // Wrongly started processes are each alone; their launcher knows which one is the first.
    let first = environment::launched_rank(&variable).is_none_or(|rank| rank == 0);
    let refuse = |error: &Error| if first { speak(error, "") } else { error.exit_code() };
    if let Err(error) = environment::check_before_mpi(&variable) {
        return refuse(&error.into());
    }
    if let Err(error) = shared_segments::check(&variable) {
        // Of another node's ranks none knows.
        return speak(&error.into(), &format!("[{}] ", environment::host()));
    }
    let world = match World::init(limit) {
        Ok(world) => world,
        Err(error) => return refuse(&error),
    };
    if check && let Err(error) = environment::check(&variable, world.rank, world.size) {
        return refuse(&error.into());
    }
    data_guard::install(limit);
    install_panic_hook(world.rank, world.size, &world.host, comm::abort_saying);
    let watch = world.watch();
    let control = watch.or_end(world.communicator(watch));
    let program = if check { sameness::check_program(&world, &control) } else { Ok(()) };
    let result = watch.end_if_lost(program.and_then(|()| run(&world, &control)));
    let code = match &result {
        Ok(()) => 0,
        // Every rank was stopped and knows it.
        Err(error @ Error::Stopped { .. }) if world.rank > 0 => error.exit_code(),
        Err(error) if world.rank > 0 => speak(error, &format!("{} ", world.prefix())),
        Err(error) => speak(error, ""),
    };
    if let Err(error) = &result
        && (world.rank == 0 || !error.is_silent())
    {
        // A run whose summary says this already keeps it.
        comm::hand_on(&error.to_string());
    }
    if loss::epoch() > 0 || loss::has_happened() {
        comm::leave(code);
    }
    // Communicators go before MPI does.
    drop(result);
    drop(control);
    drop(world);
    code
}

/// Prints the message of an error, unless another rank does, and returns its exit code.
fn speak(error: &Error, prefix: &str) -> u8 {
    if !error.is_silent() {
        say(&format!("umbra: {prefix}{error}"));
    }
    error.exit_code()
}

/// Ends a program that has not started MPI: the first process speaks, and under a launcher all
/// processes meet before they leave, since `mpirun` kills the others as soon as one ends with an
/// error.
fn together(code: u8, speak: impl FnOnce()) -> u8 {
    let rank = environment::launched_rank(&variable);
    let connected = environment::check_before_mpi(&variable).is_ok();
    let world = rank.filter(|_| connected).and_then(|_| World::init(LIMIT).ok());
    if rank.is_none_or(|rank| rank == 0) {
        speak();
    }
    drop(world);
    code
}

/// Longest wait of a verb without a configuration, or before there is one: the default of
/// `run.watchdog_s`.
const LIMIT: Duration = Duration::from_secs(300);

/// Longest that HDF5 may take over the metadata of a file, or a block of its rows, in a verb that
/// nobody else waits for.
const LIMIT_ALONE: Duration = Duration::from_secs(60);

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
