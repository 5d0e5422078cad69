//! Sums of gradients of which every trainer sends what matters.

use std::sync::Arc;

use umbra_core::compress::{Coding, Keep, Values};
use umbra_core::model::{Cross, Model, ModelConfig, ModelKind, Pooling};
use umbra_core::rng::{Purpose, Stream};
use umbra_mpi::comm::Comm;
use umbra_mpi::comm::reduce::{MANY, Sums};
use umbra_mpi::comm::watch::Watch;
use umbra_mpi::dense::coded_sum::CodedSum;
use umbra_mpi::launch::world::World;

/// Two of its tensors are coded; no number of ranks divides them.
fn model() -> Model {
    let config = ModelConfig {
        kind: ModelKind::Dlrm,
        dense_features: 3,
        fields: 2,
        embedding_dim: 4,
        pooling: Pooling::Sum,
        bottom: &[40, 4],
        top: &[601, 503],
        batch_norm: false,
        batch_norm_momentum: 0.1,
        dropout: 0.0,
        cross: Cross::NONE,
    };
    Model::new(&config).unwrap()
}

/// What has been kept is sent in the end: on the way and on the way back nothing is lost, and all
/// trainers have the same bits.
pub(super) fn coded_sum(_: &World, _: &Arc<Watch>, control: &Comm) {
    let (model, ranks) = (model(), control.size());
    let len = model.parameters_len();
    let keep = Keep { share: 0.25, refresh_every: 1 };
    let coding = Coding { keep, values: Values::F32 };
    let mut coded = CodedSum::new(coding, &model, control.rank(), ranks);
    let (mut sums, stream) = (Sums::default(), Stream::new(7, Purpose::Test(0)));
    let (mut expected, mut found) = (vec![0.0f64; len], vec![0.0f64; len]);
    let mut kept = vec![];
    // Nothing comes any more in the second half, so all that was kept goes.
    for turn in 0..80u64 {
        let at = |i: usize| {
            let draw = (turn << 40) | ((control.rank() as u64) << 32) | i as u64;
            if turn < 20 { stream.normal(draw) } else { 0.0 }
        };
        let gradient: Vec<f32> = (0..len).map(at).collect();
        let (mut plain, mut few) = (gradient.clone(), vec![1.0, control.rank() as f64]);
        sums.sum(control, &mut plain, MANY, "test").unwrap();
        let mut values = gradient;
        coded.sum(control, &mut sums, &mut values, &mut few, "test").unwrap();
        assert_eq!(few, [ranks as f64, (ranks * (ranks - 1) / 2) as f64]);
        let mut all = vec![0; ranks];
        let words = values.iter().map(|x| u64::from(x.to_bits()));
        let own = words.fold(0, |sum: u64, word| sum.rotate_left(5).wrapping_add(word));
        control.all_gather(&[own], &mut all, "test").unwrap();
        assert!(all.iter().all(|other| *other == own), "others have other sums");
        for (to, from) in [(&mut expected, &plain), (&mut found, &values)] {
            to.iter_mut().zip(from).for_each(|(to, x)| *to += f64::from(*x));
        }
        kept.push(coded.ledger().kept);
    }
    assert_eq!(kept[79], kept[70], "something is still to be sent");
    for (at, (expected, found)) in expected.iter().zip(&found).enumerate() {
        let error = (expected - found).abs();
        assert!(error < 1e-3, "element {at}: {expected} and {found}");
    }
    let ledger = coded.ledger();
    assert!(ledger.bytes < ledger.bytes_plain / 2, "{ledger:?}");
}
