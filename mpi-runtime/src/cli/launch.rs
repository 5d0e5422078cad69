//! `umbra launch`: a job started again until it has come to its end.

use clap::Args;

use super::supervisor::supervise;
use crate::error::Error;

/// Start a job, and start it again when it was stopped (exit code 75) or has lost a rank.
///
/// The job goes on from its newest checkpoint: set checkpoint.every. It is not started again after
/// a mistake (exit codes 2 to 5), nor when a signal asked to stop, which is passed on as SIGUSR1.
#[derive(Args, Debug)]
pub(super) struct LaunchArguments {
    /// Starts in a row that may save nothing new
    #[arg(long, value_name = "N", default_value_t = 3)]
    restarts: u32,
    /// The job: mpirun -n 4 umbra train …
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs the verb. Returns the job's exit code.
pub(super) fn run(arguments: &LaunchArguments) -> Result<u8, Error> {
    let LaunchArguments { restarts, command } = arguments;
    supervise(command, *restarts)
        .map_err(|error| Error::Launch(format!("{}: cannot start it: {error}", command[0])))
}
