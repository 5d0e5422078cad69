//! `umbra predict`: one probability per row of a dataset.

use std::path::PathBuf;

use clap::Args;

use super::table::Table;
use crate::comm::Comm;
use crate::error::Error;
use crate::launch::world::World;
use crate::run::evaluate::predict;

/// Write one probability per row, a text line each, in the order of the rows. On any number of
/// ranks.
#[derive(Args, Debug)]
pub(super) struct PredictArguments {
    /// Folder of the saved model, for example runs/job/checkpoints/last
    #[arg(long, value_name = "DIR")]
    checkpoint: PathBuf,
    /// HDF5 file or files
    #[arg(long, required = true, num_args = 1.., value_name = "FILE.h5")]
    data: Vec<PathBuf>,
    /// Text file to write
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Replace an existing output
    #[arg(long)]
    overwrite: bool,
}

/// Runs the verb. *Collective over all ranks.*
pub(super) fn run(
    arguments: &PredictArguments,
    world: &World,
    control: &Comm,
) -> Result<(), Error> {
    let PredictArguments { checkpoint, data, output, overwrite } = arguments;
    let rows = predict(world, control, checkpoint, data, output, *overwrite)?;
    if world.rank == 0 {
        let mut table = Table::default();
        table.row("file", output.display());
        table.row("predictions", rows);
        table.print();
    }
    Ok(())
}
