//! Keys of what is kept of a run, and of what becomes of it: `[checkpoint]`, `[recovery]`, `[run]`.

use super::{COUNT_MAX, FACTOR, NOT_NEGATIVE, POSITIVE, at_least, case, integer, key, names, says};
use crate::config::keys::{Key, Kind, Use};
use crate::config::sync::SyncMethod;

/// `[checkpoint]`
pub(super) static CHECKPOINT: &[Key] = &[
    key("checkpoint.dir", Kind::Path, "folder of the checkpoints").derived(&[case(
        "run.dir/checkpoints",
        "\"r/checkpoints\"",
        &["run.dir=r"],
    )]),
    key(
        "checkpoint.save",
        names(&["last", "best", "none"]),
        "which model a run keeps that has ended; best: of the validations",
    )
    .or("\"last\""),
    key(
        "checkpoint.every",
        Kind::Every,
        "what lies between two: 500 (steps), \"1000000 examples\", \"10 min\"",
    )
    .or_nothing("only at the end; with recovery.mtbf_s the run finds out"),
    key("checkpoint.local_dir", Kind::Path, "every rank's images on its own node, e.g. /dev/shm")
        .or_nothing("no images")
        .used_by(&[Use::Given(&["checkpoint.local_every"])]),
    key("checkpoint.local_every", Kind::Every, "what lies between two images")
        .or_nothing("no images")
        .used_by(&[Use::Given(&["checkpoint.local_dir"])]),
    key("checkpoint.keep", integer(1, COUNT_MAX), "newest checkpoints kept, beside the best")
        .or("2"),
    key("checkpoint.background", Kind::Flag, "copied, and written while training goes on")
        .or("true"),
    key("checkpoint.full_every", integer(1, COUNT_MAX), "one of so many has all rows; 1: all")
        .or("1")
        .used_by(&[Use::Names { key: "checkpoint.background", names: &["true"] }]),
    key("checkpoint.row_precision", names(&["f32", "bf16"]), "what rows are written as")
        .or("\"f32\""),
    key("checkpoint.resume", Kind::Path, "go on from: \"auto\" (the newest), \"none\", or a path")
        .or("\"auto\""),
    key("checkpoint.warm_start", Kind::Path, "a saved model that a new run begins with")
        .or_nothing("a run begins with a new model"),
    key("checkpoint.warm_state", Kind::Flag, "with its optimizer state")
        .or("true")
        .used_by(&[Use::Given(&["checkpoint.warm_start"])]),
];

/// Rows are saved between checkpoints.
const FIRST: &[Use] = &[Use::Names { key: "recovery.priority", names: &["scar", "mfu", "ssu"] }];
const PLAYED: Use = Use::Given(&["recovery.inject.failures"]);

const fn failures(names: &'static [&'static str]) -> Use {
    Use::Names { key: "recovery.inject.failures", names }
}

/// `[recovery]`
pub(super) static RECOVERY: &[Key] = &[
    key(
        "recovery.mode",
        names(&["full", "partial", "cpr"]),
        "who goes back to the last save after a failure: all, the lost rows, what costs less",
    )
    .or_nothing("all go back, by starting the job again"),
    key(
        "recovery.priority",
        names(&["none", "scar", "mfu", "ssu"]),
        "rows saved between two checkpoints: most changed, most updated, sampled",
    )
    .or("\"none\""),
    key("recovery.priority_share", FACTOR, "share of a large table's rows saved at a time")
        .or("0.125")
        .used_by(FIRST),
    key("recovery.priority_tables", integer(1, COUNT_MAX), "the so many largest tables are large")
        .or("7")
        .used_by(FIRST),
    key("recovery.pls_target", FACTOR, "portion of lost samples that may be expected")
        .or("0.02")
        .used_by(&[Use::Given(&["recovery.mode"])])
        .shared("recovery.mode = \"full\" or \"partial\", where no failures are played"),
    key("recovery.mtbf_s", POSITIVE, "mean time between failures of the job")
        .or_nothing("checkpoint.every says how often to save")
        .unit("s")
        .used_by(&[Use::Given(&["recovery.mode"])]),
    key("recovery.save_s", POSITIVE, "what a save takes")
        .or_nothing("it is measured")
        .unit("s")
        .used_by(&[Use::Given(&["recovery.mtbf_s"])]),
    key("recovery.load_s", NOT_NEGATIVE, "time until a save has been read")
        .or_nothing("of use to played failures alone, which must have it")
        .unit("s")
        .used_by(&[PLAYED]),
    key("recovery.reschedule_s", NOT_NEGATIVE, "time until a lost process is replaced")
        .or_nothing("of use to played failures alone, which must have it")
        .unit("s")
        .used_by(&[PLAYED]),
];

const fn beside(keys: &'static [&'static str]) -> Use {
    Use::Given(keys)
}

/// `[recovery.inject]`
pub(super) static INJECT: &[Key] = &[
    key(
        "recovery.inject.failures",
        names(&["exponential", "gamma", "uniform", "steps"]),
        "play failures: shards lose their rows to the last save",
    )
    .or_nothing("no played failures"),
    key("recovery.inject.failure_shape", POSITIVE, "shape of the distribution")
        .or_nothing("to be given with gamma")
        .used_by(&[failures(&["gamma"])]),
    key("recovery.inject.failure_steps", Kind::Steps, "steps after which they happen, [100, 250]")
        .or_nothing("to be given with steps")
        .unit("steps")
        .used_by(&[failures(&["steps"])]),
    key("recovery.inject.job_s", POSITIVE, "time that the run stands for")
        .or_nothing("to be given with failures")
        .unit("s")
        .used_by(&[PLAYED]),
    key("recovery.inject.shards", integer(1, COUNT_MAX), "shards of the rows")
        .derived(&[says("as many as there are partitions")])
        .used_by(&[PLAYED]),
    key("recovery.inject.lost_shards", integer(1, COUNT_MAX), "how many a failure takes")
        .or("1")
        .used_by(&[PLAYED]),
    key("recovery.inject.nan_trainer", integer(0, COUNT_MAX), "test: this replica gets a NaN")
        .or_nothing("")
        .used_by(&[beside(&["recovery.inject.nan_step"])]),
    key("recovery.inject.nan_step", at_least(0), "test: before this step")
        .or_nothing("")
        .used_by(&[beside(&["recovery.inject.nan_trainer"])]),
    key("recovery.inject.stop_step", at_least(0), "test: a request to stop in this step")
        .or_nothing(""),
    key("recovery.inject.panic_trainer", integer(0, COUNT_MAX), "test: this trainer panics")
        .or_nothing("")
        .used_by(&[beside(&["recovery.inject.panic_step"])]),
    key("recovery.inject.panic_step", at_least(0), "test: in this step, but not in a resumed run")
        .or_nothing("")
        .used_by(&[beside(&["recovery.inject.panic_trainer"])]),
    key("recovery.inject.kill_trainer", integer(0, COUNT_MAX), "test: SIGKILL to this trainer")
        .or_nothing("")
        .used_by(&[beside(&["recovery.inject.kill_step"])]),
    key("recovery.inject.kill_step", at_least(0), "test: in this step, once")
        .or_nothing("")
        .used_by(&[beside(&["recovery.inject.kill_trainer"])]),
    key("recovery.inject.short_trainer", integer(0, COUNT_MAX), "test: this trainer has less data")
        .or_nothing("")
        .used_by(&[beside(&["recovery.inject.short_share"])]),
    key("recovery.inject.short_share", FACTOR, "test: this share of it")
        .or_nothing("")
        .used_by(&[beside(&["recovery.inject.short_trainer"])]),
    key(
        "recovery.inject.slow_trainer",
        integer(0, COUNT_MAX),
        "test: one trainer is slow, not all",
    )
    .or_nothing("all are")
    .used_by(&[beside(&["recovery.inject.slow_factor"])]),
    key("recovery.inject.slow_factor", POSITIVE, "test: steps take so many times as long")
        .or_nothing("nobody is slow"),
    key("recovery.inject.slow_from", at_least(0), "test: from this step on")
        .or_nothing("from the first")
        .used_by(&[beside(&["recovery.inject.slow_factor"])]),
    key("recovery.inject.slow_to", at_least(0), "test: until this one")
        .or_nothing("to the last")
        .used_by(&[beside(&["recovery.inject.slow_factor"])]),
];

/// Methods of whose steps the loss over the global batch is known; a lone trainer's run with `auto`
/// is one of `none`, and its file of losses is empty.
const STEP_LOSSES: Use =
    Use::Methods(|method| matches!(method, SyncMethod::Auto | SyncMethod::None | SyncMethod::Bsp));

/// `[run]`
pub(super) static RUN: &[Key] = &[
    key("run.dir", Kind::Path, "run folder").derived(&[case(
        "runs/ and the name of the job file",
        "\"runs/small\"",
        &[],
    )]),
    key("run.overwrite", Kind::Flag, "replace a finished run in run.dir").or("false"),
    key("run.max_time", Kind::Seconds, "stop and save after: 3600 (seconds), \"55 min\", \"4 h\"")
        .or_nothing("no limit"),
    key("run.log_every_s", POSITIVE, "time between reports").or("10.0").unit("s"),
    key("run.tensorboard", Kind::Flag, "write TensorBoard event files").or("true"),
    key("run.trace", Kind::Flag, "write a Chrome trace").or("false"),
    key("run.step_losses", Kind::Flag, "write the loss of every step to losses.csv")
        .or("false")
        .used_by(&[STEP_LOSSES])
        .shared("sync.method = \"none\", which knows none"),
    key("run.watchdog_s", integer(1, i64::MAX), "time without progress before a complaint")
        .or("300")
        .unit("s"),
];
