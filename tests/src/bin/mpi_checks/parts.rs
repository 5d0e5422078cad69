//! A dense replica of several ranks: whole where it is saved, and no more memory than its part
//! afterwards.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use umbra_core::compress::Coding;
use umbra_core::model::{Cross, Model, ModelConfig, ModelKind, PartOf, Pooling};
use umbra_mpi::comm::Comm;
use umbra_mpi::comm::watch::Watch;
use umbra_mpi::dense::parts::{Parts, WholeOn};
use umbra_mpi::launch::world::World;
use umbra_mpi::memory::Words;

fn model() -> Model {
    let config = ModelConfig {
        kind: ModelKind::DeepFm,
        dense_features: 0,
        fields: 3,
        embedding_dim: 4,
        pooling: Pooling::Sum,
        bottom: &[],
        top: &[256, 640, 512, 8],
        batch_norm: false,
        batch_norm_momentum: 0.1,
        dropout: 0.0,
        cross: Cross::NONE,
    };
    Model::new(&config).unwrap()
}

/// Words of a page, at most.
const PAGE: usize = (1 << 16) / 4;
const PLANES: usize = 2;
/// What stands where another rank computes.
const STALE: u32 = u32::MAX;

/// Every word of values and state has a value of its own, which the rank that computes it knows.
pub(super) fn whole_and_released(world: &World, watch: &Arc<Watch>, control: &Comm) {
    let of = PartOf { part: control.rank(), parts: control.size() };
    let (model, comm) = (model(), world.communicator(watch).unwrap());
    let Ok(part) = model.part(of) else {
        assert_eq!(of.parts, 1, "it can be split");
        return;
    };
    let len = model.parameters_len();
    // By parameter, whether another rank alone computes it.
    let mut foreign = vec![false; len];
    for part in (0..of.parts).filter(|part| *part != of.part) {
        let other = model.part(PartOf { part, ..of }).unwrap();
        other.own_slices().for_each(|slice| foreign[slice].fill(true));
    }
    let count = foreign.iter().filter(|is| **is).count();
    assert!(count > len / 3, "{count} of {len}");
    let parts = Parts::new(part, of, Coding::ALL, 4, comm);
    let (replica, state) = (Words::new(model.replica_len()).unwrap(), Words::new(PLANES * len));
    let state = state.unwrap();
    let words = || replica[..len].iter().chain(&*state);
    let value = |at: usize| u32::try_from(at + 1).unwrap();
    let stale = || {
        for (at, word) in words().enumerate() {
            word.store(if foreign[at % len] { STALE } else { value(at) }, Relaxed);
        }
    };
    let is_whole = || words().enumerate().all(|(at, word)| word.load(Relaxed) == value(at));
    stale();
    parts.gather(&replica, &state, WholeOn::All).unwrap();
    assert!(is_whole());
    parts.release(&replica, &state);
    let mut given_back = 0;
    for (at, word) in words().enumerate() {
        let word = word.load(Relaxed);
        let gone = word == 0 && foreign[at % len];
        assert!(gone || word == value(at), "{at}: {word}");
        given_back += usize::from(gone);
    }
    // But for a page at each end of a slice.
    let kept = 2 * PAGE * (1 + PLANES) * 2 * (of.parts - 1);
    let pages = (count * (1 + PLANES)).saturating_sub(kept);
    assert!(pages > 0 && given_back >= pages, "{given_back} of {pages}");
    stale();
    parts.gather(&replica, &state, WholeOn::First).unwrap();
    assert_eq!(is_whole(), of.part == 0);
}
