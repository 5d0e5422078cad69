//! The table of keys, for those who read it: [`help`] on a terminal, [`page`] in Markdown,
//! [`schema`] for editors; completions and manual pages (`cli/reference.rs`) show the same.
//!
//! What a key takes, holds and is used by is put into words here, once for all of them.

mod page;
mod schema;

pub use page::page;
pub use schema::schema;

use core::fmt::Write as _;
use std::sync::LazyLock;

use super::keys::{DefaultValue, Key, Kind, LAYERS_MAX, Use, WIDTH_MAX, keys};
use super::users::may_be;

/// How words of the file are set off from those about it.
type Quote = fn(&str) -> String;

/// All keys, for `umbra train --help`.
#[must_use]
pub fn help() -> String {
    let mut text = String::from(
        "Keys of the job file and of --set. A key that a job has no use for is refused.\n",
    );
    let mut section = "";
    for key in keys() {
        if key.section() != section {
            section = key.section();
            // Writing to a String cannot fail.
            let _ = writeln!(text, "\n[{section}]");
        }
        let _ = writeln!(text, "  {}", key.path);
        wrap(&mut text, &sentences(key));
    }
    text
}

/// All that is said of a key where there is no table.
#[must_use]
pub fn sentences(key: &Key) -> String {
    let plain: Quote = str::to_owned;
    let sentences = [
        sentence(key.about),
        sentence(&format!("Takes {}", takes(key, plain))),
        sentence(&format!("Default: {}", default(key, plain))),
        used(key, plain),
    ];
    sentences.join(" ").trim_end().to_owned()
}

/// What a key takes, and in which unit.
fn takes(key: &Key, quote: Quote) -> String {
    let kind = match key.kind {
        Kind::Integer { low, high: i64::MAX } => format!("an integer, at least {low}"),
        Kind::Integer { low, high } => format!("an integer, {low} to {high}"),
        Kind::Number { low, above, high, below } if high.is_finite() => {
            let (open, close) = (if above { '(' } else { '[' }, if below { ')' } else { ']' });
            format!("a number in {open}{low}, {high}{close}")
        }
        Kind::Number { low, above, .. } => {
            format!("a number, {} {low}", if above { "above" } else { "at least" })
        }
        Kind::Every => "steps, or a text with a unit: steps, examples, s, min, h".into(),
        Kind::Seconds => "seconds, or a text with a unit: s, min, h".into(),
        Kind::Flag => format!("{} or {}", quote("true"), quote("false")),
        Kind::Path => "a path".into(),
        Kind::Files => "a path or a list of paths".into(),
        Kind::Widths => format!("a list of at most {LAYERS_MAX} widths, 1 to {WIDTH_MAX}"),
        Kind::Steps => "a list of steps".into(),
        Kind::Groups => "a list of lists of two names or more".into(),
        Kind::NamedWidths => format!("a table of widths, 1 to {WIDTH_MAX}, by field"),
        Kind::Name { built } => list(built, quote),
    };
    let is_count = matches!(key.kind, Kind::Integer { .. } | Kind::Number { .. });
    if key.unit.is_empty() || !is_count { kind } else { format!("{kind} ({})", key.unit) }
}

/// What a key holds when it is not given.
fn default(key: &Key, quote: Quote) -> String {
    match key.default {
        DefaultValue::Required if key.section() == super::EARLY_STOP => {
            "must be given if its section is".into()
        }
        DefaultValue::Required => "must be given".into(),
        DefaultValue::Value(value) => quote(value),
        DefaultValue::By { key, cases, else_required } => {
            let with = |(names, value): &(&[&'static str], &str)| {
                let names: Vec<_> = names.iter().copied().filter(|it| may_be(key, it)).collect();
                format!("{} if {key} is {}", quote(value), either(&names, quote))
            };
            let mut words: Vec<String> = cases.iter().map(with).collect();
            if else_required {
                words.push("must be given otherwise".into());
            }
            words.join("; ")
        }
        DefaultValue::Derived(cases) => {
            let words: Vec<&str> = cases.iter().map(|case| case.says).collect();
            words.join("; ")
        }
        DefaultValue::Nothing("") => "none".into(),
        DefaultValue::Nothing(means) => format!("none: {means}"),
    }
}

/// Who has a use for a key, as sentences; empty where all have.
fn used(key: &Key, quote: Quote) -> String {
    let mut words: Vec<String> = Vec::new();
    for it in key.used_by {
        let names = it.names();
        words.push(match (it, it.key()) {
            (Use::Given(_), _) | (_, None) => format!("beside {}", either(&names, quote)),
            (_, Some(key)) => format!("with {key} = {}", either(&names, quote)),
        });
    }
    let mut text = String::new();
    if !words.is_empty() {
        let _ = write!(text, "Only {}.", words.join(" and "));
    }
    if !key.shared.is_empty() {
        let space = if text.is_empty() { "" } else { " " };
        let _ = write!(text, "{space}Taken, and without effect, with {}.", key.shared);
    }
    text
}

/// Names as a file has them, the last after "or".
fn either(names: &[&str], quote: Quote) -> String {
    match names {
        [] => "none".into(),
        [one] => quote(one),
        [others @ .., last] => format!("{} or {}", list(others, quote), quote(last)),
    }
}

fn list(names: &[&str], quote: Quote) -> String {
    let names: Vec<String> = names.iter().map(|name| quote(name)).collect();
    names.join(", ")
}

/// With a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}

/// Adds a paragraph of lines that fit a terminal.
fn wrap(text: &mut String, paragraph: &str) {
    const INDENT: &str = "      ";
    const COLUMNS: usize = 96;
    let mut columns = 0;
    for word in paragraph.split_whitespace() {
        let width = word.chars().count();
        if columns > 0 && columns + 1 + width > COLUMNS {
            text.push('\n');
            columns = 0;
        }
        text.push_str(if columns == 0 { INDENT } else { " " });
        columns = if columns == 0 { INDENT.len() } else { columns + 1 } + width;
        text.push_str(word);
    }
    text.push('\n');
}

/// What can stand after `--set`, for a shell to complete: every key with its sign, and where it
/// takes one of a few words, with each.
#[must_use]
pub fn settings() -> &'static [String] {
    static ALL: LazyLock<Vec<String>> = LazyLock::new(|| keys().flat_map(settings_of).collect());
    &ALL
}

fn settings_of(key: &Key) -> Vec<String> {
    let with = |name: &&str| format!("{}={}", key.path, name);
    match key.kind {
        Kind::Name { built } => built.iter().map(with).collect(),
        Kind::Flag => ["true", "false"].iter().map(with).collect(),
        _ => vec![format!("{}=", key.path)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_fits_a_terminal_and_has_every_key() {
        let text = help();
        for key in keys() {
            assert!(text.contains(&format!("\n  {}\n", key.path)), "{}", key.path);
        }
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|columns| columns <= 100), "{widest:?}");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("Default: 16 if sync.method is local_sgd, "), "{text}");
        assert!(text.contains("Only with model.kind = dcn_v2."), "{text}");
    }

    #[test]
    fn a_shell_is_offered_what_a_key_takes() {
        let settings = settings();
        for setting in ["optim.dense.lr=", "sync.method=bsp", "data.shuffle=false"] {
            assert!(settings.iter().any(|other| other == setting), "{setting}");
        }
        assert!(settings.iter().all(|setting| setting.contains('=') && !setting.contains(' ')));
    }
}
