//! The gradient of a global batch: the weighted sum of those of its members, and its mean.
//!
//! arXiv 2205.11048 buffers M gradients; since a weight is known when a gradient becomes a member
//! (`token/`), a running sum is enough, whatever M.
//!
//! Invariant: the sum depends on the members and their order alone, so servers that are told of the
//! same members have the slices of one gradient.

/// What a sum of gradients is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Divisor {
    /// The number of members, those of weight 0 among them: old gradients make a step smaller.
    #[default]
    Members,
    /// The sum of their weights.
    Weights,
}

impl Divisor {
    /// What 1 over it is for an aggregate; 0 where there is nothing to apply.
    #[must_use]
    pub fn factor(self, members: u32, weight: f32) -> f32 {
        match self {
            _ if weight <= 0.0 => 0.0,
            Self::Members => 1.0 / members as f32,
            Self::Weights => 1.0 / weight,
        }
    }
}

/// A sum in the making.
#[derive(Debug)]
pub struct GradientSum<'a> {
    sum: &'a mut [f32],
}

impl<'a> GradientSum<'a> {
    /// Nothing yet, of a slice as long as `sum`.
    #[must_use]
    pub fn new(sum: &'a mut [f32]) -> Self {
        sum.fill(0.0);
        Self { sum }
    }

    /// Adds `weight` times the gradient of a member: nothing for weight 0, whatever its values.
    pub fn add(&mut self, weight: f32, gradient: &[f32]) {
        if weight == 0.0 {
            return;
        }
        self.sum.iter_mut().zip(gradient).for_each(|(sum, x)| *sum += weight * x);
    }

    /// Hands `factor` times the sum to `apply`, unless it is 0, and begins again.
    pub fn conclude(&mut self, factor: f32, apply: impl FnOnce(&[f32])) {
        if factor != 0.0 {
            self.sum.iter_mut().for_each(|x| *x *= factor);
            apply(self.sum);
        }
        self.sum.fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_of_members_or_of_weights_and_leaves_nothing_behind() {
        let mut memory = [9.0; 2];
        let mut it = GradientSum::new(&mut memory);
        for (divisor, expected) in [(Divisor::Members, [1.0, 2.0]), (Divisor::Weights, [2.0, 4.0])]
        {
            it.add(1.0, &[2.0, 4.0]);
            it.add(0.5, &[4.0, 8.0]);
            it.add(0.0, &[f32::NAN, f32::INFINITY]);
            it.add(0.5, &[0.0, 0.0]);
            let mut applied = [0.0; 2];
            it.conclude(divisor.factor(4, 2.0), |mean| applied.copy_from_slice(mean));
            assert_eq!(applied, expected, "{divisor:?}");
        }
        it.add(1.0, &[2.0, 4.0]);
        it.conclude(Divisor::Weights.factor(4, 0.0), |_| panic!("all were too old"));
        it.conclude(1.0, |mean| assert_eq!(mean, [0.0, 0.0]));
    }
}
