//! Keys of a job on many ranks: `[roles]`, `[embedding]`, `[sync]`, `[compress]`.

use umbra_core::sync::server::PLACES_MAX;
use umbra_core::sync::{Method, Rounds};

use super::{
    COUNT_MAX, FACTOR, NOT_NEGATIVE, POSITIVE, SHARE, WIDTH_MAX, at_least, case, integer, key,
    names, says,
};
use crate::config::keys::{Key, Kind, Use};
use crate::config::sync::SyncMethod;

/// Methods whose shape is so. `auto` is none of them.
macro_rules! shaped {
    ($is:expr) => {
        Use::Methods(|method| {
            let is: fn(&Method<'_>) -> bool = $is;
            is(&method.shape())
        })
    };
}

/// Models whose rows are vectors.
const VECTORS: Use =
    Use::Names { key: "model.kind", names: &["dlrm", "deepfm", "fm", "dcn_v2", "wide_deep"] };
const CENTERS: Use = shaped!(|shape| shape.has_centers());
const SERVED: Use = Use::Methods(SyncMethod::is_served);
const ELASTIC: Use = shaped!(|shape| shape.has_centers() && shape.serving().is_none());
const GATED: Use = shaped!(|shape| matches!(shape.rounds, Rounds::Gated { .. }));
const SHADOW: Use = shaped!(|shape| matches!(shape.rounds, Rounds::Background(_)));
/// Replicas that move towards each other in rounds.
const ROUNDS: Use =
    shaped!(|shape| matches!(shape.rounds, Rounds::Gated { .. } | Rounds::Background(_)));
/// Whoever has a thread that looks for messages.
const POLLS: Use = shaped!(|shape| !matches!(shape.rounds, Rounds::Never | Rounds::EveryStep));
const AVERAGES: Use = shaped!(|shape| shape.averages());
const DEALT: Use = shaped!(|shape| shape.dealing().is_some());
const BLOCKS: Use = shaped!(|shape| shape.blocks().is_some());
/// What `auto` becomes the launch decides.
const SUMS: Use = Use::Methods(|method| matches!(method, SyncMethod::Auto | SyncMethod::Bsp));
const GBA: Use = Use::Methods(|method| matches!(method, SyncMethod::Gba));
/// Trainers that send each other something.
const SENDS: Use =
    Use::Methods(|method| !matches!(method, SyncMethod::None | SyncMethod::Independent));

/// `[roles]` and `[embedding]`.
pub(super) static ROLES: &[Key] = &[
    key(
        "roles.layout",
        names(&["collocated", "separate"]),
        "whether every rank is trainer and embedding PS",
    )
    .or("\"collocated\""),
    key("roles.trainers", integer(1, COUNT_MAX), "ranks that train; to be given if separate")
        .derived(&[case("all ranks, if collocated", "4", &[])])
        .unit("ranks"),
    key(
        "roles.embedding_ps",
        integer(1, COUNT_MAX),
        "ranks that hold embedding rows; to be given if separate",
    )
    .derived(&[case("all ranks, if collocated", "4", &[])])
    .unit("ranks"),
    key(
        "roles.sync_ps",
        integer(0, COUNT_MAX),
        "ranks of the center, or that serve dense parameters",
    )
    .derived(&[case("1 for every 8 trainers", "1", &["sync.method=shadow_easgd"])])
    .unit("ranks")
    .idle("0")
    .used_by(&[CENTERS]),
    key("roles.dense_partitions", integer(1, COUNT_MAX), "ranks that share the layers of an MLP")
        .or("1")
        .unit("ranks")
        .used_by(&[SUMS]),
    key("embedding.prefetch", integer(0, 4096), "batches whose rows are fetched ahead")
        .or("2")
        .unit("batches"),
    key("embedding.partitions", integer(1, 4096), "partitions per embedding PS rank").or("2"),
    key(
        "embedding.pool_at",
        names(&["trainer", "ps", "auto"]),
        "who makes a vector of a bag's rows: who trains with it, who holds the rows, or by bytes",
    )
    .or("\"trainer\""),
    key(
        "embedding.placement",
        names(&["rows", "tables", "auto"]),
        "which rows one partition has: a share of every table, whole tables, or by bytes",
    )
    .or("\"rows\""),
    key(
        "embedding.shared",
        Kind::Groups,
        "lists of fields, each list one table: [[\"item\", \"last_item\"]]",
    )
    .or("[]"),
    key(
        "embedding.dims",
        Kind::NamedWidths,
        "widths of vectors that are not model.embedding_dim wide, by field: { item = 64 }",
    )
    .or("{}")
    .used_by(&[VECTORS]),
    key(
        "embedding.columns",
        integer(0, WIDTH_MAX),
        "columns of strips that tables are cut into, each a table of its own; 0: not cut",
    )
    .or("0")
    .unit("columns")
    .used_by(&[VECTORS]),
    key("embedding.links", integer(1, 64), "threads per rank that carry rows between ranks")
        .or("1")
        .unit("threads"),
    key(
        "embedding.shared_memory",
        Kind::Flag,
        "rows of ranks on the same node are used where they are",
    )
    .or("true")
    .shared("bsp and methods on parameter servers, which never do"),
    key(
        "embedding.precision",
        names(&["f32", "bf16"]),
        "what rows are in memory, bf16 rounded stochastically; optimizer state is f32",
    )
    .or("\"f32\""),
];

/// `[sync]`
pub(super) static SYNC: &[Key] = &[
    key(
        "sync.method",
        names(&SyncMethod::NAMES),
        "how dense replicas stay together; auto: none with one trainer, bsp with more",
    )
    .or("\"auto\""),
    key("sync.every", integer(1, i64::MAX), "steps between rounds")
        .by(
            "sync.method",
            &[
                (&["local_sgd", "foreground_easgd", "foreground_ma", "foreground_bmuf"], "16"),
                (&["ds_sync", "ds_slowmo"], "1"),
            ],
        )
        .unit("steps")
        .used_by(&[GATED]),
    key("sync.gate", names(&["trainer", "worker"]), "who stands still together during a round")
        .or("\"trainer\"")
        .used_by(&[Use::Methods(|method| matches!(method, SyncMethod::ForegroundEasgd))]),
    key(
        "sync.batch_norm",
        names(&["global", "local"]),
        "statistics of the global batch or of each worker's",
    )
    .or("\"global\"")
    .used_by(&[SUMS])
    .shared("models without batch normalisation"),
    key("sync.alpha", FACTOR, "share of the way that a round moves")
        .derived(&[
            case("0.5 in the background and with a center", "0.5", &["sync.method=shadow_ma"]),
            says("0.1 with a center and more than 8 trainers"),
            case("1 where workers stand still and there is none", "1", &["sync.method=local_sgd"]),
        ])
        .used_by(&[ROUNDS]),
    key("sync.pair", names(&["sequential", "same"]), "what the sides of an exchange see")
        .or("\"sequential\"")
        .used_by(&[ELASTIC]),
    key("sync.intake", names(&["interpolate", "delta"]), "how a replica takes the mean in")
        .or("\"interpolate\"")
        .used_by(&[AVERAGES]),
    key(
        "sync.schedule",
        names(&["grid", "nodes", "hypercube", "ring", "random"]),
        "how groups are dealt",
    )
    .or("\"grid\"")
    .used_by(&[DEALT]),
    key("sync.group_size", integer(1, COUNT_MAX), "trainers of a group; not with ring and nodes")
        .derived(&[
            case(
                "2 with hypercube and random",
                "2",
                &["sync.method=ds_sync", "sync.schedule=random"],
            ),
            says("with grid the columns of one that is nearly square"),
        ])
        .unit("trainers")
        .used_by(&[DEALT]),
    key("sync.average_state", Kind::Flag, "save the mean of optimizer states")
        .or("false")
        .used_by(&[AVERAGES]),
    key("sync.block_rate", POSITIVE, "share of the mean's step that is taken")
        .or("1.0")
        .used_by(&[BLOCKS]),
    key("sync.block_momentum", SHARE, "share of the last step that is taken again")
        .derived(&[
            case("0.25 in the background", "0.25", &["sync.method=shadow_bmuf"]),
            says("1 - 1/trainers where workers stand still"),
        ])
        .used_by(&[BLOCKS]),
    key("sync.nesterov", Kind::Flag, "replicas start a step of momentum ahead")
        .or("false")
        .used_by(&[BLOCKS]),
    key("sync.poll_us", integer(0, 1_000_000), "between looks at MPI; 0 only yields")
        .or("50")
        .unit("µs")
        .used_by(&[POLLS]),
    key("sync.min_interval_us", at_least(0), "least time from round to round")
        .or("0")
        .unit("µs")
        .used_by(&[SHADOW]),
    key("sync.max_bytes_per_s", at_least(0), "what a trainer may send; 0: no bound")
        .or("0")
        .unit("bytes/s")
        .used_by(&[SHADOW]),
    key("sync.core_share", FACTOR, "share of a core that a synchronizing thread may take")
        .derived(&[
            case("0.1", "0.1", &["sync.method=shadow_ma", "train.worker_threads=1"]),
            case("0.05 if it has no core to itself", "0.05", &["sync.method=shadow_ma"]),
        ])
        .used_by(&[SHADOW]),
];

/// `[sync.server]`
pub(super) static SERVER: &[Key] = &[
    key("sync.server.members", integer(1, PLACES_MAX as i64), "gradients of a global batch")
        .derived(&[case(
            "the workers of all trainers",
            "8",
            &["sync.method=gba", "train.worker_threads=2"],
        )])
        .unit("gradients")
        .used_by(&[GBA]),
    key("sync.server.decay", names(&["hard", "power"]), "what old gradients weigh")
        .or("\"hard\"")
        .used_by(&[GBA]),
    key("sync.server.tolerance", at_least(0), "global batches a gradient may be late")
        .derived(&[case(
            "4 for every sync.server.members workers, or part of as many",
            "4",
            &["sync.method=gba"],
        )])
        .unit("global batches")
        .used_by(&[GBA, Use::Names { key: "sync.server.decay", names: &["hard"] }]),
    key("sync.server.decay_factor", FACTOR, "factor for each global batch of delay")
        .or("0.5")
        .used_by(&[GBA, Use::Names { key: "sync.server.decay", names: &["power"] }]),
    key(
        "sync.server.divisor",
        names(&["members", "weights"]),
        "what a sum of gradients is divided by",
    )
    .or("\"members\"")
    .used_by(&[GBA]),
    key(
        "sync.server.row_divisor",
        names(&["global", "own_count"]),
        "what the sum of an embedding row's gradients is divided by",
    )
    .or("\"global\"")
    .used_by(&[GBA]),
    key("sync.server.bound", at_least(0), "batches a worker may be ahead of the slowest")
        .or("3")
        .unit("batches")
        .used_by(&[Use::Methods(|method| matches!(method, SyncMethod::HopBs))]),
    key("sync.server.backup_workers", integer(1, COUNT_MAX), "workers nobody waits for")
        .or("1")
        .unit("workers")
        .used_by(&[Use::Methods(|method| matches!(method, SyncMethod::HopBw))]),
    key("sync.server.reissue_s", NOT_NEGATIVE, "time after which a batch is redone; 0: never")
        .or("60.0")
        .unit("s")
        .used_by(&[SERVED]),
];

const TO: Use = Use::Given(&["sync.switch.to"]);
const STEPS: &[Use] = &[TO, policy(&["steps"])];
const STRAGGLERS: &[Use] = &[TO, policy(&["stragglers"])];

const fn policy(names: &'static [&'static str]) -> Use {
    Use::Names { key: "sync.switch.policy", names }
}

/// `[sync.switch]`
pub(super) static SWITCH: &[Key] = &[
    key(
        "sync.switch.to",
        names(&["bsp", "async_ps", "bsp_ps", "hop_bs", "hop_bw", "gba"]),
        "the other method of a run that changes its method",
    )
    .or_nothing("the method stays")
    .used_by(&[Use::Methods(|method| method.is_served() || matches!(method, SyncMethod::Bsp))]),
    key("sync.switch.at", Kind::Steps, "steps at which it changes, [1000, 2000]")
        .or_nothing("to be given with policy = \"steps\"")
        .unit("steps")
        .used_by(STEPS),
    key(
        "sync.switch.policy",
        names(&["steps", "stragglers"]),
        "what decides: sync.switch.at, or the times of trainers",
    )
    .or("\"steps\"")
    .used_by(&[TO]),
    key("sync.switch.window", integer(1, COUNT_MAX), "steps of a window")
        .or("50")
        .unit("steps")
        .used_by(STRAGGLERS),
    key(
        "sync.switch.leave_above",
        POSITIVE,
        "asynchronous steps must be so many times as fast for a change to them",
    )
    .or("1.05")
    .used_by(STRAGGLERS),
    key("sync.switch.return_below", POSITIVE, "and so many, or fewer, for one back")
        .or("1.0")
        .used_by(STRAGGLERS),
    key("sync.switch.patience", integer(1, COUNT_MAX), "windows that must ask")
        .or("2")
        .unit("windows")
        .used_by(STRAGGLERS),
];

const KEPT: &[Use] = &[Use::Given(&["compress.dp_keep", "compress.mp_keep"])];

/// `[compress]`
pub(super) static COMPRESS: &[Key] = &[
    key(
        "compress.dp_keep",
        FACTOR,
        "share of the elements of gradients and parameters that is sent",
    )
    .or_nothing("all, as they are")
    .used_by(&[SENDS]),
    key("compress.mp_keep", FACTOR, "share of pooled vectors or activations that is sent")
        .or_nothing("all, as they are"),
    key("compress.auto", Kind::Flag, "whether it pays is tried at the start; it is off if not")
        .or("false")
        .used_by(&[Use::Given(&["compress.dp_keep"])]),
    key("compress.refresh_every", integer(1, COUNT_MAX), "steps for which a threshold holds")
        .or("1000")
        .unit("steps")
        .used_by(KEPT),
    key("compress.values", names(&["f32", "bf16", "f8"]), "what values are sent as")
        .or("\"bf16\"")
        .used_by(KEPT),
];
