//! Synthetic click logs with a planted model, whose own AUC is the ceiling for any learner.
//!
//! Map: `zipf` draws ids · `world` is the planted model. Row `i` of a seed is a function of
//! (preset, seed, i) alone, so the rows of a file do not depend on the number of threads, and two
//! files of different rows of one seed are training and test data of one world.

mod world;
mod zipf;

use core::fmt;
use core::str::FromStr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;
use umbra_core::metrics::{AucPart, LossSums, MetricError, Scored};

use crate::output::{self, OutputError};
use crate::{DatasetError, DatasetInfo, RowBlock, Writer};
use world::World;

/// Shape of a synthetic dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// 13 dense features and 26 fields with the table sizes of Criteo's Kaggle data.
    CriteoKaggle,
    /// 4 dense features and 8 fields of 100 to 10,000 ids: learned in seconds.
    Small,
}

/// Ids of the 26 fields of the Criteo Display Advertising Challenge (Kaggle 2014), as counted by
/// the scripts of facebookresearch/dlrm.
const KAGGLE: [u64; 26] = [
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194, 27,
    14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
];

/// Ids of the fields of the small preset.
const SMALL: [u64; 8] = [100, 200, 400, 800, 1500, 3000, 6000, 10_000];

impl Preset {
    /// All presets.
    pub const ALL: [Self; 2] = [Self::CriteoKaggle, Self::Small];

    /// The name a user types.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CriteoKaggle => "criteo-kaggle",
            Self::Small => "small",
        }
    }

    /// Ids of every field. `[S]`
    #[must_use]
    pub const fn cardinality(self) -> &'static [u64] {
        match self {
            Self::CriteoKaggle => &KAGGLE,
            Self::Small => &SMALL,
        }
    }

    /// D.
    #[must_use]
    pub const fn dense_features(self) -> usize {
        match self {
            Self::CriteoKaggle => 13,
            Self::Small => 4,
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no preset of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no preset `{got}`: expected `criteo-kaggle` or `small`")]
pub struct UnknownPreset {
    /// What was typed.
    pub got: String,
}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        let preset = Self::ALL.into_iter().find(|p| p.name() == name);
        preset.ok_or_else(|| UnknownPreset { got: name.to_owned() })
    }
}

/// What may be chosen beyond rows, preset and seed.
#[derive(Clone, Debug, Default)]
pub struct SynthOptions {
    /// Number in its world of the first row: files with different rows share one planted model.
    pub first_row: u64,
    /// Replace an output that is there.
    pub overwrite: bool,
    /// Set by whoever wants the work to end early; then nothing is written.
    pub stop: Arc<AtomicBool>,
}

/// What was made, and what the planted model itself scores on it.
#[derive(Clone, Debug, PartialEq)]
pub struct SynthSummary {
    /// Rows written.
    pub rows: u64,
    /// AUC of the true probabilities against the labels drawn, exact; `None` when all labels are
    /// equal.
    pub auc_planted: Option<f64>,
    /// Mean log loss of the true probabilities, in nats; `None` without rows.
    pub log_loss_planted: Option<f64>,
    /// Share of clicks; `None` without rows.
    pub base_rate: Option<f64>,
    /// Fingerprint of the content.
    pub fingerprint: String,
}

/// Why a synthetic dataset could not be made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SynthError {
    /// The file could not be written.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The output cannot be written, or would harm what is there.
    #[error(transparent)]
    Output(Arc<OutputError>),
    /// Asked to stop before the end.
    #[error("stopped before the end: nothing was written")]
    Interrupted,
    /// The planted model gave no number.
    #[error("planted model: {0}")]
    Metric(#[from] MetricError),
}

/// Rows made by one task.
const BLOCK_ROWS: u64 = 4096;
/// Blocks made while the ones before are written.
const BLOCKS: u64 = 16;

/// Writes `rows` rows of the world of (`preset`, `seed`) to `path`.
///
/// `progress` is told the rows written so far, now and then.
///
/// # Errors
/// When the file cannot be written; nothing is left at `path` then.
pub fn synth(
    rows: u64,
    preset: Preset,
    seed: u64,
    path: &Path,
    options: SynthOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<SynthSummary, SynthError> {
    let path = output::check(path, [], options.overwrite)
        .map_err(|error| SynthError::Output(Arc::new(error)))?;
    let world = World::new(preset, seed);
    let mut writer = Writer::create(&path, info(preset, seed))?;
    if !options.overwrite {
        writer = writer.keep_existing();
    }
    let mut scores = Scores::default();
    let mut made = Vec::new();
    let mut first = 0;
    while first < rows || !made.is_empty() {
        if options.stop.load(Ordering::Relaxed) {
            return Err(SynthError::Interrupted);
        }
        let last = rows.min(first + BLOCKS * BLOCK_ROWS);
        let range = options.first_row + first..options.first_row + last;
        // The next rows are made while one thread compresses these.
        let (next, written) = rayon::join(
            || make(&world, range),
            || made.iter().try_for_each(|block: &Block| writer.append(&block.rows())),
        );
        written?;
        made.iter().for_each(|block| scores.add(block));
        if !made.is_empty() {
            progress(writer.rows());
        }
        made = next;
        first = last;
    }
    let fingerprint = writer.finish()?.fingerprint;
    let loss = scores.loss;
    Ok(SynthSummary {
        rows,
        log_loss_planted: loss.log_loss(),
        base_rate: (loss.weight > 0.0).then(|| loss.label / loss.weight),
        auc_planted: scores.auc()?,
        fingerprint,
    })
}

fn info(preset: Preset, seed: u64) -> DatasetInfo {
    let names = |prefix: &str, n: usize| (1..=n).map(|i| format!("{prefix}{i}")).collect();
    DatasetInfo {
        dense_names: names("I", preset.dense_features()),
        sparse_names: names("C", preset.cardinality().len()),
        cardinality: preset.cardinality().to_vec(),
        transform: format!(
            "format = \"synthetic\"\npreset = \"{preset}\"\nseed = {seed}\ndense = \"ln(1+x)\"\n"
        ),
        one_hot: true,
        has_label: true,
        has_weight: false,
        has_group: false,
        has_value_weights: false,
    }
}

/// Rows of one task, with the logits that their labels were drawn from.
#[derive(Debug, Default)]
struct Block {
    logit: Vec<f32>,
    label: Vec<f32>,
    dense: Vec<f32>,
    ids: Vec<u32>,
}

impl Block {
    fn rows(&self) -> RowBlock<'_> {
        RowBlock {
            rows: self.label.len(),
            label: &self.label,
            weight: &[],
            dense: &self.dense,
            values: &self.ids,
            value_weights: &[],
            offsets: &[],
            group: &[],
        }
    }
}

fn make(world: &World, rows: core::ops::Range<u64>) -> Vec<Block> {
    let blocks = (rows.end - rows.start).div_ceil(BLOCK_ROWS);
    (0..blocks)
        .into_par_iter()
        .map(|number| {
            let first = rows.start + number * BLOCK_ROWS;
            let mut block = Block::default();
            for row in first..rows.end.min(first + BLOCK_ROWS) {
                let (logit, label) = world.row(row, &mut block.dense, &mut block.ids);
                block.logit.push(logit);
                block.label.push(label);
            }
            block
        })
        .collect()
}

/// Logits by label, four bytes a row, for the exact AUC.
#[derive(Debug, Default)]
struct Scores {
    clicked: Vec<f32>,
    others: Vec<f32>,
    loss: LossSums,
}

/// Examples of a part of the AUC, about.
const PART: usize = 1 << 20;

impl Scores {
    fn add(&mut self, block: &Block) {
        for (&logit, &label) in block.logit.iter().zip(&block.label) {
            self.loss.add(logit, label, 1.0);
            if label > 0.5 { &mut self.clicked } else { &mut self.others }.push(logit);
        }
    }

    /// Sorts, and joins the parts of disjoint ranges of scores, from below.
    fn auc(mut self) -> Result<Option<f64>, MetricError> {
        self.clicked.par_sort_unstable_by(f32::total_cmp);
        self.others.par_sort_unstable_by(f32::total_cmp);
        let (mut clicked, mut others) = (self.clicked.as_slice(), self.others.as_slice());
        let mut total = AucPart::default();
        let mut part = Vec::new();
        while !clicked.is_empty() || !others.is_empty() {
            // Everything up to a bound: equal scores stay in one part.
            let bound = |scores: &[f32]| scores.get(PART).copied().unwrap_or(f32::INFINITY);
            let bound = bound(clicked).min(bound(others));
            part.clear();
            for (scores, label) in [(&mut clicked, 1.0), (&mut others, 0.0)] {
                let (below, rest) = scores.split_at(scores.partition_point(|&s| s <= bound));
                part.extend(below.iter().map(|&score| Scored { score, label, weight: 1.0 }));
                *scores = rest;
            }
            total = AucPart::merge(total, AucPart::of(&mut part)?);
        }
        Ok(total.auc())
    }
}
