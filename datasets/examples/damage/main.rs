//! Damages datasets, one bit, one cut or a few bytes at a time, and says what reading them comes
//! to.
//!
//!     cargo run --release -p umbra-datasets --example damage -- \
//!         FOLDER ours|foreign FLIPS CUTS MUTATIONS [SEED]
//!
//! `ours`: files of every kind that umbra writes; `foreign`: as h5py writes them by default. FLIPS
//! single bits, shared out evenly over the regions of the files and within them, CUTS lengths,
//! evenly, and MUTATIONS of some bytes each. Each file is opened, verified and read whole, in one
//! of two children, which are started again when they crash or hang.
//!
//! An outcome is *detected* (an error that names the file), *harmless* (all that the file says is
//! as it was), *silent* (something else is read without an error), *unnamed* (an error without the
//! file's name), *panic*, *hang* (20 seconds) or *crash*. Files of the last five are kept in
//! FOLDER/kept. Prints a table of regions, then `id value` lines.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_precision_loss)]

mod originals;
mod trial;

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use umbra_core::rng::{Purpose, Stream};

use originals::Region;
use trial::{Contents, Damage};

/// A file to damage, and how.
#[derive(Clone)]
struct Trial {
    original: usize,
    region: String,
    damage: Damage,
}

const OUTCOMES: [&str; 7] = ["detected", "harmless", "silent", "unnamed", "panic", "hang", "crash"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, folder, originals @ ..] = &arguments[..]
        && word == "child"
    {
        let originals: Vec<PathBuf> = originals.iter().map(PathBuf::from).collect();
        return trial::child(Path::new(folder), &originals);
    }
    let [folder, kind, numbers @ ..] = &arguments[..] else {
        panic!("expected FOLDER ours|foreign FLIPS CUTS MUTATIONS [SEED]");
    };
    let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().unwrap()).collect();
    let [flips, cuts, mutations, seed @ ..] = &numbers[..] else {
        panic!("expected FLIPS CUTS MUTATIONS [SEED]");
    };
    let folder = Path::new(folder);
    let kept = folder.join("kept");
    let _ = fs::remove_dir_all(&kept);
    fs::create_dir_all(&kept).unwrap();
    let originals = match kind.as_str() {
        "ours" => originals::ours(folder),
        _ => originals::foreign(folder),
    };
    for path in &originals {
        let [one, two] = [(); 2].map(|()| Contents::read(path).unwrap());
        assert_eq!(one, two, "{} reads the same twice", path.display());
    }
    let stream = Stream::new(seed.first().copied().unwrap_or(1), Purpose::Test(3));
    let trials = plan(&originals, (*flips, *cuts, *mutations), stream);
    let begun = Instant::now();
    let outcomes = run(folder, &kept, &originals, &trials);
    report(&originals, &trials, &outcomes);
    println!("seconds {:.1}", begun.elapsed().as_secs_f64());
}

/// All that is to be tried, a function of the files, the numbers and the seed.
fn plan(
    originals: &[PathBuf],
    (flips, cuts, mutations): (u64, u64, u64),
    stream: Stream,
) -> Vec<Trial> {
    let regions: Vec<(usize, Region)> = originals
        .iter()
        .enumerate()
        .flat_map(|(number, path)| originals::regions(path).into_iter().map(move |r| (number, r)))
        .collect();
    let mut trials = Vec::new();
    for number in 0..flips {
        // Region after region; within one, evenly and anywhere in each share.
        let (original, region) = &regions[(number % regions.len() as u64) as usize];
        let (share, shares) = (number / regions.len() as u64, flips.div_ceil(regions.len() as u64));
        let bits = 8 * region.parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let (from, to) = (share * bits / shares, ((share + 1) * bits / shares).max(1));
        let bit = from.min(bits - 1) + stream.below(number, (to.max(from + 1) - from).max(1));
        let mut at = (bit.min(bits - 1) / 8) as usize;
        let part = region.parts.iter().find(|part| {
            let inside = at < part.len();
            if !inside {
                at -= part.len();
            }
            inside
        });
        let damage = Damage::Flip { at: part.unwrap().start + at, bit: (bit % 8) as u32 };
        trials.push(Trial { original: *original, region: region.name.clone(), damage });
    }
    let files = originals.len() as u64;
    for number in 0..cuts {
        let original = (number % files) as usize;
        let bytes = fs::metadata(&originals[original]).unwrap().len();
        let length = (number / files) * bytes / cuts.div_ceil(files);
        let damage = Damage::Cut { length: length as usize };
        trials.push(Trial { original, region: "cut".into(), damage });
    }
    for number in 0..mutations {
        let damage = Damage::Mutation { seed: stream.below(flips + number, u64::MAX) };
        let original = (number % files) as usize;
        trials.push(Trial { original, region: "mutation".into(), damage });
    }
    trials
}

/// Tries all, with two children at a time. Returns the outcomes, one a trial.
fn run(folder: &Path, kept: &Path, originals: &[PathBuf], trials: &[Trial]) -> Vec<String> {
    let next = Mutex::new(0..trials.len());
    let outcomes = Mutex::new(vec![String::new(); trials.len()]);
    std::thread::scope(|scope| {
        for _ in 0..CHILDREN {
            scope.spawn(|| {
                let start = || Reader::start(folder, originals);
                let mut reader = start();
                loop {
                    let Some(number) = next.lock().unwrap().next() else { break };
                    let mut outcome = reader.ask(&trials[number]);
                    if LOST.contains(&outcome.as_str()) {
                        reader = start();
                        if outcome == "crash" {
                            // What came before may have left it ill: asked again by itself.
                            let again = reader.ask(&trials[number]);
                            if LOST.contains(&again.as_str()) {
                                outcome = again;
                                reader = start();
                            } else {
                                outcome = format!("crash (not again alone: {again})");
                            }
                        }
                    }
                    let is_wrong = !["detected", "harmless"].contains(&word(&outcome));
                    if is_wrong {
                        keep(kept, originals, number, &trials[number], &outcome);
                    }
                    outcomes.lock().unwrap()[number] = outcome;
                }
            });
        }
    });
    outcomes.into_inner().unwrap()
}

/// First word of an outcome.
fn word(outcome: &str) -> &str {
    outcome.split(' ').next().unwrap_or_default()
}

fn keep(kept: &Path, originals: &[PathBuf], number: usize, trial: &Trial, outcome: &str) {
    let original = &originals[trial.original];
    let name = format!("{}-{number}.h5", word(outcome));
    fs::write(kept.join(&name), trial.damage.apply(&fs::read(original).unwrap())).unwrap();
    let stem = original.file_stem().unwrap().to_string_lossy().into_owned();
    println!("{name}: {stem}, {}, {:?}: {outcome}", trial.region, trial.damage);
}

fn report(originals: &[PathBuf], trials: &[Trial], outcomes: &[String]) {
    let mut table: BTreeMap<(String, String), HashMap<&str, u64>> = BTreeMap::new();
    for (trial, outcome) in trials.iter().zip(outcomes) {
        let file = originals[trial.original].file_stem().unwrap().to_string_lossy().into_owned();
        *table
            .entry((file, trial.region.clone()))
            .or_default()
            .entry(word(outcome))
            .or_default() += 1;
    }
    println!("{:>16} {:>26} {}", "file", "region", OUTCOMES.map(|o| format!("{o:>9}")).concat());
    for ((file, region), counts) in &table {
        let cells = OUTCOMES.map(|o| format!("{:>9}", counts.get(o).copied().unwrap_or(0)));
        println!("{file:>16} {region:>26} {}", cells.concat());
    }
    for (kind, is_kind) in KINDS {
        let of_kind = trials.iter().zip(outcomes).filter(|(trial, _)| is_kind(trial.damage));
        let words: Vec<&str> = of_kind.map(|(_, outcome)| word(outcome)).collect();
        println!("{kind} {}", words.len());
        for outcome in OUTCOMES {
            println!("{kind}_{outcome} {}", words.iter().filter(|w| **w == outcome).count());
        }
    }
}

type IsKind = fn(Damage) -> bool;

/// The kinds of damage, by the names that are printed.
const KINDS: [(&str, IsKind); 3] = [
    ("flips", |damage| matches!(damage, Damage::Flip { .. })),
    ("cuts", |damage| matches!(damage, Damage::Cut { .. })),
    ("mutations", |damage| matches!(damage, Damage::Mutation { .. })),
];

/// A child that reads.
struct Reader {
    process: Child,
    to: ChildStdin,
    from: Receiver<String>,
}

impl Reader {
    fn start(folder: &Path, originals: &[PathBuf]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .arg("child")
            .arg(folder)
            .args(originals)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let to = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (give, from) = channel();
        std::thread::spawn(move || {
            for line in lines {
                if line.is_err() || give.send(line.unwrap_or_default()).is_err() {
                    break;
                }
            }
        });
        Self { process, to, from }
    }

    /// Has the child read one, and says what came of it.
    fn ask(&mut self, trial: &Trial) -> String {
        // Of a child that is gone nothing comes back either.
        let _ = writeln!(self.to, "{} {}", trial.original, trial.damage.to_text());
        match self.from.recv_timeout(HANG) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => "hang".into(),
            Err(RecvTimeoutError::Disconnected) => "crash".into(),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let path = format!("bad-{}.h5", self.process.id());
        let _ = self.process.kill();
        let _ = self.process.wait();
        let folder = std::env::args().nth(1).unwrap_or_default();
        let _ = fs::remove_file(Path::new(&folder).join(path));
    }
}

/// After these there is no child.
const LOST: [&str; 2] = ["hang", "crash"];

const CHILDREN: usize = 2;

/// Nothing takes that long.
const HANG: Duration = Duration::from_secs(20);
