//! How raw text became features: what the output keeps, so that other splits are encoded alike and
//! splits that were made differently are refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::layout::Layout;
use crate::prepare::formats::features::{FieldRecipe, NumberRecipe};
use crate::prepare::keys::rule::{IdRule, KeySettings};

/// Stored as TOML in the attribute `transform` of the output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recipe {
    pub(crate) format: String,
    /// What a label of 1 means; rows without labels have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    /// The transform of each dense feature. `[D]`
    pub(crate) dense: Vec<String>,
    /// How the text of a key is made.
    pub(crate) keys: String,
    /// How a key becomes an id.
    pub(crate) ids: String,
    /// Of fields that say nothing themselves.
    #[serde(flatten)]
    pub(crate) settings: KeySettings,
    /// By name of the dense feature, where there is more to say of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) numbers: BTreeMap<String, NumberRecipe>,
    /// By name of the sparse field, where there is more to say of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) fields: BTreeMap<String, FieldRecipe>,
}

impl Recipe {
    pub(crate) fn new(format: &str, settings: KeySettings, layout: &Layout) -> Self {
        Self {
            format: format.into(),
            label: layout.label.clone(),
            dense: layout.transforms.clone(),
            keys: layout.keys.clone(),
            ids: IDS.into(),
            settings,
            numbers: layout.numbers.clone(),
            fields: layout.fields.clone(),
        }
    }

    /// The recipe as TOML.
    pub(crate) fn to_text(&self) -> String {
        // Strings, numbers, and lists and maps of them always have a TOML form.
        toml::to_string(self).unwrap_or_default()
    }

    /// True if ids are hashed in a way that is no longer done.
    pub(crate) fn has_old_hash(&self) -> bool {
        self.settings.hash_size.is_some() && self.ids != IDS
    }

    /// How the keys of a field become ids.
    pub(crate) fn rule(&self, field: &str) -> IdRule {
        let own = self.fields.get(field).map(|recipe| &recipe.settings);
        own.unwrap_or(&KeySettings::default()).rule(&self.settings)
    }

    /// The first part in which two recipes differ that must not: its name, and both values. Rows
    /// without labels fit any label.
    pub(crate) fn difference(&self, other: &Self) -> Option<(String, String, String)> {
        let dense = |recipe: &Self| recipe.dense.join(", ");
        let parts = [
            ("format", self.format.clone(), other.format.clone()),
            ("transform of dense features", dense(self), dense(other)),
            ("keys", self.keys.clone(), other.keys.clone()),
        ];
        let labels = self.label.clone().zip(other.label.clone());
        let label = labels.map(|(ours, theirs)| ("label", ours, theirs));
        let parts = parts.into_iter().chain(label);
        let parts = parts.map(|(what, ours, theirs)| (what.to_owned(), ours, theirs));
        let wishes = |recipe: &Self| -> BTreeMap<String, NumberRecipe> {
            let numbers = recipe.numbers.iter();
            let wishes = numbers.map(|(name, number)| (name.clone(), number.wishes()));
            wishes.filter(|(_, wishes)| *wishes != NumberRecipe::default()).collect()
        };
        let numbers = different("dense feature", &wishes(self), &wishes(other));
        let fields = different("sparse field", &self.fields, &other.fields);
        parts.chain(numbers).chain(fields).find(|(_, ours, theirs)| ours != theirs)
    }
}

/// The first entry in which two maps differ.
fn different<T: Serialize + PartialEq>(
    what: &str,
    ours: &BTreeMap<String, T>,
    theirs: &BTreeMap<String, T>,
) -> Option<(String, String, String)> {
    let mut names = ours.keys().chain(theirs.keys());
    let name = names.find(|name| ours.get(*name) != theirs.get(*name))?;
    let text = |map: &BTreeMap<String, T>| {
        let toml = map.get(name).and_then(|entry| toml::to_string(entry).ok());
        let lines = toml.map(|toml| toml.trim_end().replace('\n', ", "));
        lines.unwrap_or_else(|| "nothing special".into())
    };
    Some((format!("{what} {name}"), text(ours), text(theirs)))
}

const IDS: &str = "counted: key number i of /vocabulary/<field> (from 0) has id i + oov_buckets (1 \
                   unless given), any other key XXH3-64 of its text with the seed salt (0 unless \
                   given), modulo oov_buckets; hashed: XXH3-64 of the key with the seed salt, \
                   then for a second id salt + 1, modulo hash_size";
