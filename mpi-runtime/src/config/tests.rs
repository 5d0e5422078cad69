//! Bad configurations and what is said about them; precedence; defaults; the round trip. Every key
//! against the table: `key_tests.rs`.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::*;
use crate::error::Error;

/// A file with the required keys and nothing else; line 8 is its last.
const MINIMAL: &str = r#"[data]
train = "a.h5"
[model]
kind = "dlrm"
[optim]
dense = { kind = "sgd", lr = 0.1 }
[optim.sparse]
kind = "rowwise_adagrad"
lr = 0.05
"#;

/// The minimal file with `--set` arguments.
pub(super) fn minimal(sets: &[&str]) -> Result<Config, ConfigError> {
    parse(MINIMAL, sets)
}

fn parse(text: &str, sets: &[&str]) -> Result<Config, ConfigError> {
    let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
    Config::parse(text, Path::new("jobs/small.toml"), &sets)
}

/// What is added to the minimal file or command line, and the whole message.
const BAD_ARGUMENTS: &[(&str, &str)] = &[
    ("train.batch_size=0", "`train.batch_size = 0`: expected an integer from 1 to 1048576"),
    ("train.batch_size=2.5", "`train.batch_size = 2.5`: expected an integer from 1 to 1048576"),
    ("train.epochs=three", "`train.epochs = \"three\"`: expected an integer from 1 to 1048576"),
    ("optim.dense.lr=0", "`optim.dense.lr = 0`: expected a finite number, above 0"),
    ("optim.dense.lr=inf", "`optim.dense.lr = inf`: expected a finite number, above 0"),
    (
        "model.dropout=1.0",
        "`model.dropout = 1.0`: expected a finite number, at least 0 and below 1",
    ),
    ("data.shuffle=1", "`data.shuffle = 1`: expected true or false"),
    (
        "model.kind=dlrn",
        "`model.kind = \"dlrn\"`: expected one of \"dlrm\", \"deepfm\", \"fm\", \"lr\", \
         \"dcn_v2\", \"wide_deep\"",
    ),
    ("model.cross_layers=17", "`model.cross_layers = 17`: expected an integer from 0 to 16"),
    (
        "model.cross_rank=8",
        "`model.cross_rank = 8`: expected model.kind to be \"dcn_v2\": model.kind = \"dlrm\" has \
         no use for it",
    ),
    (
        "model.structure=stacked",
        "`model.structure = \"stacked\"`: expected model.kind to be \"dcn_v2\": model.kind = \
         \"dlrm\" has no use for it",
    ),
    (
        "sync.switch=1",
        "`sync.switch = 1`: `sync.switch` is a section; its keys are to, at, policy, window, \
         leave_above, return_below, patience",
    ),
    (
        "sync.switch.at=[0]",
        "`sync.switch.at = [0]`: expected a list of steps, for example [1000, 2000]",
    ),
    (
        "compress.mp_keep=0",
        "`compress.mp_keep = 0`: expected a finite number, above 0 and at most 1",
    ),
    (
        "optim.dense.kind=rowwise_adagrad",
        "`optim.dense.kind = \"rowwise_adagrad\"`: expected one of \"sgd\", \"momentum\", \
         \"adagrad\", \"adam\"",
    ),
    (
        "model.bottom=[64, 8]",
        "`model.bottom = [64, 8]`: expected the last width to equal model.embedding_dim = 16: the \
         interaction multiplies the two",
    ),
    (
        "model.top=[64, 0]",
        "`model.top = [64, 0]`: expected a list of at most 15 layer widths from 1 to 65536, for \
         example [512, 256]",
    ),
    (
        "model.embeding_dim=8",
        "unknown key `model.embeding_dim`; the nearest known key is `model.embedding_dim`",
    ),
    ("batch_size=8", "unknown key `batch_size`; the nearest known key is `train.batch_size`"),
    (
        "sync=bsp",
        "`sync = \"bsp\"`: `sync` is a section; its keys are method, every, gate, batch_norm, \
         alpha, \
         pair, intake, schedule, group_size, average_state, block_rate, block_momentum, nesterov, \
         poll_us, \
         min_interval_us, max_bytes_per_s, core_share, server, switch",
    ),
    (
        "roles.sync_ps=1",
        "`roles.sync_ps = 1`: expected 0: sync.method = \"auto\" has no center and no server",
    ),
    (
        "sync.alpha=0.5",
        "`sync.alpha = 0.5`: expected sync.method to be one of \"local_sgd\", \"shadow_easgd\", \
         \"shadow_ma\", \"shadow_bmuf\", \"foreground_easgd\", \"foreground_ma\", \
         \"foreground_bmuf\", \"ds_sync\", \"shadow_ds_sync\", \"ds_slowmo\": sync.method = \
         \"auto\" has no use for it",
    ),
    (
        "sync.server.bound=4",
        "`sync.server.bound = 4`: expected sync.method to be \"hop_bs\": sync.method = \"auto\" \
         has no use for it",
    ),
    (
        "optim.dense.beta1=0.5",
        "`optim.dense.beta1 = 0.5`: expected optim.dense.kind to be \"adam\": optim.dense.kind = \
         \"sgd\" has no use for it",
    ),
    (
        "optim.dense.final_lr=0.5",
        "`optim.dense.final_lr = 0.5`: expected optim.dense.decay_start_step beside it",
    ),
    (
        "model.batch_norm_momentum=0.5",
        "`model.batch_norm_momentum = 0.5`: expected model.batch_norm to be true: \
         model.batch_norm = false has no use for it",
    ),
    ("sync.core_share=0", "`sync.core_share = 0`: expected a finite number, above 0 and at most 1"),
    (
        "train.eval_every=100",
        "`train.eval_every = 100`: expected data.valid to be given: there is nothing to evaluate",
    ),
    (
        "optim.sparse.decay_steps=10",
        "`optim.sparse.decay_steps = 10`: expected optim.sparse.decay_start_step beside it: the \
         step the decay begins at",
    ),
    ("train", "expected KEY=VALUE, for example --set optim.dense.lr=0.01"),
];

/// What makes no sense of `[sync.switch]`.
#[test]
fn a_change_leads_from_one_method_to_another_that_begins_where_it_ended() {
    let losses = ["sync.method=bsp", "sync.switch.to=gba", "sync.switch.at=[5]"];
    let losses = [&losses[..], &["run.step_losses=true"]].concat();
    let cases: [(&[&str], &str); 9] = [
        (&losses, "only bsp knows"),
        (&["sync.switch.at=[5]"], "sync.switch.to"),
        (&["sync.method=bsp", "sync.switch.to=gba"], "sync.switch.at"),
        (&["sync.method=bsp", "sync.switch.to=bsp", "sync.switch.at=[5]"], "another method"),
        (&["sync.method=shadow_ma", "sync.switch.to=gba", "sync.switch.at=[5]"], "no one model"),
        (&["sync.method=bsp", "sync.switch.to=gba", "sync.switch.at=[5, 5]"], "ascending"),
        (
            &[
                "sync.method=bsp",
                "sync.switch.to=gba",
                "sync.switch.at=[5]",
                "sync.switch.window=9",
            ],
            "\"stragglers\" with window",
        ),
        (
            &["sync.method=bsp", "sync.switch.to=hop_bw", "sync.switch.policy=stragglers"],
            "\"bsp\" or \"bsp_ps\" for one of",
        ),
        (
            &[
                "sync.method=bsp",
                "sync.switch.to=gba",
                "sync.switch.policy=stragglers",
                "sync.switch.leave_above=1",
            ],
            "more than sync.switch.return_below",
        ),
    ];
    for (sets, expected) in cases {
        let error = minimal(sets).unwrap_err();
        assert!(error.to_string().contains(expected), "{sets:?}: {error}");
        assert_eq!(Error::from(error).exit_code(), 2);
    }
}

#[test]
fn a_bad_argument_is_one_message_that_names_it() {
    for (argument, message) in BAD_ARGUMENTS {
        let error = minimal(&[argument]).unwrap_err();
        assert_eq!(error.to_string(), format!("--set {argument}: {message}"));
        assert_eq!(Error::from(error).exit_code(), 2);
    }
}

#[test]
fn a_mistake_in_the_file_is_given_with_its_line() {
    for (text, message) in [
        (
            "[modle]\nkind = 1\n",
            "jobs/small.toml:11: unknown key `modle`; the nearest known key is `model`",
        ),
        (
            "[train]\nepochs = 1\nbatchsize = 8\n",
            "jobs/small.toml:13: unknown key `train.batchsize`; the nearest known key is \
             `train.batch_size`",
        ),
        (
            "[train]\nepochs = \"1\"\n",
            "jobs/small.toml:12: `train.epochs = \"1\"`: expected an integer from 1 to 1048576",
        ),
        (
            "[checkpoint]\nevery = 5\n[recovery]\nmode = \"cpr\"\nmtbf_s = 9\n",
            "jobs/small.toml:12: `checkpoint.every = 5 steps`: expected none with recovery.mtbf_s, \
             which says how far apart checkpoints are",
        ),
        (
            "[recovery]\nmode = \"full\"\nsave_s = 5\n",
            "`recovery.mtbf_s` is missing: give mean seconds between failures, beside \
             recovery.save_s, in the file or with --set recovery.mtbf_s=…",
        ),
        (
            "[checkpoint]\nlocal_every = 5\n",
            "`checkpoint.local_dir` is missing: give a folder of the node, beside \
             checkpoint.local_every, in the file or with --set checkpoint.local_dir=…",
        ),
        (
            "[recovery]\nmtbf_s = 5\n",
            "`recovery.mode` is missing: give \"full\", \"partial\" or \"cpr\", what is done about \
             failures, beside recovery.mtbf_s, in the file or with --set recovery.mode=…",
        ),
        (
            "[recovery.inject]\nfailures = \"gamma\"\n",
            "`recovery.mode` is missing: give \"full\", \"partial\" or \"cpr\", as the run plays \
             failures, in the file or with --set recovery.mode=…",
        ),
        (
            "[recovery]\nload_s = 3\n",
            "`recovery.inject.failures` is missing: give which failures the run is to play, since \
             recovery.load_s is given, in the file or with --set recovery.inject.failures=…",
        ),
        (
            "[recovery]\npriority = \"mfu\"\n",
            "`checkpoint.every` is missing: give what lies between two checkpoints, since \
             recovery.priority is given: rows that come first are saved between them, in the file \
             or with --set checkpoint.every=…",
        ),
        (
            "[recovery]\npriority = \"scar\"\nmode = \"full\"\n[checkpoint]\nevery = 100\n",
            "jobs/small.toml:12: `recovery.priority = set`: expected none with recovery.mode = \
             \"full\": everybody \
             goes back to one moment, and rows that were saved first are of another",
        ),
        (
            "[recovery]\npriority = \"ssu\"\n[checkpoint]\nevery = 100\nbackground = false\n",
            "jobs/small.toml:12: `recovery.priority = set`: expected none with \
             checkpoint.background = false: \
             rows that come first are saved from the copy of the last checkpoint",
        ),
        (
            "[train]\nepochs = \n",
            "jobs/small.toml:12: not valid TOML: string values must be quoted, expected literal \
             string",
        ),
        ("[model]\ntop = []\n", "jobs/small.toml:11: not valid TOML: duplicate key"),
        (
            "[roles]\nlayout = \"separate\"\n",
            "`roles.trainers` is missing: give the number of ranks that train, since roles.layout \
             = \"separate\", in the file or with --set roles.trainers=…",
        ),
        (
            "[recovery.inject]\nnan_step = 3\n",
            "`recovery.inject.nan_trainer` is missing: give the trainer with the fault, in the \
             file or with --set recovery.inject.nan_trainer=…",
        ),
        (
            "[train.early_stop]\nmetric = \"auc\"\n",
            "`train.early_stop.patience` is missing: give an integer from 1 to 1048576, in the \
             file or with --set train.early_stop.patience=…",
        ),
    ] {
        let error = parse(&format!("{MINIMAL}\n{text}"), &[]).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let first = parse("zeta = 1\nalpha = 2\n", &[]).unwrap_err();
    assert!(first.to_string().starts_with("jobs/small.toml:1: unknown key `zeta`"), "{first}");
    let missing = parse("", &[]).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "`data.train` is missing: give a file or a list of files, as strings, in the file or with \
         --set data.train=…"
    );
    let unreadable = Config::load(Some(Path::new("no/such.toml")), &[]).unwrap_err();
    assert!(unreadable.to_string().starts_with("cannot read the configuration no/such.toml: "));
}

#[test]
fn a_later_setting_wins() {
    let config = minimal(&["train.epochs=2", "seed=9", "train.epochs=3"]).unwrap();
    assert_eq!((config.train.epochs, config.seed), (3, 9));
    let text = format!("{MINIMAL}[train]\nepochs = 7\n");
    assert_eq!(parse(&text, &[]).unwrap().train.epochs, 7);
    assert_eq!(parse(&text, &["train.epochs=8"]).unwrap().train.epochs, 8);
    // A whole section at once replaces the keys it names and no others.
    let config = minimal(&["optim.sparse={kind=\"adam\", eps=1e-6}"]).unwrap();
    assert_eq!(config.optim.sparse.kind, OptimKind::Adam);
    assert_eq!((config.optim.sparse.lr, config.optim.sparse.eps), (0.05, 1e-6));
    // A contradiction points at the setting that won.
    let text = format!("{MINIMAL}[roles]\nsync_ps = 1\n");
    let error = parse(&text, &["roles.sync_ps=2"]).unwrap_err();
    assert!(error.to_string().starts_with("--set roles.sync_ps=2: "), "{error}");
    let error = parse(&text, &[]).unwrap_err();
    assert!(error.to_string().starts_with("jobs/small.toml:11: "), "{error}");
}

/// A worker's own gate is for the one foreground method whose trainers need not come together.
#[test]
fn a_gate_of_each_worker_is_for_foreground_easgd() {
    assert!(minimal(&["sync.method=foreground_easgd", "sync.gate=worker"]).is_ok());
    for method in
        ["bsp", "local_sgd", "foreground_ma", "foreground_bmuf", "ds_sync", "shadow_easgd"]
    {
        let of = format!("sync.method={method}");
        assert!(minimal(&[&of, "sync.gate=trainer"]).is_ok(), "{method}");
        let error = minimal(&[&of, "sync.gate=worker"]).unwrap_err().to_string();
        let message = format!(
            "--set sync.gate=worker: `sync.gate = \"worker\"`: expected sync.method to be \
             \"foreground_easgd\": sync.method = \"{method}\" has no use for it"
        );
        assert_eq!(error, message);
    }
}

#[test]
fn defaults_follow_the_keys_they_depend_on() {
    let config = minimal(&["train.batch_size=64", "optim.dense.kind=adam"]).unwrap();
    assert_eq!(config.data.train, [Path::new("a.h5")]);
    assert_eq!(config.run.dir, Path::new("runs/small"));
    assert_eq!(config.checkpoint.dir, Path::new("runs/small/checkpoints"));
    assert_eq!(config.train.eval_batch_size, 64);
    assert_eq!((config.optim.dense.eps, config.optim.sparse.eps), (1e-8, 1e-10));
    assert_eq!(config.train.worker_threads, None);
    let config = minimal(&["run.dir=r", "data.train=[\"a\",\"b\"]"]).unwrap();
    assert_eq!(config.checkpoint.dir, Path::new("r/checkpoints"));
    assert_eq!(config.data.train.len(), 2);
    let layers = |sets: &[&str]| minimal(sets).map(|config| config.model.cross_layers);
    assert_eq!(layers(&[]).unwrap(), 0);
    assert_eq!(layers(&["model.kind=dcn_v2"]).unwrap(), 3);
    let none = layers(&["model.kind=dcn_v2", "model.cross_layers=0"]).unwrap_err();
    assert!(none.to_string().contains("expected at least 1"), "{none}");
    for (kind, key) in [("dcn_v2", "bottom=[16]"), ("wide_deep", "cross_layers=1")] {
        let refused = minimal(&[&format!("model.kind={kind}"), &format!("model.{key}")]);
        let (name, _) = key.split_once('=').unwrap();
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(&format!("`model.{name} = ")), "{error}");
    }
    // Constants written twice, in `fill` and in `Default`, are the same.
    assert_eq!(minimal(&[]).unwrap().train, TrainConfig::default());
}

/// Data and the kind of the model are enough.
#[test]
fn the_least_job_learns() {
    let least = |kind: &str, sets: &[&str]| {
        let text = format!("data = {{ train = \"a.h5\" }}\nmodel = {{ kind = \"{kind}\" }}\n");
        parse(&text, sets)
    };
    let config = least("dlrm", &[]).unwrap();
    let OptimConfig { dense, sparse } = &config.optim;
    assert_eq!((dense.kind, dense.lr, dense.eps), (OptimKind::Adam, 1e-3, 1e-8));
    assert_eq!((sparse.kind, sparse.lr, sparse.eps), (OptimKind::RowwiseAdagrad, 0.05, 1e-10));
    assert_eq!((&config.model.bottom[..], &config.model.top[..]), (&[64, 16][..], &[64, 32][..]));
    let narrow = least("dlrm", &["model.embedding_dim=4", "model.top=[]"]).unwrap().model;
    assert_eq!((&narrow.bottom[..], &narrow.top[..]), (&[64, 4][..], &[][..]));
    for kind in ["deepfm", "fm", "lr", "dcn_v2", "wide_deep"] {
        let model = least(kind, &[]).unwrap().model;
        let is_deep = !matches!(kind, "fm" | "lr");
        assert_eq!((model.bottom.len(), model.top.is_empty()), (0, !is_deep), "{kind}");
    }
    // A rate belongs to an optimizer.
    let adam = least("lr", &["optim.sparse.kind=adam"]).unwrap().optim.sparse;
    assert_eq!((adam.lr, adam.eps), (1e-3, 1e-8));
    assert_eq!(
        least("lr", &["optim.dense.kind=sgd"]).unwrap_err().to_string(),
        "`optim.dense.lr` is missing: give a finite number, above 0, since optim.dense.kind = \
         \"sgd\" has no default of it, in the file or with --set optim.dense.lr=…"
    );
}

/// What was saved by a program that took more is read.
#[test]
fn a_saved_configuration_may_have_what_nobody_uses() {
    let text = format!("{MINIMAL}beta1 = 0.5\n");
    let unused = "expected optim.sparse.kind to be \"adam\"";
    assert!(parse(&text, &[]).unwrap_err().to_string().contains(unused));
    let saved = Config::saved(&text, Path::new("manifest.json")).unwrap();
    assert_eq!(saved.optim.sparse.beta1, 0.5);
}

#[test]
fn a_resolved_configuration_reads_back_equal() {
    let sets = [
        "data.valid=v.h5",
        "train.early_stop.patience=2",
        "optim.dense.decay_start_step=5",
        "optim.dense.decay_steps=5",
        "train.max_examples=100",
    ];
    let job = minimal(&sets).unwrap().resolve(2, 2, 4).unwrap();
    let text = job.config.to_toml().unwrap();
    let again = Config::parse(&text, Path::new("elsewhere.toml"), &[]).unwrap();
    assert_eq!(again, job.config, "{text}");
}

/// Whatever the method, a step is as large.
#[test]
fn methods_that_change_have_one_global_batch() {
    let common = ["sync.switch.at=[5]", "train.worker_threads=1", "sync.server.members=3"];
    for (method, to, expected) in [
        ("bsp", "gba", "a multiple of the 2 trainers"),
        ("gba", "async_ps", "as many as the workers of all trainers, 2"),
    ] {
        let (method, to) = (format!("sync.method={method}"), format!("sync.switch.to={to}"));
        let config = minimal(&[&common[..], &[&method, &to]].concat()).unwrap();
        let error = config.resolve(2, 2, 2).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
    let sets = ["sync.method=bsp", "sync.switch.to=gba", "sync.server.members=4"];
    let job = minimal(&[&common[..2], &sets[..]].concat()).unwrap().resolve(2, 2, 2).unwrap();
    assert_eq!((job.batches_per_step(), job.global_batch()), (4, 4 * 128));
}
