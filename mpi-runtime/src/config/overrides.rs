//! `--set KEY=VALUE`: one setting on the command line, in the file's own terms.
//!
//! KEY is dotted. VALUE is TOML; what is not TOML, or stands where a key wants text, is a string:
//! `--set data.train=a.h5` needs no quotes, nor does `--set run.dir=2026-01-01`.

use toml::Value;

use super::error::ConfigError;
use super::keys;

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
    let wants_text = keys::find(key).is_some_and(|key| key.kind.takes_text());
    let value = match toml {
        Some(value) if !wants_text || value.is_str() || value.is_array() => value,
        _ => Value::String(text.into()),
    };
    Ok(Override { key: key.into(), value })
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
