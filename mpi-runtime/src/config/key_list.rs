//! Every key a configuration may hold: the one place that defines them.

use umbra_core::sync::server::PLACES_MAX;

use super::keys::{Key, Kind};
use super::sync::SyncMethod;

/// Layers an MLP may have beside its last: the core keeps shapes in arrays of 16.
pub(super) const LAYERS_MAX: usize = 15;
/// Cross layers a network may have.
const CROSS_MAX: i64 = 16;
/// Widest layer.
pub(super) const WIDTH_MAX: i64 = 65_536;

const fn key(path: &'static str, kind: Kind, about: &'static str) -> Key {
    Key { path, kind, about }
}

pub(super) const fn integer(low: i64, high: i64) -> Kind {
    Kind::Integer { low, high }
}

const fn at_least(low: i64) -> Kind {
    Kind::Integer { low, high: i64::MAX }
}

pub(super) const POSITIVE: Kind =
    Kind::Number { low: 0.0, above: true, high: f64::INFINITY, below: false };
pub(super) const NOT_NEGATIVE: Kind =
    Kind::Number { low: 0.0, above: false, high: f64::INFINITY, below: false };
/// A share that must leave something: [0, 1).
pub(super) const SHARE: Kind = Kind::Number { low: 0.0, above: false, high: 1.0, below: true };
/// A factor that must keep something: (0, 1].
pub(super) const FACTOR: Kind = Kind::Number { low: 0.0, above: true, high: 1.0, below: false };

/// Row-wise Adagrad is refused for dense parameters by `validate.rs`, which says what to use.
const OPTIMIZERS: Kind =
    Kind::Name { built: &["sgd", "momentum", "adagrad", "rowwise_adagrad", "adam"] };
const MODELS: Kind = Kind::Name { built: &["dlrm", "deepfm", "fm", "lr", "dcn_v2", "wide_deep"] };
const METHODS: Kind = Kind::Name { built: &SyncMethod::NAMES };

/// Greatest count of ranks, threads and the like.
const COUNT_MAX: i64 = 1 << 20;

/// Every key, in the order of the documentation.
pub static KEYS: &[Key] = &[
    key("seed", at_least(0), "one seed for data order, initialisation and dropout"),
    key("data.train", Kind::Files, "training file or files, from the current directory"),
    key("data.valid", Kind::Files, "validation file or files"),
    key("data.test", Kind::Files, "test file or files, scored once at the end"),
    key("data.prefetch_batches", integer(1, 4096), "batches read ahead per worker thread"),
    key("data.lanes", integer(1, COUNT_MAX), "ranges the rows are cut into for shuffling"),
    key("data.shuffle", Kind::Flag, "shuffle the training rows; false: the order of the files"),
    key("data.reader_threads", integer(1, 256), "threads that inflate data; 1: the one that reads"),
    key("model.kind", MODELS, "architecture"),
    key("model.embedding_dim", integer(1, 4096), "values of an embedding vector"),
    key("model.bottom", Kind::Widths, "dlrm: widths of the bottom MLP, the last = embedding_dim"),
    key("model.top", Kind::Widths, "hidden widths of the top (dlrm) or deep (others) MLP"),
    key("model.cross_layers", integer(0, CROSS_MAX), "dcn_v2: layers of the cross network; 3"),
    key("model.cross_rank", integer(0, WIDTH_MAX), "dcn_v2: rank of their matrices; 0: full"),
    key(
        "model.structure",
        Kind::Name { built: &["parallel", "stacked"] },
        "dcn_v2: the deep MLP beside the cross network or on its output",
    ),
    key("model.pooling", Kind::Name { built: &["sum", "mean"] }, "bag to vector"),
    key("model.batch_norm", Kind::Flag, "batch normalisation on hidden layers"),
    key("model.batch_norm_momentum", FACTOR, "share of the new batch in running statistics"),
    key("model.dropout", SHARE, "probability that a hidden unit is dropped"),
    key("optim.dense.kind", OPTIMIZERS, "optimizer of dense parameters"),
    key("optim.dense.lr", POSITIVE, "learning rate"),
    key("optim.dense.weight_decay", NOT_NEGATIVE, "L2 term of the gradient"),
    key("optim.dense.momentum", SHARE, "momentum: share of the velocity kept"),
    key("optim.dense.beta1", SHARE, "adam: share of the first moment kept"),
    key("optim.dense.beta2", SHARE, "adam: share of the second moment kept"),
    key("optim.dense.eps", POSITIVE, "added to the root; 1e-8 for adam, 1e-10 for adagrad"),
    key("optim.dense.initial_accumulator", NOT_NEGATIVE, "adagrad: accumulator at the start"),
    key("optim.dense.warmup_steps", at_least(0), "steps of linear warm-up"),
    key("optim.dense.decay_start_step", at_least(0), "first step of the linear decay"),
    key("optim.dense.decay_steps", at_least(1), "steps the decay takes"),
    key("optim.dense.final_lr", NOT_NEGATIVE, "learning rate after the decay"),
    key("optim.sparse.kind", OPTIMIZERS, "optimizer of embedding rows"),
    key("optim.sparse.lr", POSITIVE, "learning rate"),
    key("optim.sparse.weight_decay", NOT_NEGATIVE, "L2 term of the gradient"),
    key("optim.sparse.momentum", SHARE, "momentum: share of the velocity kept"),
    key("optim.sparse.beta1", SHARE, "adam: share of the first moment kept"),
    key("optim.sparse.beta2", SHARE, "adam: share of the second moment kept"),
    key("optim.sparse.eps", POSITIVE, "added to the root; 1e-8 for adam, 1e-10 for adagrad"),
    key("optim.sparse.initial_accumulator", NOT_NEGATIVE, "adagrad: accumulator at the start"),
    key("optim.sparse.warmup_steps", at_least(0), "steps of linear warm-up"),
    key("optim.sparse.decay_start_step", at_least(0), "first step of the linear decay"),
    key("optim.sparse.decay_steps", at_least(1), "steps the decay takes"),
    key("optim.sparse.final_lr", NOT_NEGATIVE, "learning rate after the decay"),
    key("train.batch_size", integer(1, 1 << 20), "examples per worker thread and step"),
    key("train.epochs", integer(1, COUNT_MAX), "passes over the training files"),
    key("train.max_examples", at_least(1), "stop after this many examples"),
    key("train.worker_threads", integer(1, 4096), "per trainer; default: its share of the cores"),
    key(
        "train.precision",
        Kind::Name { built: &["f32", "bf16"] },
        "what training steps multiply; weights and sums are f32",
    ),
    key("train.pin_workers", Kind::Flag, "a core for each worker; other threads beside them"),
    key("train.eval_every", at_least(0), "steps between evaluations; 0: at the end of an epoch"),
    key("train.progressive", Kind::Flag, "figures of the first pass, scored before it is learnt"),
    key("train.eval_batch_size", integer(1, 1 << 20), "default: batch_size"),
    key(
        "train.early_stop.metric",
        Kind::Name { built: &["auc", "logloss"] },
        "figure of the validation files to watch",
    ),
    key("train.early_stop.patience", integer(1, COUNT_MAX), "evaluations without improvement"),
    key("train.early_stop.min_delta", NOT_NEGATIVE, "least change that is an improvement"),
    key("train.early_stop.lr_factor", FACTOR, "learning rates × this after no improvement"),
    key("train.early_stop.restore_best", Kind::Flag, "end with the best parameters"),
    key(
        "roles.layout",
        Kind::Name { built: &["collocated", "separate"] },
        "whether every rank is trainer and embedding PS",
    ),
    key("roles.trainers", integer(1, COUNT_MAX), "ranks that train"),
    key("roles.embedding_ps", integer(1, COUNT_MAX), "ranks that hold embedding rows"),
    key(
        "roles.sync_ps",
        integer(0, COUNT_MAX),
        "*_easgd: ranks of the center; default 1 of 8 trainers",
    ),
    key("roles.dense_partitions", integer(1, COUNT_MAX), "ranks that share the layers of an MLP"),
    key("embedding.prefetch", integer(0, 4096), "batches whose rows are fetched ahead"),
    key("embedding.partitions", integer(1, 4096), "partitions per embedding PS rank"),
    key(
        "embedding.pool_at",
        Kind::Name { built: &["trainer", "ps", "auto"] },
        "who makes a vector of a bag's rows: who trains with it, who holds the rows, or by bytes",
    ),
    key(
        "embedding.placement",
        Kind::Name { built: &["rows", "tables", "auto"] },
        "which rows one partition has: a share of every table, whole tables, or by bytes",
    ),
    key("embedding.links", integer(1, 64), "threads per rank that carry rows between ranks"),
    key(
        "embedding.shared_memory",
        Kind::Flag,
        "rows of ranks on the same node are used where they are; not bsp, gba and its kin",
    ),
    key(
        "embedding.precision",
        Kind::Name { built: &["f32", "bf16"] },
        "what rows are in memory, bf16 rounded stochastically; optimizer state is f32",
    ),
    key("sync.method", METHODS, "auto: none with one trainer, bsp with more"),
    key("sync.every", integer(1, i64::MAX), "gated methods: steps between rounds; 16, ds_sync: 1"),
    key(
        "sync.gate",
        Kind::Name { built: &["trainer", "worker"] },
        "foreground_easgd: who stands still together",
    ),
    key(
        "sync.batch_norm",
        Kind::Name { built: &["global", "local"] },
        "bsp: statistics of the global batch or of each worker's",
    ),
    key("sync.alpha", FACTOR, "share of the way that a round moves; default: by method"),
    key(
        "sync.pair",
        Kind::Name { built: &["sequential", "same"] },
        "*_easgd: what the sides of an exchange see",
    ),
    key(
        "sync.intake",
        Kind::Name { built: &["interpolate", "delta"] },
        "*_ma, *_bmuf, *ds_sync: how a replica takes the mean in",
    ),
    key(
        "sync.schedule",
        Kind::Name { built: &["grid", "nodes", "hypercube", "ring", "random"] },
        "*ds_sync: how groups are dealt",
    ),
    key("sync.group_size", integer(1, COUNT_MAX), "*ds_sync: trainers of a group"),
    key(
        "sync.average_state",
        Kind::Flag,
        "*_ma, *_bmuf, *ds_sync: save the mean of optimizer states",
    ),
    key("sync.block_rate", POSITIVE, "*_bmuf: share of the mean's step that is taken"),
    key("sync.block_momentum", SHARE, "*_bmuf: share of the last step that is taken again"),
    key("sync.nesterov", Kind::Flag, "*_bmuf: replicas start a step of momentum ahead"),
    key("sync.poll_us", integer(0, 1_000_000), "µs between looks at MPI; 0 only yields"),
    key("sync.min_interval_us", at_least(0), "shadow_*: least µs from round to round"),
    key("sync.max_bytes_per_s", at_least(0), "shadow_*: bytes a trainer may send; 0: no bound"),
    key("sync.core_share", FACTOR, "shadow_*: share of a core; default .1, or .05 if shared"),
    key(
        "sync.server.members",
        integer(1, PLACES_MAX as i64),
        "gba: gradients of a global batch; workers",
    ),
    key(
        "sync.server.decay",
        Kind::Name { built: &["hard", "power"] },
        "gba: what old gradients weigh",
    ),
    key("sync.server.tolerance", at_least(0), "gba, hard: global batches a gradient may be late"),
    key("sync.server.decay_factor", FACTOR, "gba, power: factor for each global batch of delay"),
    key(
        "sync.server.divisor",
        Kind::Name { built: &["members", "weights"] },
        "gba: what a sum of gradients is divided by",
    ),
    key(
        "sync.server.row_divisor",
        Kind::Name { built: &["global", "own_count"] },
        "gba: the same of an embedding row",
    ),
    key("sync.server.bound", at_least(0), "hop_bs: batches a worker may be ahead of the slowest"),
    key("sync.server.backup_workers", integer(1, COUNT_MAX), "hop_bw: workers nobody waits for"),
    key("sync.server.reissue_s", NOT_NEGATIVE, "servers: seconds after which a batch is redone"),
    key(
        "sync.switch.to",
        Kind::Name { built: &["bsp", "async_ps", "bsp_ps", "hop_bs", "hop_bw", "gba"] },
        "the other method of a run that changes its method",
    ),
    key("sync.switch.at", Kind::Steps, "steps at which it changes, [1000, 2000]"),
    key(
        "sync.switch.policy",
        Kind::Name { built: &["steps", "stragglers"] },
        "what decides: sync.switch.at, or the times of trainers",
    ),
    key("sync.switch.window", integer(1, COUNT_MAX), "stragglers: steps of a window"),
    key("sync.switch.leave_above", POSITIVE, "stragglers: async steps, times as fast"),
    key("sync.switch.return_below", POSITIVE, "stragglers: and to synchronous ones"),
    key("sync.switch.patience", integer(1, COUNT_MAX), "stragglers: windows that must ask"),
    key(
        "compress.dp_keep",
        FACTOR,
        "share of the elements of gradients and parameters that are sent",
    ),
    key("compress.mp_keep", FACTOR, "share of pooled vectors or activations that is sent"),
    key("compress.auto", Kind::Flag, "whether it pays is tried at the start; it is off if not"),
    key("compress.refresh_every", integer(1, COUNT_MAX), "steps for which a threshold holds"),
    key("compress.values", Kind::Name { built: &["f32", "bf16", "f8"] }, "what values are sent as"),
    key("checkpoint.dir", Kind::Path, "default: run.dir/checkpoints"),
    key("checkpoint.save", Kind::Name { built: &["last", "best", "none"] }, "which model is kept"),
    key("checkpoint.every", Kind::Every, "500 (steps), \"1000000 examples\", \"10 min\""),
    key("checkpoint.local_dir", Kind::Path, "every rank's images on its own node, e.g. /dev/shm"),
    key("checkpoint.local_every", Kind::Every, "what lies between two images"),
    key("checkpoint.keep", integer(1, COUNT_MAX), "newest checkpoints kept, beside the best"),
    key("checkpoint.background", Kind::Flag, "copied, and written while training goes on"),
    key("checkpoint.full_every", integer(1, COUNT_MAX), "one of so many has all rows; 1: all"),
    key(
        "checkpoint.row_precision",
        Kind::Name { built: &["f32", "bf16"] },
        "what rows are written as",
    ),
    key("checkpoint.resume", Kind::Path, "go on from: \"auto\" (the newest), \"none\", or a path"),
    key("checkpoint.warm_start", Kind::Path, "a saved model that a new run begins with"),
    key("checkpoint.warm_state", Kind::Flag, "with its optimizer state; default true"),
    key(
        "recovery.mode",
        Kind::Name { built: &["full", "partial", "cpr"] },
        "who goes back to the last save after a failure: all, the lost rows, what costs less",
    ),
    key(
        "recovery.priority",
        Kind::Name { built: &["none", "scar", "mfu", "ssu"] },
        "rows saved between two checkpoints: most changed, most updated, sampled",
    ),
    key("recovery.priority_share", FACTOR, "share of a large table's rows saved at a time"),
    key("recovery.priority_tables", integer(1, COUNT_MAX), "the so many largest tables are large"),
    key("recovery.pls_target", FACTOR, "cpr: portion of lost samples that may be expected"),
    key("recovery.mtbf_s", POSITIVE, "mean seconds between failures of the job"),
    key("recovery.save_s", POSITIVE, "seconds of a save"),
    key("recovery.load_s", NOT_NEGATIVE, "seconds until a save has been read"),
    key("recovery.reschedule_s", NOT_NEGATIVE, "seconds until a lost process is replaced"),
    key(
        "recovery.inject.failures",
        Kind::Name { built: &["exponential", "gamma", "uniform", "steps"] },
        "play failures: shards lose their rows to the last save",
    ),
    key("recovery.inject.failure_shape", POSITIVE, "of gamma times"),
    key("recovery.inject.failure_steps", Kind::Steps, "steps after which they happen, [100, 250]"),
    key("recovery.inject.job_s", POSITIVE, "seconds that the run stands for"),
    key("recovery.inject.shards", integer(1, COUNT_MAX), "shards of the rows; partitions"),
    key("recovery.inject.lost_shards", integer(1, COUNT_MAX), "how many a failure takes"),
    key("recovery.inject.nan_trainer", integer(0, COUNT_MAX), "test: this replica gets a NaN"),
    key("recovery.inject.nan_step", at_least(0), "test: before this step"),
    key("recovery.inject.stop_step", at_least(0), "test: a request to stop in this step"),
    key("recovery.inject.panic_trainer", integer(0, COUNT_MAX), "test: this trainer panics"),
    key("recovery.inject.panic_step", at_least(0), "test: in this step, but not in a resumed run"),
    key("recovery.inject.kill_trainer", integer(0, COUNT_MAX), "test: SIGKILL to this trainer"),
    key("recovery.inject.kill_step", at_least(0), "test: in this step, once"),
    key("recovery.inject.short_trainer", integer(0, COUNT_MAX), "test: this trainer has less data"),
    key("recovery.inject.short_share", FACTOR, "test: this share of it"),
    key(
        "recovery.inject.slow_trainer",
        integer(0, COUNT_MAX),
        "test: one trainer is slow, not all",
    ),
    key("recovery.inject.slow_factor", POSITIVE, "test: steps take so many times as long"),
    key("recovery.inject.slow_from", at_least(0), "test: from this step on"),
    key("recovery.inject.slow_to", at_least(0), "test: until this one"),
    key("run.dir", Kind::Path, "run folder; default: runs/ and the name of the file"),
    key("run.overwrite", Kind::Flag, "replace a finished run in run.dir"),
    key("run.max_time", Kind::Seconds, "stop and save after: 3600 (seconds), \"55 min\", \"4 h\""),
    key("run.log_every_s", POSITIVE, "seconds between reports"),
    key("run.tensorboard", Kind::Flag, "write TensorBoard event files"),
    key("run.trace", Kind::Flag, "write a Chrome trace"),
    key("run.step_losses", Kind::Flag, "bsp: write the loss of every step to losses.csv"),
    key("run.watchdog_s", integer(1, i64::MAX), "seconds without progress before a complaint"),
];
