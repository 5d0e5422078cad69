//! What a person sees while it runs: a bar on a terminal, whole lines elsewhere.
//!
//! A line is written in one call, so that lines of several processes never mix within one. Lines
//! come early and then less and less often: the first as soon as there is something to say, the
//! next after a second, then whenever it has taken as long again, but at least every interval that
//! a run has set.

use core::time::Duration;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::metrics::Report;

/// How much a program says on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loudness {
    /// Errors and warnings.
    Quiet,
    /// And how far it is.
    #[default]
    Normal,
    /// And every report, and more of how it runs.
    Verbose,
}

/// Progress of a run towards a known number of examples.
#[derive(Debug)]
pub struct Progress {
    /// Examples of the run that were trained on before this start of it.
    before: u64,
    total_examples: u64,
    bar: Option<ProgressBar>,
    every: Duration,
    verbose: bool,
    /// When the first line was, and the last.
    spoken: Option<(Instant, Instant)>,
    /// Of the last validation.
    auc: Option<f64>,
}

impl Progress {
    /// Progress from `before` examples towards `total_examples`, where somebody wants to see it; on
    /// a terminal a bar, else lines, in the long run one every `every`.
    #[must_use]
    pub fn new(before: u64, total_examples: u64, every: Duration) -> Option<Self> {
        let bar = || {
            let bar = styled(total_examples, "{bar:10} {percent:>3} % {elapsed} {wide_msg}");
            bar.set_position(before.min(total_examples));
            bar
        };
        let wanted = loudness() > Loudness::Quiet;
        wanted.then(|| Self {
            before,
            total_examples,
            bar: std::io::stderr().is_terminal().then(bar),
            every,
            verbose: loudness() == Loudness::Verbose,
            spoken: None,
            auc: None,
        })
    }

    /// Whether it is time to [`show`](Self::show) something.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let Some((first, last)) = self.spoken else { return true };
        let between = if self.bar.is_some() { SECOND } else { pause(last - first, self.every) };
        last.elapsed() >= between
    }

    /// Shows how far it is: on a terminal in the bar, else as a line.
    pub fn show(&mut self, now: &Report) {
        match &self.bar {
            Some(bar) => {
                bar.set_position((self.before + now.examples).min(self.total_examples));
                bar.set_message(message(now, self.before, self.total_examples, self.auc));
            }
            None => say(&line(now, self.before, self.total_examples)),
        }
        self.has_spoken();
    }

    /// Time passes, and nothing is new.
    pub fn tick(&self) {
        if let Some(bar) = &self.bar {
            bar.tick();
        }
    }

    /// Hears of what is recorded: says it, if it is to be `said`.
    pub fn report(&mut self, report: &Report, said: bool) {
        if let Some(valid) = &report.valid {
            self.auc = valid.auc;
        }
        if said || self.verbose {
            say(&line(report, self.before, self.total_examples));
            if self.bar.is_none() {
                self.has_spoken();
            }
        }
    }

    fn has_spoken(&mut self) {
        let now = Instant::now();
        let first = self.spoken.map_or(now, |(first, _)| first);
        self.spoken = Some((first, now));
    }

    /// Takes the bar away.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How long to be silent when the last line came so long after the first.
fn pause(since_first: Duration, every: Duration) -> Duration {
    since_first.max(SECOND).min(every)
}

const SECOND: Duration = Duration::from_secs(1);

/// Says how much this program says; once, before anything is said.
pub fn set_loudness(loudness: Loudness) {
    // Who says it first is right.
    let _ = LOUDNESS.set(loudness);
}

/// How much this program says.
#[must_use]
pub fn loudness() -> Loudness {
    LOUDNESS.get().copied().unwrap_or_default()
}

static LOUDNESS: OnceLock<Loudness> = OnceLock::new();

/// A bar on stderr over `total` things; hidden when stderr is not a terminal, and where nobody
/// wants to see it.
#[must_use]
pub fn bar(total: u64, what: &str) -> ProgressBar {
    if loudness() == Loudness::Quiet {
        return ProgressBar::hidden();
    }
    let template =
        format!("{{bar:30}} {{percent:>3}} % {{human_pos}}/{{human_len}} {what} {{eta}} {{msg}}");
    styled(total, &template)
}

fn styled(total: u64, template: &str) -> ProgressBar {
    let bar = bars().add(ProgressBar::new(total));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// What a run says when it has written a checkpoint while it trains, before the folder: who
/// supervises it reads that it has got on.
pub const SAVED: &str = "umbra: saved ";

/// Says that a checkpoint was written to `folder`; who supervises the run hears it always.
pub fn say_saved(folder: &Path) {
    let supervised = std::env::var_os(super::NOTE).is_some();
    if supervised || loudness() > Loudness::Quiet {
        say(&format!("{SAVED}{}", folder.display()));
    }
}

/// As [`say`], for those who want to know more than what went wrong.
pub fn note(line: &str) {
    if loudness() > Loudness::Quiet {
        say(line);
    }
}

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
    if let Some(seconds) = left(report, before, total_examples) {
        line = format!("{line} · ETA {}", duration(seconds));
    }
    line
}

/// Seconds that it still takes at the speed so far.
fn left(report: &Report, before: u64, total_examples: u64) -> Option<f64> {
    let left = total_examples.saturating_sub(before + report.examples);
    let known = left > 0 && report.examples > 0 && report.seconds > 0.0;
    known.then(|| left as f64 * report.seconds / report.examples as f64)
}

/// What stands behind a bar: 80 columns are enough for both.
fn message(report: &Report, before: u64, total_examples: u64, auc: Option<f64>) -> String {
    let parts = [
        left(report, before, total_examples).map(|left| format!("ETA {}", duration(left))),
        report.examples_per_second.map(|speed| format!("{speed:.0} examples/s")),
        report.logloss.map(|logloss| format!("loss {logloss:.5}")),
        auc.map(|auc| format!("auc {auc:.5}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(" · ")
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
    fn the_bar_says_when_it_ends_and_the_last_auc() {
        let mut report = Report { examples: 2_500, seconds: 60.0, ..Report::default() };
        (report.logloss, report.examples_per_second) = (Some(0.451_234), Some(41.6));
        let eta = "ETA 0:03:00 · 42 examples/s · loss 0.45123";
        assert_eq!(message(&report, 0, 10_000, None), eta);
        let with_auc = format!("{eta} · auc 0.80000");
        assert_eq!(message(&report, 0, 10_000, Some(0.8)), with_auc);
        assert_eq!(message(&Report::default(), 0, 10, None), "");
    }

    #[test]
    fn lines_come_early_and_then_less_and_less_often() {
        let lines_by = |every: u64, end: u64| {
            let (mut at, mut lines) = (Duration::ZERO, vec![0]);
            while at < Duration::from_secs(end) {
                at += pause(at, Duration::from_secs(every));
                lines.push(at.as_secs());
            }
            lines
        };
        assert_eq!(lines_by(10, 40), [0, 1, 2, 4, 8, 16, 26, 36, 46]);
        assert_eq!(lines_by(60, 120), [0, 1, 2, 4, 8, 16, 32, 64, 124]);
        assert_eq!(pause(Duration::ZERO, Duration::from_millis(100)).as_millis(), 100);
    }
}
