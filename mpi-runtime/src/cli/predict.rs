//! `umbra predict`: one probability per row of a dataset.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use umbra_datasets::scores::ScoresFormat;

use super::table::Table;
use super::verbosity::Quiet;
use crate::comm::Comm;
use crate::error::Error;
use crate::launch::world::World;
use crate::run::evaluate::{Target, predict};

/// Write the probability of a click for each row, in the order of the rows. On any number of ranks.
#[derive(Args, Debug)]
pub(super) struct PredictArguments {
    /// Folder of the saved model, or of the run: its newest one, for example runs/job
    #[arg(long, value_name = "DIR")]
    checkpoint: PathBuf,
    /// HDF5 file or files
    #[arg(long, required = true, num_args = 1.., value_name = "FILE.h5")]
    data: Vec<PathBuf>,
    /// File to write, - for stdout
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// What to write [default: by the end of the file's name: .csv, .npy, .parquet; else text]
    #[arg(long, value_enum)]
    output_format: Option<OutputFormat>,
    /// Replace an existing output
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    quiet: Quiet,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OutputFormat {
    /// A probability a line
    Text,
    /// row,score and, where the data have them, label and group
    Csv,
    /// The probabilities as a NumPy array of float32
    Npy,
    /// The columns of csv as Parquet
    Parquet,
}

/// Runs the verb. *Collective over all ranks.*
pub(super) fn run(
    arguments: &PredictArguments,
    world: &World,
    control: &Comm,
) -> Result<(), Error> {
    let PredictArguments { checkpoint, data, output, output_format, overwrite, quiet } = arguments;
    quiet.set();
    let format = output_format.map_or_else(|| ScoresFormat::of(output), ScoresFormat::from);
    let to_stdout = output.as_os_str() == STDOUT;
    let target = if to_stdout { Target::Stdout } else { Target::File(output, *overwrite) };
    let rows = predict(world, control, checkpoint, data, target, format)?;
    if world.rank == 0 && !to_stdout {
        let mut table = Table::default();
        table.row("file", output.display());
        table.row("predictions", rows);
        table.print();
    }
    Ok(())
}

/// The name of stdout; a file of that name is `./-`.
const STDOUT: &str = "-";

impl From<OutputFormat> for ScoresFormat {
    fn from(format: OutputFormat) -> Self {
        match format {
            OutputFormat::Text => Self::Text,
            OutputFormat::Csv => Self::Csv,
            OutputFormat::Npy => Self::Npy,
            OutputFormat::Parquet => Self::Parquet,
        }
    }
}
