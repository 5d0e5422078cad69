//! What only the launch decides: roles, worker threads, the method behind `auto`.

use umbra_core::sync::Rounds;

use super::error::ConfigError;
use super::validate::one_trainer;
use super::{BatchNormScope, Config, Layout, PoolAt, Schedule, SyncConfig, SyncMethod};
use crate::error::Error;
use crate::launch::environment::LaunchError;

/// A configuration on a given set of ranks; its `config` has every key filled in.
#[derive(Clone, Debug)]
pub struct Job {
    /// The configuration, with nothing left open but `embedding.pool_at = "auto"` where the data
    /// decide: until then trainers pool.
    pub config: Config,
    /// Ranks that train; they are ranks `0..trainers`.
    pub trainers: usize,
    /// Ranks that hold embedding rows: the trainers themselves when collocated, else the ranks
    /// after them.
    pub embedding_ps: usize,
    /// Ranks that hold the center of elastic averaging: the first trainers when collocated, else
    /// the ranks after the embedding PSs.
    pub sync_ps: usize,
    /// Worker threads per trainer.
    pub worker_threads: usize,
    /// How replicas stay together, in a run that changes its method to begin with; not `Auto`.
    pub method: SyncMethod,
    /// What rank 0 should say before the run starts.
    pub warnings: Vec<String>,
}

impl Job {
    /// Gradients of a global batch: those of all workers, or as many as `gba` is told.
    #[must_use]
    pub fn batches_per_step(&self) -> usize {
        let replicas = self.trainers / self.config.roles.dense_partitions;
        self.config.batches_per_step(self.worker_threads * replicas)
    }

    /// Examples of a step: of the global batch.
    #[must_use]
    pub fn global_batch(&self) -> usize {
        self.config.train.batch_size * self.batches_per_step()
    }

    /// Examples in flight per step: batch × worker threads × trainers (ELP in the papers).
    #[must_use]
    pub const fn elp(&self) -> usize {
        self.config.train.batch_size * self.worker_threads * self.trainers
    }
}

impl Config {
    /// Fills in what the launch decides. Logically collective: the arguments must be equal on all
    /// ranks, since the number of worker threads is one number for the whole job.
    ///
    /// `ranks_on_node` is the most ranks on any node; `cores` the least number of cores that the
    /// ranks of a node may use between them (their affinity masks together).
    ///
    /// # Errors
    /// Roles that do not add up to the number of ranks, and a method that cannot serve them.
    pub fn resolve(
        mut self,
        ranks: usize,
        ranks_on_node: usize,
        cores: usize,
    ) -> Result<Job, Error> {
        let sync_ps = self.count_centers(ranks);
        self.roles.sync_ps = Some(sync_ps);
        let (trainers, embedding_ps) = self.count_roles(ranks, sync_ps)?;
        let parts = self.roles.dense_partitions;
        if !trainers.is_multiple_of(parts) {
            let expected = format!("a divisor of the ranks that train, which are {trainers}");
            return Err(ConfigError::value("roles.dense_partitions", parts, expected).into());
        }
        if parts > 1 {
            self.train.worker_threads = Some(1);
        }
        self.roles.trainers = Some(trainers);
        self.roles.embedding_ps = Some(embedding_ps);
        if self.embedding.pool_at == PoolAt::Auto {
            self.embedding.pool_at = self.pool_at_any_data(ranks);
        }

        let method = match self.sync.method {
            SyncMethod::Auto if trainers == 1 => {
                // A batch of one trainer is the global batch.
                self.sync.batch_norm = BatchNormScope::Global;
                SyncMethod::None
            }
            SyncMethod::Auto => SyncMethod::Bsp,
            SyncMethod::None if trainers > 1 => return Err(one_trainer(trainers).into()),
            chosen => chosen,
        };
        self.sync.method = method;

        let share = (cores / ranks_on_node.max(1)).max(1);
        let worker_threads = *self.train.worker_threads.get_or_insert(share);
        let mut warnings = Vec::new();
        let busy = ranks_on_node * worker_threads;
        if busy > cores {
            let cure = if worker_threads > share {
                format!("train.worker_threads = {share} would give each a core")
            } else {
                format!("{cores} ranks on a node would give each a core")
            };
            warnings.push(format!(
                "{ranks_on_node} ranks × {worker_threads} worker threads = {busy} threads share \
                 {cores} cores of a node; {cure} (with mpirun, --bind-to none lets a rank use all \
                 cores)"
            ));
        }
        // A thread beside the workers of each rank: does every one have a core?
        let shared = ranks_on_node * (worker_threads + 1) > cores;
        self.sync.complete(trainers, shared);
        self.complete_server(trainers, trainers * worker_threads)?;
        Ok(Job { config: self, trainers, embedding_ps, sync_ps, worker_threads, method, warnings })
    }

    /// Who pools whatever the data are; `Auto` where they decide.
    fn pool_at_any_data(&self, ranks: usize) -> PoolAt {
        if self.pooled().is_some() {
            // `compress.mp_keep` is of vectors that travel.
            PoolAt::Ps
        } else if ranks == 1 || self.roles.dense_partitions > 1 {
            // Nothing is sent; or replicas are split, and their parts pool.
            PoolAt::Trainer
        } else {
            PoolAt::Auto
        }
    }

    /// Ranks that hold a part of the center: one for every eight trainers, if nothing is said.
    fn count_centers(&self, ranks: usize) -> usize {
        if !self.sync.methods().any(|method| method.shape().has_centers()) {
            return self.roles.sync_ps.unwrap_or(0);
        }
        let trainers = self.roles.trainers.unwrap_or(ranks);
        self.roles.sync_ps.unwrap_or(trainers.div_ceil(TRAINERS_OF_A_CENTER).max(1))
    }

    fn count_roles(&self, ranks: usize, sync_ps: usize) -> Result<(usize, usize), Error> {
        let roles = &self.roles;
        let (trainers, embedding_ps, wanted) = match roles.layout {
            Layout::Collocated => {
                let trainers = roles.trainers.unwrap_or(ranks);
                (trainers, trainers, trainers)
            }
            Layout::Separate => {
                // Both are there: `validate` refuses the layout without them.
                let trainers = roles.trainers.unwrap_or_default();
                let embedding_ps = roles.embedding_ps.unwrap_or_default();
                (trainers, embedding_ps, trainers + embedding_ps + sync_ps)
            }
        };
        if roles.layout == Layout::Collocated && sync_ps > trainers {
            return Err(ConfigError::value(
                "roles.sync_ps",
                sync_ps,
                format!("at most one per trainer when collocated, and there are {trainers}"),
            )
            .into());
        }
        if wanted == ranks {
            return Ok((trainers, embedding_ps));
        }
        let sum = match roles.layout {
            Layout::Collocated => format!("roles.trainers = {trainers}"),
            Layout::Separate => {
                let centers = if sync_ps > 0 {
                    format!(" and roles.sync_ps = {sync_ps}")
                } else {
                    String::new()
                };
                format!(
                    "roles.trainers = {trainers} and roles.embedding_ps = {embedding_ps}{centers}"
                )
            }
        };
        Err(LaunchError::Roles { sum, wanted, ranks }.into())
    }
}

impl SyncConfig {
    /// Fills in what depends on the number of trainers, and on whether synchronizing threads share
    /// cores with workers.
    fn complete(&mut self, trainers: usize, shared: bool) {
        let shape = self.method.shape();
        let gated = match shape.rounds {
            Rounds::Never | Rounds::EveryStep | Rounds::Handed => return,
            Rounds::Gated { .. } => true,
            Rounds::Background(_) => false,
        };
        let alpha = match (shape.has_centers(), gated) {
            // Many trainers in a row must not throw the center about.
            (true, _) if trainers > 8 => 0.1,
            (true, _) | (false, false) => 0.5,
            // Workers stand still: there is nothing to lose by taking the mean whole.
            (false, true) => 1.0,
        };
        self.alpha.get_or_insert(alpha);
        let dealt = shape.dealing().is_some();
        if dealt {
            let size = match self.schedule {
                Schedule::Grid => Some(columns(trainers)),
                Schedule::Hypercube | Schedule::Random => Some(2),
                Schedule::Nodes | Schedule::Ring => None,
            };
            self.group_size = self.group_size.or(size);
        }
        if shape.blocks().is_some() {
            // 1 − 1/n belongs to long blocks; background rounds are a few steps apart.
            let momentum = if gated { 1.0 - 1.0 / trainers as f64 } else { BACKGROUND_MOMENTUM };
            self.block_momentum.get_or_insert(momentum);
        }
        if !gated {
            self.core_share.get_or_insert(if shared { SHARED_CORE } else { SPARE_CORE });
        }
    }
}

/// Columns of a grid that is nearly square and, if it can be, full.
fn columns(trainers: usize) -> usize {
    let side = (1..=trainers).find(|side| side * side >= trainers).unwrap_or(1);
    // A prime has no full grid but a row of all.
    let full = (side..trainers).find(|columns| trainers.is_multiple_of(*columns));
    full.unwrap_or(side)
}

/// Trainers that one rank of the center serves, if nothing is said.
const TRAINERS_OF_A_CENTER: usize = 8;

/// Block momentum of background rounds.
const BACKGROUND_MOMENTUM: f64 = 0.25;
/// Share of a core for a synchronizing thread that has none to itself.
const SHARED_CORE: f64 = 0.05;
/// And for one that has: every round moves the replica through the caches that workers share. With
/// 20 MB of it, a round in every step cost a worker 3 to 5 %.
const SPARE_CORE: f64 = 0.1;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::tests::minimal;

    #[test]
    fn auto_is_none_alone_and_bsp_together() {
        let alone = minimal(&[]).unwrap().resolve(1, 1, 8).unwrap();
        assert_eq!((alone.method, alone.worker_threads), (SyncMethod::None, 8));
        let four = minimal(&[]).unwrap().resolve(4, 2, 8).unwrap();
        assert_eq!((four.method, four.worker_threads), (SyncMethod::Bsp, 4));
        assert_eq!((four.trainers, four.embedding_ps, four.elp()), (4, 4, 128 * 16));
        assert_eq!(four.config.train.worker_threads, Some(4));
        assert!(four.warnings.is_empty());
    }

    #[test]
    fn more_threads_than_cores_warns_and_never_gives_zero() {
        let crowded = minimal(&[]).unwrap().resolve(4, 4, 2).unwrap();
        assert_eq!(crowded.worker_threads, 1);
        assert!(crowded.warnings[0].contains("4 ranks × 1 worker threads = 4 threads share 2"));
        let asked = minimal(&["train.worker_threads=3"]).unwrap().resolve(1, 1, 2).unwrap();
        assert_eq!((asked.worker_threads, asked.warnings.len()), (3, 1));
    }

    #[test]
    fn roles_must_add_up_to_the_ranks() {
        let separate = ["roles.layout=separate", "roles.trainers=2", "roles.embedding_ps=1"];
        let job = minimal(&separate).unwrap().resolve(3, 3, 8).unwrap();
        assert_eq!((job.trainers, job.embedding_ps), (2, 1));
        let error = minimal(&separate).unwrap().resolve(4, 4, 8).unwrap_err();
        assert_eq!(error.exit_code(), 5);
        assert_eq!(
            error.to_string(),
            "roles.trainers = 2 and roles.embedding_ps = 1 need 3 ranks, but the job has 4; start \
             it with mpirun -n 3 (srun -n 3), or change [roles]"
        );
        let error = minimal(&["sync.method=none"]).unwrap().resolve(2, 2, 2).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("keeps 2 trainers together"), "{error}");
    }

    #[test]
    fn methods_with_rounds_fill_in_what_depends_on_the_launch() {
        let sync = |method: &str, ranks, on_node, cores| {
            let method = format!("sync.method={method}");
            let job = minimal(&[&method, "train.worker_threads=1"]).unwrap();
            let job = job.resolve(ranks, on_node, cores).unwrap();
            let sync = &job.config.sync;
            (job.sync_ps, sync.alpha, sync.core_share, sync.block_momentum)
        };
        assert_eq!(sync("shadow_easgd", 4, 2, 4), (1, Some(0.5), Some(0.1), None));
        assert_eq!(sync("shadow_easgd", 30, 1, 2), (4, Some(0.1), Some(0.1), None));
        assert_eq!(sync("shadow_ma", 4, 2, 3), (0, Some(0.5), Some(0.05), None));
        assert_eq!(sync("shadow_bmuf", 4, 2, 4).3, Some(0.25));
        assert_eq!(sync("foreground_bmuf", 4, 2, 4), (0, Some(1.0), None, Some(0.75)));
        assert_eq!(sync("local_sgd", 4, 2, 4), (0, Some(1.0), None, None));
    }

    #[test]
    fn who_pools_is_left_to_the_data_where_they_decide() {
        let pool_at = |sets: &[&str], ranks| {
            let sets = [&["embedding.pool_at=auto"], sets].concat();
            let job = minimal(&sets).unwrap().resolve(ranks, ranks, 8).unwrap();
            job.config.embedding.pool_at
        };
        assert_eq!(pool_at(&[], 4), PoolAt::Auto);
        assert_eq!(pool_at(&[], 1), PoolAt::Trainer);
        assert_eq!(pool_at(&["compress.mp_keep=0.5"], 4), PoolAt::Ps);
        let split = ["roles.dense_partitions=2"];
        assert_eq!(pool_at(&split, 4), PoolAt::Trainer);
        assert_eq!(pool_at(&[split[0], "compress.mp_keep=0.5"], 4), PoolAt::Trainer);
        let plain = minimal(&[]).unwrap().resolve(4, 4, 8).unwrap();
        assert_eq!(plain.config.embedding.pool_at, PoolAt::Trainer);
    }

    #[test]
    fn groups_are_the_rows_of_a_grid_that_is_nearly_square() {
        let columns: Vec<usize> = [1, 2, 3, 4, 7, 8, 9, 12, 16, 64].map(columns).into();
        assert_eq!(columns, [1, 2, 2, 2, 3, 4, 3, 4, 4, 8]);
        let job = minimal(&["sync.method=ds_sync"]).unwrap().resolve(9, 9, 9).unwrap();
        let sync = &job.config.sync;
        assert_eq!((sync.every, sync.group_size, sync.alpha), (Some(1), Some(3), Some(1.0)));
        let ring = minimal(&["sync.method=shadow_ds_sync", "sync.schedule=ring"]).unwrap();
        let ring = ring.resolve(9, 9, 9).unwrap().config.sync;
        assert_eq!((ring.every, ring.group_size, ring.alpha), (None, None, Some(0.5)));
    }

    #[test]
    fn centers_are_trainers_when_collocated_and_ranks_of_their_own_when_not() {
        let crowded = minimal(&["sync.method=shadow_easgd", "roles.sync_ps=3"]).unwrap();
        let error = crowded.resolve(2, 2, 4).unwrap_err();
        assert!(error.to_string().contains("at most one per trainer"), "{error}");
        let separate = [
            "sync.method=shadow_easgd",
            "roles.layout=separate",
            "roles.trainers=2",
            "roles.embedding_ps=1",
            "roles.sync_ps=2",
        ];
        assert_eq!(minimal(&separate).unwrap().resolve(5, 5, 8).unwrap().sync_ps, 2);
        let error = minimal(&separate).unwrap().resolve(4, 4, 8).unwrap_err();
        assert!(error.to_string().contains("and roles.sync_ps = 2 need 5 ranks"), "{error}");
    }
}
