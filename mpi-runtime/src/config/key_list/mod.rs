//! Every key a configuration may hold: the one place that defines them.
//!
//! Map: `learning.rs` what is learnt, from what and how; `cluster.rs` which rank does what and how
//! they keep together; `running.rs` what is kept of a run. Help, reference, schema, completions and
//! manual pages are made of it (`config/reference/`).

mod cluster;
mod learning;
mod running;

use super::keys::{Case, Key, Kind};

/// Layers an MLP may have beside its last: the core keeps shapes in arrays of 16.
pub const LAYERS_MAX: usize = 15;
/// Widest layer.
pub const WIDTH_MAX: i64 = 65_536;

/// Every key, in the order of the documentation.
pub(super) static SECTIONS: &[&[Key]] = &[
    learning::DATA,
    learning::MODEL,
    &learning::DENSE,
    &learning::SPARSE,
    learning::TRAIN,
    cluster::ROLES,
    cluster::SYNC,
    cluster::SERVER,
    cluster::SWITCH,
    cluster::COMPRESS,
    running::CHECKPOINT,
    running::RECOVERY,
    running::INJECT,
    running::RUN,
];

const fn key(path: &'static str, kind: Kind, about: &'static str) -> Key {
    Key::new(path, kind, about)
}

/// A default that a reader is told in words.
const fn says(says: &'static str) -> Case {
    Case { says, value: "", sets: &[], ranks: 1 }
}

/// A default on four ranks with these settings.
const fn case(says: &'static str, value: &'static str, sets: &'static [&'static str]) -> Case {
    Case { says, value, sets, ranks: 4 }
}

pub(super) const fn integer(low: i64, high: i64) -> Kind {
    Kind::Integer { low, high }
}

const fn at_least(low: i64) -> Kind {
    Kind::Integer { low, high: i64::MAX }
}

const fn names(built: &'static [&'static str]) -> Kind {
    Kind::Name { built }
}

pub(super) const POSITIVE: Kind =
    Kind::Number { low: 0.0, above: true, high: f64::INFINITY, below: false };
pub(super) const NOT_NEGATIVE: Kind =
    Kind::Number { low: 0.0, above: false, high: f64::INFINITY, below: false };
/// A share that must leave something: [0, 1).
pub(super) const SHARE: Kind = Kind::Number { low: 0.0, above: false, high: 1.0, below: true };
/// A factor that must keep something: (0, 1].
pub(super) const FACTOR: Kind = Kind::Number { low: 0.0, above: true, high: 1.0, below: false };

/// Greatest count of ranks, threads and the like.
const COUNT_MAX: i64 = 1 << 20;
