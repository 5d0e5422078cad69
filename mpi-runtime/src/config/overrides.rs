//! `--set KEY=VALUE`: one setting on the command line, in the file's own terms.
//!
//! KEY is dotted. VALUE is TOML; what is not TOML, or stands where a key wants text, is a string:
//! `--set data.train=a.h5` needs no quotes, nor does `--set run.dir=2026-01-01`. A number is also
//! taken as other programs write it: `.1`, `1.`.

use toml::Value;

use super::error::ConfigError;
use super::keys::{self, Kind};

/// A `--set` argument taken apart.
pub(super) struct Override {
    /// Dotted key as typed, not yet known to exist.
    pub(super) key: String,
    /// Its value.
    pub(super) value: Value,
}

/// Takes one argument apart.
pub(super) fn parse(argument: &str) -> Result<Override, ConfigError> {
    let malformed = || ConfigError::Override { argument: argument.into() };
    let (key, text) = argument.split_once('=').ok_or_else(malformed)?;
    let (key, text) = (key.trim(), text.trim());
    if key.is_empty() || key.split('.').any(str::is_empty) {
        return Err(malformed());
    }
    let toml = text.parse::<Value>().ok();
    let kind = keys::find(key).map(|key| key.kind);
    let wants_text = kind.is_some_and(Kind::takes_text);
    let value = match toml {
        Some(value) if !wants_text || value.is_str() || value.is_array() => value,
        None if matches!(kind, Some(Kind::Number { .. })) => number(text),
        _ => Value::String(text.into()),
    };
    Ok(Override { key: key.into(), value })
}

/// A number that TOML would write otherwise; what is none stays text.
fn number(text: &str) -> Value {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let number = text.parse().ok().filter(|_| plain).map(Value::Float);
    number.unwrap_or_else(|| Value::String(text.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_are_toml_or_text() {
        for (argument, expected) in [
            ("train.epochs=3", Value::Integer(3)),
            ("optim.dense.lr = 1e-3", Value::Float(1e-3)),
            ("data.shuffle=false", Value::Boolean(false)),
            ("model.top=[64, 32]", Value::Array(vec![Value::Integer(64), Value::Integer(32)])),
            ("model.kind=dlrm", Value::String("dlrm".into())),
            ("model.kind=\"dlrm\"", Value::String("dlrm".into())),
            ("data.train=/a=b.h5", Value::String("/a=b.h5".into())),
            ("run.dir=2026-01-01", Value::String("2026-01-01".into())),
            ("train.epochs=three", Value::String("three".into())),
            ("optim.dense.lr=.1", Value::Float(0.1)),
            ("optim.dense.lr=1.", Value::Float(1.0)),
            ("optim.dense.lr=+1", Value::Integer(1)),
            ("optim.dense.lr=+.5e-1", Value::Float(0.05)),
            ("optim.dense.lr=infinity", Value::String("infinity".into())),
            ("optim.dense.lr=.", Value::String(".".into())),
            ("run.dir=.1", Value::String(".1".into())),
            ("train.epochs=1.", Value::String("1.".into())),
        ] {
            let parsed = parse(argument).unwrap();
            assert_eq!(parsed.value, expected, "for {argument}");
            assert_eq!(parsed.key, argument.split('=').next().unwrap().trim());
        }
        for argument in ["train.epochs", "=3", "train..epochs=3", ".x=1"] {
            assert!(parse(argument).is_err(), "{argument} must be refused");
        }
    }
}
