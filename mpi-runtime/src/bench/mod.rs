//! `umbra bench`: how fast this machine trains, beside what its cores can do.
//!
//! Map: `subject.rs` what is measured · `ready.rs` batches in memory · `work.rs` the arithmetic of
//! a step · `trained.rs` replica and tables · `steps.rs` training steps, sampled · `kernels.rs` the
//! parts of a step · `report.rs` the figures as JSON and as a table.
//!
//! Measured are the worker and the tables of a training run on one rank, nothing made for the
//! purpose: a step is taking a batch, coalescing, row lookup, forward, backward, row update and
//! dense update.
//!
//! How a figure is taken: other programs may use the machine, and its clock moves. So every sample
//! is bracketed by bursts that measure the peak of its cores and by reading and writing the rows of
//! a batch, shares are of these and of the time that the threads had a core, what is to be compared
//! is measured in turn, and figures are medians.

pub mod kernels;
pub mod ready;
pub mod report;
pub mod steps;
pub mod subject;
pub mod trained;
pub mod work;

use umbra_core::kernel::{self, Precision, Simd};

pub use report::Report;
pub use subject::{Operands, Optimizers, Shape, Subject};

use crate::error::Error;
use crate::launch::environment::Cores;
use crate::launch::processor;
use ready::Ready;
use trained::Trained;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Examples of a step.
    pub batches: Vec<usize>,
    /// Worker threads on one replica.
    pub workers: Vec<usize>,
    /// Seconds that each figure is measured for, over all its samples.
    pub seconds: f64,
    /// Samples of each figure.
    pub samples: usize,
    /// The parts of a step, too.
    pub kernels: bool,
}

/// Measures. `progress` is told the samples taken, and how many there will be. One process, without
/// MPI.
///
/// # Errors
/// Data that can't be read or is too small, a model that does not fit it, memory or threads that
/// are not there.
pub fn bench(
    subject: &Subject,
    settings: &Settings,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, Error> {
    let mut ready = Ready::new(subject, settings)?;
    let trained = subject.variants.iter().map(|variant| Trained::new(subject, variant));
    let trained = trained.collect::<Result<Vec<_>, _>>()?;
    let kernels = if settings.kernels {
        kernels::measure(subject, settings, &trained, &mut ready)?
    } else {
        vec![]
    };
    let steps = steps::measure(subject, settings, &trained, &mut ready, progress)?;
    let peaks = steps.iter().map(|figure| figure.peak_gflops).collect();
    Ok(Report { kernels, steps, ..of_machine(peaks) })
}

/// Measures the peak alone: the processor, and no figure of a step.
#[must_use]
pub fn peak_only() -> Report {
    of_machine((0..PEAK_BURSTS).map(|_| processor::peak_gflops(Precision::F32)).collect())
}

/// Bursts of [`peak_only`]: half a second.
const PEAK_BURSTS: usize = 250;

/// Bursts of bf16 between two of f32, each over their mean: the median.
fn peak_bf16_over_f32() -> f64 {
    let peak = processor::peak_gflops;
    let mut before = peak(Precision::F32);
    let mut ratios: Vec<f64> = (0..PEAK_PAIRS)
        .map(|_| {
            let (halves, after) = (peak(Precision::Bf16), peak(Precision::F32));
            let mean = f64::midpoint(before, after);
            before = after;
            halves / mean
        })
        .collect();
    report::median(&mut ratios)
}

/// Pairs of [`peak_bf16_over_f32`]: a tenth of a second.
const PEAK_PAIRS: usize = 25;

fn of_machine(mut peaks: Vec<f64>) -> Report {
    Report {
        version: 1,
        machine: processor::machine(),
        simd: format!("{:?}", kernel::selected()).to_lowercase(),
        cores: Cores::allowed().count(),
        peak_gflops: report::median(&mut peaks),
        peak_bf16_over_f32: (kernel::selected() != Simd::Amx).then(peak_bf16_over_f32),
        kernels: vec![],
        steps: vec![],
    }
}
