//! `umbra report`: runs side by side, as a table and as a page.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use umbra_datasets::output::{self, Temporary};

use super::table::{Grid, plain};
use crate::error::Error;
use crate::report::{Differing, Report, Run};

/// Compare runs: a table of their figures and of the keys that differ; with --output, a page
#[derive(Args, Debug)]
#[command(after_long_help = "The page is one file that needs no network: curves, throughput, \
                       synchronization, bytes, memory, checkpoints and failures of the runs. It \
                       can be opened in any browser, mailed, or kept with the results.")]
pub(super) struct ReportArguments {
    /// Run folders, or folders that hold run folders
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// HTML page to write; - for stdout
    #[arg(long, value_name = "FILE.html")]
    output: Option<PathBuf>,
    /// Replace an existing output
    #[arg(long, requires = "output")]
    overwrite: bool,
}

/// Runs the verb. One process, without MPI.
pub(super) fn run(arguments: &ReportArguments) -> Result<(), Error> {
    let ReportArguments { runs, output, overwrite } = arguments;
    let to_stdout = output.as_deref() == Some(Path::new("-"));
    let target = output.as_deref().filter(|_| !to_stdout);
    let target = target.map(|path| output::check(path, [], *overwrite)).transpose()?;
    let report = Report::read(runs, super::version::short())?;
    let mut text = table(&report);
    let page = output.as_ref().map(|_| report.page(&text)).transpose()?;
    match (page, target) {
        (Some(page), None) => text = page,
        (Some(page), Some(path)) => {
            write(&path, page.as_bytes(), *overwrite)?;
            let named = output.as_deref().unwrap_or(&path).display();
            text += &format!("\npage  {named}, {} kB\n", page.len().div_ceil(1000));
        }
        (None, _) => {}
    }
    // A closed stdout is no failure.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(())
}

/// The runs and what differs between them.
fn table(report: &Report) -> String {
    let columns: Vec<&Column> =
        COLUMNS.iter().filter(|(name, of)| *name != OPTIONAL || has(report, *of)).collect();
    let mut grid = Grid::new(columns.iter().map(|(name, _)| *name));
    for run in &report.runs {
        grid.row(columns.iter().map(|(_, of)| of(run).unwrap_or_else(|| "-".into())));
    }
    let mut text = grid.to_string();
    let notes: Vec<String> = report
        .runs
        .iter()
        .flat_map(|run| {
            run.notes.iter().map(move |note| plain(&format!("{}: {note}", run.name)) + "\n")
        })
        .collect();
    if !report.differing.is_empty() {
        text += "\nkeys that differ\n";
        let widths = report.differing.iter().map(|it| it.key.chars().count());
        let width = widths.max().unwrap_or(0);
        for differing in &report.differing {
            let values = plain(&values(differing, &report.runs));
            text += &format!("  {:width$}  {values}\n", differing.key);
        }
    } else if report.runs.len() > 1 {
        text += "\nno key differs\n";
    }
    if !notes.is_empty() {
        text += &format!("\n{}", notes.concat());
    }
    text
}

fn has(report: &Report, of: fn(&Run) -> Option<String>) -> bool {
    report.runs.iter().any(|run| of(run).is_some())
}

/// Every value with the runs that have it; the value of most is that of the others.
fn values(differing: &Differing, runs: &[Run]) -> String {
    let groups = differing.groups();
    let most = groups.iter().map(|(_, of)| of.len()).max().unwrap_or(0);
    let mut others = most > 2;
    let texts = groups.iter().map(|(value, of)| {
        let who = if others && of.len() == most {
            others = false;
            "the others".to_owned()
        } else {
            of.iter().map(|run| runs[*run].name.as_str()).collect::<Vec<_>>().join(", ")
        };
        format!("{} ({who})", value.unwrap_or("unset"))
    });
    texts.collect::<Vec<_>>().join(" · ")
}

/// A column: its heading, and what a run says there.
type Column = (&'static str, fn(&Run) -> Option<String>);

/// The column that is there only if a run has something in it.
const OPTIONAL: &str = "valid AUC";

const COLUMNS: &[Column] = &[
    ("run", |run| Some(run.name.clone())),
    ("status", |run| Some(run.status().to_owned())),
    ("method", |run| run.method().map(str::to_owned)),
    ("ranks×threads", |run| {
        Some(format!("{}×{}", run.figure("ranks")?, run.figure("worker_threads")?))
    }),
    ("examples", |run| run.so_far("examples").map(|value| format!("{value}"))),
    ("seconds", |run| run.so_far("seconds").map(|value| format!("{value:.1}"))),
    ("examples/s", |run| run.so_far("examples_per_second").map(|value| format!("{value:.0}"))),
    ("test AUC", |run| run.figure("test.auc").map(|value| format!("{value:.6}"))),
    ("log loss", |run| run.figure("test.logloss").map(|value| format!("{value:.6}"))),
    (OPTIONAL, |run| {
        let value = run.figure("valid.auc").or_else(|| run.points.last("valid.auc"));
        value.map(|value| format!("{value:.6}"))
    }),
    ("sync gap", |run| run.figure("sync.gap_mean").map(|value| format!("{value:.1}"))),
    ("sent", |run| run.bytes().map(bytes)),
];

/// Bytes, short enough to read.
fn bytes(value: f64) -> String {
    let units = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    let unit = units.iter().find(|(_, unit)| value >= *unit);
    unit.map_or_else(|| format!("{value} B"), |(name, unit)| format!("{:.1} {name}", value / unit))
}

fn write(path: &Path, page: &[u8], replace: bool) -> Result<(), Error> {
    let wrong = |doing| move |source| Error::file(path, doing, source);
    let temporary = Temporary::beside(path).map_err(wrong("create it"))?;
    fs::write(temporary.path(), page).map_err(wrong("write it"))?;
    let published = temporary.publish(path, replace);
    published.map(drop).map_err(|(doing, source)| Error::file(path, doing, source))
}
