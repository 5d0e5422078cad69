//! The planted model: what makes a synthetic click.
//!
//! logit = bias + scale · z, with z = Σ_f w_f + Σ_{f<g} ⟨v_f, v_g⟩ + Σ_j β_j x_j over the row's ids
//! and dense features, each of the three sums brought to its share of the variance. w_f (one
//! number) and v_f (two) are hashes of (seed, field, id), near to normal, and fade with the rank
//! of the id: what is seen once cannot be learned, so it is given little to say. Bias and scale
//! are set on a pilot sample so that the base rate and the AUC of the true probabilities are as
//! asked.

use umbra_core::float::{exp, exp_f64};
use umbra_core::metrics::{AucPart, Scored};
use umbra_core::rng::{Purpose, Stream};

use super::Preset;
use super::zipf::Zipf;

/// Share of clicks.
const BASE_RATE: f64 = 0.27;
/// AUC of the true probabilities.
const AUC: f64 = 0.80;
/// Exponents of the first and the last field.
const EXPONENT: (f64, f64) = (1.05, 1.2);
/// Shares of the variance of z: linear effects, interactions, dense features.
const SHARE: (f32, f32, f32) = (0.60, 0.15, 0.25);
/// Rank at which the effect of an id has faded to one half.
const FADE_RANK: f32 = 20.0;
/// Rows of the pilot sample, and the first of them: far from any row of a dataset.
const PILOT: (u64, u64) = (8192, 1 << 62);
/// Draws of a Zipf rank that have streams of their own; a draw is accepted with more than 0.9.
const ATTEMPTS: u32 = 64;

/// Streams: one per column and purpose, and per attempt.
const LABEL: u32 = 0;
const DENSE: u32 = 1000;
const EFFECT: u32 = 2000;
const SLOPE: u32 = 3000;
const ID: u32 = 4000;

/// The planted model of one seed. Row `i` is a function of (preset, seed, i) alone.
#[derive(Clone, Debug)]
pub(super) struct World {
    label: Stream,
    fields: Vec<Field>,
    dense: Vec<Dense>,
    /// Factors of the linear sum and of the interactions.
    linear: f32,
    interaction: f32,
    scale: f32,
    bias: f32,
}

#[derive(Clone, Debug)]
struct Field {
    zipf: Zipf,
    /// Two attempts per block, one stream for every two attempts. `[ATTEMPTS / 2]`
    ids: Vec<Stream>,
    effect: Stream,
}

#[derive(Clone, Debug)]
struct Dense {
    stream: Stream,
    /// ln of the raw value has this mean and standard deviation.
    mean: f32,
    deviation: f32,
    /// Of the normal number behind the value.
    slope: f32,
}

impl World {
    pub(super) fn new(preset: Preset, seed: u64) -> Self {
        let stream = |column| Stream::new(seed, Purpose::Synthetic(column));
        let cardinality = preset.cardinality();
        let (fields, dense) = (cardinality.len(), preset.dense_features());
        let step = (EXPONENT.1 - EXPONENT.0) / (fields.max(2) - 1) as f64;
        let fields: Vec<Field> = (0u32..)
            .zip(cardinality)
            .map(|(f, &n)| Field {
                zipf: Zipf::new(n, EXPONENT.0 + f64::from(f) * step),
                ids: (0..ATTEMPTS / 2).map(|a| stream(ID + a * 1000 + f)).collect(),
                effect: stream(EFFECT + f),
            })
            .collect();
        let slopes = stream(SLOPE);
        let slope = (SHARE.2 / dense.max(1) as f32).sqrt();
        let dense = (0u32..)
            .take(dense)
            .map(|j| Dense {
                stream: stream(DENSE + j),
                mean: (j % 4) as f32,
                deviation: 0.5 + 0.25 * (j % 3) as f32,
                slope: slope * if slopes.uniform(u64::from(j)) < 0.5 { -1.0 } else { 1.0 },
            })
            .collect();
        let count = fields.len() as f32;
        let pairs = (count * (count - 1.0) / 2.0).max(1.0);
        let mut world = Self {
            label: stream(LABEL),
            linear: (SHARE.0 / count).sqrt(),
            interaction: (SHARE.1 / (2.0 * pairs)).sqrt(),
            fields,
            dense,
            scale: 1.0,
            bias: 0.0,
        };
        world.calibrate();
        world
    }

    /// Appends row `row`: dense features `[D]`, ids `[S]`. Returns the logit and the label.
    pub(super) fn row(&self, row: u64, dense: &mut Vec<f32>, ids: &mut Vec<u32>) -> (f32, f32) {
        let logit = self.bias + self.scale * self.signal(row, dense, ids);
        let clicked = self.label.uniform(row) < 1.0 / (1.0 + exp(-logit));
        (logit, if clicked { 1.0 } else { 0.0 })
    }

    /// z of row `row`, whose features are appended.
    fn signal(&self, row: u64, dense: &mut Vec<f32>, ids: &mut Vec<u32>) -> f32 {
        let (mut linear, mut sum, mut squares) = (0.0, [0.0; 2], 0.0);
        for field in &self.fields {
            let id = field.id(row);
            let [w, a, b] = field.effect(id);
            linear += w;
            sum = [sum[0] + a, sum[1] + b];
            squares += a * a + b * b;
            ids.push(id);
        }
        let mut slope = 0.0;
        for column in &self.dense {
            let normal = column.stream.normal(row);
            slope += column.slope * normal;
            // ln(1 + x) of a log-normal x, as the transform of Criteo's counts gives.
            let raw = exp(column.mean + column.deviation * normal);
            dense.push(umbra_core::float::ln_1p(raw));
        }
        // Σ_{f<g} ⟨v_f, v_g⟩ = (|Σ v|² - Σ |v|²) / 2
        let pairs = 0.5 * (sum[0] * sum[0] + sum[1] * sum[1] - squares);
        self.linear * linear + self.interaction * pairs + slope
    }

    /// Sets scale and bias on the pilot sample.
    fn calibrate(&mut self) {
        let (mut dense, mut ids) = (Vec::new(), Vec::new());
        let mut z: Vec<f64> = (0..PILOT.0)
            .map(|i| {
                dense.clear();
                ids.clear();
                f64::from(self.signal(PILOT.1 + i, &mut dense, &mut ids))
            })
            .collect();
        let n = z.len() as f64;
        let mean = z.iter().sum::<f64>() / n;
        let deviation = (z.iter().map(|z| (z - mean) * (z - mean)).sum::<f64>() / n).sqrt();
        // Signals are standardized, so that the same bracket serves every preset and seed.
        z.iter_mut().for_each(|z| *z = (*z - mean) / deviation.max(1e-9));
        let (mut low, mut high, mut bias) = (0.0, 8.0, 0.0);
        for _ in 0..20 {
            let scale = f64::midpoint(low, high);
            bias = bias_for(&z, scale, bias);
            if expected_auc(&z, scale, bias) < AUC { low = scale } else { high = scale }
        }
        let scale = f64::midpoint(low, high);
        let bias = bias_for(&z, scale, bias);
        #[expect(clippy::cast_possible_truncation, reason = "rounding to the model's precision")]
        {
            self.scale = (scale / deviation.max(1e-9)) as f32;
            self.bias = (bias - scale * mean / deviation.max(1e-9)) as f32;
        }
    }
}

impl Field {
    /// The id of row `row`: rank - 1, so that 0 is the most frequent.
    fn id(&self, row: u64) -> u32 {
        let (mut attempt, mut block) = (0, [0; 4]);
        let rank = self.zipf.rank(|| {
            let half = attempt % 2;
            if half == 0 {
                block = self.ids[(attempt / 2).min(self.ids.len() - 1)].block(row);
            }
            attempt += 1;
            let word = u64::from(block[2 * half]) << 32 | u64::from(block[2 * half + 1]);
            (word >> 11) as f64 / (1u64 << 53) as f64
        });
        #[expect(clippy::cast_possible_truncation, reason = "cardinalities of presets are u32")]
        let id = (rank - 1) as u32;
        id
    }

    /// w and v of id `id`.
    fn effect(&self, id: u32) -> [f32; 3] {
        let block = self.effect.block(u64::from(id));
        let fade = 1.0 / (1.0 + id as f32 / FADE_RANK);
        [0, 1, 2].map(|i| fade * near_normal(block[i]))
    }
}

/// Mean 0 and variance 1 from the sum of four bytes, each of variance (256² - 1) / 12.
fn near_normal(word: u32) -> f32 {
    let sum: u32 = word.to_le_bytes().into_iter().map(u32::from).sum();
    (sum as f32 - 510.0) / 147.8
}

/// The bias that gives the base rate, by Newton's method from `bias`.
fn bias_for(z: &[f64], scale: f64, mut bias: f64) -> f64 {
    for _ in 0..8 {
        let (mut rate, mut slope) = (0.0, 0.0);
        for z in z {
            let p = probability(bias + scale * z);
            rate += p;
            slope += p * (1.0 - p);
        }
        bias -= ((rate - BASE_RATE * z.len() as f64) / slope.max(1e-9)).clamp(-2.0, 2.0);
    }
    bias
}

/// AUC of the true probabilities over all outcomes that they may have: a row is a click with
/// weight p and none with weight 1 - p.
fn expected_auc(z: &[f64], scale: f64, bias: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, reason = "scores of the metric are f32")]
    let mut scored: Vec<Scored> = z
        .iter()
        .map(|z| {
            let logit = bias + scale * z;
            Scored { score: logit as f32, label: probability(logit) as f32, weight: 1.0 }
        })
        .collect();
    AucPart::of(&mut scored).ok().and_then(|part| part.auc()).unwrap_or(0.5)
}

fn probability(logit: f64) -> f64 {
    1.0 / (1.0 + exp_f64(-logit))
}
