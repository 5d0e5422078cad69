//! Memory of instances for whoever has an allocator: what [`Scratch`] and [`Memory`] lend.

use alloc::vec::Vec;

use super::method::{Memory, Scratch, Sizes};
use super::reduction::TAIL;
use super::server::{ShardMemory, Tally};
use super::token::{Place, UnderWay, Worker};
use crate::optim::Optimizer;

/// What one instance works on, and what it remembers.
#[derive(Clone, Debug, Default)]
pub struct Owned {
    staging: Vec<f32>,
    loaded: Vec<f32>,
    labels: Vec<usize>,
    sets: Vec<u64>,
    /// The number of the next round.
    pub round: u64,
    /// Block momentum, and averages of differences: the global model; a center: its values.
    pub global: Vec<f32>,
    /// Block momentum: its velocity.
    pub velocity: Vec<f32>,
}

impl Owned {
    /// For an instance of these sizes whose slice of the model is `initial` before the first step.
    #[must_use]
    pub fn new(sizes: Sizes, initial: &[f32]) -> Self {
        Self {
            staging: alloc::vec![0.0; sizes.staging],
            loaded: alloc::vec![0.0; sizes.loaded],
            labels: alloc::vec![0; sizes.labels],
            sets: alloc::vec![0; sizes.sets],
            round: 0,
            global: initial[..sizes.global].to_vec(),
            velocity: alloc::vec![0.0; sizes.velocity],
        }
    }

    /// Both parts, to be lent to a protocol.
    pub fn lend(&mut self) -> (Scratch<'_>, Memory<'_>) {
        let Self { staging, loaded, labels, sets, round, global, velocity } = self;
        (Scratch { staging, loaded, labels, sets }, Memory { round, global, velocity })
    }
}

/// What one server of a parameter server works on.
#[derive(Clone, Debug)]
pub struct OwnedShard {
    staging: Vec<f32>,
    /// The parameters, and the running statistics behind them.
    pub values: Vec<f32>,
    /// Optimizer state of the parameters, plane after plane.
    pub state: Vec<f32>,
    sum: Vec<f32>,
    gradients: Vec<f32>,
    places: Vec<Place<()>>,
    aside: Vec<Option<(usize, u64)>>,
    pulls: Vec<Option<u64>>,
}

impl OwnedShard {
    /// For so many workers, each with a batch under way. `parameters` of the values are no running
    /// statistics.
    #[must_use]
    pub fn new(optimizer: Optimizer, values: &[f32], parameters: usize, workers: usize) -> Self {
        let (len, planes) = (values.len(), optimizer.state_planes());
        Self {
            staging: alloc::vec![0.0; len + TAIL],
            values: values.to_vec(),
            state: alloc::vec![optimizer.initial_state(); planes * parameters],
            sum: alloc::vec![0.0; len],
            gradients: alloc::vec![0.0; 2 * workers * len],
            places: alloc::vec![Place::default(); workers],
            aside: alloc::vec![None; workers],
            pulls: alloc::vec![None; workers],
        }
    }

    /// To be lent to a protocol.
    pub fn lend(&mut self) -> ShardMemory<'_> {
        let Self { staging, values, state, sum, gradients, places, aside, pulls } = self;
        ShardMemory { staging, values, state, sum, gradients, places, aside, pulls }
    }
}

/// What a dispatcher works on.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct OwnedDispatcher {
    pub workers: Vec<Worker>,
    pub under_way: Vec<Option<UnderWay>>,
    /// Steps of each stream that were given.
    pub given: Vec<u64>,
    pub asking: Vec<bool>,
    pub tally: Tally,
}

impl OwnedDispatcher {
    /// For so many workers, batches under way at a time, and streams.
    #[must_use]
    pub fn new(workers: usize, places: usize, streams: usize) -> Self {
        Self {
            workers: alloc::vec![Worker::default(); workers],
            under_way: alloc::vec![None; places],
            given: alloc::vec![0; streams],
            asking: alloc::vec![false; workers],
            tally: Tally::EMPTY,
        }
    }
}
