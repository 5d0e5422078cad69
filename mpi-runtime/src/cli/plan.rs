//! `umbra plan`: what a job takes on so many ranks (memory, messages), before anything starts; how
//! often it should save, and who should go back after a failure.

use core::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;

use clap::Args;
use umbra_core::recovery::overhead::{Costs, Job, Outlook, Recovery};
use umbra_datasets::Dataset;

use super::job_file::{JOB_FILE, JobArguments};
use crate::comm::Comm;
use crate::config::{Config, Seconds};
use crate::error::Error;
use crate::launch::signals::Signals;
use crate::launch::world::World;
use crate::recovery::planner::Span;
use crate::run::job::{Outcome, Task, train};
use crate::run::tables;
use crate::simulate::step_times::StepTimes;

/// Plan a job: memory and messages on --ranks ranks; with --length, saves and recovery: intervals,
/// overheads, expected losses
#[derive(Args, Debug)]
#[command(
    after_long_help = "Times are seconds, or have a unit: 90, \"5 min\", 28h. PLS is the portion \
                             of lost samples of arXiv 2011.02999: what lost rows had learnt since \
                             they were saved."
)]
pub(super) struct PlanArguments {
    #[command(flatten)]
    job: JobArguments,
    /// Say what the job takes on so many ranks, on a node each: bytes of each rank and table,
    /// messages and imbalance, as train --dry-run --ranks N does, and the time of a step by each
    /// method
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        requires = JOB_FILE,
        conflicts_with_all = ["length", "mtbf", "shards", "save", "load", "bytes_per_s"]
    )]
    ranks: Option<u32>,
    /// Of step times: bytes per second of a node's link, in each direction
    #[arg(
        long,
        value_name = "RATE",
        value_parser = rate,
        requires = "ranks",
        default_value = "1.25e9"
    )]
    link: f64,
    /// Of step times: the latency of a message, microseconds
    #[arg(
        long,
        value_name = "US",
        value_parser = latency,
        requires = "ranks",
        default_value = "20"
    )]
    latency_us: f64,
    /// How long the job trains
    #[arg(long, value_name = "TIME", value_parser = time, required_unless_present = "ranks")]
    length: Option<f64>,
    /// Mean time between failures of any rank of the job
    #[arg(long, value_name = "TIME", value_parser = time, required_unless_present = "ranks")]
    mtbf: Option<f64>,
    /// Ranks that hold rows: a failure takes those of one
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        required_unless_present = "ranks"
    )]
    shards: Option<u32>,
    /// What a save takes; with a job file, whose tables say what it has, and --bytes-per-s it
    /// follows
    #[arg(
        long,
        value_name = "TIME",
        value_parser = time,
        required_unless_present_any = ["bytes_per_s", "ranks"]
    )]
    save: Option<f64>,
    /// What reading a save takes; default: as long as a save
    #[arg(long, value_name = "TIME", value_parser = time)]
    load: Option<f64>,
    /// Until there is a process in the place of a lost one
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "60 s")]
    reschedule: f64,
    /// Bytes per second of all ranks together to the file system
    #[arg(long, value_name = "RATE", requires = JOB_FILE)]
    bytes_per_s: Option<f64>,
    /// Portions of lost samples that may be expected
    #[arg(long, value_name = "PLS,…", value_delimiter = ',', default_value = "0.01,0.02,0.05,0.1")]
    pls: Vec<f64>,
    /// Share of the rows of a save that saves some rows first
    #[arg(long, value_name = "SHARE", default_value = "1")]
    share: f64,
}

fn time(text: &str) -> Result<f64, String> {
    let time: Result<Seconds, ()> = text.parse();
    time.map(|Seconds(seconds)| seconds)
        .map_err(|()| "expected seconds above 0, or a time: 90, \"5 min\", 28h".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| *rate > 0.0);
    rate.ok_or_else(|| "expected a number above 0".to_owned())
}

fn latency(text: &str) -> Result<f64, String> {
    let latency = text.parse().ok().filter(|us: &f64| *us >= 0.0 && us.is_finite());
    latency.ok_or_else(|| "expected a number, at least 0".to_owned())
}

impl PlanArguments {
    /// The ranks that a job is planned on; `None` where its failures are planned.
    pub(super) fn ranks(&self) -> Option<usize> {
        self.ranks.map(|ranks| ranks as usize)
    }
}

/// Plans a job on so many ranks. *Collective over all ranks, of which there is one.*
pub(super) fn run_on(
    ranks: usize,
    arguments: &PlanArguments,
    world: &World,
    control: &Comm,
) -> Result<(), Error> {
    let config = arguments.job.config().map_err(Error::from);
    let config = control.agree(config)?;
    let job = config.clone();
    let signals = Arc::new(Signals::none());
    if let Outcome::Planned(plan, prediction) =
        train(world, control, config, &signals, Task::Plan(Some(ranks)))?
    {
        let prediction = prediction.unwrap_or_default();
        let link = (arguments.link, arguments.latency_us);
        let times = StepTimes::new(&plan, &job, link, control)?;
        // A closed stdout is no failure.
        let _ = writeln!(std::io::stdout().lock(), "{plan}{prediction}\n{times}");
    }
    Ok(())
}

/// Plans saves and recovery. One process, without MPI.
pub(super) fn run(arguments: &PlanArguments) -> Result<(), Error> {
    let PlanArguments { reschedule, .. } = *arguments;
    let (Some(length), Some(mtbf), Some(shards)) =
        (arguments.length, arguments.mtbf, arguments.shards)
    else {
        return Err(Error::Usage("--length, --mtbf and --shards, or --ranks, are missing".into()));
    };
    let out_of = |name: &str, value: f64, range: &str| {
        Err(Error::Usage(format!("--{name} {value}: expected {range}")))
    };
    if let Some(pls) = arguments.pls.iter().find(|pls| !(**pls > 0.0 && **pls <= 1.0)) {
        return out_of("pls", *pls, "a number above 0, 1 at most");
    }
    if !(arguments.share > 0.0 && arguments.share <= 1.0) {
        return out_of("share", arguments.share, "a number above 0, 1 at most");
    }
    let mut text = String::new();
    let from_rate = match (arguments.job.path(), arguments.bytes_per_s) {
        (Some(_), Some(rate)) if rate > 0.0 && rate.is_finite() => {
            let bytes = bytes_of(&arguments.job.config()?)?;
            // Writing to a String cannot fail.
            let _ = writeln!(text, "rows         {:.3} GB with their state", bytes / 1e9);
            Some(bytes / rate)
        }
        (_, Some(rate)) => return out_of("bytes-per-s", rate, "a number above 0"),
        _ => None,
    };
    let missing = || Error::Usage("--save is missing: what a save takes".into());
    let save = arguments.save.or(from_rate).ok_or_else(missing)?;
    let costs = Costs { save, load: arguments.load.unwrap_or(save), reschedule };
    let job = Job { length, mtbf, shards, part: arguments.share, costs };
    table(&mut text, &job, &arguments.pls);
    // A closed stdout is no failure.
    let _ = write!(std::io::stdout().lock(), "{text}");
    Ok(())
}

/// Bytes of the rows of a job, with their optimizer state.
fn bytes_of(config: &Config) -> Result<f64, Error> {
    let train = Dataset::open(&config.data.train)?;
    let (_, layout) = tables::of_job(config, &train, 1)?;
    Ok(layout.bytes_of(0) as f64)
}

/// Every way to recover in a line, and what follows.
fn table(text: &mut String, job: &Job, targets: &[f64]) {
    let Costs { save, load, reschedule } = job.costs;
    let _ = writeln!(
        text,
        "job          {}, a failure every {}, one of {} shards\ncosts        a save {}, reading it \
         {}, another process {}\n\n{:34}{:>12}{:>11}{:>11}",
        Span(job.length),
        Span(job.mtbf),
        job.shards,
        Span(save),
        Span(load),
        Span(reschedule),
        "after a failure",
        "save every",
        "overhead",
        "PLS"
    );
    let mut line = |name: &str, outlook: &Outlook| {
        let interval = Span(outlook.interval).to_string();
        let overhead = format!("{:.2} %", 100.0 * outlook.overhead);
        let pls = match outlook.recovery {
            Recovery::Full => "0".to_owned(),
            Recovery::Partial => format!("{:.5}", outlook.loss),
        };
        let _ = writeln!(text, "{name:34}{interval:>12}{overhead:>11}{pls:>11}");
    };
    let choices = targets.iter().map(|target| (target, job.choose(*target)));
    let choices: Vec<_> = choices.collect();
    if let Some((_, choice)) = choices.first() {
        line("everybody goes back", &choice.full);
        line("lost rows go back", &choice.partial);
    }
    for (target, choice) in &choices {
        line(&format!("lost rows, PLS of {target} allowed"), &choice.allowed);
    }
    for (target, choice) in &choices {
        let who = match choice.chosen.recovery {
            Recovery::Full => "everybody goes back: lost rows alone would cost more",
            Recovery::Partial => "lost rows go back",
        };
        let _ = writeln!(text, "cpr, PLS of {target} allowed: {who}");
    }
}
