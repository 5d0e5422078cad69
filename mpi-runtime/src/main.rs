//! The program `umbra`.

use std::process::ExitCode;

fn main() -> ExitCode {
    umbra_mpi::cli::main()
}
