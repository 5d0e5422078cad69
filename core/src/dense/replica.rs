//! The dense replica: parameters and running statistics that Hogwild workers share.
//!
//! Every element is a word of shared memory (`kernel/words.rs`). The kernels read the words in
//! place, and an update reads, changes and writes a vector of them at a time.
//!
//! The words are lent: `[replica_len]` for values and `[planes * parameters_len]` for the state.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::kernel::update::{Elements, update as update_elements};
pub use crate::kernel::words::{add, all_finite, interpolate, load, load_finite, store};
use crate::kernel::{Factors, weight_update};
use crate::optim::{Optimizer, StepRule, StepSize};

/// One word as a number.
#[inline]
#[must_use]
pub fn element(word: &AtomicU32) -> f32 {
    f32::from_bits(word.load(Relaxed))
}

/// Adds `alpha` of `staging` to the first so many of the words, its `parameters`; what is behind
/// them, running statistics, moves `alpha` of the way to `staging`. Lengths are equal.
///
/// # Panics
/// When there are fewer words.
pub fn add_parameters(replica: &[AtomicU32], alpha: f32, parameters: usize, staging: &[f32]) {
    let (replica, statistics) = replica.split_at(parameters);
    let (staging, found) = staging.split_at(parameters);
    add(replica, alpha, staging);
    interpolate(statistics, alpha, found);
}

/// One optimizer step on the shared `parameters`. `state: [state_planes * parameters]`, the first
/// plane before the second; `gradient: [parameters]`
pub fn update(
    optimizer: &Optimizer,
    step: StepSize,
    parameters: &[AtomicU32],
    state: &[AtomicU32],
    gradient: &[f32],
) {
    let rule = optimizer.at(step);
    update_elements(&rule, Elements::new(&rule, parameters, state), gradient);
}

/// An optimizer step that is taken where the gradient is made: the parameters of a layer are
/// updated as soon as their gradient is complete.
#[derive(Clone, Copy)]
pub struct Update<'a> {
    rule: StepRule,
    elements: Elements<'a>,
}

impl<'a> Update<'a> {
    /// As [`update`], without a gradient yet.
    #[must_use]
    pub fn new(
        optimizer: &Optimizer,
        step: StepSize,
        parameters: &'a [AtomicU32],
        state: &'a [AtomicU32],
    ) -> Self {
        let rule = optimizer.at(step);
        Self { rule, elements: Elements::new(&rule, parameters, state) }
    }

    /// Updates the parameters `at..at + gradient.len()`.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn apply(&self, at: usize, gradient: &[f32]) {
        update_elements(&self.rule, self.elements.part(at, gradient.len()), gradient);
    }

    /// Updates the matrix at `at` with the gradient that these examples complete
    /// (`kernel::weight_update`).
    pub(crate) fn apply_product(
        &self,
        at: usize,
        of: Factors<'_>,
        fresh: bool,
        d_weight: &mut [f32],
    ) {
        let weight = self.elements.part(at, d_weight.len());
        weight_update(of, fresh, d_weight, &self.rule, weight);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::optim::{Adam, OptimizerKind};
    use crate::rng::{Purpose, Stream};

    /// The update of the shared replica equals the rule on plain slices, bit for bit.
    #[test]
    fn shared_update_equals_the_plain_rule() {
        let stream = Stream::new(3, Purpose::Test(0));
        let kinds = [
            OptimizerKind::Sgd,
            OptimizerKind::Momentum { beta: 0.9 },
            OptimizerKind::Adagrad { eps: 1e-10, initial: 0.1 },
            OptimizerKind::Adam(Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 }),
        ];
        for (kind, n) in kinds.into_iter().flat_map(|kind| [(kind, 1), (kind, 16), (kind, 37)]) {
            let optimizer = Optimizer { kind, weight_decay: 0.01 };
            let numbers = |from: u64, len: usize| -> Vec<f32> {
                (0..len as u64).map(|i| stream.uniform(from + i)).collect()
            };
            let words = |values: &[f32]| -> Vec<AtomicU32> {
                values.iter().map(|x| AtomicU32::new(x.to_bits())).collect()
            };
            let (mut p, g) = (numbers(0, n), numbers(1000, n));
            let mut state = numbers(2000, optimizer.state_planes() * n);
            let (shared_p, shared_state) = (words(&p), words(&state));
            let step = StepSize { rate: 0.1, count: 3 };
            update(&optimizer, step, &shared_p, &shared_state, &g);
            let (first, second) = state.split_at_mut(optimizer.state_planes().min(1) * n);
            optimizer.update(step, &mut p, first, second, &g);
            let (mut out, mut out_state) = (std::vec![0.0; n], std::vec![0.0; state.len()]);
            load(&shared_p, &mut out);
            load(&shared_state, &mut out_state);
            assert_eq!((out, out_state), (p, state), "{kind:?}, {n} elements");
        }
    }

    /// A running variance that fell from 1 to 0.1 while a mean of 0.5 was found.
    #[test]
    fn statistics_do_not_overshoot() {
        let words = [2.0f32, 0.1].map(|x| AtomicU32::new(x.to_bits()));
        add_parameters(&words, 1.0, 1, &[-0.5, 0.5]);
        assert_eq!(words.each_ref().map(element), [1.5, 0.5]);
    }

    #[test]
    fn a_move_by_one_replaces_what_is_not_a_number() {
        let words = [AtomicU32::new(f32::NAN.to_bits())];
        interpolate(&words, 1.0, &[4.0]);
        assert_eq!(element(&words[0]), 4.0);
    }
}
