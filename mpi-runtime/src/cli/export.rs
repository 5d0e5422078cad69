//! `umbra export`: the model of a checkpoint for other programs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::table::Table;
use crate::checkpoint::Checkpoint;
use crate::error::Error;

/// Write the model of a checkpoint to one file, without optimizer state
#[derive(Args, Debug)]
pub(super) struct ExportArguments {
    /// Folder of the checkpoint, or of the run
    #[arg(long, value_name = "DIR")]
    checkpoint: PathBuf,
    /// What it is written as
    #[arg(long, value_enum)]
    format: Format,
    /// File to write
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Tensors by name, for PyTorch and others
    Safetensors,
}

/// Runs the verb.
pub(super) fn run(arguments: &ExportArguments) -> Result<(), Error> {
    let ExportArguments { checkpoint, format: Format::Safetensors, output } = arguments;
    let checkpoint = Checkpoint::open_here(checkpoint)?;
    let bytes = checkpoint.export(output)?;
    let mut table = Table::default();
    table.row("checkpoint", checkpoint.dir().display());
    table.row("output", format_args!("{}, {bytes} bytes", output.display()));
    table.print();
    Ok(())
}
