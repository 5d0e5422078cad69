//! `umbra data`: what is inside a dataset, and whether it is whole.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use umbra_datasets::{Dataset, mean_label, verify};

use super::table::Table;
use crate::error::Error;

/// Look into a dataset
#[derive(Args, Debug)]
pub(super) struct DataArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Print what is inside: rows, columns, cardinalities, base rate, transform, fingerprint
    Inspect {
        /// The dataset
        #[arg(value_name = "FILE.h5")]
        path: PathBuf,
    },
    /// Read all of it: every checksum, every value, the fingerprint, the key lists
    Verify {
        /// The dataset
        #[arg(value_name = "FILE.h5")]
        path: PathBuf,
    },
}

/// Runs the verb.
pub(super) fn run(arguments: &DataArguments) -> Result<(), Error> {
    match &arguments.verb {
        Verb::Inspect { path } => inspect(path),
        Verb::Verify { path } => verify_all(path),
    }
}

fn inspect(path: &Path) -> Result<(), Error> {
    let data = Dataset::open(&[path.to_owned()])?;
    let base_rate = mean_label(path)?;
    let mut table = Table::default();
    table.row("file", path.display());
    let version = data.versions().next().unwrap_or_default();
    let covered = if version >= 2 { "checksums of everything" } else { "checksums of rows alone" };
    table.row("layout", format_args!("version {version}, {covered}"));
    table.row("rows", data.rows());
    match base_rate {
        Some(mean) => table.row("labels", format_args!("mean {mean:.6}")),
        None => table.row("labels", "none: rows to be scored"),
    }
    let optional = [("weights", data.has_weights()), ("groups", data.has_groups())];
    for (name, _) in optional.into_iter().filter(|(_, there)| *there) {
        table.row(name, "one per row");
    }
    table.row("dense features", data.dense_features());
    for name in data.dense_names() {
        table.row("", name);
    }
    let bags = if data.has_bags() {
        let weights = if data.has_value_weights() { ", ids have weights" } else { "" };
        format!(", bags, at most {} ids in a row{weights}", data.values_per_row_max())
    } else {
        String::new()
    };
    table.row("sparse fields", format_args!("{}{bags}", data.fields()));
    let hashes = data.vocabulary().unwrap_or_default();
    for (field, (name, cardinality)) in
        data.sparse_names().iter().zip(data.cardinality()).enumerate()
    {
        let keys = match hashes.get(field) {
            Some(hash @ 1..) => format!(", keys {hash:016x}"),
            _ => String::new(),
        };
        table.row("", format_args!("{name}: cardinality {cardinality}{keys}"));
    }
    for (number, line) in data.transform().lines().enumerate() {
        table.row(if number == 0 { "transform" } else { "" }, line);
    }
    table.row("fingerprint", data.fingerprint());
    table.print();
    Ok(())
}

fn verify_all(path: &Path) -> Result<(), Error> {
    let data = Dataset::open(&[path.to_owned()])?;
    let summary = verify(path)?;
    let mut table = Table::default();
    table.row("file", path.display());
    let compared = match data.fingerprint() {
        "absent" => "it has no fingerprint",
        _ => "its fingerprint is that of its content",
    };
    table.row(
        "whole",
        format_args!(
            "{} bytes, {} rows, every value read; {compared}",
            summary.file_bytes, summary.rows
        ),
    );
    table.row("fingerprint", summary.fingerprint);
    table.print();
    Ok(())
}
