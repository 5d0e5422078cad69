//! What a run measured, and its summary.

use core::time::Duration;
use std::path::Path;
use std::time::Instant;

use crate::comm::traffic::{TRAFFIC_WORDS, Traffic};
use crate::comm::watch::Lost;
use crate::comm::{Comm, loss};
use crate::config::RecoveryMode;
use crate::dense::coding_trial::Trial;
use crate::dense::seat::Gaps;
use crate::error::Error;
use crate::measure::counters::{READING_WORDS, Reading};
use crate::record::{
    self, EvalFigures, ExchangedFigures, MemoryFigures, ProgressiveFigures, RecoveryFigures,
    Status, SyncFigures, TrainFigures, TrainerSync, WaitFigures, WireFigures, WireOfRank,
    write_atomically,
};
use crate::recovery::played::{Played, Saved};
use crate::rows::tables::Partition;
use crate::rows::usage::UsageMemory;
use crate::run::Run;
use crate::run::compression::compressed_figures;
use crate::run::curve::sum;
use crate::run::job::Outcome;
use crate::run::placement::Placed;
use crate::run::reporter::Recorder;
use crate::run::sections::figures_of;
use crate::run::session::Session;
use crate::score::figures::Figures;

impl Session<'_> {
    /// Fills in what was counted. *Collective.*
    pub(super) fn measure(&mut self, total: &Reading) -> Result<(), Lost> {
        let plan = &self.run.plan;
        let workers = (plan.roles.trainers.len() * plan.workers_per_trainer()) as f64;
        let seconds = self.seconds.as_secs_f64();
        let embedding = self.run.embedding_traffic();
        let mut own =
            vec![rss_bytes(), embedding.bytes_sent, plan.embedding_bytes(self.world.rank)];
        let usage = self.run.services.partitions.iter().filter_map(Partition::usage);
        let usage_bytes = usage.map(UsageMemory::bytes).sum();
        let played = self.played.as_ref().map(Played::saved).unwrap_or_default();
        let saved = Saved { usage_bytes, ..played };
        own.extend(saved.to_words());
        for traffic in [embedding, self.run.dense_traffic()] {
            own.extend(traffic.to_words());
        }
        own.extend(self.run.compressed().to_words());
        let mut all = vec![0; own.len() * self.world.size];
        self.control.all_gather(&own, &mut all, "memory and bytes of the run")?;
        let of = |index| all.iter().skip(index).step_by(own.len()).copied();
        let mut sync = sync_figures(&self.run, self.control, total)?;
        sync.dropped = (total.dropped > 0).then_some(total.dropped);
        if let Some(tally) = self.run.gradients()? {
            sync = sync.with_gradients(&tally);
        }
        let published = self.run.publishes();
        let share = |ns: u64| Some(Duration::from_nanos(ns).as_secs_f64() / workers);
        let several = self.world.size > 1;
        let summary = &mut self.summary;
        summary.data_fingerprint = Some(plan.train.fingerprint().to_owned());
        summary.examples = Some(total.examples);
        summary.seconds = Some(seconds);
        summary.examples_per_second = (seconds > 0.0).then(|| total.examples as f64 / seconds);
        summary.train = (total.weight_sum > 0.0).then(|| TrainFigures {
            logloss: Some(total.loss_sum / total.weight_sum).filter(|loss| loss.is_finite()),
            normalized_entropy: None,
        });
        summary.sync = Some(SyncFigures {
            method: plan.job.method.name().into(),
            seconds_exposed: share(total.sync_ns).filter(|seconds| *seconds > 0.0),
            seconds_publish: published.then_some(self.publishing.as_secs_f64()),
            switches: self.switches.clone(),
            ..sync
        });
        let trial = self.run.trial;
        let tried = |of: fn(&Trial) -> Duration| trial.as_ref().map(of).map(|it| it.as_secs_f64());
        let choice = plan.pool_choice.as_ref();
        summary.wire = several.then(|| WireFigures {
            embedding_placement: plan.placed.as_ref().map(Placed::chosen),
            embedding_pool_at: choice.map(|choice| choice.pool_at),
            embedding_step_bytes_trainer: choice.map(|choice| choice.bytes_trainer),
            embedding_step_bytes_ps: choice.map(|choice| choice.bytes_ps),
            seconds_trial_plain: tried(|trial| trial.plain),
            seconds_trial_coded: tried(|trial| trial.coded),
            dense_bytes: Some(total.rounds.bytes),
            embedding_bytes: Some(of(1).sum()),
            ranks: all.chunks(own.len()).enumerate().map(wire_of_rank).collect(),
            ..compressed_figures(all.chunks(own.len()).filter_map(|words| words.last_chunk()))
        });
        let row_saves = summary.checkpoint.as_mut().and_then(|saves| saves.row_saves.as_mut());
        if let Some(row_saves) = row_saves {
            row_saves.usage_bytes = of(5).sum();
        }
        summary.recovery = self.played.as_ref().map(|played| {
            let mode = plan.job.config.recovery.mode.map_or("", RecoveryMode::name);
            let ranks = all.chunks(own.len()).map(|words| [words[3], words[4], words[5]]);
            played.figures(mode, ranks.fold(Saved::default(), Saved::and))
        });
        if let (Some(last), Some(side)) = (self.losses.last_mut(), &self.run.trainer) {
            last.next_step_unix = side.shared.first_step.get();
        }
        if !self.losses.is_empty() {
            let losses = self.losses.clone();
            let mode = plan.job.config.recovery.mode.unwrap_or(RecoveryMode::Partial);
            summary.recovery = Some(RecoveryFigures {
                failures: losses.iter().map(|loss| loss.ranks.len() as u64).sum(),
                mode: mode.name().to_owned(),
                pls: Some(losses.iter().map(|loss| loss.pls).sum()),
                losses,
                ..RecoveryFigures::default()
            });
        }
        summary.memory = Some(MemoryFigures {
            rss_bytes_max: of(0).max(),
            embedding_bytes: Some(of(2).sum()),
            dense_bytes: Some(plan.dense_bytes()),
        });
        summary.wait = Some(WaitFigures {
            data_seconds: share(total.data_ns),
            embedding_seconds: share(total.embedding_ns),
            sync_seconds: share(total.sync_ns),
        });
        Ok(())
    }

    /// Counters of all ranks. *Collective.*
    pub(super) fn readings(&self) -> Result<Vec<Reading>, Lost> {
        let mut all = vec![0; READING_WORDS * self.world.size];
        self.control.all_gather(&self.run.reading().to_words(), &mut all, "counters of the run")?;
        let readings = all.as_chunks::<READING_WORDS>().0.iter();
        Ok(readings.map(|words| Reading::from_words(*words)).collect())
    }

    /// Fills in all figures, whatever came before. *Collective.*
    ///
    /// # Errors
    /// When the trace can't be written.
    pub(super) fn conclude(&mut self) -> Result<(), Error> {
        self.finish_save();
        let readings = self.readings()?;
        self.measure(&sum(&readings))?;
        if let Some(recorder) = &self.recorder {
            recorder.end_progress(&readings);
        }
        let traced = self.run.trace.as_ref().map_or(Ok(()), |trace| {
            let path = self.recorder.as_ref().map(Recorder::trace_path);
            trace.write(self.control, &self.world.host, path.as_deref())
        });
        self.summary.valid = figures_of(self.run.state.valid);
        let workers = self.run.plan.workers_per_trainer() as u64;
        self.summary.progressive = self.progressive.as_ref().map(|counted| ProgressiveFigures {
            from_step: self.summary.from_step.unwrap_or(0),
            figures: eval_figures(&counted.figures()),
        });
        let reading = self.run.reading().steps / workers;
        self.summary.steps = Some(if self.run.is_served() { self.run.state.step } else { reading });
        traced
    }

    /// Ends the threads and writes the summary: what was `concluded`, and how training `ended`. A
    /// rank that is lost from here on is missed by nobody, unless it is the one that writes.
    pub(super) fn finish(
        self,
        ended: Result<bool, Error>,
        concluded: Result<(), Error>,
    ) -> Result<Outcome, Error> {
        let losses =
            self.run.plan.job.config.run.step_losses.then(|| self.run.step_losses().to_vec());
        let dir = self.run.plan.job.config.run.dir.clone();
        let (step, checkpoint) = (self.saved, self.folders.of(self.saved));
        let Self { world, control, run, recorder, mut summary, signals, local, .. } = self;
        summary.status = match ended {
            Ok(false) => Status::Done,
            Ok(true) => Status::Stopped,
            Err(_) => Status::Failed,
        };
        // Heartbeats go before the summary is written: they may have something to say there.
        let missed = loss::survive(|| drop(run.finish())).is_err();
        let signal = signals.stop_requested().unwrap_or(libc::SIGTERM);
        let ended = match ended {
            Ok(true) => Err(Error::Stopped { signal, step, checkpoint }),
            ended => ended.map(drop),
        };
        summary.reason = ended.as_ref().err().map(ToString::to_string);
        let written = recorder.map_or(Ok(()), |recorder| {
            concluded?;
            if let Some(losses) = losses {
                write_step_losses(&dir, &losses)?;
            }
            recorder.finish(&summary)
        });
        let written = match (missed, world.rank) {
            (false, _) => control.watch().end_if_lost(control.agree(written)),
            (true, 0) => written,
            (true, _) => wait_for_the_end(&dir),
        };
        ended?;
        written?;
        if let Some(local) = local {
            local.clear();
        }
        Ok(Outcome::Trained((world.rank == 0).then(|| (dir, Box::new(summary)))))
    }
}

/// A rank was lost when all was done: whether the one that writes the summary is left shows there.
fn wait_for_the_end(dir: &Path) -> Result<(), Error> {
    let begun = Instant::now();
    while !record::has_ended(dir) {
        if begun.elapsed() > WRITTEN {
            return Err(Error::Failure("a rank was lost before the summary was written".into()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// For a summary to be written.
const WRITTEN: Duration = Duration::from_secs(5);

/// What a rank sent and received: eight of the words of [`Session::measure`], from the seventh on.
fn wire_of_rank((rank, words): (usize, &[u64])) -> WireOfRank {
    let (kinds, _) = words[6..].as_chunks::<TRAFFIC_WORDS>();
    let exchanged = |kind: usize| {
        let Traffic { messages_sent, bytes_sent, messages_received, bytes_received } =
            Traffic::from_words(kinds[kind]);
        ExchangedFigures { messages_sent, bytes_sent, messages_received, bytes_received }
    };
    WireOfRank { rank, embedding: exchanged(0), dense: exchanged(1) }
}

/// What the rounds of the run came to. *Collective.*
fn sync_figures(run: &Run<'_>, control: &Comm, total: &Reading) -> Result<SyncFigures, Lost> {
    let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
    let reading = run.reading();
    let rounds = reading.rounds;
    let mut own = vec![
        rounds.rounds,
        rounds.round_ns,
        rounds.busy_ns,
        run.center_busy_ns(),
        reading.steps,
        u64::try_from(run.trained.as_nanos()).unwrap_or(u64::MAX),
        run.distance_to_mean().unwrap_or(f64::NAN).to_bits(),
    ];
    let fixed = own.len();
    own.extend(run.gaps.iter().flat_map(|(gap, count)| [*gap, *count]));
    let ranks = control.all_gather_varied(&own, "gaps between rounds")?;
    let gaps_of = |words: &[u64]| -> Gaps {
        words[fixed..].as_chunks().0.iter().map(|[gap, count]| (*gap, *count)).collect()
    };
    let of_trainers = || run.plan.roles.trainers.ranks().iter().map(|rank| &ranks[*rank]);
    let trainers: Vec<TrainerSync> = of_trainers()
        .map(|words| {
            let gaps = gaps_of(words);
            TrainerSync {
                rounds: words[0],
                gap_mean: mean(&gaps),
                gap_p99: percentile(&gaps, 0.99),
                steps: words[4],
                seconds: seconds(words[5]),
                seconds_background: seconds(words[1]),
                seconds_processor: seconds(words[2]),
            }
        })
        .collect();
    let mut all = Gaps::new();
    for (gap, count) in ranks.iter().flat_map(|words| gaps_of(words)) {
        *all.entry(gap).or_default() += count;
    }
    let first = trainers.first().map_or(0, |trainer| trainer.rounds);
    let center: u64 = ranks.iter().map(|words| words[3]).sum();
    let seconds_processor_center = (center > 0).then(|| seconds(center));
    if all.is_empty() {
        let rounds = (first > 0).then_some(first);
        let trainers = if trainers.len() > 1 { trainers } else { vec![] };
        return Ok(SyncFigures {
            rounds,
            trainers,
            seconds_processor_center,
            ..SyncFigures::default()
        });
    }
    let count = trainers.len() as f64;
    let over = |figure: fn(&TrainerSync) -> f64| trainers.iter().map(figure).sum::<f64>() / count;
    let with_gaps = trainers.iter().filter_map(|trainer| trainer.gap_mean);
    let distances = of_trainers().map(|words| words[6]);
    let distance = distances.map(f64::from_bits).sum::<f64>() / count;
    Ok(SyncFigures {
        rounds: Some(first),
        gap_mean: Some(with_gaps.clone().sum::<f64>() / with_gaps.count().max(1) as f64),
        gap_p99: percentile(&all, 0.99),
        seconds_background: Some(over(|trainer| trainer.seconds_background)),
        seconds_processor: Some(over(|trainer| trainer.seconds_processor)),
        seconds_processor_center,
        disagreement: (total.rounds.disagreements > 0)
            .then(|| total.rounds.disagreement / total.rounds.disagreements as f64),
        distance_to_mean: Some(distance).filter(|distance| distance.is_finite()),
        refused: (total.rounds.refused > 0).then_some(total.rounds.refused),
        trainers,
        ..SyncFigures::default()
    })
}

fn mean(gaps: &Gaps) -> Option<f64> {
    let rounds: u64 = gaps.values().sum();
    let steps: u64 = gaps.iter().map(|(gap, count)| gap * count).sum();
    (rounds > 0).then(|| steps as f64 / rounds as f64)
}

/// The smallest gap that at least `share` of the rounds do not exceed.
fn percentile(gaps: &Gaps, share: f64) -> Option<f64> {
    let rounds: u64 = gaps.values().sum();
    let mut seen = 0;
    let reached = gaps.iter().find(|(_, count)| {
        seen += **count;
        seen as f64 >= share * rounds as f64
    });
    reached.map(|(gap, _)| *gap as f64)
}

/// Greatest resident set of this process so far, as Linux counts it.
fn rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes: Option<u64> =
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    kibibytes.unwrap_or(0) * 1024
}

/// The figures as they stand in the records.
#[must_use]
pub fn eval_figures(figures: &Figures) -> EvalFigures {
    EvalFigures {
        examples: figures.examples,
        auc: figures.auc,
        logloss: figures.logloss,
        normalized_entropy: figures.normalized_entropy,
        calibration: figures.calibration,
        gauc: figures.gauc,
    }
}

/// `losses.csv`: the loss of every step over the global batch, in full precision.
fn write_step_losses(dir: &Path, losses: &[f64]) -> Result<(), Error> {
    use core::fmt::Write as _;
    let mut text = String::from("step,loss\n");
    for (step, loss) in losses.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{step},{loss:e}");
    }
    write_atomically(&dir.join("losses.csv"), text.as_bytes())
}
