//! `umbra checkpoint`: what is inside a checkpoint, and whether it is whole.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::table::Table;
use crate::checkpoint::Checkpoint;
use crate::error::Error;

/// Look into a checkpoint
#[derive(Args, Debug)]
pub(super) struct CheckpointArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Print what is inside: the run that wrote it, and every tensor
    Inspect {
        /// Folder of the checkpoint, or of the run
        #[arg(value_name = "DIR")]
        path: PathBuf,
    },
    /// Read all of it, and compare every checksum
    Verify {
        /// Folder of the checkpoint, or of the run
        #[arg(value_name = "DIR")]
        path: PathBuf,
    },
}

/// Runs the verb.
pub(super) fn run(arguments: &CheckpointArguments) -> Result<(), Error> {
    match &arguments.verb {
        Verb::Inspect { path } => inspect(&Checkpoint::open_here(path)?),
        Verb::Verify { path } => {
            let checkpoint = Checkpoint::open_here(path)?;
            let bytes = checkpoint.verify()?;
            let mut table = Table::default();
            table.row("checkpoint", checkpoint.dir().display());
            table.row("whole", format_args!("{bytes} bytes, every checksum compared"));
            table.print();
        }
    }
    Ok(())
}

fn inspect(checkpoint: &Checkpoint) {
    let manifest = &checkpoint.manifest;
    let mut table = Table::default();
    table.row("checkpoint", checkpoint.dir().display());
    table.row("step", manifest.steps);
    table.row("written by", format_args!("umbra {}, {}", manifest.git, manifest.simd));
    table.row("method", &manifest.method);
    let (trainers, workers) = (manifest.trainers, manifest.workers);
    table.row("trainers", format_args!("{trainers}, {workers} workers together"));
    table.row("examples a step", manifest.global_batch());
    let rows = manifest.rows();
    let (width, state) = (manifest.row_width, manifest.row_state_len);
    table.row("rows", format_args!("{rows}, {width} values and {state} of state each"));
    table.row("training data", &manifest.data_fingerprint);
    if let Some(base) = manifest.base {
        table.row("has", format_args!("the rows that changed since step {}, its base", base.step));
    }
    let bytes: u64 = manifest.files.iter().map(|file| file.bytes).sum();
    table.row("files", format_args!("{}, {bytes} bytes", manifest.files.len()));
    for file in &manifest.files {
        for tensor in &file.tensors {
            let extents: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
            let shape = extents.join(" × ");
            table.row(&tensor.name, format_args!("{:?} {shape}, in {}", tensor.kind, file.name));
        }
    }
    table.print();
}
