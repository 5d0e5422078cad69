//! The cluster file of `umbra simulate`: nodes, links and times that the job does not say.
//!
//! ```toml
//! fidelity = "timing"        # "timing": time alone; "training": the real model in virtual time
//! trainers = 8               # nodes that train; each runs the job's train.worker_threads
//! embedding_ps = 0           # nodes that hold rows; 0: the trainers hold them
//! sync_ps = 1                # slices of the center (*_easgd): on their own nodes, or on the first
//!                            # trainers when embedding_ps = 0; default the job's, else 1
//! cores = 0                  # of a trainer; 0: one for each thread
//! steps = 1000               # of a worker, whatever the data; default 1000. In "training" at most
//!                            # these; default: the data's
//! seconds = 60.0             # no step begins later; default: no such end
//! change_s = 0.2             # what a change of the method takes
//! collective = "doubling"    # how all trainers reduce: "doubling", as umbra does, "direct",
//!                            # "ring", "tree"
//!
//! [link]                     # of every node, full duplex
//! bytes_per_s = 1.25e9       # in each direction
//! latency_us = 20.0
//! overhead_us = 1.0          # time a message occupies the link beside its bytes
//!
//! [leaves]                   # switches under a common spine; without it one switch has all nodes
//! nodes = 16                 # trainers of a leaf
//! uplink_bytes_per_s = 5.0e9 # from a leaf to the spine, in each direction
//!
//! [compute]
//! example_us = 20.0          # forward and backward of an example, by one worker alone
//! jitter = "log_normal"      # "none", "uniform" (± spread), "log_normal" (sigma = spread)
//! spread = 0.1
//!
//! [memory]
//! copy_bytes_per_s = 5.0e9   # loading, storing and adding a replica
//! serve_bytes_per_s = 5.0e9  # a center's answer
//! code_bytes_per_s = 4.7e9   # [compress]: what is sent of a vector found and written
//! read_bytes_per_s = 2.9e10  # [compress]: what has come of a vector added to it
//!
//! [rows]
//! distinct = 1.0             # share of a batch's ids that are distinct rows
//! lookup_per_s = 1.0e7       # rows that a store looks up in a second
//! update_per_s = 1.0e7       # rows that it updates
//!
//! [[straggler]]              # any number of these four
//! trainer = 3
//! factor = 2.0               # on the time of its steps
//! from_step = 1000           # of the job; default always. For jobs that change their method
//! to_step = 2000
//!
//! [[pause]]
//! trainer = 1
//! from_s = 1.0
//! to_s = 2.0
//!
//! [[death]]
//! trainer = 2
//! at_s = 3.0                 # makes no step from then on
//!
//! [[short]]
//! trainer = 0
//! share = 0.1                # of a trainer's steps
//! ```
//!
//! Only `trainers`, `link.bytes_per_s` and `compute.example_us` have no default. Entries for
//! trainers that a cluster has not (in a sweep) do nothing.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::error::Error;

mod nodes;

pub use nodes::StepSizes;

/// A cluster file; the names are its keys.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// What is simulated.
    #[serde(default)]
    pub fidelity: Fidelity,
    /// Nodes that train.
    pub trainers: usize,
    /// Nodes that hold rows; 0: the trainers.
    #[serde(default)]
    pub embedding_ps: usize,
    /// Slices of the center.
    pub sync_ps: Option<usize>,
    /// Cores of a trainer; 0: one for each thread.
    #[serde(default)]
    pub cores: usize,
    /// Steps of a worker; in `training` at most.
    pub steps: Option<u64>,
    /// Virtual time after which no step begins. s
    pub seconds: Option<f64>,
    #[serde(default)]
    collective: Collective,
    leaves: Option<LeavesSection>,
    link: LinkSection,
    compute: ComputeSection,
    #[serde(default)]
    memory: MemorySection,
    #[serde(default)]
    rows: RowsSection,
    #[serde(default)]
    straggler: Vec<Straggler>,
    /// Seconds that a change of the method takes.
    #[serde(default = "change_s")]
    pub change_s: f64,
    #[serde(default)]
    pause: Vec<PauseEntry>,
    #[serde(default)]
    death: Vec<Death>,
    #[serde(default)]
    short: Vec<Short>,
}

/// What is simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fidelity {
    /// Time alone: bytes are declared.
    #[default]
    Timing,
    /// Every step trains the model.
    Training,
}

/// How all trainers reduce together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Collective {
    Direct,
    #[default]
    Doubling,
    Ring,
    Tree,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeavesSection {
    nodes: usize,
    uplink_bytes_per_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkSection {
    bytes_per_s: f64,
    #[serde(default = "latency_us")]
    latency_us: f64,
    #[serde(default = "overhead_us")]
    overhead_us: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ComputeSection {
    example_us: f64,
    #[serde(default)]
    jitter: JitterKind,
    #[serde(default = "spread")]
    spread: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JitterKind {
    None,
    Uniform,
    #[default]
    LogNormal,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MemorySection {
    copy_bytes_per_s: f64,
    serve_bytes_per_s: f64,
    code_bytes_per_s: f64,
    read_bytes_per_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RowsSection {
    distinct: f64,
    lookup_per_s: f64,
    update_per_s: f64,
}

/// A trainer that is slow.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Straggler {
    trainer: usize,
    /// On the time of its steps.
    pub factor: f64,
    /// From this step of the job on,
    from_step: Option<u64>,
    /// until this one.
    to_step: Option<u64>,
}

impl Straggler {
    const fn is_always(&self) -> bool {
        self.from_step.is_none() && self.to_step.is_none()
    }

    /// Slows `trainer` down in `step`.
    #[must_use]
    pub fn is_at(&self, trainer: usize, step: u64) -> bool {
        let steps = self.from_step.unwrap_or(0)..self.to_step.unwrap_or(u64::MAX);
        self.trainer == trainer && steps.contains(&step)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseEntry {
    trainer: usize,
    from_s: f64,
    to_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Death {
    trainer: usize,
    at_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Short {
    trainer: usize,
    share: f64,
}

impl Default for MemorySection {
    fn default() -> Self {
        Self {
            copy_bytes_per_s: 5e9,
            serve_bytes_per_s: 5e9,
            code_bytes_per_s: 4.7e9,
            read_bytes_per_s: 2.9e10,
        }
    }
}

impl Default for RowsSection {
    fn default() -> Self {
        Self { distinct: 1.0, lookup_per_s: 1e7, update_per_s: 1e7 }
    }
}

/// As measured on four ranks of one machine.
const fn change_s() -> f64 {
    0.2
}

const fn latency_us() -> f64 {
    20.0
}

const fn overhead_us() -> f64 {
    1.0
}

const fn spread() -> f64 {
    0.1
}

impl ClusterFile {
    /// Nodes alike, of which `embedding_ps` hold rows, on links of so many bytes per second in
    /// each direction and microseconds of latency; an example takes a worker `example_us`, and
    /// `distinct` of a batch's ids are distinct rows. What the file may leave out is as its
    /// defaults are.
    ///
    /// # Errors
    /// A rate or a time that can't be.
    pub fn alike(
        (trainers, embedding_ps): (usize, usize),
        (bytes_per_s, latency_us): (f64, f64),
        example_us: f64,
        distinct: f64,
    ) -> Result<Self, Error> {
        let (jitter, spread) = (JitterKind::default(), spread());
        let file = Self {
            fidelity: Fidelity::Timing,
            trainers,
            embedding_ps,
            sync_ps: None,
            cores: 0,
            steps: None,
            seconds: None,
            collective: Collective::default(),
            leaves: None,
            link: LinkSection { bytes_per_s, latency_us, overhead_us: overhead_us() },
            compute: ComputeSection { example_us, jitter, spread },
            memory: MemorySection::default(),
            rows: RowsSection { distinct, ..RowsSection::default() },
            straggler: vec![],
            change_s: change_s(),
            pause: vec![],
            death: vec![],
            short: vec![],
        };
        file.check().map_err(Error::Usage)?;
        Ok(file)
    }

    /// Reads a cluster file.
    ///
    /// # Errors
    /// A file that can't be read, an unknown key, or a value that can't be; the message has the
    /// place.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::Usage(format!("--cluster {}: cannot read it: {error}", path.display()))
        })?;
        Self::parse(&text).map_err(|message| Error::Usage(format!("{}{message}", path.display())))
    }

    /// Reads the text of one.
    ///
    /// # Errors
    /// As [`ClusterFile::load`]; the message begins with the place in the file.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            let line = 1 + text.as_bytes().iter().take(offset).filter(|&&b| b == b'\n').count();
            format!(":{line}: {}", error.message())
        })?;
        file.check().map_err(|message| format!(": {message}"))?;
        Ok(file)
    }

    fn check(&self) -> Result<(), String> {
        let positive = |key: &str, x: f64| {
            let fits = x > 0.0;
            if fits { Ok(()) } else { Err(format!("{key} = {x}: expected a number above 0")) }
        };
        let not_negative = |key: &str, x: f64| {
            let fits = x >= 0.0 && x.is_finite();
            if fits { Ok(()) } else { Err(format!("{key} = {x}: expected a number, at least 0")) }
        };
        if self.trainers == 0 {
            return Err("trainers = 0: expected an integer, at least 1".into());
        }
        let counts = [
            ("trainers", self.trainers),
            ("embedding_ps", self.embedding_ps),
            ("sync_ps", self.sync_ps.unwrap_or(1)),
            ("cores", self.cores),
        ];
        if let Some((key, count)) = counts.iter().find(|(_, count)| *count > COUNT_MAX) {
            return Err(format!("{key} = {count}: expected at most {COUNT_MAX}"));
        }
        if self.sync_ps == Some(0) {
            return Err("sync_ps = 0: expected an integer, at least 1".into());
        }
        positive("link.bytes_per_s", self.link.bytes_per_s)?;
        not_negative("link.latency_us", self.link.latency_us)?;
        not_negative("link.overhead_us", self.link.overhead_us)?;
        positive("compute.example_us", self.compute.example_us)?;
        if let Some(leaves) = self.leaves {
            positive("leaves.nodes", leaves.nodes as f64)?;
            positive("leaves.uplink_bytes_per_s", leaves.uplink_bytes_per_s)?;
        }
        not_negative("compute.spread", self.compute.spread)?;
        if self.compute.jitter == JitterKind::Uniform && self.compute.spread >= 1.0 {
            let spread = self.compute.spread;
            return Err(format!("compute.spread = {spread}: expected less than 1 for \"uniform\""));
        }
        positive("memory.copy_bytes_per_s", self.memory.copy_bytes_per_s)?;
        positive("memory.serve_bytes_per_s", self.memory.serve_bytes_per_s)?;
        positive("memory.code_bytes_per_s", self.memory.code_bytes_per_s)?;
        positive("memory.read_bytes_per_s", self.memory.read_bytes_per_s)?;
        positive("rows.lookup_per_s", self.rows.lookup_per_s)?;
        positive("rows.update_per_s", self.rows.update_per_s)?;
        positive("rows.distinct", self.rows.distinct)?;
        self.seconds.map_or(Ok(()), |seconds| positive("seconds", seconds))?;
        not_negative("change_s", self.change_s)?;
        for entry in &self.straggler {
            positive("straggler.factor", entry.factor)?;
        }
        let mut free = BTreeMap::new();
        for pause in &self.pause {
            not_negative("pause.from_s", pause.from_s)?;
            let free = free.entry(pause.trainer).or_insert(0.0);
            if pause.from_s < *free || !pause.to_s.is_finite() || pause.to_s <= pause.from_s {
                return Err(format!(
                    "[[pause]] of trainer {} from_s = {}, to_s = {}: expected pauses of a trainer \
                     in their order, each ending after it begins",
                    pause.trainer, pause.from_s, pause.to_s
                ));
            }
            *free = pause.to_s;
        }
        for entry in &self.death {
            not_negative("death.at_s", entry.at_s)?;
        }
        for Short { share, .. } in &self.short {
            if !(0.0..=1.0).contains(share) {
                return Err(format!("short.share = {share}: expected a number from 0 to 1"));
            }
        }
        Ok(())
    }

    /// Trainers that are slow for a time.
    pub fn slow_for_a_time(&self) -> impl Iterator<Item = Straggler> {
        self.straggler.iter().filter(|entry| !entry.is_always()).copied()
    }

    /// Trainers of a leaf switch, where there are any.
    #[must_use]
    pub fn nodes_of_leaf(&self) -> Option<usize> {
        self.leaves.map(|leaves| leaves.nodes)
    }
}

/// Nodes of a kind, or cores of one, at most: each takes memory before the first step.
const COUNT_MAX: usize = 1_000_000;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use umbra_core::units::Nanos;

    use super::*;
    use crate::config::Inject;

    const LEAST: &str = "trainers = 2\n[link]\nbytes_per_s = 1e9\n[compute]\nexample_us = 10\n";

    #[test]
    fn the_least_file_is_enough_and_mistakes_have_their_place() {
        let file = ClusterFile::parse(LEAST).unwrap();
        assert_eq!((file.fidelity, file.trainers, file.embedding_ps), (Fidelity::Timing, 2, 0));
        let many = LEAST.replace("trainers = 2", "trainers = 1000000000000000000");
        let message = ClusterFile::parse(&many).unwrap_err();
        assert!(message.ends_with("expected at most 1000000"), "{message}");
        for (wrong, expected) in [
            ("trainer = 2\n", ":1: unknown field `trainer`"),
            (
                "fidelity = \"fast\"\n",
                ":1: unknown variant `fast`, expected `timing` or `training`",
            ),
        ] {
            let message = ClusterFile::parse(&format!("{wrong}{LEAST}")).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
        }
        for (wrong, expected) in [
            (
                "[leaves]\nnodes = 1\nuplink_bytes_per_s = nan\n",
                ": leaves.uplink_bytes_per_s = NaN",
            ),
            ("spread = -1\n", ": compute.spread = -1: expected a number, at least 0"),
            ("[[pause]]\ntrainer = 0\nfrom_s = 2\nto_s = 1\n", ": [[pause]] of trainer 0"),
            ("[[short]]\ntrainer = 0\nshare = 2\n", ": short.share = 2: expected"),
            ("[[short]]\ntrainer = 0\nshares = 1\n", ":8: unknown field `shares`"),
        ] {
            let message = ClusterFile::parse(&format!("{LEAST}{wrong}")).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    /// The file that the documentation shows is one.
    #[test]
    fn the_documented_file_is_read() {
        let source = include_str!("mod.rs");
        let lines = source.lines().skip_while(|line| *line != "//! ```toml").skip(1);
        let text: String = lines
            .take_while(|line| *line != "//! ```")
            .map(|line| format!("{}\n", line.trim_start_matches("//!").trim_start()))
            .collect();
        let file = ClusterFile::parse(&text).unwrap();
        assert_eq!((file.trainers, file.steps, file.straggler.len()), (8, Some(1000), 1));
        let none = Inject::default();
        assert_eq!((file.steps_of(0, &none, 50), file.steps_of(1, &none, 50)), (5, 50));
        let inject = Inject { short_trainer: Some(1), short_share: Some(0.5), ..none };
        assert_eq!((file.steps_of(0, &inject, 50), file.steps_of(1, &inject, 50)), (5, 25));
        assert_eq!(file.end_of(2), Nanos(3_000_000_000));
        assert_eq!(file.end_of(1), Nanos(60_000_000_000));
    }
}
