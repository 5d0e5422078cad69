//! `umbra simulate`: a job on a cluster that is not there.

use core::fmt::{Display, Write as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use umbra_datasets::output;

use super::eval::add_figures;
use super::job_file::JobArguments;
use super::table::Table;
use crate::comm::Comm;
use crate::config::Config;
use crate::error::Error;
use crate::launch::environment::LaunchError;
use crate::launch::world::World;
use crate::record::{RunFolder, Summary, say, write_atomically};
use crate::simulate::cluster::ClusterFile;
use crate::simulate::{Virtual, chrome_trace};

/// Run a job on a cluster in virtual time: one process, any number of trainers.
#[derive(Args, Debug)]
#[command(after_long_help = CLUSTER_HELP)]
pub(super) struct SimulateArguments {
    #[command(flatten)]
    job: JobArguments,
    /// Cluster file: nodes, links and times
    #[arg(long, value_name = "CLUSTER.toml")]
    cluster: PathBuf,
    /// Sweep: the job on so many trainers each, instead of the cluster file's; leaves no run folder
    #[arg(
        long,
        value_name = "N,N,…",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    trainers: Vec<u32>,
    /// Write the figures of every run as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const CLUSTER_HELP: &str = "\
Keys of the cluster file (those without a default must be there):
  trainers                  nodes that train
  embedding_ps              nodes that hold rows; 0, the default: the trainers do
  sync_ps                   slices of the center of *_easgd; default the job's, else 1
  fidelity                  \"timing\" (default): time alone; \"training\": the real model and data
  cores                     of a trainer; 0, the default: one for each thread
  steps                     of a worker; default 1000; in training at most these, default: as data
  seconds                   virtual time after which no step begins
  collective                \"doubling\" (default, as umbra does), \"direct\", \"ring\", \"tree\"
  link.bytes_per_s          of every node, in each direction
  link.latency_us           default 20
  link.overhead_us          of a message, beside its bytes; default 1
  leaves.nodes              trainers of a leaf switch; without it one switch has all
  leaves.uplink_bytes_per_s from a leaf to the spine, in each direction
  compute.example_us        an example forward and backward, by one worker alone
  compute.jitter            \"log_normal\" (default), \"uniform\", \"none\"
  compute.spread            sigma, or half the width; default 0.1
  memory.copy_bytes_per_s   loading and storing a replica; default 5e9
  memory.serve_bytes_per_s  a center's answer; default 5e9
  rows.distinct             share of a batch's ids that are distinct rows; default 1
  rows.lookup_per_s         rows a store looks up; default 1e7
  rows.update_per_s         rows a store updates; default 1e7
  change_s                  what a change of the method takes; default 0.2
  [[straggler]]             trainer, factor (on the time of its steps); from_step, to_step
  [[pause]]                 trainer, from_s, to_s
  [[death]]                 trainer, at_s (it makes no step from then on)
  [[short]]                 trainer, share (of a trainer's steps)";

/// Runs the verb. One process.
pub(super) fn run(
    arguments: &SimulateArguments,
    world: &World,
    control: &Comm,
) -> Result<(), Error> {
    let alone = if world.size == 1 {
        Ok(())
    } else {
        Err(LaunchError::OneProcess { verb: "simulate", processes: world.size }.into())
    };
    control.agree(alone)?;
    let config = arguments.job.config()?;
    let own = [arguments.job.path(), Some(&arguments.cluster)].into_iter().flatten();
    let read = own.chain(config.data.files());
    let json = arguments.json.as_deref().map(|path| output::check(path, read, true));
    let json = json.transpose()?;
    let file = ClusterFile::load(&arguments.cluster)?;
    let summaries = if arguments.trainers.is_empty() {
        let planned = plan(config, &file, file.trainers)?;
        let job = &planned.plan.job.config;
        let folder = RunFolder::open(RunFolder::claim(job, &world.host)?, job, &world.host, None)?;
        let simulation = planned.run(control, control.watch())?;
        if planned.plan.job.config.run.trace {
            let trace = chrome_trace(&simulation.outcome.trace);
            write_atomically(&folder.path().join("trace.json"), trace.as_bytes())?;
        }
        folder.write_summary(&simulation.summary)?;
        print(&run_table(folder.path(), &simulation.summary));
        vec![simulation.summary]
    } else {
        let mut summaries = vec![];
        for trainers in &arguments.trainers {
            let planned = plan(config.clone(), &file, *trainers as usize)?;
            summaries.push(planned.run(control, control.watch())?.summary);
        }
        print(&sweep_table(&summaries));
        summaries
    };
    json.map_or(Ok(()), |path| write_json(&path, &summaries))
}

/// Plans, and says what is odd about the job.
fn plan(config: Config, file: &ClusterFile, trainers: usize) -> Result<Virtual, Error> {
    let planned = Virtual::plan(config, file, trainers)?;
    let warnings = &planned.plan.job.warnings;
    warnings.iter().for_each(|warning| say(&format!("umbra: warning: {warning}")));
    Ok(planned)
}

/// To stdout. A closed one is no failure of the work that was done.
fn print(text: &dyn Display) {
    let _ = write!(std::io::stdout().lock(), "{text}");
}

fn run_table(folder: &Path, summary: &Summary) -> Table {
    let mut table = Table::default();
    table.row("run", folder.display());
    let (trainers, threads) = (summary.roles.trainers, summary.worker_threads);
    table.row("virtual cluster", format_args!("{trainers} trainers × {threads} worker threads"));
    if let (Some(examples), Some(seconds)) = (summary.examples, summary.seconds) {
        table.row("examples", format_args!("{examples} in {seconds:.3} virtual s"));
    }
    if let Some(speed) = summary.examples_per_second {
        table.row("examples/s", format_args!("{speed:.0}"));
    }
    if let Some(sync) = &summary.sync {
        table.row("method", &sync.method);
        if let (Some(rounds), Some(mean), Some(p99)) = (sync.rounds, sync.gap_mean, sync.gap_p99) {
            table.row("rounds of the first trainer", rounds);
            table.row("sync gap", format_args!("{mean:.2} steps, 99th percentile {p99:.0}"));
        }
        table.figure("seconds at gates", sync.seconds_exposed);
        table.figure("seconds in background rounds", sync.seconds_background);
    }
    if let Some(recovery) = &summary.recovery {
        table.row("failures", recovery.failures);
        table.figure("portion of lost samples", recovery.pls);
        table.figure("time over that without them", recovery.overhead_simulated);
    }
    table.figure("train logloss", summary.train.as_ref().and_then(|train| train.logloss));
    for (split, figures) in [("valid", &summary.valid), ("test", &summary.test)] {
        if let Some(figures) = figures {
            add_figures(&mut table, &format!("{split} "), figures);
        }
    }
    table
}

/// A line per number of trainers.
fn sweep_table(summaries: &[Summary]) -> String {
    let mut text = format!(
        "{:>8} {:>14} {:>10} {:>10} {:>10} {:>10} {:>9}\n",
        "trainers", "examples/s", "efficiency", "gap mean", "gap p99", "at gates s", "test auc"
    );
    let or_dash = |x: Option<f64>, places: usize| {
        x.map_or_else(|| "-".to_owned(), |x| format!("{x:.places$}"))
    };
    for summary in summaries {
        let sync = summary.sync.as_ref();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:>8} {:>14} {:>10} {:>10} {:>10} {:>10} {:>9}",
            summary.roles.trainers,
            or_dash(summary.examples_per_second, 0),
            or_dash(efficiency(summary, &summaries[0]), 3),
            or_dash(sync.and_then(|sync| sync.gap_mean), 2),
            or_dash(sync.and_then(|sync| sync.gap_p99), 0),
            or_dash(sync.and_then(|sync| sync.seconds_exposed), 3),
            or_dash(summary.test.as_ref().and_then(|test| test.auc), 5),
        );
    }
    text
}

/// Examples per second and trainer, against those of `first`.
fn efficiency(summary: &Summary, first: &Summary) -> Option<f64> {
    let each = |summary: &Summary| {
        summary.examples_per_second.map(|speed| speed / summary.roles.trainers as f64)
    };
    Some(each(summary)? / each(first)?)
}

fn write_json(path: &Path, summaries: &[Summary]) -> Result<(), Error> {
    let row = |summary: &Summary| {
        json!({
            "trainers": summary.roles.trainers,
            "efficiency": efficiency(summary, &summaries[0]),
            "summary": summary,
        })
    };
    let rows: Vec<_> = summaries.iter().map(row).collect();
    let text = serde_json::to_string_pretty(&json!({"virtual": true, "rows": rows}))
        .map_err(|error| Error::Failure(format!("figures as JSON: {error}")))?;
    write_atomically(path, format!("{text}\n").as_bytes())
}
