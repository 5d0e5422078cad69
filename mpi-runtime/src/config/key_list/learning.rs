//! Keys of what is learnt: `seed`, `[data]`, `[model]`, `[optim]`, `[train]`.

use super::{
    COUNT_MAX, FACTOR, NOT_NEGATIVE, POSITIVE, SHARE, WIDTH_MAX, at_least, case, integer, key,
    names, says,
};
use crate::config::keys::{Key, Kind, Use};

/// Cross layers a network may have.
const CROSS_MAX: i64 = 16;

/// Models with hidden layers.
const DEEP: Use = models(&["dlrm", "deepfm", "dcn_v2", "wide_deep"]);
const DCN: Use = models(&["dcn_v2"]);

const fn models(names: &'static [&'static str]) -> Use {
    Use::Names { key: "model.kind", names }
}

/// `seed` and `[data]`.
pub(super) static DATA: &[Key] = &[
    key("seed", at_least(0), "one seed for data order, initialisation and dropout").or("1"),
    key("data.train", Kind::Files, "training file or files, from the current directory"),
    key("data.valid", Kind::Files, "validation file or files").or_nothing("no validation"),
    key("data.test", Kind::Files, "test file or files, scored once at the end")
        .or_nothing("no test"),
    key("data.prefetch_batches", integer(1, 4096), "batches read ahead per worker thread")
        .or("4")
        .unit("batches"),
    key("data.lanes", integer(1, COUNT_MAX), "ranges the rows are cut into for shuffling").or("8"),
    key("data.shuffle", Kind::Flag, "shuffle the training rows; false: the order of the files")
        .or("true"),
    key(
        "data.reader_threads",
        integer(1, 256),
        "threads of a trainer that inflate data; 1: the one that reads",
    )
    .or("1")
    .unit("threads"),
];

/// `[model]`
pub(super) static MODEL: &[Key] = &[
    key(
        "model.kind",
        names(&["dlrm", "deepfm", "fm", "lr", "dcn_v2", "wide_deep"]),
        "architecture",
    ),
    key("model.embedding_dim", integer(1, 4096), "values of an embedding vector")
        .or("16")
        .shared("model.kind = \"lr\", whose rows have one value"),
    key("model.bottom", Kind::Widths, "widths of the bottom MLP, the last = model.embedding_dim")
        .derived(&[case("[64, model.embedding_dim]", "[64, 16]", &["model.kind=dlrm"])])
        .idle("[]")
        .used_by(&[models(&["dlrm"])])
        .shared("data without dense features, which have no bottom MLP"),
    key(
        "model.top",
        Kind::Widths,
        "hidden widths of the top (dlrm) or deep (others) MLP; [] for none",
    )
    .by("model.kind", &[(&["dlrm", "deepfm", "dcn_v2", "wide_deep"], "[64, 32]")])
    .idle("[]")
    .used_by(&[DEEP]),
    key("model.cross_layers", integer(0, CROSS_MAX), "layers of the cross network, at least 1")
        .by("model.kind", &[(&["dcn_v2"], "3")])
        .idle("0")
        .used_by(&[DCN]),
    key("model.cross_rank", integer(0, WIDTH_MAX), "rank of the cross layers' matrices; 0: full")
        .or("0")
        .used_by(&[DCN]),
    key(
        "model.structure",
        names(&["parallel", "stacked"]),
        "the deep MLP beside the cross network or on its output",
    )
    .or("\"parallel\"")
    .used_by(&[DCN]),
    key("model.pooling", names(&["sum", "mean"]), "how the rows of a bag become one vector")
        .or("\"sum\""),
    key("model.batch_norm", Kind::Flag, "batch normalisation on hidden layers")
        .or("false")
        .used_by(&[DEEP]),
    key("model.batch_norm_momentum", FACTOR, "share of the new batch in running statistics")
        .or("0.1")
        .used_by(&[DEEP, Use::Names { key: "model.batch_norm", names: &["true"] }]),
    key("model.dropout", SHARE, "probability that a hidden unit is dropped")
        .or("0.0")
        .used_by(&[DEEP]),
];

/// The keys of an optimizer, which are the same for dense parameters and for rows.
macro_rules! optimizer {
    ($section:literal, $of:literal, $kinds:expr, $kind:literal, $rates:expr) => {{
        const KIND: &str = concat!($section, ".kind");
        const fn kinds(names: &'static [&'static str]) -> Use {
            Use::Names { key: KIND, names }
        }
        const ADAM: &[Use] = &[kinds(&["adam"])];
        const MOMENTUM: &[Use] = &[kinds(&["momentum"])];
        const ADAGRADS: &[Use] = &[kinds(&["adagrad", "rowwise_adagrad"])];
        const ROOTS: &[Use] = &[kinds(&["adam", "adagrad", "rowwise_adagrad"])];
        const START: &str = concat!($section, ".decay_start_step");
        const STEPS: &str = concat!($section, ".decay_steps");
        [
            key(KIND, names($kinds), concat!("optimizer of ", $of)).or($kind),
            key(concat!($section, ".lr"), POSITIVE, "learning rate").by_or_required(KIND, $rates),
            key(concat!($section, ".weight_decay"), NOT_NEGATIVE, "L2 term of the gradient")
                .or("0.0"),
            key(concat!($section, ".momentum"), SHARE, "share of the velocity kept")
                .or("0.9")
                .used_by(MOMENTUM),
            key(concat!($section, ".beta1"), SHARE, "share of the first moment kept")
                .or("0.9")
                .used_by(ADAM),
            key(concat!($section, ".beta2"), SHARE, "share of the second moment kept")
                .or("0.999")
                .used_by(ADAM),
            key(concat!($section, ".eps"), POSITIVE, "added to the root")
                .by(KIND, &[(&["adam"], "1e-8"), (&["adagrad", "rowwise_adagrad"], "1e-10")])
                .idle("1e-10")
                .used_by(ROOTS),
            key(
                concat!($section, ".initial_accumulator"),
                NOT_NEGATIVE,
                "accumulator at the start",
            )
            .or("0.0")
            .used_by(ADAGRADS),
            key(concat!($section, ".warmup_steps"), at_least(0), "steps of linear warm-up")
                .or("0")
                .unit("steps"),
            key(START, at_least(0), "first step of the linear decay")
                .or_nothing("no decay")
                .unit("steps")
                .used_by(&[Use::Given(&[STEPS])]),
            key(STEPS, at_least(1), "steps the decay takes")
                .or_nothing("no decay")
                .unit("steps")
                .used_by(&[Use::Given(&[START])]),
            key(concat!($section, ".final_lr"), NOT_NEGATIVE, "learning rate after the decay")
                .or("0.0")
                .used_by(&[Use::Given(&[START])]),
        ]
    }};
}

/// `[optim.dense]`
pub(super) static DENSE: [Key; 12] = optimizer!(
    "optim.dense",
    "dense parameters",
    &["sgd", "momentum", "adagrad", "adam"],
    "\"adam\"",
    &[(&["adam"], "1e-3"), (&["adagrad"], "0.05")]
);

/// `[optim.sparse]`
pub(super) static SPARSE: [Key; 12] = optimizer!(
    "optim.sparse",
    "embedding rows",
    &["sgd", "momentum", "adagrad", "rowwise_adagrad", "adam"],
    "\"rowwise_adagrad\"",
    &[(&["adam"], "1e-3"), (&["adagrad", "rowwise_adagrad"], "0.05")]
);

/// What ends training early needs something to look at.
const VALID: &[Use] = &[Use::Given(&["data.valid"])];

/// `[train]`
pub(super) static TRAIN: &[Key] = &[
    key("train.batch_size", integer(1, 1 << 20), "examples per worker thread and step")
        .or("128")
        .unit("examples"),
    key("train.epochs", integer(1, COUNT_MAX), "passes over the training files").or("1"),
    key("train.max_examples", at_least(1), "stop after this many examples of all trainers")
        .or_nothing("no limit")
        .unit("examples"),
    key("train.worker_threads", integer(1, 4096), "worker threads per trainer")
        .derived(&[
            says("the trainer's share of the cores"),
            case("1 where roles.dense_partitions is above 1", "1", &["roles.dense_partitions=2"]),
        ])
        .unit("threads"),
    key(
        "train.precision",
        names(&["f32", "bf16"]),
        "what training steps multiply; weights and sums are f32",
    )
    .or("\"f32\"")
    .used_by(&[DEEP]),
    key("train.pin_workers", Kind::Flag, "a core for each worker; other threads beside them")
        .or("false"),
    key("train.eval_every", at_least(0), "steps between evaluations; 0: at the end of an epoch")
        .or("0")
        .unit("steps")
        .used_by(&[Use::Given(&["data.valid", "train.progressive"])]),
    key("train.progressive", Kind::Flag, "figures of the first pass, scored before it is learnt")
        .or("false"),
    key("train.eval_batch_size", integer(1, 1 << 20), "examples of a batch of an evaluation")
        .derived(&[case("train.batch_size", "64", &["train.batch_size=64"])])
        .unit("examples"),
    key(
        "train.early_stop.metric",
        names(&["auc", "logloss"]),
        "figure of the validation files to watch",
    )
    .or("\"auc\"")
    .used_by(VALID),
    key(
        "train.early_stop.patience",
        integer(1, COUNT_MAX),
        "evaluations without improvement after which training stops",
    )
    .unit("evaluations")
    .used_by(VALID),
    key("train.early_stop.min_delta", NOT_NEGATIVE, "least change that is an improvement")
        .or("1e-6")
        .used_by(VALID),
    key("train.early_stop.lr_factor", FACTOR, "learning rates × this after no improvement")
        .or("1.0")
        .used_by(VALID),
    key("train.early_stop.restore_best", Kind::Flag, "end with the best parameters")
        .or("true")
        .used_by(VALID),
];
