//! Memory of instances for whoever has an allocator: what [`Scratch`] and [`Memory`] lend.

use alloc::vec::Vec;

use super::method::{Memory, Scratch, Sizes};

/// What one instance works on, and what it remembers.
#[derive(Clone, Debug, Default)]
pub struct Owned {
    staging: Vec<f32>,
    loaded: Vec<f32>,
    labels: Vec<usize>,
    sets: Vec<u64>,
    /// The number of the next round.
    pub round: u64,
    /// Block momentum: the global model; a center: its values.
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
