//! The dense replica: parameters and running statistics that Hogwild workers share.
//!
//! F. Niu, B. Recht, C. Ré, S. Wright, "Hogwild!", NIPS 2011, without undefined behaviour: every
//! element is a relaxed atomic, so two workers may lose each other's update but never race in the
//! language's sense. A worker copies the replica out once per step and updates it once. Elements
//! move in stretches of `STRETCH` through a buffer on the stack, on which the same rule runs that
//! runs on plain slices.
//!
//! The words are lent: `[replica_len]` for values and `[planes * parameters_len]` for the state.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::optim::{Optimizer, StepSize};

/// Elements updated at a time: one cache line of f32.
const STRETCH: usize = 16;

/// Copies words out as numbers. Lengths are equal.
#[inline]
pub fn load(words: &[AtomicU32], out: &mut [f32]) {
    assert_eq!(words.len(), out.len(), "copy of a replica into a buffer of another length");
    for (value, word) in out.iter_mut().zip(words) {
        *value = f32::from_bits(word.load(Relaxed));
    }
}

/// Copies numbers into words. Lengths are equal.
#[inline]
pub fn store(words: &[AtomicU32], values: &[f32]) {
    assert_eq!(words.len(), values.len(), "copy of a buffer of another length into a replica");
    for (word, value) in words.iter().zip(values) {
        word.store(value.to_bits(), Relaxed);
    }
}

/// `word += alpha * (value - word)`, against the words as they are now.
#[inline]
pub fn interpolate(words: &[AtomicU32], alpha: f32, values: &[f32]) {
    assert_eq!(words.len(), values.len(), "blend of a buffer of another length into a replica");
    if alpha == 1.0 {
        return store(words, values);
    }
    for (word, value) in words.iter().zip(values) {
        let now = f32::from_bits(word.load(Relaxed));
        word.store((now + alpha * (value - now)).to_bits(), Relaxed);
    }
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
    let n = parameters.len();
    assert_eq!(gradient.len(), n, "gradient of another length than the parameters");
    assert_eq!(state.len(), optimizer.state_planes() * n, "state of another length");
    let (first, second) = state.split_at(optimizer.state_planes().min(1) * n);
    for at in (0..n).step_by(STRETCH) {
        let end = (at + STRETCH).min(n);
        let (p, m, v) = (&parameters[at..end], part(first, at, end), part(second, at, end));
        let (mut p_now, mut m_now, mut v_now) = ([0.0; STRETCH], [0.0; STRETCH], [0.0; STRETCH]);
        load(p, &mut p_now[..p.len()]);
        load(m, &mut m_now[..m.len()]);
        load(v, &mut v_now[..v.len()]);
        optimizer.update(
            step,
            &mut p_now[..p.len()],
            &mut m_now[..m.len()],
            &mut v_now[..v.len()],
            &gradient[at..end],
        );
        store(p, &p_now[..p.len()]);
        store(m, &m_now[..m.len()]);
        store(v, &v_now[..v.len()]);
    }
}

/// `plane[at..end]`, or nothing of a plane that the rule does not have.
fn part(plane: &[AtomicU32], at: usize, end: usize) -> &[AtomicU32] {
    if plane.is_empty() { plane } else { &plane[at..end] }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::optim::{Adam, OptimizerKind};
    use crate::rng::{Purpose, Stream};

    /// The stretch-wise update of the shared replica equals the rule on plain slices, bit for bit.
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

    #[test]
    fn interpolation_moves_towards_the_values() {
        let words = [AtomicU32::new(2.0f32.to_bits())];
        interpolate(&words, 0.25, &[4.0]);
        assert_eq!(f32::from_bits(words[0].load(Relaxed)), 2.5);
        interpolate(&words, 1.0, &[4.0]);
        assert_eq!(f32::from_bits(words[0].load(Relaxed)), 4.0);
    }
}
