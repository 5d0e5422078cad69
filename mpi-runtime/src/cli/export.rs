//! `umbra export`: the model of a checkpoint for other programs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use umbra_datasets::output;

use super::table::Table;
use crate::checkpoint::{Checkpoint, ExportFormat};
use crate::config::{Config, convert};
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
    /// Replace an existing output
    #[arg(long)]
    overwrite: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Tensors by name, for PyTorch and others
    Safetensors,
    /// Bytes that the library umbra-core scores where they stand
    Flat,
}

/// Runs the verb.
pub(super) fn run(arguments: &ExportArguments) -> Result<(), Error> {
    let ExportArguments { checkpoint, format, output, overwrite } = arguments;
    let checkpoint = Checkpoint::open_here(checkpoint)?;
    let own = checkpoint.manifest.files.iter().map(|file| checkpoint.dir().join(&file.name));
    let own: Vec<PathBuf> = own.chain([checkpoint.dir().join("manifest.json")]).collect();
    let output = &output::check(output, own.iter().map(PathBuf::as_path), *overwrite)?;
    let bytes = match format {
        Format::Safetensors => checkpoint.export(ExportFormat::Safetensors, output)?,
        Format::Flat => {
            let manifest = &checkpoint.manifest;
            let path = checkpoint.dir().join("manifest.json");
            let config = Config::saved(&manifest.config, &path)?;
            let (dense_features, fields) = (manifest.dense_features, manifest.cardinality.len());
            let config = convert::model_config(&config.model, dense_features, fields);
            checkpoint.export(ExportFormat::Flat(&config), output)?
        }
    };
    let mut table = Table::default();
    table.row("checkpoint", checkpoint.dir().display());
    table.row("output", format_args!("{}, {bytes} bytes", output.display()));
    table.print();
    Ok(())
}
