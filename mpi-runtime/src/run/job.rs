//! A training run from start to summary.

use core::time::Duration;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::checkpoint::{Checkpoint, Manifest};
use crate::comm::Comm;
use crate::comm::traffic::{TRAFFIC_WORDS, Traffic};
use crate::comm::watch::Lost;
use crate::config::{Config, Save};
use crate::dense::seat::Gaps;
use crate::error::Error;
use crate::launch::environment::Cores;
use crate::launch::processor::Pins;
use crate::launch::signals::Signals;
use crate::launch::world::World;
use crate::measure::counters::{READING_WORDS, Reading};
use crate::record::{
    EvalFigures, ExchangedFigures, MemoryFigures, RunFolder, Status, Summary, SyncFigures,
    TrainFigures, TrainerSync, WaitFigures, WireFigures, WireOfRank, build_hash, say,
    write_atomically,
};
use crate::run::plan::Plan;
use crate::run::prediction::Prediction;
use crate::run::reporter::Recorder;
use crate::run::sections::JobState;
use crate::run::{Run, StretchEnd};
use crate::score::figures::Figures;
use crate::trainer::Segment;

/// What a training run came to.
pub enum Outcome {
    /// A dry run: the plan, and on the first of several ranks what they are going to send.
    Planned(Box<Plan>, Option<Prediction>),
    /// A run that ended well; the summary on the first rank.
    Trained(Option<Box<Summary>>),
}

/// What to do with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Train.
    Train,
    /// Plan it on so many ranks, whatever the launch has; on the launch's without a number.
    Plan(Option<usize>),
}

/// Trains, or plans. *Collective over all ranks, main thread only.*
///
/// # Errors
/// The same exit code on every rank; one of them has the message.
pub fn train(
    world: &World,
    control: &Comm,
    config: Config,
    signals: &Arc<Signals>,
    task: Task,
) -> Result<Outcome, Error> {
    let dry_run = task != Task::Train;
    let ranks = if let Task::Plan(Some(ranks)) = task { ranks } else { world.size };
    let plan = plan(world, control, config, ranks)?;
    let first = world.rank == 0;
    let folder = if !first {
        Ok(None)
    } else if dry_run {
        RunFolder::check(&plan.job.config).map(|()| None)
    } else {
        RunFolder::create(&plan.job.config, &world.host).map(Some)
    };
    let folder = world.agree(control, folder)?;
    if dry_run {
        let predicts = first && ranks > 1;
        let prediction = predicts.then(|| Prediction::new(&plan, ranks, control.watch()));
        let prediction = world.agree(control, prediction.transpose())?;
        return Ok(Outcome::Planned(Box::new(plan), prediction));
    }
    let state = JobState::new(plan.job.config.train.early_stop.clone());
    let recorder = folder.map(|folder| Recorder::new(folder, &plan, state.rate_factor.clone()));
    let summary = Summary::new(&plan.job, world.size)?;
    let report = recorder.as_ref().map(Recorder::heartbeat);
    let run = Run::start(world, control, plan, signals, Some(state), report)?;
    let mut session = Session {
        world,
        control,
        signals,
        run,
        recorder,
        summary,
        seconds: Duration::ZERO,
        publishing: Duration::ZERO,
    };
    // While its threads live: nobody else could end them.
    let ended = control.watch().end_if_lost(session.train());
    session.finish(ended)
}

/// Resolves a configuration on `ranks` ranks and opens every input. Whether it fits is seen only of
/// the ranks there are. *Collective.*
pub(crate) fn plan(
    world: &World,
    control: &Comm,
    config: Config,
    ranks: usize,
) -> Result<Plan, Error> {
    let facts = world.node_facts(control, &Cores::allowed())?;
    let job = world.agree(control, config.resolve(ranks, facts.ranks, facts.cores))?;
    control.watch().set_limit(Duration::from_secs(job.config.run.watchdog_s));
    if world.rank == 0 {
        job.warnings.iter().for_each(|warning| say(&format!("umbra: warning: {warning}")));
    }
    let plan = Plan::new(job, ranks).and_then(|mut plan| {
        if ranks != world.size {
            return Ok(plan);
        }
        plan.check_memory(world.rank, facts.ranks)?;
        let trains = plan.roles.trainers.contains(world.rank);
        if plan.job.config.train.pin_workers && trains {
            plan.pins = Pins::new(&Cores::allowed(), plan.job.worker_threads, &facts)?;
        }
        Ok(plan)
    });
    world.agree(control, plan)
}

/// A run and what is recorded of it.
struct Session<'w> {
    world: &'w World,
    control: &'w Comm,
    signals: &'w Arc<Signals>,
    run: Run<'w>,
    recorder: Option<Recorder>,
    summary: Summary,
    /// Training, until the last worker of the slowest trainer has ended.
    seconds: Duration,
    /// From there to the model that is evaluated and saved.
    publishing: Duration,
}

impl Session<'_> {
    /// All stretches of training, the evaluations between them and after. True when it was asked
    /// to stop.
    fn train(&mut self) -> Result<bool, Error> {
        let plan = &self.run.plan;
        let early_stop = plan.job.config.train.early_stop.clone();
        let (config, steps) = (plan.job.config.clone(), plan.steps);
        let best = config.checkpoint.dir.join("best");
        let keep_best = early_stop.as_ref().is_some_and(|settings| settings.restore_best)
            || (config.checkpoint.save == Save::Best && plan.valid.is_some());
        let factor = early_stop.as_ref().map_or(1.0, |settings| settings.lr_factor);
        let mut stopped = false;
        while self.run.state.step < steps && !stopped {
            let step = self.run.state.step;
            let end = self.run.plan.segment_end(step);
            let ended = self.stretch(Segment { first_step: step, steps: end - step })?;
            // A request that comes with the last step changes nothing: the work is done.
            stopped = ended.stop_asked && (ended.incomplete || end < steps);
            self.run.state.step = end;
            let Some(valid) = self.run.plan.valid.take() else { continue };
            let figures = if stopped { None } else { Some(self.run.evaluate(&valid)?) };
            self.run.plan.valid = Some(valid);
            let Some(figures) = figures else { break };
            self.evaluated(&figures)?;
            let state = &mut self.run.state;
            let verdict = state.stopper.observe(&figures);
            // The figures of the model that the run ends with.
            if verdict.improved || !keep_best || state.best_step == 0 {
                self.summary.valid = Some(eval_figures(&figures));
            }
            if verdict.improved {
                state.best_step = end;
                if keep_best {
                    self.save(&best)?;
                }
            } else {
                #[expect(clippy::cast_possible_truncation, reason = "a factor on f32 rates")]
                state.rate_factor.scale(factor as f32);
            }
            if verdict.stop {
                break;
            }
        }
        let workers = self.run.plan.workers_per_trainer() as u64;
        self.summary.steps = Some(self.run.reading().steps / workers);
        if stopped {
            return Ok(true);
        }
        let JobState { step, best_step, .. } = self.run.state;
        let restored = keep_best && best_step > 0 && best_step != step;
        if restored {
            let checkpoint = Checkpoint::open(self.world, self.control, &best)?;
            self.run.restore(&checkpoint)?;
            self.run.state.step = best_step;
        }
        if let Some(test) = self.run.plan.test.take() {
            self.summary.test = Some(eval_figures(&self.run.evaluate(&test)?));
            if !restored {
                let replica = self.run.evaluate_first_replica(&test)?;
                self.summary.test_replica = replica.as_ref().map(eval_figures);
            }
        }
        if config.checkpoint.save == Save::Last {
            self.save(&config.checkpoint.dir.join("last"))?;
        }
        Ok(false)
    }

    /// A stretch of training, timed.
    fn stretch(&mut self, segment: Segment) -> Result<StretchEnd, Error> {
        let start = Instant::now();
        if let Some(recorder) = &self.recorder {
            recorder.set_training(true);
        }
        let stopped = self.run.train(segment);
        let trained = stopped.as_ref().map_or(start.elapsed(), |end| end.trained);
        self.seconds += trained;
        self.publishing += start.elapsed().saturating_sub(trained);
        if let Some(recorder) = &self.recorder {
            recorder.set_training(false);
        }
        stopped
    }

    fn evaluated(&self, figures: &Figures) -> Result<(), Lost> {
        let reading = self.total_reading()?;
        if let Some(recorder) = &self.recorder {
            recorder.evaluated(reading, eval_figures(figures));
        }
        Ok(())
    }

    /// Counters over all ranks. *Collective.*
    fn total_reading(&self) -> Result<Reading, Lost> {
        let mut all = vec![0; READING_WORDS * self.world.size];
        self.control.all_gather(&self.run.reading().to_words(), &mut all, "counters of the run")?;
        let readings = all.as_chunks::<READING_WORDS>().0.iter();
        Ok(readings.fold(Reading::default(), |sum, words| sum.plus(Reading::from_words(*words))))
    }

    fn save(&mut self, dir: &Path) -> Result<(), Error> {
        let start = Instant::now();
        let manifest = manifest(&self.run)?;
        let bytes = self.run.save(dir, manifest)?;
        let figures = self.summary.checkpoint.get_or_insert_default();
        figures.count += 1;
        *figures.bytes.get_or_insert_default() += bytes;
        *figures.seconds_exposed.get_or_insert_default() += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Ends the threads and writes the summary, whatever came before.
    fn finish(mut self, ended: Result<bool, Error>) -> Result<Outcome, Error> {
        let watch = self.control.watch();
        let total = watch.or_end(self.total_reading());
        watch.or_end(self.measure(&total));
        if let Some(recorder) = &self.recorder {
            recorder.end_progress(total);
        }
        let losses =
            self.run.plan.job.config.run.step_losses.then(|| self.run.step_losses().to_vec());
        let dir = self.run.plan.job.config.run.dir.clone();
        let traced = self.run.trace.as_ref().map_or(Ok(()), |trace| {
            let path = self.recorder.as_ref().map(Recorder::trace_path);
            trace.write(self.control, &self.world.host, path.as_deref())
        });
        let traced = watch.end_if_lost(traced);
        let Self { world, control, run, recorder, mut summary, signals, .. } = self;
        run.finish();
        summary.status = match ended {
            Ok(false) => Status::Done,
            Ok(true) => Status::Stopped,
            Err(_) => Status::Failed,
        };
        let written = recorder.map_or(Ok(()), |recorder| {
            traced?;
            if let Some(losses) = losses {
                write_step_losses(&dir, &losses)?;
            }
            recorder.finish(&summary)
        });
        let written = world.agree(control, written);
        if ended? {
            let signal = signals.stop_requested().unwrap_or(libc::SIGTERM);
            return Err(Error::Stopped { signal });
        }
        written?;
        Ok(Outcome::Trained((world.rank == 0).then(|| Box::new(summary))))
    }

    /// Fills in what was counted. *Collective.*
    fn measure(&mut self, total: &Reading) -> Result<(), Lost> {
        let plan = &self.run.plan;
        let workers = plan.order.workers_total as f64;
        let seconds = self.seconds.as_secs_f64();
        let embedding = self.run.embedding_traffic();
        let mut own =
            vec![rss_bytes(), embedding.bytes_sent, plan.embedding_bytes(self.world.rank)];
        for traffic in [embedding, self.run.dense_traffic()] {
            own.extend(traffic.to_words());
        }
        let mut all = vec![0; own.len() * self.world.size];
        self.control.all_gather(&own, &mut all, "memory and bytes of the run")?;
        let of = |index| all.iter().skip(index).step_by(own.len()).copied();
        let sync = sync_figures(&self.run, self.control, total)?;
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
            dropped: (total.dropped > 0).then_some(total.dropped),
            seconds_publish: published.then_some(self.publishing.as_secs_f64()),
            ..sync
        });
        summary.wire = several.then(|| WireFigures {
            dense_bytes: Some(total.rounds.bytes),
            embedding_bytes: Some(of(1).sum()),
            ranks: all.chunks(own.len()).enumerate().map(wire_of_rank).collect(),
            ..WireFigures::default()
        });
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
}

/// What a rank sent and received: eight of the words of [`Session::measure`], from the fourth on.
fn wire_of_rank((rank, words): (usize, &[u64])) -> WireOfRank {
    let (kinds, _) = words[3..].as_chunks::<TRAFFIC_WORDS>();
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
    if all.is_empty() {
        let rounds = (first > 0).then_some(first);
        let trainers = if trainers.len() > 1 { trainers } else { vec![] };
        return Ok(SyncFigures { rounds, trainers, ..SyncFigures::default() });
    }
    let count = trainers.len() as f64;
    let over = |figure: fn(&TrainerSync) -> f64| trainers.iter().map(figure).sum::<f64>() / count;
    let with_gaps = trainers.iter().filter_map(|trainer| trainer.gap_mean);
    let center: u64 = ranks.iter().map(|words| words[3]).sum();
    let distances = of_trainers().map(|words| words[6]);
    let distance = distances.map(f64::from_bits).sum::<f64>() / count;
    Ok(SyncFigures {
        rounds: Some(first),
        gap_mean: Some(with_gaps.clone().sum::<f64>() / with_gaps.count().max(1) as f64),
        gap_p99: percentile(&all, 0.99),
        seconds_background: Some(over(|trainer| trainer.seconds_background)),
        seconds_processor: Some(over(|trainer| trainer.seconds_processor)),
        seconds_processor_center: (center > 0).then(|| seconds(center)),
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

/// What a checkpoint of this run says of itself.
fn manifest(run: &Run<'_>) -> Result<Manifest, Error> {
    let plan = &run.plan;
    let config = plan.job.config.to_toml();
    Ok(Manifest::new(
        build_hash(),
        config.map_err(|error| Error::Failure(format!("configuration as TOML: {error}")))?,
        (run.state.step, run.updates()),
        (&plan.train, &plan.layout, &plan.model),
        usize::try_from(plan.dense_bytes() / 4).unwrap_or(usize::MAX),
    ))
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

/// Greatest resident set of this process so far, as Linux counts it.
fn rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes: Option<u64> =
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    kibibytes.unwrap_or(0) * 1024
}
