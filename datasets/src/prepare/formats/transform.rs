//! Numbers to dense features.
//!
//! `log` is DLRM's preprocessing (Naumov et al. 2019; `data_utils.py` of facebookresearch/dlrm):
//! missing and negative numbers are 0, then ln(1 + x). torchrec's ln(x - min + 2) needs the minimum
//! of the whole input, and BARS buckets floor(ln² x); neither is done here.
//!
//! A number is filled in where it is missing, clipped, then transformed; one that is missing and
//! not filled in is the feature 0 under every transform. The mean and the deviation of a z-score
//! are counted before, by Welford's recurrence (Knuth, The Art of Computer Programming 2, §4.2.2),
//! one number after the other in the order of the text, so that they depend on nothing else.

use std::sync::LazyLock;

use super::features::NumberRecipe;
use crate::prepare::options::DenseTransform;

/// How a number becomes a feature.
#[derive(Clone, Debug)]
pub(crate) struct NumberTransform {
    kind: DenseTransform,
    recipe: NumberRecipe,
}

impl NumberTransform {
    pub(crate) fn new(kind: DenseTransform, recipe: NumberRecipe) -> Self {
        Self { kind, recipe }
    }

    pub(crate) fn kind(&self) -> DenseTransform {
        self.kind
    }

    pub(crate) fn recipe(&self) -> &NumberRecipe {
        &self.recipe
    }

    /// Sets the mean and the deviation of a z-score.
    pub(crate) fn learn(&mut self, mean: f64, deviation: f64) {
        self.recipe.mean = Some(mean);
        self.recipe.deviation = Some(deviation);
    }

    /// The feature of a whole number that needs no clipping.
    pub(crate) fn integer(&self, x: i64) -> f32 {
        match self.kind {
            DenseTransform::None => x as f32,
            DenseTransform::Log => {
                let x = x.max(0);
                let known = usize::try_from(x).ok().and_then(|x| LOGS.get(x));
                known.copied().unwrap_or_else(|| log(x as f64))
            }
            DenseTransform::ZScore => self.score(x as f64),
        }
    }

    /// The feature of a finite number, or of a missing one; `None` where it is not finite.
    pub(crate) fn feature(&self, x: Option<f64>) -> Option<f32> {
        let Some(x) = x.or(self.recipe.fill) else { return Some(MISSING_NUMBER) };
        let x = self.clip(x);
        let feature = match self.kind {
            DenseTransform::None => to_f32(x),
            DenseTransform::Log => self.log(x),
            DenseTransform::ZScore => self.score(x),
        };
        feature.is_finite().then_some(feature)
    }

    /// The number that a z-score counts.
    pub(crate) fn clip(&self, x: f64) -> f64 {
        self.recipe.clip.map_or(x, |[low, high]| x.clamp(low, high))
    }

    fn log(&self, x: f64) -> f32 {
        let x = x.max(0.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "compared")]
        let whole = x as u32;
        match LOGS.get(whole as usize) {
            Some(known) if f64::from(whole) == x => *known,
            _ => log(x),
        }
    }

    /// Before anything is counted this is the number itself.
    fn score(&self, x: f64) -> f32 {
        match (self.recipe.mean, self.recipe.deviation) {
            (Some(_), Some(0.0)) => 0.0,
            (Some(mean), Some(deviation)) => to_f32((x - mean) / deviation),
            _ => to_f32(x),
        }
    }
}

/// Mean and deviation of numbers so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moments {
    count: f64,
    mean: f64,
    /// Sum of squared differences from the mean.
    squares: f64,
}

impl Moments {
    /// Adds the numbers that are there; a missing one is NaN.
    pub(crate) fn add(&mut self, numbers: &[f64]) {
        for x in numbers.iter().copied().filter(|x| !x.is_nan()) {
            self.count += 1.0;
            let difference = x - self.mean;
            self.mean += difference / self.count;
            self.squares += difference * (x - self.mean);
        }
    }

    /// Mean, and standard deviation of the population; zeros without a number.
    pub(crate) fn finish(&self) -> (f64, f64) {
        (self.mean, (self.squares / self.count.max(1.0)).sqrt())
    }
}

/// The feature of a missing number, under every transform.
pub(crate) const MISSING_NUMBER: f32 = 0.0;

/// ln(1 + x) for x from 0.
fn log(x: f64) -> f32 {
    to_f32(x.ln_1p())
}

#[expect(clippy::cast_possible_truncation, reason = "features are f32")]
fn to_f32(x: f64) -> f32 {
    x as f32
}

/// Logarithms of small whole numbers: most counts of a click log are among them. All features share
/// them, so that they stay in the first cache.
static LOGS: LazyLock<Box<[f32]>> =
    LazyLock::new(|| (0..4096).map(|x| log(f64::from(x))).collect());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_dlrms() {
        let transform = NumberTransform::new(DenseTransform::Log, NumberRecipe::default());
        for (x, expected) in [(0, 0.0), (-3, 0.0), (1, core::f32::consts::LN_2), (5, 1.791_759_5)] {
            assert_eq!(transform.integer(x), expected, "{x}");
        }
        for x in [0, 1, 4095, 4096, 1 << 40] {
            assert_eq!(Some(transform.integer(x)), transform.feature(Some(x as f64)), "{x}");
        }
    }

    #[test]
    fn none_keeps_the_number() {
        let transform = NumberTransform::new(DenseTransform::None, NumberRecipe::default());
        assert_eq!(transform.integer(-7), -7.0);
        assert_eq!(transform.feature(Some(0.25)), Some(0.25));
        assert_eq!(transform.feature(Some(1e39)), None);
    }

    #[test]
    fn numbers_are_filled_in_then_clipped_then_transformed() {
        let recipe = NumberRecipe {
            clip: Some([0.0, 10.0]),
            fill: Some(-4.0),
            missing_flag: false,
            mean: Some(4.0),
            deviation: Some(2.0),
        };
        for (kind, low, high) in [
            (DenseTransform::None, 0.0, 10.0),
            (DenseTransform::Log, 0.0, 2.397_895_3),
            (DenseTransform::ZScore, -2.0, 3.0),
        ] {
            let transform = NumberTransform::new(kind, recipe);
            assert_eq!(transform.feature(None), Some(low));
            assert_eq!(transform.feature(Some(1e300)), Some(high));
            let plain = NumberTransform::new(kind, NumberRecipe { fill: None, ..recipe });
            assert_eq!(plain.feature(None), Some(0.0));
        }
        let constant = NumberRecipe { deviation: Some(0.0), ..recipe };
        let transform = NumberTransform::new(DenseTransform::ZScore, constant);
        assert_eq!(transform.feature(Some(7.0)), Some(0.0));
    }

    #[test]
    fn moments_are_those_of_the_population_even_far_from_zero() {
        let mut moments = Moments::default();
        moments.add(&[1e9 + 4.0, f64::NAN, 1e9 + 7.0]);
        moments.add(&[1e9 + 13.0, 1e9 + 16.0]);
        assert_eq!(moments.finish(), (1e9 + 10.0, 22.5f64.sqrt()));
        assert_eq!(Moments::default().finish(), (0.0, 0.0));
    }
}
