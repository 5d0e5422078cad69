//! What a person sees while it runs: a bar on a terminal, whole lines elsewhere.
//!
//! A line is written in one call, so that lines of several processes never mix within one.

use core::time::Duration;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Instant;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::metrics::Report;

/// Progress of a run towards a known number of examples.
#[derive(Debug)]
pub struct Progress {
    /// Examples of the run that were trained on before this start of it.
    before: u64,
    total_examples: u64,
    bar: Option<ProgressBar>,
    every: Duration,
    spoken: Instant,
}

impl Progress {
    /// Progress from `before` examples towards `total_examples`; on a terminal a bar, else a line
    /// at most every `every`.
    #[must_use]
    pub fn new(before: u64, total_examples: u64, every: Duration) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| bar(total_examples, "examples"));
        Self { before, total_examples, bar, every, spoken: Instant::now() }
    }

    /// Whether [`Progress::report`] would have something to show: always on a terminal, else once
    /// the interval has passed.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.spoken.elapsed() >= self.every
    }

    /// Shows a report. A report with validation figures is always a line of its own.
    pub fn report(&mut self, report: &Report) {
        if let Some(bar) = &self.bar {
            bar.set_position((self.before + report.examples).min(self.total_examples));
            bar.set_message(figures(report));
        }
        if self.bar.is_none() || report.valid.is_some() || report.progressive.is_some() {
            say(&line(report, self.before, self.total_examples));
        }
        self.spoken = Instant::now();
    }

    /// Takes the bar away.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A bar on stderr over `total` things; hidden when stderr is not a terminal.
#[must_use]
pub fn bar(total: u64, what: &str) -> ProgressBar {
    let bar = bars().add(ProgressBar::new(total));
    let template =
        format!("{{bar:30}} {{percent:>3}} % {{human_pos}}/{{human_len}} {what} {{eta}} {{msg}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

/// What a run says when it has written a checkpoint while it trains, before the folder: who
/// supervises it reads that it has got on.
pub const SAVED: &str = "umbra: saved ";

/// Writes a line to stderr, above any bar, in one piece.
pub fn say(line: &str) {
    let text = format!("{line}\n");
    bars().suspend(|| {
        // Nothing can be done about a closed stderr.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    });
}

/// The line for a report of a start that found `before` examples of the run done.
#[must_use]
pub fn line(report: &Report, before: u64, total_examples: u64) -> String {
    let done = before + report.examples;
    let share = if total_examples > 0 {
        (100.0 * done as f64 / total_examples as f64).min(100.0)
    } else {
        0.0
    };
    let mut line = format!(
        "epoch {} step {} · {share:.1} % · {} examples",
        report.epoch, report.step, report.examples
    );
    let figures = figures(report);
    if !figures.is_empty() {
        line = format!("{line} · {figures}");
    }
    let left = total_examples.saturating_sub(done);
    if left > 0 && report.examples > 0 && report.seconds > 0.0 {
        let seconds = left as f64 * report.seconds / report.examples as f64;
        line = format!("{line} · ETA {}", duration(seconds));
    }
    line
}

/// h:mm:ss
fn duration(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).as_secs();
    format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
}

/// Speed and losses, those that are there.
fn figures(report: &Report) -> String {
    let mut parts = Vec::new();
    if let Some(speed) = report.examples_per_second {
        parts.push(format!("{speed:.0} examples/s"));
    }
    if let Some(logloss) = report.logloss {
        parts.push(format!("logloss {logloss:.5}"));
    }
    if let Some(gap) = report.sync_gap {
        parts.push(format!("sync gap {gap:.1}"));
    }
    for (name, scored) in [("progressive", &report.progressive), ("valid", &report.valid)] {
        let Some(scored) = scored else { continue };
        let auc = scored.auc.map(|auc| format!("auc {auc:.5}"));
        let logloss = scored.logloss.map(|logloss| format!("logloss {logloss:.5}"));
        let shown: Vec<String> = auc.into_iter().chain(logloss).collect();
        parts.push(format!("{name} {}", shown.join(" ")));
    }
    parts.join(" · ")
}

/// All bars of the process, so that lines can be written above them.
fn bars() -> &'static MultiProgress {
    static BARS: OnceLock<MultiProgress> = OnceLock::new();
    BARS.get_or_init(MultiProgress::new)
}

#[cfg(test)]
mod tests {
    use super::super::summary::EvalFigures;
    use super::*;

    #[test]
    fn lines_are_whole_and_say_when_it_ends() {
        let mut report = Report {
            step: 40,
            examples: 2_500,
            epoch: 1,
            seconds: 60.0,
            logloss: Some(0.451_234),
            examples_per_second: Some(41.6),
            ..Report::default()
        };
        assert_eq!(
            line(&report, 0, 10_000),
            "epoch 1 step 40 · 25.0 % · 2500 examples · 42 examples/s · logloss 0.45123 · ETA \
             0:03:00"
        );
        // Of a run that goes on: half is done, and the rest takes twice as long as this start.
        assert_eq!(
            line(&report, 2_500, 10_000),
            "epoch 1 step 40 · 50.0 % · 2500 examples · 42 examples/s · logloss 0.45123 · ETA \
             0:02:00"
        );
        assert_eq!(line(&Report::default(), 0, 10), "epoch 0 step 0 · 0.0 % · 0 examples");
        report.valid =
            Some(EvalFigures { auc: Some(0.8), logloss: Some(0.4), ..Default::default() });
        report.examples = 10_000;
        assert_eq!(
            line(&report, 0, 10_000),
            "epoch 1 step 40 · 100.0 % · 10000 examples · 42 examples/s · logloss 0.45123 · valid \
             auc 0.80000 logloss 0.40000"
        );
        assert!(!line(&report, 0, 0).contains('\n'));
    }

    #[test]
    fn durations_are_written_in_hours() {
        assert_eq!(duration(0.4), "0:00:00");
        assert_eq!(duration(3_725.0), "1:02:05");
        assert_eq!(duration(360_000.0), "100:00:00");
    }

    #[test]
    fn a_line_is_due_after_its_interval() {
        let progress = Progress::new(0, 10, Duration::from_secs(3600));
        assert!(!progress.is_due());
        assert!(Progress::new(0, 10, Duration::ZERO).is_due());
    }
}
