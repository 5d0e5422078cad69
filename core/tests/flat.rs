//! Flat models (docs/formats.md): what is written is scored to the bits of the model, and nothing
//! else is taken for one.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::std_instead_of_core)]

use proptest::prelude::*;
use umbra_core::batch::{Batch, Jagged};
use umbra_core::flat::{Flat, FlatError, Header, Memory, ScoreError};
use umbra_core::kernel::shared;
use umbra_core::model::{
    Cross, Input, Model, ModelConfig, ModelError, ModelKind, Pooling, Structure, Workspace,
};
use umbra_core::rng::{Purpose, Stream};

const SEED: u64 = 11;

/// A model with owned layers and tables.
#[derive(Clone, Debug)]
struct Trained {
    config: ModelConfig<'static>,
    cardinality: Vec<u64>,
}

const PLAIN: ModelConfig<'static> = ModelConfig {
    kind: ModelKind::Dlrm,
    dense_features: 3,
    fields: 2,
    embedding_dim: 5,
    pooling: Pooling::Sum,
    bottom: &[7, 5],
    top: &[40, 6],
    cross: Cross::NONE,
    batch_norm: false,
    batch_norm_momentum: 0.1,
    dropout: 0.0,
};

/// Every kind and what makes it go another way.
fn configs() -> Vec<ModelConfig<'static>> {
    let norm = ModelConfig { batch_norm: true, dropout: 0.25, pooling: Pooling::Mean, ..PLAIN };
    let of = |kind, config: ModelConfig<'static>| ModelConfig { kind, ..config };
    let cross = |layers, rank, structure, config| ModelConfig {
        cross: Cross { layers, rank, structure },
        ..of(ModelKind::DcnV2, config)
    };
    vec![
        PLAIN,
        norm,
        ModelConfig { dense_features: 0, ..norm },
        ModelConfig { fields: 0, ..PLAIN },
        of(ModelKind::DeepFm, norm),
        of(ModelKind::DeepFm, ModelConfig { dense_features: 0, ..PLAIN }),
        of(ModelKind::Fm, PLAIN),
        of(ModelKind::Lr, norm),
        of(ModelKind::Lr, ModelConfig { embedding_dim: 0, ..PLAIN }),
        cross(2, 0, Structure::Parallel, PLAIN),
        cross(3, 4, Structure::Stacked, norm),
        of(ModelKind::WideDeep, norm),
    ]
}

impl Trained {
    fn of(config: ModelConfig<'static>) -> Self {
        Self { config, cardinality: (3u64..).step_by(4).take(config.fields).collect() }
    }

    fn header(&self) -> Header<'_, impl Iterator<Item = u64> + Clone + '_> {
        Header::new(&self.config, self.cardinality.iter().copied()).unwrap()
    }

    fn model(&self) -> Model {
        Model::new(&self.config).unwrap()
    }

    /// First values, moved off them so that nothing is 0 or 1.
    fn replica(&self) -> Vec<f32> {
        let mut replica = vec![0.0; self.model().replica_len()];
        self.model().initialize(SEED, &mut replica);
        let stream = Stream::new(SEED, Purpose::Test(0));
        (0..).zip(&mut replica).for_each(|(i, value)| *value += 0.2 * stream.uniform(i));
        replica
    }

    /// `[all rows, row_width]`
    fn rows(&self) -> Vec<f32> {
        let stream = Stream::new(SEED, Purpose::Test(1));
        let rows: u64 = self.cardinality.iter().sum();
        (0..rows * self.model().row_width() as u64).map(|i| stream.normal(i)).collect()
    }

    fn bytes(&self) -> Vec<u8> {
        let header = self.header();
        let mut bytes: Vec<u8> = header.words().flat_map(u64::to_le_bytes).collect();
        assert_eq!(bytes.len() as u64, header.replica_at());
        bytes.extend(self.replica().into_iter().flat_map(f32::to_le_bytes));
        bytes.resize(header.rows_at() as usize, 0);
        bytes.extend(self.rows().into_iter().flat_map(f32::to_le_bytes));
        bytes.resize(header.file_len() as usize, 0);
        seal(&mut bytes);
        bytes
    }
}

/// Writes the checksum that the bytes have now.
fn seal(bytes: &mut [u8]) {
    let (all, last) = bytes.split_at_mut(bytes.len() - 8);
    last.copy_from_slice(&u64::from(crc32fast::hash(all)).to_le_bytes());
}

/// Examples with empty bags, and ids that repeat.
struct Examples {
    dense: Vec<f32>,
    values: Vec<u32>,
    offsets: Vec<u32>,
    label: Vec<f32>,
    row: Vec<u64>,
}

impl Examples {
    fn new(trained: &Trained, n: usize) -> Self {
        let stream = Stream::new(SEED, Purpose::Test(2));
        let (mut values, mut offsets, mut at) = (vec![], vec![0], 0);
        for _ in 0..n {
            for rows in &trained.cardinality {
                let ids = stream.below(at, 4);
                values.extend((1..=ids).map(|i| stream.below(at + i, *rows) as u32));
                offsets.push(values.len() as u32);
                at += 5;
            }
        }
        let dense = (1 << 32..).take(n * trained.config.dense_features);
        Self {
            dense: dense.map(|i| stream.normal(i)).collect(),
            values,
            offsets,
            label: vec![0.0; n],
            row: vec![0; n],
        }
    }

    fn batch(&self) -> Batch<'_> {
        let bags = Jagged { values: &self.values, offsets: &self.offsets, weights: &[] };
        Batch { label: &self.label, weight: &[], dense: &self.dense, bags, row: &self.row }
    }
}

/// What the flat model makes of a batch, in memory that is just long enough.
fn score(flat: &Flat<'_>, batch: &Batch<'_>) -> Result<Vec<f32>, ScoreError> {
    let ids = batch.bags.values.len();
    let mut single = vec![f32::NAN; flat.single_len(batch.len(), ids)];
    let mut double = vec![f64::NAN; flat.model().workspace_f64_len()];
    let mut slot = vec![u32::MAX; ids];
    let memory = Memory { single: &mut single, double: &mut double, slot: &mut slot };
    let mut logits = vec![f32::NAN; batch.len()];
    flat.scorer(memory)?.score(batch, &mut logits)?;
    Ok(logits)
}

/// What the model itself makes of it, every row of every table gathered.
fn forward(trained: &Trained, batch: &Batch<'_>) -> Vec<f32> {
    let (model, rows) = (trained.model(), trained.rows());
    let fields = trained.cardinality.len();
    let mut slot = vec![0; batch.bags.values.len()];
    for (bag, ends) in batch.bags.offsets.windows(2).enumerate() {
        let first: u64 = trained.cardinality[..bag % fields].iter().sum();
        let places = ends[0] as usize..ends[1] as usize;
        let ids = &batch.bags.values[places.clone()];
        slot[places].iter_mut().zip(ids).for_each(|(slot, id)| *slot = first as u32 + id);
    }
    let mut single = vec![0.0; model.workspace_len(batch.len(), 0)];
    let mut double = vec![0.0; model.workspace_f64_len()];
    let workspace = &mut Workspace { single: &mut single, double: &mut double };
    let mut logits = vec![0.0; batch.len()];
    let input = Input { batch: *batch, rows: &rows, slot: &slot, strips: &[], named_once: false };
    model.forward(shared(&mut trained.replica()), &input, workspace, &mut logits);
    logits
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Wherever the bytes stand, and for batches of more than a tile.
#[test]
fn scores_are_the_bits_of_the_model() {
    for config in configs() {
        let trained = Trained::of(config);
        let bytes = trained.bytes();
        for shift in [0, 1, 6] {
            let moved = [vec![0xff; shift], bytes.clone()].concat();
            let flat = Flat::parse(&moved[shift..]).unwrap();
            assert_eq!(*flat.model(), trained.model());
            assert!(flat.cardinality().eq(trained.cardinality.iter().copied()));
            assert_eq!(bits(&flat.replica().collect::<Vec<_>>()), bits(&trained.replica()));
            let rows: Vec<f32> = (0..).map_while(|row| flat.row(row)).flatten().collect();
            assert_eq!(bits(&rows), bits(&trained.rows()), "{config:?}");
            for n in [0, 1, 37, 300] {
                let examples = Examples::new(&trained, n);
                let batch = examples.batch();
                let weights: Vec<f32> = batch.bags.values.iter().map(|id| *id as f32).collect();
                for weights in [&[][..], &weights] {
                    let batch = Batch { bags: Jagged { weights, ..batch.bags }, ..batch };
                    let expected = forward(&trained, &batch);
                    let got = score(&flat, &batch).unwrap();
                    assert_eq!(bits(&got), bits(&expected), "{n} examples of {config:?}");
                    assert!(n < 2 || got.iter().any(|logit| *logit != got[0]), "all alike");
                }
            }
        }
    }
}

/// Parts start where a mapped file has them on boundaries, one behind the other.
#[test]
fn the_layout_is_as_documented() {
    let trained = Trained::of(PLAIN);
    let bytes = trained.bytes();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(bytes[..8], *b"UMBRAFLT");
    let head: Vec<u64> = (8..112).step_by(8).map(word).collect();
    let expected = [1, bytes.len() as u64, 0, 3, 2, 5, 0, 2, 2, 0, 0, 0, 0];
    assert_eq!(head, expected);
    assert_eq!(bytes[112..120], [0.1f32.to_le_bytes(), 0.0f32.to_le_bytes()].concat());
    let replica = trained.model().replica_len() as u64;
    let rows_at = (256 + 4 * replica).next_multiple_of(64);
    let tail: Vec<u64> = (120..208).step_by(8).map(word).collect();
    assert_eq!(tail, [replica, 5, 10, 256, rows_at, 7, 5, 40, 6, 3, 7]);
    assert!(bytes[208..256].iter().all(|byte| *byte == 0));
    let row = rows_at as usize;
    assert_eq!(bytes[row..row + 4], trained.rows()[0].to_le_bytes());
    assert_eq!(bytes.len(), (row + 4 * 10 * 5).next_multiple_of(8) + 8);
}

/// Every cut, and every bit.
#[test]
fn damage_anywhere_is_seen() {
    let config = ModelConfig { kind: ModelKind::DeepFm, top: &[2], embedding_dim: 2, ..PLAIN };
    let whole = Trained::of(config).bytes();
    Flat::parse(&whole).unwrap();
    for end in 0..whole.len() {
        assert!(Flat::parse(&whole[..end]).is_err(), "cut at {end}");
    }
    assert!(Flat::parse(&[whole.as_slice(), &[0]].concat()).is_err());
    assert!(Flat::parse(&[whole.as_slice(), &[0; 8]].concat()).is_err());
    let mut damaged = whole.clone();
    for bit in 0..8 * whole.len() {
        damaged[bit / 8] ^= 1 << (bit % 8);
        let error = Flat::parse(&damaged).unwrap_err();
        let expected = match bit / 64 {
            0 => matches!(error, FlatError::Magic),
            1 => matches!(error, FlatError::Version { .. }),
            2 => matches!(error, FlatError::Length { .. }),
            _ => matches!(error, FlatError::Checksum { .. }),
        };
        assert!(expected, "bit {bit}: {error}");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}

/// A sealed file of a header that lies: an error that names the word, or what it describes.
#[test]
fn a_header_that_lies_is_refused() {
    let trained = Trained::of(PLAIN);
    let whole = trained.bytes();
    let with_norm = Trained::of(ModelConfig { batch_norm: true, ..PLAIN }).bytes();
    let lie_in = |whole: &[u8], at: usize, value: u64| {
        let mut bytes = whole.to_vec();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        seal(&mut bytes);
        Flat::parse(&bytes).unwrap_err()
    };
    let lie = |at, value| lie_in(&whole, at, value);
    assert_eq!(lie(24, 6), FlatError::Word { at: 24, got: 6 });
    assert_eq!(lie(56, 2), FlatError::Word { at: 56, got: 2 });
    assert_eq!(lie(64, 17), FlatError::Word { at: 64, got: 17 });
    assert_eq!(lie(40, u64::MAX), FlatError::Word { at: 40, got: u64::MAX });
    assert_eq!(lie_in(&with_norm, 104, 2), FlatError::Header { at: 104, expected: 1, got: 2 });
    assert_eq!(lie(80, 1), FlatError::Header { at: 80, expected: 0, got: 1 });
    assert_eq!(lie(120, 1), FlatError::Header { at: 120, expected: 681, got: 1 });
    assert_eq!(lie(208, 1), FlatError::Header { at: 208, expected: 0, got: 1 });
    assert_eq!(lie(192, 0), FlatError::EmptyTable { field: 0 });
    assert!(matches!(lie(192, u64::MAX), FlatError::Rows(_)));
    assert!(matches!(lie(48, 9), FlatError::Model(ModelError::BottomOutput { .. })));
    assert_eq!(lie(32, u64::MAX / 2), FlatError::Model(ModelError::TooLarge));
    // Between the parts, and behind the last: DLRM of an odd number of f32s.
    let replica_end = 256 + 4 * trained.model().replica_len();
    let mut bytes = whole.clone();
    bytes[replica_end + 5] = 1;
    seal(&mut bytes);
    let expected = FlatError::Padding { at: replica_end as u64 + 4 };
    assert_eq!(Flat::parse(&bytes).unwrap_err(), expected);
}

#[test]
fn a_batch_that_does_not_fit_is_refused() {
    let trained = Trained::of(PLAIN);
    let bytes = trained.bytes();
    let flat = Flat::parse(&bytes).unwrap();
    let examples = Examples::new(&trained, 9);
    let batch = examples.batch();
    let refused = |batch: Batch<'_>| score(&flat, &batch).unwrap_err();
    let length = |what, expected, got| ScoreError::Length { what, expected, got };
    let short = Batch { dense: &batch.dense[1..], ..batch };
    assert_eq!(refused(short), length("dense features", 27, 26));
    let short = Batch { row: &[], ..batch };
    assert_eq!(refused(short), length("row numbers", 9, 0));
    let short = Batch { weight: &[1.0], ..batch };
    assert_eq!(refused(short), length("weights", 9, 1));
    let short = Batch { bags: Jagged { weights: &[1.0], ..batch.bags }, ..batch };
    assert_eq!(refused(short), length("weights of ids", batch.bags.values.len(), 1));
    let (values, mut offsets) = (batch.bags.values, batch.bags.offsets.to_vec());
    let short = Batch { bags: Jagged { values, offsets: &offsets[1..], weights: &[] }, ..batch };
    assert_eq!(refused(short), length("offsets of bags", 19, 18));
    // One past the last row: of another table, and of none.
    for (field, cardinality) in trained.cardinality.iter().enumerate() {
        let mut bags = (field..18).step_by(2);
        let bag = bags.find(|bag| offsets[*bag] < offsets[bag + 1]).unwrap();
        let got = *cardinality as u32;
        let mut other = values.to_vec();
        other[offsets[bag] as usize] = got;
        let wrong =
            Batch { bags: Jagged { values: &other, offsets: &offsets, weights: &[] }, ..batch };
        let id = ScoreError::Id { example: bag / 2, field, expected: *cardinality, got };
        assert_eq!(refused(wrong), id);
    }
    *offsets.last_mut().unwrap() += 1;
    let wrong = Batch { bags: Jagged { values, offsets: &offsets, weights: &[] }, ..batch };
    assert_eq!(refused(wrong), ScoreError::Bag { bag: 17 });
    offsets[3] = u32::MAX;
    let wrong = Batch { bags: Jagged { values, offsets: &offsets, weights: &[] }, ..batch };
    assert_eq!(refused(wrong), ScoreError::Bag { bag: 2 });
    // Memory that is an element too short, each in turn.
    let lengths =
        [flat.single_len(9, values.len()), flat.model().workspace_f64_len(), values.len()];
    for (short, fits) in (0..4).map(|short| (short, short == 3)) {
        let less = |part: usize| lengths[part].saturating_sub(usize::from(part == short));
        let (mut single, mut double) = (vec![0.0; less(0)], vec![0.0; less(1)]);
        let mut slot = vec![0; less(2)];
        let memory = Memory { single: &mut single, double: &mut double, slot: &mut slot };
        let scorer = flat.scorer(memory);
        let scored = scorer.and_then(|mut scorer| scorer.score(&batch, &mut [0.0; 9]));
        // This model needs no f64s.
        assert_eq!(scored.is_ok(), fits || short == 1, "{scored:?}");
    }
}

/// A word as damage and malice make it.
fn any_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..9,
        any::<u64>(),
        (0u32..64).prop_map(|bit| 1 << bit),
        (0u32..64).prop_map(|bit| u64::MAX >> bit),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Random bytes, and random bytes behind a beginning that is right, sealed or not.
    #[test]
    fn random_bytes_are_no_model(
        mut bytes in prop::collection::vec(any::<u8>(), 0..600), begin in 0usize..4,
    ) {
        let length = bytes.len();
        let head = [*b"UMBRAFLT", 1u64.to_le_bytes(), (length as u64).to_le_bytes()].concat();
        let right = (8 * begin).min(length);
        bytes[..right].copy_from_slice(&head[..right]);
        if begin == 3 && length >= 8 {
            seal(&mut bytes);
        }
        prop_assert!(Flat::parse(&bytes).is_err());
    }

    /// Words of the header replaced, in a file that is sealed again: an error, or a model that
    /// scores.
    #[test]
    fn a_sealed_header_of_any_words_does_no_harm(
        which in 0usize..12,
        changes in prop::collection::vec((0usize..32, any_word()), 1..4),
        cut in prop::option::of(0usize..100),
    ) {
        let trained = Trained::of(configs()[which]);
        let mut bytes = trained.bytes();
        for (word, value) in changes {
            bytes[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
        }
        if let Some(cut) = cut {
            bytes.truncate((bytes.len() - cut) / 8 * 8);
            let length = bytes.len() as u64;
            bytes[16..24].copy_from_slice(&length.to_le_bytes());
        }
        seal(&mut bytes);
        if let Ok(flat) = Flat::parse(&bytes) {
            let n = 3;
            let (row, offsets) = ([0; 3], vec![0; n * flat.model().fields() + 1]);
            let dense = vec![0.5; n * flat.model().dense_features()];
            let bags = Jagged { values: &[], offsets: &offsets, weights: &[] };
            let batch = Batch { label: &[0.0; 3], weight: &[], dense: &dense, bags, row: &row };
            prop_assert_eq!(score(&flat, &batch).unwrap().len(), n);
        }
    }
}
