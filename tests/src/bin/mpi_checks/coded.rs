//! Sums of which every trainer sends what matters, and links of which instances do.

use core::time::Duration;
use std::sync::Arc;

use umbra_core::compress::{Coding, Keep, Values};
use umbra_core::model::{Cross, Model, ModelConfig, ModelKind, Pooling};
use umbra_core::rng::{Purpose, Stream};
use umbra_core::sync::Dealing;
use umbra_core::sync::reduction::{TAIL, conclude, contribute};
use umbra_mpi::comm::Comm;
use umbra_mpi::comm::reduce::{MANY, Sums};
use umbra_mpi::comm::watch::Watch;
use umbra_mpi::dense::coded_groups::CodedGroups;
use umbra_mpi::dense::coded_sum::CodedSum;
use umbra_mpi::dense::group_sums::{GroupSums, Patience};
use umbra_mpi::dense::stretches::Stretches;
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

/// A quarter of all elements is sent, the largest; replicas move `alpha` of the way.
fn coded(model: &Model, alpha: f32, control: &Comm) -> CodedSum {
    let (len, rank, ranks) = (model.parameters_len(), control.rank(), control.size());
    let keep = Keep { share: 0.25, refresh_every: 1 };
    let coding = Coding { keep, values: Values::F32 };
    CodedSum::new((coding, alpha), Stretches::new(model, &(0..len)), len, (rank, ranks))
}

/// What has been kept is sent in the end: on the way and on the way back nothing is lost, and all
/// trainers have the same bits.
pub(super) fn coded_sum(_: &World, _: &Arc<Watch>, control: &Comm) {
    let (model, ranks) = (model(), control.size());
    let len = model.parameters_len();
    let mut coded = coded(&model, 1.0, control);
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
        coded.sum(control, &mut sums, &mut values, &mut few, (MANY, "test")).unwrap();
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

/// Replicas that move towards what is found of their differences have in the end what all of them
/// have moved by themselves, however far a round moves them. Where all move once, and alike, no
/// round finds more than that: what is still in the replica is not kept a second time.
pub(super) fn coded_averages(_: &World, _: &Arc<Watch>, control: &Comm) {
    let (model, ranks) = (model(), control.size());
    let (len, stream) = (model.parameters_len(), Stream::new(8, Purpose::Test(0)));
    for (alpha, alike) in [(1.0, false), (0.5, false), (1.0, true), (0.5, true)] {
        let rank = if alike { 0 } else { control.rank() as u64 };
        let moves = if alike { 1 } else { 20 };
        let (mut coded, mut sums) = (coded(&model, alpha, control), Sums::default());
        let (mut replica, mut global) = (vec![0.0f32; len], vec![0.0f32; len]);
        let mut moved = vec![0.0f32; len];
        for turn in 0..120u64 {
            for (i, (x, moved)) in replica.iter_mut().zip(&mut moved).enumerate() {
                let drawn = stream.normal((turn << 40) | (rank << 32) | i as u64);
                let step = match turn < moves {
                    true if alike => drawn.abs(),
                    true => drawn,
                    false => 0.0,
                };
                (*x, *moved) = (*x + step, *moved + step);
            }
            let mut found: Vec<f32> = replica.iter().zip(&global).map(|(x, y)| x - y).collect();
            found.extend([1.0, 0.0]);
            let how = (MANY, "test");
            coded.sum_with_tail(control, &mut sums, &mut found, how).unwrap();
            assert_eq!(found[len..], [ranks as f32, 0.0]);
            for ((x, global), sum) in replica.iter_mut().zip(&mut global).zip(&found) {
                *global += sum / ranks as f32;
                *x += alpha * (*global - *x);
            }
            let over = global.iter().zip(&moved).map(|(global, moved)| global - moved);
            let over = over.fold(0.0, f32::max);
            assert!(!alike || over < 1e-4, "alpha {alpha}, turn {turn}: {over} too much");
        }
        sums.sum(control, &mut moved, MANY, "test").unwrap();
        for (at, (moved, global)) in moved.iter().zip(&global).enumerate() {
            let error = (moved / ranks as f32 - global).abs();
            assert!(error < 1e-3, "alpha {alpha}, element {at}: {global}, off by {error}");
        }
    }
}

/// Averages of what has moved move no sum over the replicas, and bring them together.
pub(super) fn coded_groups(world: &World, watch: &Arc<Watch>, control: &Comm) {
    let (model, ranks) = (model(), control.size());
    let (len, stream) = (model.parameters_len(), Stream::new(9, Purpose::Test(0)));
    let keep = Keep { share: 0.25, refresh_every: 1 };
    let coding = Coding { keep, values: Values::Bf16 };
    let mut groups = CodedGroups::new(coding, Stretches::new(&model, &(0..len)));
    let dealing = Dealing::Random { group: 2, seed: 3 };
    let mut sums = GroupSums::new(dealing, (world.rank, ranks), Some(&mut groups));
    let mut post = super::post::post(world, watch);
    let patience = Patience { watch, grace: Duration::ZERO, poll: Duration::from_micros(50) };
    let mut staging = vec![0.0f32; len + TAIL];
    let (mut moved, mut all) = (vec![0.0f32; len], Sums::default());
    let drawn = |turn: u64, i: usize| {
        stream.normal((turn << 40) | ((control.rank() as u64) << 32) | i as u64)
    };
    for turn in 0..60u64 {
        for (i, (x, moved)) in staging.iter_mut().zip(&mut moved).enumerate() {
            let step = if turn < 20 { drawn(turn, i) } else { 0.0 };
            (*x, *moved) = (*x + step, *moved + step);
        }
        contribute(&mut staging, 1.0, 0);
        let sum = sums.sum(&mut post, turn, &mut staging, 0, patience).unwrap();
        if sum.mean_of.is_none() {
            assert_eq!(turn, 0, "all have something to compare with");
            conclude(&mut staging, Some(0));
        }
    }
    let own = staging[..len].to_vec();
    let total = |values: &[f32], all: &mut Sums| {
        let mut total = values.to_vec();
        all.sum(control, &mut total, MANY, "test").unwrap();
        total
    };
    let (found, expected) = (total(&own, &mut all), total(&moved, &mut all));
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!((found - expected).abs() < 1e-3, "element {at}: {found} and {expected}");
    }
    let apart = |values: &[f32], total: &[f32]| {
        let each = values.iter().zip(total).map(|(x, sum)| (x - sum / ranks as f32).powi(2));
        each.sum::<f32>().sqrt()
    };
    let (now, alone) = (apart(&own, &found), apart(&moved, &expected));
    assert!(now < alone / 3.0, "{now} from the mean, and {alone} without");
    drop(sums);
    let ledger = groups.ledger();
    assert!(ledger.bytes < ledger.bytes_plain / 2, "{ledger:?}");
}
