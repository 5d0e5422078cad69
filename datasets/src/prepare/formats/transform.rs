//! Numbers to dense features.
//!
//! `log` is DLRM's preprocessing (Naumov et al. 2019; `data_utils.py` of facebookresearch/dlrm):
//! missing and negative numbers are 0, then ln(1 + x). torchrec's ln(x - min + 2) needs the minimum
//! of the whole input, and BARS buckets floor(ln² x); neither is done here.

use crate::prepare::options::DenseTransform;

/// A transform with the logarithms of small whole numbers at hand: most counts of a click log are
/// below [`LOGS`].
#[derive(Clone, Debug)]
pub(crate) struct NumberTransform {
    kind: DenseTransform,
    logs: Box<[f32]>,
}

impl NumberTransform {
    pub(crate) fn new(kind: DenseTransform) -> Self {
        let logs = match kind {
            DenseTransform::None => Box::default(),
            DenseTransform::Log => (0..LOGS).map(|x| log(f64::from(x))).collect(),
        };
        Self { kind, logs }
    }

    pub(crate) fn kind(&self) -> DenseTransform {
        self.kind
    }

    /// The feature of a whole number.
    pub(crate) fn integer(&self, x: i64) -> f32 {
        match self.kind {
            DenseTransform::None => x as f32,
            DenseTransform::Log => {
                let x = x.max(0);
                let known = usize::try_from(x).ok().and_then(|x| self.logs.get(x));
                known.copied().unwrap_or_else(|| log(x as f64))
            }
        }
    }

    /// The feature of a finite number.
    pub(crate) fn float(&self, x: f64) -> f32 {
        match self.kind {
            DenseTransform::None => to_f32(x),
            DenseTransform::Log => log(x.max(0.0)),
        }
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

const LOGS: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_dlrms() {
        let transform = NumberTransform::new(DenseTransform::Log);
        for (x, expected) in [(0, 0.0), (-3, 0.0), (1, core::f32::consts::LN_2), (5, 1.791_759_5)] {
            assert_eq!(transform.integer(x), expected, "{x}");
        }
        for x in [0, 1, 4095, 4096, 1 << 40] {
            assert_eq!(transform.integer(x), transform.float(x as f64), "{x}");
        }
    }

    #[test]
    fn none_keeps_the_number() {
        let transform = NumberTransform::new(DenseTransform::None);
        assert_eq!(transform.integer(-7), -7.0);
        assert_eq!(transform.float(0.25), 0.25);
    }
}
