//! Whether compression pays on these links and cores: `compress.auto`.
//!
//! The same sum over all trainers is made as it is and coded (`coded_sum.rs`), a few times in turn.
//! So links, latency, the codec and what else runs on the cores are in it, and nothing is assumed.
//! Methods that send other messages are judged by it too: what they send goes over the same links.
//!
//! Invariant: all ranks decide alike, by what the slowest trainer measured.

use core::fmt;
use core::time::Duration;
use std::time::Instant;

use umbra_core::compress::Coding;
use umbra_core::rng::{Purpose, Stream};

use crate::comm::Comm;
use crate::comm::reduce::{MANY, Sums};
use crate::comm::watch::Lost;
use crate::dense::coded_sum::CodedSum;
use crate::dense::endpoints::DriveError;
use crate::dense::stretches::Stretches;

/// What a sum takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trial {
    /// Elements.
    pub elements: usize,
    /// As it is.
    pub plain: Duration,
    /// Coded.
    pub coded: Duration,
}

impl Trial {
    /// Coding saves more than noise.
    #[must_use]
    pub fn pays(&self) -> bool {
        self.coded < self.plain.mul_f64(LEAST_GAIN)
    }

    /// Tries sums of a model of `elements`. `dense`: the trainers' communicator, on a trainer.
    /// *Collective over `control`, main thread only.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn run(
        control: &Comm,
        dense: Option<&Comm>,
        coding: Coding,
        elements: usize,
    ) -> Result<Self, DriveError> {
        let elements = elements.min(MOST);
        let own = match dense {
            Some(comm) => medians(comm, coding, elements)?,
            None => [0, 0],
        };
        let [plain, coded] = slowest(control, own)?.map(Duration::from_nanos);
        Ok(Self { elements, plain, coded })
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { elements, plain, coded } = self;
        let [plain, coded] = [plain, coded].map(|time| 1e3 * time.as_secs_f64());
        let so = if self.pays() { "it is on" } else { "it is off" };
        write!(
            f,
            "compress.auto: a sum of {elements} elements takes {plain:.1} ms as it is and \
             {coded:.1} ms compressed: {so}"
        )
    }
}

/// What this trainer measures. ns
fn medians(comm: &Comm, coding: Coding, elements: usize) -> Result<[u64; 2], DriveError> {
    let stream = Stream::new(comm.rank() as u64, Purpose::Simulation(0));
    let drawn: Vec<f32> = (0..elements).map(|at| stream.normal(at as u64)).collect();
    let all = 0..elements;
    let parts = Stretches { coded: vec![all], plain: vec![] };
    let mut coded = CodedSum::new((coding, 1.0), parts, elements, (comm.rank(), comm.size()));
    let (mut sums, mut values, what) = (Sums::default(), drawn.clone(), "a trial of compression");
    let (mut took_plain, mut took_coded) = ([0; TURNS], [0; TURNS]);
    for (took_plain, took_coded) in took_plain.iter_mut().zip(&mut took_coded) {
        values.copy_from_slice(&drawn);
        let begun = Instant::now();
        sums.sum(comm, &mut values, MANY, what)?;
        *took_plain = nanoseconds(begun);
        values.copy_from_slice(&drawn);
        let begun = Instant::now();
        coded.sum(comm, &mut sums, &mut values, &mut [], (MANY, what))?;
        *took_coded = nanoseconds(begun);
    }
    // The first finds thresholds and warms up.
    Ok([took_plain, took_coded].map(|mut took| {
        took[1..].sort_unstable();
        took[1 + (TURNS - 1) / 2]
    }))
}

fn slowest(control: &Comm, own: [u64; 2]) -> Result<[u64; 2], Lost> {
    let mut all = vec![0; 2 * control.size()];
    control.all_gather(&own, &mut all, "whether compression pays")?;
    Ok([0, 1].map(|which| all.iter().skip(which).step_by(2).copied().max().unwrap_or(0)))
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Elements of a sum that is tried, at most: four megabytes.
const MOST: usize = 1 << 20;
/// Sums of each kind.
const TURNS: usize = 6;
/// What a coded sum may take of the time of one that is not.
const LEAST_GAIN: f64 = 0.95;
