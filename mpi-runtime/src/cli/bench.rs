//! `umbra bench`: how fast this machine trains, beside what it could do at best.

use core::iter;
use std::path::{Path, PathBuf};

use clap::Args;
use umbra_datasets::output::{self, OutputError};

use crate::bench::{Operands, Optimizers, Report, Settings, Shape, Subject, bench, peak_only};
use crate::error::Error;
use crate::record::progress::bar;
use crate::record::write_atomically;

/// Measure training steps on this machine, and their share of what its cores can do at best
#[derive(Args, Debug)]
pub(super) struct BenchArguments {
    /// Measure the model and optimizers of a job file, on the shape of its training data; default:
    /// the DLRM of Criteo's Kaggle data
    #[arg(short, long, value_name = "JOB.toml", conflicts_with = "optimizer")]
    config: Option<PathBuf>,
    /// What to measure instead: models whose time goes into rows
    #[arg(long, value_enum, value_name = "NAME", default_value = "criteo-kaggle",
        conflicts_with_all = ["config", "data"])]
    shape: Shape,
    /// Examples of a step
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "128,512,2048",
        value_parser = clap::value_parser!(u32).range(1..=1 << 20),
    )]
    batch: Vec<u32>,
    /// Optimizers
    #[arg(
        long,
        value_enum,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "sgd,rowwise_adagrad"
    )]
    optimizer: Vec<Optimizers>,
    /// What the products of a step multiply; sums are f32
    #[arg(
        long,
        value_enum,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "f32",
        conflicts_with = "config"
    )]
    precision: Vec<Operands>,
    /// What embedding rows are in memory
    #[arg(
        long,
        value_enum,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "f32",
        conflicts_with = "config"
    )]
    rows: Vec<Operands>,
    /// Worker threads that share one replica; each on a core of its own where there are enough
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1,2",
        value_parser = clap::value_parser!(u16).range(1..=1024),
    )]
    workers: Vec<u16>,
    /// Seconds of training per figure, over all its samples
    #[arg(long, default_value_t = 2.0, value_name = "S", value_parser = seconds)]
    seconds: f64,
    /// Samples per figure, taken in turn with those of the other figures
    #[arg(
        long,
        default_value_t = 5,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    samples: u16,
    /// Train on this file, once from memory and once through the reader; default: made-up rows with
    /// uniform ids
    #[arg(long, value_name = "FILE.h5")]
    data: Option<PathBuf>,
    /// Measure whole steps only, not their parts
    #[arg(long)]
    steps_only: bool,
    /// Measure the peak of a core only, and no steps
    #[arg(long, conflicts_with_all = ["config", "data", "steps_only"])]
    peak_only: bool,
    /// Write the figures as JSON, too; - is stdout, and the table goes to stderr then
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the verb.
pub(super) fn run(arguments: &BenchArguments) -> Result<(), Error> {
    let json = arguments.json.as_deref();
    if arguments.peak_only {
        let out = Out::new(json, iter::empty())?;
        return hand_out(&peak_only(), &out);
    }
    let data = arguments.data.as_deref();
    let mut ways = vec![];
    for optimizers in &arguments.optimizer {
        for operands in &arguments.precision {
            ways.extend(arguments.rows.iter().map(|rows| (*optimizers, *operands, *rows)));
        }
    }
    let subject = match &arguments.config {
        Some(job) => Subject::of_job(job, data)?,
        None if data.is_none() => Subject::of_shape(arguments.shape, &ways)?,
        None => Subject::criteo_kaggle(&ways, data)?,
    };
    let of_jobs = subject.variants.iter().flat_map(|variant| variant.config.data.files());
    let read = [arguments.config.as_deref(), data].into_iter().flatten().chain(of_jobs);
    let out = Out::new(json, read)?;
    let settings = Settings {
        batches: arguments.batch.iter().map(|batch| *batch as usize).collect(),
        workers: arguments.workers.iter().map(|workers| usize::from(*workers)).collect(),
        seconds: arguments.seconds,
        samples: usize::from(arguments.samples),
        kernels: !arguments.steps_only,
    };
    let mut progress = None;
    let report = bench(&subject, &settings, &mut |done, total| {
        progress.get_or_insert_with(|| bar(total, "samples")).set_position(done);
    })?;
    if let Some(progress) = progress {
        progress.finish_and_clear();
    }
    hand_out(&report, &out)
}

/// Where the JSON goes, beside the table.
enum Out {
    /// Nowhere.
    Table,
    /// Then the table goes to stderr.
    Stdout,
    File(PathBuf),
}

impl Out {
    /// Checks a file before anything is measured: it is none of those that are `read`.
    fn new<'a>(
        json: Option<&Path>,
        read: impl Iterator<Item = &'a Path>,
    ) -> Result<Self, OutputError> {
        Ok(match json {
            None => Self::Table,
            Some(path) if path.as_os_str() == "-" => Self::Stdout,
            Some(path) => Self::File(output::check(path, read, true)?),
        })
    }
}

/// The table, and the JSON if it was asked for.
fn hand_out(report: &Report, out: &Out) -> Result<(), Error> {
    let json = serde_json::to_string(report)
        .map_err(|error| Error::Failure(format!("figures as JSON: {error}")))?;
    use std::io::Write;
    // A closed stdout or stderr is no failure of the work that was done.
    match out {
        Out::Stdout => {
            let _ = write!(std::io::stderr().lock(), "{report}");
            let _ = writeln!(std::io::stdout().lock(), "{json}");
        }
        Out::Table => {
            let _ = write!(std::io::stdout().lock(), "{report}");
        }
        Out::File(path) => {
            let _ = write!(std::io::stdout().lock(), "{report}");
            write_atomically(path, json.as_bytes())?;
        }
    }
    Ok(())
}

/// A time that can be measured.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds from 0.001 to 3600".into()),
    }
}
