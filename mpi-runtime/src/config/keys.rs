//! What a key of a configuration may hold, and how a file is read against the list of them.
//!
//! The reader walks a file against [`keys`]: an unknown key names the nearest known one, a value is
//! checked for type and range before anything is built. The types in `types.rs` then hold what has
//! passed; tests keep the two in step, defaults included.

use toml::Value;

use super::every::{EXPECTED, EXPECTED_SECONDS, Every, Seconds};
use super::key_list::SECTIONS;
pub use super::key_list::{LAYERS_MAX, WIDTH_MAX};
pub use super::users::Use;

/// A key, what it may hold, and who has a use for it: all that help, reference and schema say.
pub struct Key {
    /// Dotted path, e.g. `optim.dense.lr`.
    pub path: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// Of a number, e.g. `s`; empty where it has none, or where the value itself has one.
    pub unit: &'static str,
    /// One line of what it is.
    pub about: &'static str,
    /// What it holds when it is not given.
    pub default: DefaultValue,
    /// What it holds, as TOML, in a job that has no use for it; empty: nothing, or its default.
    pub idle: &'static str,
    /// What must hold for a job to have a use for it, all of it; in other jobs it is refused.
    pub used_by: &'static [Use],
    /// Jobs that take no notice of it although they take it; empty: none.
    pub shared: &'static str,
}

/// What a key holds when it is not given.
#[derive(Clone, Copy)]
pub enum DefaultValue {
    /// It must be given, if its section is.
    Required,
    /// This, as TOML.
    Value(&'static str),
    /// It depends on the name that another key holds.
    By {
        /// The other key.
        key: &'static str,
        /// Names, and the value with these, as TOML.
        cases: &'static [(&'static [&'static str], &'static str)],
        /// Whether it must be given with other names.
        else_required: bool,
    },
    /// It depends on several keys, or on the launch.
    Derived(&'static [Case]),
    /// Nothing, and what that means.
    Nothing(&'static str),
}

/// A default that depends on several keys, or on the launch.
#[derive(Clone, Copy)]
pub struct Case {
    /// For readers.
    pub says: &'static str,
    /// The value as TOML; empty where no example is given.
    pub value: &'static str,
    /// Settings with which that is the default, on so many ranks.
    pub sets: &'static [&'static str],
    /// Ranks of the launch.
    pub ranks: usize,
}

impl Key {
    /// A key that must be given, of use to all.
    pub(super) const fn new(path: &'static str, kind: Kind, about: &'static str) -> Self {
        let (unit, idle, shared) = ("", "", "");
        Self {
            path,
            kind,
            unit,
            about,
            default: DefaultValue::Required,
            idle,
            used_by: &[],
            shared,
        }
    }

    /// With this default, as TOML.
    pub(super) const fn or(self, value: &'static str) -> Self {
        Self { default: DefaultValue::Value(value), ..self }
    }

    /// With a default that follows from what another key holds.
    pub(super) const fn by(
        self,
        key: &'static str,
        cases: &'static [(&'static [&'static str], &'static str)],
    ) -> Self {
        Self { default: DefaultValue::By { key, cases, else_required: false }, ..self }
    }

    /// The same, and to be given in all other cases.
    pub(super) const fn by_or_required(
        self,
        key: &'static str,
        cases: &'static [(&'static [&'static str], &'static str)],
    ) -> Self {
        Self { default: DefaultValue::By { key, cases, else_required: true }, ..self }
    }

    /// With a default that follows from more.
    pub(super) const fn derived(self, cases: &'static [Case]) -> Self {
        Self { default: DefaultValue::Derived(cases), ..self }
    }

    /// Without a default: what it means not to give it.
    pub(super) const fn or_nothing(self, means: &'static str) -> Self {
        Self { default: DefaultValue::Nothing(means), ..self }
    }

    /// What it holds where nobody has a use for it.
    pub(super) const fn idle(self, value: &'static str) -> Self {
        Self { idle: value, ..self }
    }

    /// In a unit.
    pub(super) const fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    /// Of use where all of this holds, refused elsewhere.
    pub(super) const fn used_by(self, used_by: &'static [Use]) -> Self {
        Self { used_by, ..self }
    }

    /// Taken by jobs that take no notice of it.
    pub(super) const fn shared(self, with: &'static str) -> Self {
        Self { shared: with, ..self }
    }

    /// The section it stands in, dotted; empty for none.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// Its default where one value is that of every job.
    #[must_use]
    pub fn value(&self) -> Option<Value> {
        let DefaultValue::Value(text) = self.default else { return None };
        text.parse().ok()
    }

    /// Its default beside these values of other keys, if the table alone says it.
    pub(super) fn default_beside<'a>(
        &self,
        of: impl Fn(&str) -> Option<&'a Value>,
    ) -> Option<Value> {
        let DefaultValue::By { key, cases, .. } = self.default else { return self.value() };
        let implied = find(key).and_then(Self::value);
        let name = of(key).or(implied.as_ref())?.as_str()?;
        let case = cases.iter().find(|(names, _)| names.contains(&name));
        case.map(|(_, value)| *value).unwrap_or(self.idle).parse().ok()
    }
}

/// What a key may hold.
#[derive(Clone, Copy)]
pub enum Kind {
    /// An integer, both ends included.
    Integer {
        /// Least.
        low: i64,
        /// Greatest.
        high: i64,
    },
    /// A finite number in an interval, written `[` or `(` at each end.
    Number {
        /// Lower end.
        low: f64,
        /// Whether the lower end itself is out.
        above: bool,
        /// Upper end.
        high: f64,
        /// Whether the upper end itself is out.
        below: bool,
    },
    /// How often.
    Every,
    /// A length of time.
    Seconds,
    /// true or false.
    Flag,
    /// A path.
    Path,
    /// A path or a list of paths.
    Files,
    /// A list of layer widths.
    Widths,
    /// A list of steps.
    Steps,
    /// A list of lists of names.
    Groups,
    /// A table of widths by name.
    NamedWidths,
    /// One of a few names.
    Name {
        /// Which.
        built: &'static [&'static str],
    },
}

/// Every key, in the order of the documentation.
pub fn keys() -> impl Iterator<Item = &'static Key> {
    SECTIONS.iter().copied().flatten()
}

/// The key at a dotted path.
#[must_use]
pub fn find(path: &str) -> Option<&'static Key> {
    keys().find(|key| key.path == path)
}

/// Whether keys stand below this path.
pub(super) fn is_section(path: &str) -> bool {
    keys().any(|key| {
        key.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }) && find(path).is_none()
}

/// The known key or section closest to an unknown path.
///
/// A key of the same name in another section comes before a misspelt one, so that a forgotten
/// `[train]` is found; a section is only named for a section.
pub(super) fn nearest(path: &str, wants_section: bool) -> &'static str {
    let name =
        SYNONYMS.iter().find(|(word, _)| *word == last(path)).map_or(last(path), |(_, name)| name);
    let path =
        &*if parent(path).is_empty() { name.into() } else { format!("{}.{name}", parent(path)) };
    // No key is like what is much longer, and who looks closer looks for long.
    let [path, name] = [path, name].map(|it| it.chars().take(NEAREST_MAX).collect::<String>());
    let (path, name) = (&*path, &*name);
    let distance = |candidate: &str| {
        let whole = strsim::damerau_levenshtein(path, candidate);
        let moved = 1 + strsim::damerau_levenshtein(name, last(candidate));
        let same_section = parent(path) == parent(candidate);
        // Within a section a spelling counts as it is; elsewhere a like name costs a little more.
        if same_section { whole } else { whole.min(moved * 2) }
    };
    let candidates: Vec<&'static str> =
        if wants_section { sections() } else { keys().map(|key| key.path).collect() };
    candidates.into_iter().min_by_key(|candidate| distance(candidate)).unwrap_or("seed")
}

/// Characters of an unknown path that are looked at.
const NEAREST_MAX: usize = 80;

/// Names directly below a section, for a message.
pub(super) fn members(section: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for key in keys() {
        let rest = key.path.strip_prefix(section).and_then(|rest| rest.strip_prefix('.'));
        if let Some(rest) = rest {
            let name = rest.split('.').next().unwrap_or(rest);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names.join(", ")
}

/// All sections, dotted.
fn sections() -> Vec<&'static str> {
    let mut found: Vec<&'static str> = Vec::new();
    for key in keys() {
        for (at, _) in key.path.match_indices('.') {
            if !found.contains(&&key.path[..at]) {
                found.push(&key.path[..at]);
            }
        }
    }
    found
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}

impl Kind {
    /// Whether a value fits; what was expected if it does not.
    pub(super) fn check(self, value: &Value) -> Result<(), String> {
        let fits = match (self, value) {
            (Self::Integer { low, high }, Value::Integer(x)) => (low..=high).contains(x),
            (Self::Number { .. }, Value::Integer(x)) => self.holds(*x as f64),
            (Self::Number { .. }, Value::Float(x)) => self.holds(*x),
            (Self::Every | Self::Seconds, Value::Integer(x)) => *x > 0,
            (Self::Seconds, Value::String(text)) => text.parse::<Seconds>().is_ok(),
            (Self::Every, Value::String(text)) => text.parse::<Every>().is_ok(),
            (Self::Flag, Value::Boolean(_)) => true,
            (Self::Path, Value::String(text)) => !text.is_empty(),
            (Self::Files, Value::String(text)) => !text.is_empty(),
            (Self::Files, Value::Array(items)) => {
                items.iter().all(|item| item.as_str().is_some_and(|text| !text.is_empty()))
            }
            (Self::Widths, Value::Array(items)) => {
                items.len() <= LAYERS_MAX && items.iter().all(is_width)
            }
            (Self::Steps, Value::Array(items)) => {
                items.iter().all(|item| item.as_integer().is_some_and(|step| step > 0))
            }
            (Self::Groups, Value::Array(groups)) => groups.iter().all(|group| {
                let names = |group: &Vec<Value>| group.iter().all(Value::is_str);
                group.as_array().is_some_and(|group| group.len() > 1 && names(group))
            }),
            (Self::NamedWidths, Value::Table(widths)) => widths.values().all(is_width),
            (Self::Name { built }, Value::String(text)) => built.contains(&text.as_str()),
            _ => false,
        };
        if fits { Ok(()) } else { Err(self.expected()) }
    }

    /// What it takes, as the end of "expected …".
    pub(super) fn expected(self) -> String {
        match self {
            Self::Integer { low, high: i64::MAX } => format!("an integer, at least {low}"),
            Self::Integer { low, high } => format!("an integer from {low} to {high}"),
            Self::Number { low, above, high, below } => {
                let low = if low == f64::NEG_INFINITY {
                    None
                } else {
                    Some(format!("{} {low}", if above { "above" } else { "at least" }))
                };
                let high = if high == f64::INFINITY {
                    None
                } else {
                    Some(format!("{} {high}", if below { "below" } else { "at most" }))
                };
                let ends: Vec<String> = low.into_iter().chain(high).collect();
                format!("a finite number, {}", ends.join(" and "))
            }
            Self::Every => EXPECTED.into(),
            Self::Seconds => EXPECTED_SECONDS.into(),
            Self::Flag => "true or false".into(),
            Self::Path => "a path, as a string".into(),
            Self::Files => "a file or a list of files, as strings".into(),
            Self::Widths => format!(
                "a list of at most {LAYERS_MAX} layer widths from 1 to {WIDTH_MAX}, for example \
                 [512, 256]"
            ),
            Self::Steps => "a list of steps, for example [1000, 2000]".into(),
            Self::Groups => "a list of lists of two names or more, for example [[\"item\", \
                             \"last_item\"]]"
                .into(),
            Self::NamedWidths => {
                format!("a table of widths from 1 to {WIDTH_MAX}, for example {{ item = 64 }}")
            }
            Self::Name { built, .. } => {
                let quoted: Vec<String> = built.iter().map(|name| format!("\"{name}\"")).collect();
                format!("one of {}", quoted.join(", "))
            }
        }
    }

    /// Whether a bare word on the command line is meant as a string.
    pub(super) const fn takes_text(self) -> bool {
        matches!(self, Self::Every | Self::Seconds | Self::Path | Self::Files | Self::Name { .. })
    }

    fn holds(self, x: f64) -> bool {
        let Self::Number { low, above, high, below } = self else { return false };
        x.is_finite()
            && (if above { x > low } else { x >= low })
            && (if below { x < high } else { x <= high })
    }
}

fn is_width(value: &Value) -> bool {
    value.as_integer().is_some_and(|width| (1..=WIDTH_MAX).contains(&width))
}

/// Words of other programs for names of ours that no spelling leads to.
const SYNONYMS: &[(&str, &str)] = &[
    ("learning_rate", "lr"),
    ("epsilon", "eps"),
    ("l2", "weight_decay"),
    ("optimizer", "kind"),
    ("type", "kind"),
    ("threads", "worker_threads"),
    ("workers", "worker_threads"),
];

#[cfg(test)]
mod tests {
    use super::super::key_list::{FACTOR, NOT_NEGATIVE, POSITIVE, SHARE, integer};
    use super::*;

    #[test]
    fn nearest_finds_misspelt_and_misplaced_keys() {
        for (unknown, expected) in [
            ("model.embeding_dim", "model.embedding_dim"),
            ("optim.dense.learning_rate", "optim.dense.lr"),
            ("train.threads", "train.worker_threads"),
            ("optim.dens.lr", "optim.dense.lr"),
            ("batch_size", "train.batch_size"),
            ("train.batchsize", "train.batch_size"),
            ("train.overwrite", "run.overwrite"),
            ("sync.evry", "sync.every"),
            ("sede", "seed"),
        ] {
            assert_eq!(nearest(unknown, false), expected, "for {unknown}");
        }
        assert_eq!(nearest("modle", true), "model");
        assert_eq!(nearest("optim.spars", true), "optim.sparse");
        assert_eq!(nearest("early_stop", true), "train.early_stop");
    }

    #[test]
    fn ranges_are_closed_or_open_as_written() {
        let fits = |kind: Kind, value: Value| kind.check(&value).is_ok();
        assert!(fits(SHARE, Value::Float(0.0)) && !fits(SHARE, Value::Integer(1)));
        assert!(!fits(FACTOR, Value::Integer(0)) && fits(FACTOR, Value::Integer(1)));
        assert!(!fits(POSITIVE, Value::Float(f64::INFINITY)));
        assert!(!fits(NOT_NEGATIVE, Value::Float(f64::NAN)));
        assert!(fits(integer(1, 3), Value::Integer(3)) && !fits(integer(1, 3), Value::Integer(4)));
    }
}
