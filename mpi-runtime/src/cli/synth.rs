//! `umbra synth`: a synthetic click log whose best possible AUC is known.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use umbra_datasets::synthetic::SynthError;
use umbra_datasets::{DatasetError, Preset, SynthOptions, synth};

use super::interrupt::Interrupt;
use super::table::Table;
use crate::error::Error;
use crate::record::progress::bar;

/// Write a synthetic click log with Zipf ids and a planted model, and print the AUC of the planted
/// model itself: no learner can do better.
#[derive(Args, Debug)]
pub(super) struct SynthArguments {
    /// Rows to write
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// HDF5 file to write
    #[arg(long, value_name = "FILE.h5")]
    output: PathBuf,
    /// Shape: criteo-kaggle (13 dense features, 26 fields of the Kaggle sizes) or small (4, 8)
    #[arg(long, default_value = "small", value_name = "NAME")]
    preset: Preset,
    /// Seed of the planted model and of the rows
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Number of the first row: other rows of the same seed are other data of the same model, so
    /// --first-row N makes the test file for a training file of N rows
    #[arg(long, default_value_t = 0, value_name = "N")]
    first_row: u64,
    /// Replace an existing output
    #[arg(long)]
    overwrite: bool,
}

/// Runs the verb.
pub(super) fn run(arguments: &SynthArguments) -> Result<(), Error> {
    let SynthArguments { rows, output, preset, seed, first_row, overwrite } = arguments;
    if first_row.checked_add(*rows).is_none() {
        return Err(Error::Usage(format!(
            "--first-row {first_row}: expected at most {}, so that --rows {rows} can be counted",
            u64::MAX - rows
        )));
    }
    let started = Instant::now();
    let progress = bar(*rows, "rows");
    let interrupt = Interrupt::install()?;
    let stop = Arc::clone(&interrupt.stop);
    let options = SynthOptions { first_row: *first_row, overwrite: *overwrite, stop };
    let made =
        synth(*rows, *preset, *seed, output, options, &mut |rows| progress.set_position(rows));
    progress.finish_and_clear();
    let summary = match made {
        Err(SynthError::Interrupted) => return Err(interrupt.error()),
        made => made?,
    };

    let mut table = Table::default();
    table.row("file", output.display());
    table.row("preset", preset);
    table.row("seed", seed);
    table.row("rows", format_args!("{} (from row {first_row})", summary.rows));
    table.figure("base rate", summary.base_rate);
    table.figure("planted AUC", summary.auc_planted);
    table.figure("planted log loss", summary.log_loss_planted);
    table.row("fingerprint", summary.fingerprint);
    table.row("seconds", format_args!("{:.1}", started.elapsed().as_secs_f64()));
    table.print();
    Ok(())
}

impl From<SynthError> for Error {
    fn from(error: SynthError) -> Self {
        match error {
            SynthError::Dataset(error) => DatasetError::into(error),
            SynthError::Output(_) => Self::Usage(error.to_string()),
            SynthError::Metric(_) | SynthError::Interrupted => Self::Failure(error.to_string()),
        }
    }
}
