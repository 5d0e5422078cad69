//! `docs/umbra.schema.json`: the table of keys as a JSON Schema (draft 7, what editors of TOML
//! know). It has types, choices and ranges; who has a use for a key it says in words.

use serde_json::{Map, Value as Json, json};

use super::{default, takes, used};
use crate::config::keys::{DefaultValue, Key, Kind, LAYERS_MAX, WIDTH_MAX, keys};

/// The schema, as text.
#[must_use]
pub fn schema() -> String {
    let mut root = section();
    root["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    root["title"] = json!("A job of umbra");
    for key in keys() {
        let (sections, name) = key.path.rsplit_once('.').unwrap_or(("", key.path));
        let mut at = &mut root;
        for name in sections.split('.').filter(|name| !name.is_empty()) {
            at = at["properties"]
                .as_object_mut()
                .map(|below| below.entry(name).or_insert_with(section))
                .unwrap_or_else(|| unreachable!("a section has properties"));
        }
        at["properties"][name] = property(key);
        if let DefaultValue::Required = key.default
            && key.section() == crate::config::EARLY_STOP
        {
            // What else must be given may be left to --set.
            at["required"] = json!([name]);
        }
    }
    // A value of JSON can be written.
    format!("{root:#}\n")
}

fn section() -> Json {
    json!({"type": "object", "additionalProperties": false, "properties": {}})
}

fn property(key: &Key) -> Json {
    let mut property = Map::new();
    let mut set = |name: &str, value: Json| property.insert(name.into(), value);
    let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
    match key.kind {
        Kind::Integer { low, high } => {
            set("type", json!("integer"));
            set("minimum", json!(low));
            if high < i64::MAX {
                set("maximum", json!(high));
            }
        }
        Kind::Number { low, above, high, below } => {
            set("type", json!("number"));
            set(if above { "exclusiveMinimum" } else { "minimum" }, json!(low));
            if high.is_finite() {
                set(if below { "exclusiveMaximum" } else { "maximum" }, json!(high));
            }
        }
        Kind::Every => {
            let count = json!({"type": "integer", "minimum": 1});
            set("anyOf", json!([count, text(EVERY)]));
        }
        Kind::Seconds => {
            let count = json!({"type": "integer", "minimum": 1});
            set("anyOf", json!([count, text(SECONDS)]));
        }
        Kind::Flag => {
            set("type", json!("boolean"));
        }
        Kind::Path => {
            set("type", json!("string"));
            set("minLength", json!(1));
        }
        Kind::Files => {
            let file = json!({"type": "string", "minLength": 1});
            set("anyOf", json!([file, {"type": "array", "items": file}]));
        }
        Kind::Widths => {
            set("type", json!("array"));
            set("maxItems", json!(LAYERS_MAX));
            set("items", json!({"type": "integer", "minimum": 1, "maximum": WIDTH_MAX}));
        }
        Kind::Steps => {
            set("type", json!("array"));
            set("items", json!({"type": "integer", "minimum": 1}));
        }
        Kind::Groups => {
            let names = json!({"type": "array", "minItems": 2, "items": {"type": "string"}});
            set("type", json!("array"));
            set("items", names);
        }
        Kind::NamedWidths => {
            set("type", json!("object"));
            let width = json!({"type": "integer", "minimum": 1, "maximum": WIDTH_MAX});
            set("additionalProperties", width);
        }
        Kind::Name { built } => {
            set("enum", json!(built));
        }
    }
    if let Some(value) = key.value() {
        set("default", json!(value));
    }
    let plain = str::to_owned;
    let mut words = vec![key.about.to_owned()];
    if !matches!(key.kind, Kind::Name { .. }) {
        words.push(format!("Takes {}", takes(key, plain)));
    }
    words.push(format!("Default: {}", default(key, plain)));
    let used = used(key, plain);
    words.extend((!used.is_empty()).then(|| used.trim_end_matches('.').to_owned()));
    set("description", json!(format!("{}.", words.join(". "))));
    Json::Object(property)
}

/// Every text that is a length of time.
const SECONDS: &str = r"^\s*[0-9.]+\s*(s|min|h)?\s*$";
/// And every text that says how often.
const EVERY: &str = r"^\s*([0-9]+\s*(steps?|examples?)?|[0-9.]+\s*(s|min|h))\s*$";
