//! The dense words in the order of files.
//!
//! In memory matrices stand in the kernels' panels; in a checkpoint tensor follows tensor, each
//! row-major, and every plane of optimizer state has the order of the parameters: any program can
//! read it.

use core::sync::atomic::AtomicU32;

use umbra_core::model::Model;

/// A replica and its optimizer state. Both are empty on a rank that has none.
#[derive(Clone, Copy)]
pub struct Dense<'a> {
    /// The model they belong to.
    pub model: &'a Model,
    /// `[replica_len]`
    pub replica: &'a [AtomicU32],
    /// `[planes * parameters_len]`
    pub state: &'a [AtomicU32],
}

impl<'a> Dense<'a> {
    /// All words in the order of files.
    pub fn words(self) -> impl Iterator<Item = &'a AtomicU32> {
        let Self { model, replica, state } = self;
        let replica = model.places().take(replica.len()).map(|place| &replica[place]);
        let planes = state.chunks_exact(model.parameters_len().max(1));
        let state =
            planes.flat_map(|plane| model.places().take(plane.len()).map(|place| &plane[place]));
        replica.chain(state)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use core::sync::atomic::Ordering::Relaxed;

    use umbra_core::model::{Cross, ModelConfig, ModelKind, Pooling};

    use super::*;

    #[test]
    fn every_word_is_written_once_and_matrices_row_by_row() {
        let config = ModelConfig {
            kind: ModelKind::Dlrm,
            dense_features: 3,
            fields: 2,
            embedding_dim: 4,
            pooling: Pooling::Sum,
            bottom: &[40, 4],
            top: &[33],
            cross: Cross::NONE,
            batch_norm: true,
            batch_norm_momentum: 0.1,
            dropout: 0.0,
        };
        let model = Model::new(&config).unwrap();
        let numbered = |len: u32| (0..len).map(AtomicU32::new).collect::<Vec<_>>();
        let len = u32::try_from(model.parameters_len()).unwrap();
        let replica = numbered(u32::try_from(model.replica_len()).unwrap());
        let state = numbered(2 * len);
        let dense = Dense { model: &model, replica: &replica, state: &state };
        let words: Vec<u32> = dense.words().map(|word| word.load(Relaxed)).collect();
        let (of_replica, of_state) = words.split_at(replica.len());
        let mut sorted = of_replica.to_vec();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..u32::try_from(replica.len()).unwrap()));
        // Both planes have the order of the parameters.
        assert_eq!(of_state[..len as usize], of_replica[..len as usize]);
        assert!(of_state[len as usize..].iter().zip(of_replica).all(|(b, a)| *b == a + len));
        // bottom.0.weight: [40, 3]. Row 33 of the file is in the second panel, 8 wide.
        assert_eq!(of_replica[33 * 3 + 2], 32 * 3 + 2 * 8 + 1);
    }
}
