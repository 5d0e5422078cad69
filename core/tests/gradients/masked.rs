//! Gradients through vectors that two ranks have pooled and of which what passes was sent: those of
//! the loss as a function of the rows, with the masks as they are.

use umbra_core::compress::activations::{FieldThreshold, Refresh, Vectors, send};
use umbra_core::compress::{Keep, Mask, Values, add, gather, len_max, mask_len, scatter};
use umbra_core::model::{Model, ModelConfig, Pooling};
use umbra_core::sparse::{PartialBags, Partitioning, RowUse};

use crate::models::{DCN_V2, DEEPFM, DLRM, train};
use crate::twin::{Data, Twin, wide};
use crate::{BOUND, close, differences};

const RANKS: Partitioning = Partitioning { partitions: 2 };

/// What a rank has of the bags of a batch.
#[derive(Default)]
struct Part {
    /// Of each bag here, its place among those with values.
    places: Vec<usize>,
    fields: Vec<u32>,
    counts: Vec<u32>,
    rows: Vec<u32>,
    weights: Vec<f32>,
    scales: Vec<f32>,
    mask: Vec<u32>,
}

impl Part {
    fn bags(&self) -> PartialBags<'_> {
        let Self { counts, rows, weights, scales, .. } = self;
        PartialBags { counts, rows, weights, scales }
    }

    fn uses(&self, rank: u32) -> Vec<RowUse> {
        self.bags().of_partition(RANKS, rank).collect()
    }
}

/// The parts of both ranks, and the batch of the vectors: bags of one value or none.
fn deal(config: &ModelConfig, data: Data, width: usize) -> ([Part; 2], Data) {
    let mut parts = [Part::default(), Part::default()];
    let (mut touched, mut offsets) = (0, vec![0]);
    for (bag, ends) in data.offsets.windows(2).enumerate() {
        let range = ends[0] as usize..ends[1] as usize;
        let weights = data.value_weights.get(range.clone()).unwrap_or_default();
        let scale = config.pooling.scale_of(range.len(), weights);
        for (rank, part) in (0..).zip(&mut parts) {
            let own = range.clone().filter(|at| RANKS.partition(data.values[*at]) == rank);
            let before = part.rows.len();
            part.rows.extend(own.clone().map(|at| data.values[at]));
            part.weights.extend(own.filter_map(|at| data.value_weights.get(at)));
            if part.rows.len() > before {
                part.counts.push((part.rows.len() - before) as u32);
                part.scales.push(if config.pooling == Pooling::Mean { scale } else { 1.0 });
                part.fields.push((bag % config.fields) as u32);
                part.places.push(touched);
            }
        }
        touched += usize::from(!range.is_empty());
        offsets.push(touched as u32);
    }
    let values = (0..touched as u32).collect();
    let rows = vec![0.0; touched * width];
    (parts, Data { values, offsets, rows, value_weights: vec![], ..data })
}

fn check(config: &ModelConfig, weighted: bool, share: f32) {
    let model = Model::new(config).unwrap();
    let (width, always) = (model.row_width(), model.first_order_columns());
    let mut data = Data::new(config, &model, 5, 23);
    if weighted {
        data.weigh_ids(5);
    }
    let rows = data.rows.clone();
    let (mut parts, mut vectors) = deal(config, data, width);
    for (rank, part) in (0..).zip(&mut parts) {
        let (uses, mut own) = (part.uses(rank), vec![0.0; part.counts.len() * width]);
        let found: Vec<f32> = uses.iter().flat_map(|it| row_of(&rows, it.row, width)).collect();
        part.bags().pool(uses.iter().copied(), &found, width, &mut own);
        part.bags().apply_scales(width, &mut own);
        let mut thresholds = vec![FieldThreshold::default(); config.fields];
        let (mut elements, mut counts) = (vec![0.0; own.len()], Box::new([0; 1 << 15]));
        let refresh = Refresh { elements: &mut elements, counts: &mut counts, turn: 1 };
        let (mut mask, mut out) =
            (vec![0; mask_len(own.len())], vec![0; len_max(own.len(), Values::F32)]);
        let it = Vectors { values: &own, fields: &part.fields, width, always };
        let how = (Keep { share, refresh_every: 10 }, Values::F32);
        let kept = send(it, &mut thresholds, how, Some(refresh), &mut mask, &mut out);
        assert!(kept.elements < own.len() || share >= 1.0, "nothing is masked");
        let mut came = vec![0.0; own.len()];
        add(&out[..kept.bytes], &mut came).unwrap();
        for (place, came) in part.places.iter().zip(came.chunks(width)) {
            let vector = &mut vectors.rows[place * width..][..width];
            vector.iter_mut().zip(came).for_each(|(sum, x)| *sum += x);
        }
        part.mask = mask;
    }
    let trained = train(&model, &vectors, &mut |_| {});
    let mut got = vec![0.0; rows.len()];
    for (rank, part) in (0..).zip(&parts) {
        let own = part.places.iter();
        let own: Vec<f32> =
            own.flat_map(|place| row_of(&trained.rows, *place as u32, width)).collect();
        let mut bytes = vec![0; 4 * own.len()];
        let length = gather(&own, &Mask::told(&part.mask), Values::F32, &mut bytes);
        let mut back = vec![0.0; own.len()];
        scatter(&bytes[..length], &Mask::told(&part.mask), Values::F32, &mut back).unwrap();
        let mut uses = part.uses(rank);
        uses.sort_unstable();
        for of_row in uses.chunk_by(|a, b| a.row == b.row) {
            let out = &mut got[of_row[0].row as usize * width..][..width];
            part.bags().row_gradient(of_row, &back, width, out);
        }
    }
    // The same in f64 and by definition.
    let replica = wide(&vectors.replica);
    let twin = Twin { config, model: &model, data: &vectors, training: true };
    let loss = |rows: &[f64]| {
        let mut all = vec![0.0; vectors.rows.len()];
        for part in &parts {
            let mut values = part.rows.iter().enumerate();
            for (bag, place) in part.places.iter().enumerate() {
                for (at, row) in values.by_ref().take(part.counts[bag] as usize) {
                    let weight = f64::from(part.weights.get(at).copied().unwrap_or(1.0));
                    for column in 0..width {
                        let element = bag * width + column;
                        let passes = part.mask[element / 32] >> (element % 32) & 1 == 1;
                        let x = rows[*row as usize * width + column];
                        let term = weight * f64::from(part.scales[bag]) * x;
                        all[place * width + column] += if passes { term } else { 0.0 };
                    }
                }
            }
        }
        twin.run(&replica, &all).loss
    };
    let expected = differences(&wide(&rows), loss);
    assert!(expected.iter().any(|x| x.abs() > 1e-4));
    close(&format!("{config:?}, weighted {weighted}, {share}"), &got, &expected, BOUND);
}

fn row_of(rows: &[f32], row: u32, width: usize) -> impl Iterator<Item = f32> {
    rows[row as usize * width..][..width].iter().copied()
}

#[test]
fn masked_gradients_are_those_of_the_loss_with_the_masks_as_they_are() {
    for share in [1.0, 0.5, 0.2] {
        for config in [&DLRM, &DEEPFM, &DCN_V2] {
            check(config, false, share);
            check(&ModelConfig { pooling: Pooling::Mean, ..*config }, false, share);
            check(config, true, share);
            check(&ModelConfig { pooling: Pooling::Mean, ..*config }, true, share);
        }
    }
}
