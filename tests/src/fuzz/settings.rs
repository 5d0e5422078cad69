//! What users write: job files, `--set`, cluster files, schemas; and lists of cores.

use std::path::Path;

use umbra_datasets::prepare::fuzz::schema as read_schema;
use umbra_mpi::config::{Config, convert};
use umbra_mpi::launch::environment::Cores;
use umbra_mpi::simulate::cluster::{ClusterFile, StepSizes};

use super::mutate::Dice;
use super::targets::Fuzzed;

/// A file, and behind each of these a `--set`.
const SET: char = '\x1f';

/// The keys without a default.
const LEAST: [&str; 6] = [
    "data.train=a.h5",
    "model.kind=dlrm",
    "optim.dense.kind=sgd",
    "optim.dense.lr=1",
    "optim.sparse.kind=sgd",
    "optim.sparse.lr=1",
];

pub(super) fn least() -> Vec<String> {
    LEAST.map(String::from).to_vec()
}

const FILES: [&str; 4] = [
    include_str!("../../../hpc/jobs/demo.toml"),
    include_str!("../../../hpc/jobs/frappe-dcnv2.toml"),
    include_str!("../../../hpc/show/gba.toml"),
    include_str!("../../../hpc/show/dssync.toml"),
];

/// Keys that other files have not.
const SETS: &str = "\x1fsync.method=shadow_easgd\x1fsync.servers=2\x1fcompress.dp_keep=0.01\
    \x1fcheckpoint.every=10min\x1frecovery.mode=partial\x1fembedding.pool_at=ps\
    \x1fembedding.placement=tables\x1ftrain.precision=bf16\x1fsync.switch.at=[1,2]";

pub(super) fn job() -> Fuzzed {
    let with_sets = FILES.iter().map(|file| format!("{}{SETS}", without_comments(file)));
    let good = FILES.iter().map(|file| without_comments(file)).chain(with_sets).chain([whole()]);
    Fuzzed::new(good.map(String::into_bytes).collect(), |case, dice| {
        let text = String::from_utf8_lossy(case);
        let mut parts = text.split(SET).map(str::to_owned);
        let file = parts.next().unwrap_or_default();
        configured(&file, &parts.collect::<Vec<_>>(), dice)
    })
}

/// Every key, as a run folder has them.
fn whole() -> String {
    Config::parse("", Path::new("job.toml"), &least()).unwrap().to_toml().unwrap()
}

fn without_comments(file: &str) -> String {
    let code = file.lines().map(|line| line.split('#').next().unwrap_or_default().trim_end());
    code.filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect()
}

pub(super) fn set() -> Fuzzed {
    let good = LEAST.iter().copied().chain(SETS.split(SET).filter(|set| !set.is_empty()));
    let more = ["model.top=[64, 32]", "run.dir=2026-01-01", "data.train=[\"a\", 'b']", "sync={}"];
    let good = good.chain(more).map(|set| set.as_bytes().to_vec()).collect();
    Fuzzed::new(good, |case, dice| {
        let mut sets = least();
        sets.push(String::from_utf8_lossy(case).into_owned());
        configured("", &sets, dice)
    })
}

/// Reads a configuration; one that is good is written and read again, and resolved.
fn configured(file: &str, sets: &[String], dice: &mut Dice) -> Result<bool, String> {
    let path = Path::new("job.toml");
    let config = match Config::parse(file, path, sets) {
        Ok(config) => config,
        Err(error) if error.to_string().trim().is_empty() => return Err("no message".into()),
        Err(_) => return Ok(false),
    };
    let written = config.to_toml().map_err(|error| format!("{error} of {config:?}"))?;
    let again =
        Config::parse(&written, path, &[]).map_err(|error| format!("{error}: {written}"))?;
    if again != config {
        return Err(format!("{config:?} is read again as {again:?}"));
    }
    let ranks = 1 + dice.below(9);
    let resolved = config.clone().resolve(ranks, 1 + dice.below(ranks), 1 + dice.below(5));
    if let Err(error) = resolved
        && error.to_string().trim().is_empty()
    {
        return Err("no message".into());
    }
    // Whatever it describes, making it takes no memory.
    let _ = convert::trained_model(&config, dice.below(20), dice.below(30));
    Ok(true)
}

const CLUSTER: &str = "trainers = 3\nembedding_ps = 0\nsync_ps = 1\ncores = 2\nsteps = 9\n\
    seconds = 60.0\nchange_s = 0.2\ncollective = \"ring\"\n\
    [link]\nbytes_per_s = 1.25e9\nlatency_us = 20.0\noverhead_us = 1.0\n\
    [leaves]\nnodes = 2\nuplink_bytes_per_s = 5.0e9\n\
    [compute]\nexample_us = 20.0\njitter = \"uniform\"\nspread = 0.1\n\
    [memory]\ncopy_bytes_per_s = 5.0e9\nserve_bytes_per_s = 5.0e9\ncode_bytes_per_s = 4.7e9\n\
    read_bytes_per_s = 2.9e10\n\
    [rows]\ndistinct = 1.0\nlookup_per_s = 1.0e7\nupdate_per_s = 1.0e7\n\
    [[straggler]]\ntrainer = 1\nfactor = 2.0\n\
    [[pause]]\ntrainer = 1\nfrom_s = 1e-3\nto_s = 2e-3\n\
    [[death]]\ntrainer = 2\nat_s = 3.0\n[[short]]\ntrainer = 0\nshare = 0.5\n";
const SMALL_CLUSTER: &str = "fidelity = \"timing\"\ntrainers = 2\nembedding_ps = 1\n\
    collective = \"tree\"\n[link]\nbytes_per_s = 1e9\n[compute]\nexample_us = 10\n\
    jitter = \"log_normal\"\n";

fn clusters() -> Vec<Vec<u8>> {
    [CLUSTER, SMALL_CLUSTER].map(|text| text.as_bytes().to_vec()).to_vec()
}

/// A cluster file, and the cluster that it describes to a small job.
pub(super) fn cluster() -> Fuzzed {
    Fuzzed::new(clusters(), |case, dice| {
        let file = match ClusterFile::parse(&String::from_utf8_lossy(case)) {
            Ok(file) => file,
            Err(message) if message.starts_with(':') => return Ok(false),
            Err(message) => return Err(format!("a message without a place: {message}")),
        };
        let trainers = 2 + dice.below(3);
        let mut sets = least();
        sets.extend([format!("roles.trainers={trainers}"), "train.worker_threads=1".into()]);
        let config = Config::parse("", Path::new("job.toml"), &sets).map_err(|e| e.to_string())?;
        let job = config.resolve(trainers, 1, 2).map_err(|error| error.to_string())?;
        let sizes =
            StepSizes { batch: 128, ids: 26, width: 16, replica: 10_000, coded_share: Some(0.02) };
        let cluster = file.cluster(&job, file.steps.unwrap_or(1000), sizes);
        if cluster.trainers.len() == trainers { Ok(true) } else { Err(format!("{cluster:?}")) }
    })
}

pub(super) fn schema() -> Fuzzed {
    let adult = include_str!("../../../hpc/jobs/adult.schema.toml");
    let own = "label = \"clicked\"\nmissing = [\"NA\"]\nquote = false\n\
        dense = [{ column = \"price\", transform = \"zscore\", clip = [0, 1e5], fill = 1.5 }]\n\
        sparse = [{ column = \"item\", separator = \" \", max_length = 2, keep = \"last\" },\n\
        { column = \"age\", buckets = [18, 30, 50] }, { column = \"user\", hash_size = 64 }]\n\
        cross = [{ columns = [\"user\", \"item\"], hash_size = 100 }]\n";
    let good = [without_comments(adult), own.to_owned()].map(String::into_bytes).to_vec();
    Fuzzed::new(good, |case, _| {
        Ok(read_schema(&String::from_utf8_lossy(case), b"clicked,price,item,age,user"))
    })
}

pub(super) fn cores() -> Fuzzed {
    let good = ["0-3,8", "\t0-1\n", "7", "0,2,4-6,8-63,64-127"];
    Fuzzed::new(good.map(|list| list.as_bytes().to_vec()).to_vec(), |case, _| {
        let cores = Cores::parse(&String::from_utf8_lossy(case));
        let again = Cores::parse(&cores.to_string());
        if again == cores { Ok(cores.count() > 0) } else { Err(format!("{cores}: {again}")) }
    })
}
