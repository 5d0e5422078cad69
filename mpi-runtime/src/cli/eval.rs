//! `umbra eval`: figures of a saved model on a dataset.

use std::path::PathBuf;

use clap::Args;

use super::table::Table;
use super::verbosity::Quiet;
use crate::comm::Comm;
use crate::error::Error;
use crate::launch::world::World;
use crate::record::EvalFigures;
use crate::run::evaluate::eval;
use crate::run::measures::eval_figures;

/// Print AUC, log loss and more of a saved model on a dataset. On any number of ranks.
#[derive(Args, Debug)]
pub(super) struct EvalArguments {
    /// Folder of the saved model, or of the run: its newest one, for example runs/job
    #[arg(long, value_name = "DIR")]
    checkpoint: PathBuf,
    /// HDF5 file or files
    #[arg(long, required = true, num_args = 1.., value_name = "FILE.h5")]
    data: Vec<PathBuf>,
    /// Print the figures as one JSON object, in full precision
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    quiet: Quiet,
}

/// Runs the verb. *Collective over all ranks.*
pub(super) fn run(arguments: &EvalArguments, world: &World, control: &Comm) -> Result<(), Error> {
    arguments.quiet.set();
    let figures = eval(world, control, &arguments.checkpoint, &arguments.data)?;
    if world.rank != 0 {
        return Ok(());
    }
    let figures = eval_figures(&figures);
    if arguments.json {
        use std::io::Write;
        let json = serde_json::to_string(&figures)
            .map_err(|error| Error::Failure(format!("figures as JSON: {error}")))?;
        // A closed stdout is no failure.
        let _ = writeln!(std::io::stdout().lock(), "{json}");
    } else {
        let mut table = Table::default();
        add_figures(&mut table, "", &figures);
        table.print();
    }
    Ok(())
}

/// Figures of one dataset as rows of a table.
pub(super) fn add_figures(table: &mut Table, prefix: &str, figures: &EvalFigures) {
    table.row(&format!("{prefix}examples"), figures.examples);
    for (name, value) in [
        ("auc", figures.auc),
        ("logloss", figures.logloss),
        ("normalized entropy", figures.normalized_entropy),
        ("calibration", figures.calibration),
        ("gauc", figures.gauc),
    ] {
        table.figure(&format!("{prefix}{name}"), value);
    }
}
