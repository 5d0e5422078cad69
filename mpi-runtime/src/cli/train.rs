//! `umbra train`: a job file and its settings to a run folder.

use core::num::NonZeroU32;
use std::io::Write as _;
use std::sync::Arc;

use clap::Args;

use super::eval::add_figures;
use super::job_file::JobArguments;
use super::table::Table;
use super::verbosity::Verbosity;
use crate::comm::Comm;
use crate::config::{Config, reference};
use crate::error::Error;
use crate::launch::signals::Signals;
use crate::launch::world::World;
use crate::record::Summary;
use crate::run::job::{Outcome, Task, train};

/// Train a model. Alone, or on many ranks: mpirun -n 8 umbra train …, srun umbra train …
#[derive(Args, Debug)]
#[command(after_long_help = reference::help())]
pub(super) struct TrainArguments {
    #[command(flatten)]
    job: JobArguments,
    #[command(flatten)]
    verbosity: Verbosity,
    /// Check every input on every rank, print the plan, and exit
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run: plan for so many ranks, on a node each if this launch has not as many, and
    /// say what each would send, receive and hold
    #[arg(long, value_name = "N", requires = "dry_run", value_parser = ranks)]
    ranks: Option<usize>,
    /// With --dry-run: print what each rank would send, receive and hold, as JSON, not the plan
    #[arg(long, requires = "dry_run")]
    json: bool,
}

fn ranks(text: &str) -> Result<usize, String> {
    let ranks: Result<NonZeroU32, _> = text.parse();
    ranks.map(|ranks| ranks.get() as usize).map_err(|error| error.to_string())
}

impl TrainArguments {
    /// The configuration that they name. *Not collective.*
    pub(super) fn config(&self) -> Result<Config, Error> {
        self.job.config().map_err(Error::from)
    }
}

/// Runs the verb. *Collective over all ranks; `config` equal on all.*
pub(super) fn run(
    arguments: &TrainArguments,
    config: Config,
    world: &World,
    control: &Comm,
    signals: &Arc<Signals>,
) -> Result<(), Error> {
    arguments.verbosity.set();
    let by_default = config.run.dir == Config::default_dir(arguments.job.path());
    let train_it = Task::Train { by_default };
    let task = if arguments.dry_run { Task::Plan(arguments.ranks) } else { train_it };
    match train(world, control, config, signals, task)? {
        Outcome::Planned(plan, prediction) if world.rank == 0 => {
            let prediction = prediction.unwrap_or_default();
            let text = if arguments.json {
                let text = serde_json::to_string(&prediction);
                text.map_err(|error| Error::Failure(format!("prediction as JSON: {error}")))?
            } else {
                format!("{plan}{prediction}")
            };
            // A closed stdout is no failure.
            let _ = writeln!(std::io::stdout().lock(), "{text}");
        }
        Outcome::Trained(Some((folder, summary))) => print(&summary, &folder),
        Outcome::Planned(..) | Outcome::Trained(None) => {}
    }
    Ok(())
}

fn print(summary: &Summary, folder: &std::path::Path) {
    let mut table = Table::default();
    table.row("run", folder.display());
    if let (Some(examples), Some(seconds)) = (summary.examples, summary.seconds) {
        table.row("examples", format_args!("{examples} in {seconds:.1} s"));
    }
    if let Some(speed) = summary.examples_per_second {
        table.row("examples/s", format_args!("{speed:.0}"));
    }
    table.figure("train logloss", summary.train.as_ref().and_then(|train| train.logloss));
    if let Some(progressive) = &summary.progressive {
        add_figures(&mut table, "progressive ", &progressive.figures);
    }
    for (split, figures) in
        [("valid", &summary.valid), ("test", &summary.test), ("masked", &summary.test_masked)]
    {
        if let Some(figures) = figures {
            add_figures(&mut table, &format!("{split} "), figures);
        }
    }
    table.print();
}
