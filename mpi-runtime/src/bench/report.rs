//! The figures: as JSON for programs, as a table for people.

use core::fmt;

use serde::Serialize;

use super::steps::Sample;

/// All figures of a run of `umbra bench`. A figure that does not apply is absent, never zero.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Of this layout.
    pub version: u32,
    /// The processor, with family and model.
    pub machine: String,
    /// The instruction set in use: `avx512`, `avx2`, `neon` or `plain`.
    pub simd: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// GFLOP/s of f32 that a core can do at its best: the median over everything measured.
    pub peak_gflops: f64,
    /// How many times as many bf16s a core can multiply and add. Absent where matrices in registers
    /// do it, which this does not measure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bf16_over_f32: Option<f64>,
    /// Parts of a step.
    pub kernels: Vec<KernelFigure>,
    /// Whole steps.
    pub steps: Vec<StepFigure>,
}

/// How fast one part of a step is.
#[derive(Clone, Debug, Serialize)]
pub struct KernelFigure {
    /// `forward`, `data_gradient`, `weight_gradient`, …
    pub kernel: String,
    /// Examples × outputs × inputs of a layer, examples × vectors × width of the interaction,
    /// examples × ids × width of rows; and the optimizer, where it makes a difference, and `bf16`.
    pub shape: String,
    /// GFLOP/s, where it is arithmetic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gflops: Option<f64>,
    /// Of the peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// GB/s, where it only moves numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gb_per_second: Option<f64>,
    /// Million rows a second: ids of `coalesce`, distinct rows of the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mrows_per_second: Option<f64>,
    /// The rate of every sample.
    pub samples: Vec<f64>,
}

/// What a kernel's rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Floating point operations.
    Flop,
    /// Bytes read and written.
    Bytes,
    /// Embedding rows.
    Rows,
}

impl KernelFigure {
    /// The figure of samples of a (kernel, shape), each so many billions a second, and their share
    /// of the peak.
    #[must_use]
    pub fn new(
        (kernel, shape): (&str, String),
        rate: Rate,
        mut samples: Vec<f64>,
        share: f64,
    ) -> Self {
        if rate == Rate::Rows {
            samples.iter_mut().for_each(|billions| *billions *= 1e3);
        }
        let of = |wanted| (rate == wanted).then(|| median(&mut samples.clone()));
        Self {
            kernel: kernel.into(),
            shape,
            gflops: of(Rate::Flop),
            share: (rate == Rate::Flop).then_some(share),
            gb_per_second: of(Rate::Bytes),
            mrows_per_second: of(Rate::Rows),
            samples,
        }
    }
}

/// Where batches came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Ready in memory.
    Memory,
    /// Read from a file by the reader thread meanwhile.
    Hdf5,
}

impl Source {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Memory, Self::Hdf5];
}

/// How fast whole steps are.
#[derive(Clone, Debug, Serialize)]
pub struct StepFigure {
    /// The model.
    pub model: String,
    /// Where batches came from.
    pub source: Source,
    /// Examples of a step.
    pub batch: usize,
    /// What updated the rows, and the dense parameters.
    pub optimizer: String,
    /// Worker threads on one replica.
    pub workers: usize,
    /// Examples of all workers per second of the clock: the median of the samples.
    pub examples_per_second: f64,
    /// The slowest sample.
    pub low: f64,
    /// The fastest.
    pub high: f64,
    /// Examples per second for which a worker had a core, times workers: what the clock would say
    /// if nothing else used the machine and nothing was waited for. Median of the samples.
    pub examples_per_cpu_second: f64,
    /// GFLOP/s that one of the cores could do, just before and after the samples: the median.
    pub peak_gflops: f64,
    /// Multiplications and additions that an example cannot do without.
    pub flop_per_example: u64,
    /// Of the arithmetic's least time at the peak, in the time for which the workers had a core.
    /// Median of the samples; absent for models without matrix products.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor_share: Option<f64>,
    /// Of the least time that reading an example's rows and writing them takes, in the time for
    /// which the workers had a core. Median of the samples.
    pub row_floor_share: f64,
    /// Examples per second of the clock of every sample; equal places of figures that were measured
    /// together are neighbours in time.
    pub samples: Vec<f64>,
    /// Examples per second of core time of every sample.
    pub cpu_samples: Vec<f64>,
}

impl StepFigure {
    /// The figure of samples of (model, optimizer, source) at (examples of a step, workers).
    #[must_use]
    pub fn new(
        (model, optimizer, source): (String, String, Source),
        (batch, workers): (usize, usize),
        flop_per_example: u64,
        samples: &[Sample],
    ) -> Self {
        let of = |figure: &dyn Fn(&Sample) -> f64| samples.iter().map(figure).collect::<Vec<_>>();
        let examples = |sample: &Sample| sample.examples as f64;
        let wall = of(&|sample| examples(sample) / sample.seconds);
        let cpu = of(&|sample| examples(sample) * workers as f64 / sample.cpu_seconds);
        let mut shares = of(&|sample| {
            let peak = sample.peaks.iter().sum::<f64>() / sample.peaks.len() as f64;
            examples(sample) * flop_per_example as f64 / 1e9 / (sample.cpu_seconds * peak)
        });
        let mut row_shares = of(&|sample| {
            let least = sample.row_seconds.iter().sum::<f64>() / sample.row_seconds.len() as f64;
            examples(sample) * least / sample.cpu_seconds
        });
        let mut peaks: Vec<f64> =
            samples.iter().flat_map(|sample| &sample.peaks).copied().collect();
        Self {
            model,
            source,
            batch,
            optimizer,
            workers,
            examples_per_second: median(&mut wall.clone()),
            low: wall.iter().copied().fold(f64::INFINITY, f64::min),
            high: wall.iter().copied().fold(0.0, f64::max),
            examples_per_cpu_second: median(&mut cpu.clone()),
            peak_gflops: median(&mut peaks),
            flop_per_example,
            floor_share: (flop_per_example > 0).then(|| median(&mut shares)),
            row_floor_share: median(&mut row_shares),
            samples: wall,
            cpu_samples: cpu,
        }
    }
}

/// The median: of an even number, the mean of the middle two. 0 of none. Sorts `values`.
#[must_use]
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[len / 2],
        len => f64::midpoint(values[len / 2 - 1], values[len / 2]),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, simd, cores, peak_gflops, .. } = self;
        writeln!(f, "{machine}, {cores} cores, {simd}, {peak_gflops:.1} GFLOP/s per core at best")?;
        if !self.kernels.is_empty() {
            writeln!(f, "\n{:16} {:>34} {:>8}", "kernel", "shape", "rate")?;
        }
        self.kernels.iter().try_for_each(|figure| writeln!(f, "{figure}"))?;
        if self.steps.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\n{:16} {:7} {:>6} {:16} {:>7} {:>10} {:>10} {:>10} {:>10} {:>6} {:>6} {:>6}",
            "model",
            "source",
            "batch",
            "optimizer",
            "workers",
            "examples/s",
            "low",
            "high",
            "per cpu s",
            "peak",
            "floor",
            "rows"
        )?;
        self.steps.iter().try_for_each(|figure| writeln!(f, "{figure}"))
    }
}

impl fmt::Display for KernelFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:16} {:>34} ", self.kernel, self.shape)?;
        match (self.gflops.zip(self.share), self.gb_per_second, self.mrows_per_second) {
            (Some((rate, share)), ..) => write!(f, "{rate:8.1} GFLOP/s {:5.1}%", 100.0 * share),
            (_, Some(rate), _) => write!(f, "{rate:8.1} GB/s"),
            (.., rate) => write!(f, "{:8.1} M rows/s", rate.unwrap_or(0.0)),
        }
    }
}

impl fmt::Display for StepFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = format!("{:?}", self.source).to_lowercase();
        let share = self.floor_share.map_or_else(|| "-".into(), |x| format!("{:.1}%", 100.0 * x));
        let rows = format!("{:.1}%", 100.0 * self.row_floor_share);
        write!(
            f,
            "{:16} {source:7} {:6} {:16} {:7} {:10.0} {:10.0} {:10.0} {:10.0} {:6.1} {share:>6} \
             {rows:>6}",
            self.model,
            self.batch,
            self.optimizer,
            self.workers,
            self.examples_per_second,
            self.low,
            self.high,
            self.examples_per_cpu_second,
            self.peak_gflops,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&mut []), 0.0);
    }

    /// Two workers, 1000 examples of 2 MFLOP: 2 GFLOP in 0.02 s of two cores that can do 100
    /// GFLOP/s.
    #[test]
    fn a_figure_by_hand() {
        let sample = Sample {
            examples: 1000,
            seconds: 0.025,
            cpu_seconds: 0.04,
            peaks: vec![90.0, 110.0, 100.0, 100.0],
            row_seconds: vec![9e-6, 11e-6, 10e-6, 10e-6],
        };
        let slower = Sample { seconds: 0.05, cpu_seconds: 0.08, ..sample.clone() };
        let samples = [sample.clone(), slower, sample];
        let what = ("m".into(), "sgd".into(), Source::Memory);
        let figure = StepFigure::new(what, (128, 2), 2_000_000, &samples);
        assert_eq!((figure.examples_per_second, figure.low, figure.high), (4e4, 2e4, 4e4));
        assert_eq!((figure.examples_per_cpu_second, figure.peak_gflops), (5e4, 100.0));
        let share = figure.floor_share.unwrap_or(0.0);
        assert!((share - 0.5).abs() < 1e-12, "{share}");
        // 10 ms of rows.
        assert!((figure.row_floor_share - 0.25).abs() < 1e-12, "{}", figure.row_floor_share);
    }
}
