//! Which threshold keeps a share of the elements, and when it is found anew.
//!
//! arXiv 2010.08899: the threshold is updated once in so many steps, so a step costs one look at
//! every element. It is found anew before that when far more pass than should, or for a while far
//! fewer. Of a large vector a sample of its elements tells.

/// Halves of the size of an f32, counted.
pub type Counts = [u32; 1 << 15];

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Keep {
    /// Share of the elements, above 0 and at most 1.
    pub share: f32,
    /// Steps for which a threshold holds, at least 1.
    pub refresh_every: u32,
}

/// The threshold of a vector.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Threshold {
    /// Elements below it in size do not pass.
    tau: f32,
    /// Steps for which it still holds.
    left: u32,
    /// Steps of the window under way,
    steps: u32,
    /// and elements that passed in it.
    passed: usize,
}

impl Threshold {
    /// In size.
    #[must_use]
    pub const fn tau(&self) -> f32 {
        self.tau
    }

    /// Whether it must be found before the next step.
    #[must_use]
    pub const fn is_due(&self) -> bool {
        self.left == 0
    }

    /// It is `tau` from now on.
    pub const fn set(&mut self, tau: f32, keep: Keep) {
        *self = Self { tau, left: keep.refresh_every, steps: 0, passed: 0 };
    }

    /// Whether so many more of `len` elements have passed than should that it must be found anew at
    /// once.
    #[must_use]
    pub fn is_passed_by_many(&self, passed: usize, len: usize, keep: Keep) -> bool {
        passed > 1 && passed as f32 > TOO_MANY * keep.share * len as f32
    }

    /// Holds `vector` against it, of which `first` elements pass [`at_first`](Self::at_first): it
    /// is found anew where it is due or far too many pass, and `again` counts those that pass then.
    /// Counts the step. Returns how many pass. `turn`: as in [`tau_of`].
    pub(super) fn hold(
        &mut self,
        vector: &[f32],
        keep: Keep,
        (turn, counts): (u32, &mut Counts),
        first: usize,
        again: impl FnOnce(f32) -> usize,
    ) -> usize {
        let mut passed = first;
        if self.is_due() || self.is_passed_by_many(passed, vector.len(), keep) {
            let all = keep.share >= 1.0;
            self.set(if all { 0.0 } else { tau_of(vector, keep.share, turn, counts) }, keep);
            passed = again(self.tau());
        }
        self.stepped(passed, vector.len(), keep);
        passed
    }

    /// What elements are held against before it is known whether it has to be found anew.
    pub(super) const fn at_first(&self) -> f32 {
        if self.is_due() { f32::INFINITY } else { self.tau }
    }

    /// A step has been made in which so many of `len` passed.
    pub fn stepped(&mut self, passed: usize, len: usize, keep: Keep) {
        self.left = self.left.saturating_sub(1);
        self.steps += 1;
        self.passed += passed;
        if self.steps == WINDOW {
            let should = keep.share * len as f32 * WINDOW as f32;
            if (self.passed as f32) < TOO_FEW * should {
                self.left = 0;
            }
            (self.steps, self.passed) = (0, 0);
        }
    }
}

/// Of the elements that should pass so many times as many are too many,
const TOO_MANY: f32 = 2.0;
/// and so many times as many too few
const TOO_FEW: f32 = 0.5;
/// in so many steps together.
const WINDOW: u32 = 16;

/// The size that `keep` of the elements of `vector` reach, at least one: exactly, or of a sample of
/// a vector that is much longer than that. Elements that are not finite do not count. `turn`:
/// another number every time makes another sample.
#[must_use]
pub fn tau_of(vector: &[f32], keep: f32, turn: u32, counts: &mut Counts) -> f32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number")]
    let sampled = SAMPLE.max((LARGE / keep) as usize);
    // Odd, and so no multiple of what patterns in a matrix are.
    let stride = (vector.len() / sampled) | 1;
    let first = turn as usize % stride;
    let sample = || vector.iter().skip(first).step_by(stride).map(|x| x.abs().to_bits());
    let finite = || sample().filter(|bits| *bits < f32::INFINITY.to_bits());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share")]
    let count = (finite().count() as f32 * keep) as u32;
    // Two counts by halves: which half the last one has, and of those which other.
    counts.fill(0);
    finite().for_each(|bits| counts[(bits >> 16) as usize] += 1);
    let (upper, of_it) = last(counts, count.max(1));
    counts.fill(0);
    // Fifteen of sixteen bits: the last one decides nothing that counts.
    let of_upper = finite().filter(|bits| bits >> 16 == upper);
    of_upper.for_each(|bits| counts[((bits & 0xffff) >> 1) as usize] += 1);
    let (lower, _) = last(counts, of_it);
    f32::from_bits(upper << 16 | lower << 1)
}

/// Elements that tell of all,
const SAMPLE: usize = 1 << 14;
/// or as many as it takes for so many that are kept.
const LARGE: f32 = 100.0;

/// The half of the last of the `count` largest, and how many of those with it are among them.
fn last(counts: &Counts, count: u32) -> (u32, u32) {
    let mut left = count;
    for (half, here) in (0..=0x7fffu32).rev().zip(counts.iter().rev()) {
        if *here >= left {
            return (half, left);
        }
        left -= here;
    }
    (0, left)
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn counts() -> Box<Counts> {
        Box::new([0; 1 << 15])
    }

    proptest! {
        /// As sorting would have it.
        #[test]
        fn a_share_reaches_it(
            vector in prop::collection::vec(prop_oneof![
                -1e-3f32..1e-3, -1.0f32..1.0, Just(f32::NAN), Just(0.25f32)], 1..500),
            keep in 0.001f32..1.0,
        ) {
            let tau = tau_of(&vector, keep, 3, &mut counts());
            let mut sizes: Vec<f32> =
                vector.iter().map(|x| x.abs()).filter(|x| x.is_finite()).collect();
            sizes.sort_by(|a, b| b.total_cmp(a));
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share")]
            let count = ((sizes.len() as f32 * keep) as usize).max(1);
            let expected = sizes.get(count - 1).copied().unwrap_or(0.0);
            // But for the last bit.
            prop_assert_eq!(tau.to_bits() >> 1, expected.to_bits() >> 1);
        }
    }

    #[test]
    fn a_sample_tells_of_a_long_vector() {
        // Sizes as of a matrix whose columns differ.
        let at =
            |i: u32| (i % 64) as f32 * 0.01 + (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e9;
        let vector: Vec<f32> = (0..1_000_000).map(at).collect();
        for keep in [0.3, 0.01, 0.001] {
            let tau = tau_of(&vector, keep, 7, &mut counts());
            let share = vector.iter().filter(|x| **x >= tau).count() as f32 / 1e6;
            assert!((share / keep - 1.0).abs() < 0.3, "{keep}: {share}");
        }
    }

    #[test]
    fn it_is_found_anew_when_it_no_longer_fits() {
        let keep = Keep { share: 0.01, refresh_every: 100 };
        let mut it = Threshold::default();
        assert!(it.is_due());
        it.set(0.5, keep);
        for _ in 0..99 {
            it.stepped(10, 1000, keep);
            assert!(!it.is_due());
        }
        it.stepped(10, 1000, keep);
        assert!(it.is_due());
        assert!(it.is_passed_by_many(21, 1000, keep) && !it.is_passed_by_many(20, 1000, keep));
        it.set(0.5, keep);
        // One large step does not hide that far fewer pass in the mean.
        (0..15).for_each(|step| it.stepped(if step == 7 { 20 } else { 3 }, 1000, keep));
        assert!(!it.is_due());
        it.stepped(3, 1000, keep);
        assert!(it.is_due());
    }
}
