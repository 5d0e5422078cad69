//! The element rules.
//!
//! Momentum: B. T. Polyak 1964, in the form of PyTorch's SGD (`m ← βm + g; p ← p − ηm`). Adagrad:
//! J. Duchi, E. Hazan, Y. Singer, JMLR 12 (2011), `s ← s + g²; p ← p − ηg / (√s + ε)`. Adam: D. P.
//! Kingma, J. Ba, ICLR 2015, algorithm 1. Weight decay is the L2 term `g ← g + λp` of all three
//! papers' PyTorch forms.
//!
//! What a rule leaves of an element's state is 0 below 1e-30, and of a parameter that decays: decay
//! and moments take the elements of a dead unit there, and on through the denormal numbers, which
//! are several times slower. A step is computed with the state as it is before that, so a root is
//! never one of a number that was flushed.

use crate::kernel::isa::{Isa, Plain};
use crate::kernel::update::{Rule, update_slices};

/// Which rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerKind {
    /// `p ← p − ηg`
    Sgd,
    /// Heavy ball; one state plane, the velocity.
    Momentum {
        /// Share of the velocity kept per step.
        beta: f32,
    },
    /// Element-wise Adagrad; one state plane, the accumulator.
    Adagrad {
        /// Added to the root.
        eps: f32,
        /// Accumulator at the start.
        initial: f32,
    },
    /// Adam; two state planes, the moments.
    Adam(Adam),
}

/// Settings of Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Share of the first moment kept per step.
    pub beta1: f32,
    /// Share of the second moment kept per step.
    pub beta2: f32,
    /// Added to the root.
    pub eps: f32,
}

/// A rule and its weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// The rule.
    pub kind: OptimizerKind,
    /// λ of `g ← g + λp`.
    pub weight_decay: f32,
}

/// What changes from step to step.
#[derive(Clone, Copy, Debug)]
pub struct StepSize {
    /// η, schedule applied.
    pub rate: f32,
    /// Steps taken so far including this one, from 1: Adam's bias correction.
    pub count: u64,
}

impl Optimizer {
    /// State values per element.
    #[must_use]
    pub const fn state_planes(&self) -> usize {
        match self.kind {
            OptimizerKind::Sgd => 0,
            OptimizerKind::Momentum { .. } | OptimizerKind::Adagrad { .. } => 1,
            OptimizerKind::Adam(_) => 2,
        }
    }

    /// Value that every state element starts from.
    #[must_use]
    pub const fn initial_state(&self) -> f32 {
        match self.kind {
            OptimizerKind::Adagrad { initial, .. } => initial,
            _ => 0.0,
        }
    }

    /// Updates a stretch of elements: `parameters`, `first`, `second` and `gradient` have one
    /// length; planes the rule does not have are empty.
    #[inline(always)]
    pub fn update(
        &self,
        step: StepSize,
        parameters: &mut [f32],
        first: &mut [f32],
        second: &mut [f32],
        gradient: &[f32],
    ) {
        let planes = [parameters, first, second];
        update_slices(Plain::new(), &self.at(step), planes, gradient);
    }

    /// The rule of one step.
    #[inline]
    pub(crate) fn at(&self, step: StepSize) -> StepRule {
        let correction = match self.kind {
            OptimizerKind::Adam(adam) => adam.correction(step.count),
            _ => Correction::NONE,
        };
        StepRule { optimizer: *self, rate: step.rate, correction }
    }
}

/// A rule with all its numbers at one step.
#[derive(Clone, Copy)]
pub(crate) struct StepRule {
    optimizer: Optimizer,
    rate: f32,
    correction: Correction,
}

impl Rule for StepRule {
    #[inline(always)]
    fn planes(&self) -> usize {
        self.optimizer.state_planes()
    }

    #[inline(always)]
    fn apply<I: Isa>(
        &self,
        isa: I,
        [p, m, v]: [I::Vector; 3],
        gradient: I::Vector,
    ) -> [I::Vector; 3] {
        let rate = isa.splat(self.rate);
        let decay = isa.splat(self.optimizer.weight_decay);
        let g = isa.add(gradient, isa.mul(decay, p));
        let less = |p, step| {
            let p = isa.sub(p, step);
            // Nothing else makes parameters smaller and smaller.
            if self.optimizer.weight_decay > 0.0 { isa.flush(p) } else { p }
        };
        match self.optimizer.kind {
            OptimizerKind::Sgd => [less(p, isa.mul(rate, g)), m, v],
            OptimizerKind::Momentum { beta } => {
                let m = isa.add(isa.mul(isa.splat(beta), m), g);
                [less(p, isa.mul(rate, m)), isa.flush(m), v]
            }
            OptimizerKind::Adagrad { eps, .. } => {
                let s = isa.add(m, isa.mul(g, g));
                let root = isa.add(isa.sqrt(s), isa.splat(eps));
                [less(p, isa.div(isa.mul(rate, g), root)), isa.flush(s), v]
            }
            OptimizerKind::Adam(adam) => {
                let towards = |x, target, beta: f32| {
                    isa.add(x, isa.mul(isa.splat(1.0 - beta), isa.sub(target, x)))
                };
                let m = towards(m, g, adam.beta1);
                let v = towards(v, isa.mul(g, g), adam.beta2);
                let corrected = isa.mul(v, isa.splat(self.correction.second));
                let root = isa.add(isa.sqrt(corrected), isa.splat(adam.eps));
                let step = isa.mul(rate, isa.mul(m, isa.splat(self.correction.first)));
                [less(p, isa.div(step, root)), isa.flush(m), isa.flush(v)]
            }
        }
    }

    /// The bits of [`Rule::apply`] for finite parameters: a decay of 0 adds 0 to the gradient.
    #[inline(always)]
    fn descent(&self) -> Option<f32> {
        let Optimizer { kind, weight_decay } = self.optimizer;
        (kind == OptimizerKind::Sgd && weight_decay == 0.0).then_some(self.rate)
    }
}

/// Factors that undo the moments' bias towards 0 (Kingma and Ba, section 3).
#[derive(Clone, Copy)]
struct Correction {
    first: f32,
    second: f32,
}

impl Correction {
    const NONE: Self = Self { first: 1.0, second: 1.0 };
}

impl Adam {
    /// `1 / (1 − β^count)` for both moments.
    fn correction(&self, count: u64) -> Correction {
        #[expect(clippy::cast_possible_truncation, reason = "a factor in f32 is what is wanted")]
        let factor = |beta: f32| (1.0 / (1.0 - power(f64::from(beta), count))) as f32;
        Correction { first: factor(self.beta1), second: factor(self.beta2) }
    }
}

/// `base` in 0..1 to the power `count`, by squaring: a row of lazy Adam takes two of these, and the
/// library's function takes longer than the row's update. Its relative error is about `count`
/// roundings, of what is next to nothing where that is many.
fn power(base: f64, count: u64) -> f64 {
    let (mut square, mut rest, mut product) = (base, count, 1.0);
    while rest > 0 && square > 0.0 {
        if rest % 2 == 1 {
            product *= square;
        }
        square *= square;
        rest /= 2;
    }
    if rest > 0 { 0.0 } else { product }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: StepSize = StepSize { rate: 0.1, count: 1 };

    /// Runs `steps` updates of one parameter from 1.0 with gradient `p` (the bowl p²/2).
    fn descend(kind: OptimizerKind, weight_decay: f32, steps: u64) -> f32 {
        let optimizer = Optimizer { kind, weight_decay };
        let (mut p, mut a, mut b) = ([1.0], [optimizer.initial_state()], [0.0]);
        for count in 1..=steps {
            let g = p;
            let planes = optimizer.state_planes();
            let (first, second) = (planes.min(1), planes.saturating_sub(1));
            optimizer.update(
                StepSize { count, ..STEP },
                &mut p,
                &mut a[..first],
                &mut b[..second],
                &g,
            );
        }
        p[0]
    }

    #[test]
    fn powers_are_those_of_the_library() {
        for base in [0.0f32, 0.5, 0.9, 0.99, 0.999, 0.999_999].map(f64::from) {
            for count in [1, 2, 3, 10, 777, 1000, 123_456, 1 << 31, u64::MAX] {
                let (own, theirs) = (power(base, count), libm::pow(base, count as f64));
                assert!((own - theirs).abs() < 1e-10, "{base} to the {count}: {own}, {theirs}");
            }
        }
    }

    /// An accumulator, velocity or moment that is denormal does not stay so, and the weight of a
    /// unit that gets no gradient reaches 0 under decay.
    #[test]
    fn nothing_stays_denormal() {
        let denormal = f32::MIN_POSITIVE / 2.0;
        for kind in [
            OptimizerKind::Sgd,
            OptimizerKind::Momentum { beta: 0.9 },
            OptimizerKind::Adagrad { eps: 1e-8, initial: 0.0 },
            OptimizerKind::Adam(Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 }),
        ] {
            let optimizer = Optimizer { kind, weight_decay: 1e-7 };
            let planes = optimizer.state_planes();
            let (mut p, mut a, mut b) = ([0.0, denormal], [denormal; 2], [denormal; 2]);
            let (first, second) = (2 * planes.min(1), 2 * planes.saturating_sub(1));
            let (a, b) = (&mut a[..first], &mut b[..second]);
            optimizer.update(STEP, &mut p, a, b, &[0.0, denormal]);
            assert_eq!(p, [0.0; 2], "{kind:?}");
            assert!(a.iter().chain(b.iter()).all(|x| *x == 0.0), "{kind:?}");
        }
        let decayed = Optimizer { kind: OptimizerKind::Sgd, weight_decay: 1.0 };
        let mut p = [1.0];
        for _ in 0..2000 {
            decayed.update(STEP, &mut p, &mut [], &mut [], &[0.0]);
            assert!(!p[0].is_subnormal());
        }
        assert_eq!(p, [0.0]);
    }

    /// The root is that of the sum before it is flushed: without an epsilon, too, Adagrad's first
    /// step is η.
    #[test]
    fn a_step_is_not_divided_by_what_was_flushed() {
        let optimizer = Optimizer {
            kind: OptimizerKind::Adagrad { eps: 0.0, initial: 0.0 },
            weight_decay: 0.0,
        };
        let (mut p, mut s) = ([1.0], [0.0]);
        optimizer.update(STEP, &mut p, &mut s, &mut [], &[1e-16]);
        assert_eq!((p, s), ([0.9], [0.0]));
    }

    #[test]
    fn one_and_two_steps_by_hand() {
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{a} and {b}");
        near(descend(OptimizerKind::Sgd, 0.0, 2), 0.81);
        near(descend(OptimizerKind::Sgd, 1.0, 1), 0.8);
        // m = 1, p = .9; m = .9 + .9 = 1.8, p = .72
        near(descend(OptimizerKind::Momentum { beta: 0.9 }, 0.0, 2), 0.72);
        // s = 1, p = .9; s = 1.81, p = .9 - .09 / √1.81
        let adagrad = OptimizerKind::Adagrad { eps: 0.0, initial: 0.0 };
        near(descend(adagrad, 0.0, 2), 0.9 - 0.09 / 1.81f32.sqrt());
        // The first step of Adam is η whatever the gradient (section 2.1 of the paper).
        let adam = OptimizerKind::Adam(Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 });
        near(descend(adam, 0.0, 1), 0.9);
        let m = 0.1 * 0.9 + 0.09;
        let v = 0.001 * 0.999 + 0.001 * 0.81;
        let expected = 0.9 - 0.1 * (m / 0.19) / (v / (1.0 - 0.999 * 0.999f32)).sqrt();
        assert!((descend(adam, 0.0, 2) - expected).abs() < 1e-5);
    }
}
