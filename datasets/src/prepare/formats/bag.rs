//! Values that hold any number of keys, each perhaps with a weight: `a:0.5|b`.

use memchr::memmem;

use super::features::{FieldRecipe, Keep};
use super::malformed::Malformed;
use crate::prepare::keys::key_column::TextKeys;

/// How the keys of a bag are found in a value, and how many of them stay.
#[derive(Clone)]
pub(crate) struct Bag {
    /// Between the keys of a text; a list has none.
    pub(super) separator: Option<memmem::Finder<'static>>,
    /// Between a key and its weight: the last one of an item counts.
    weight_separator: Option<memmem::FinderRev<'static>>,
    length_max: usize,
    keep: Keep,
}

impl Bag {
    /// Of lists of any length.
    pub(super) fn list() -> Self {
        let (length_max, keep) = (usize::MAX, Keep::First);
        Self { separator: None, weight_separator: None, length_max, keep }
    }

    /// Of texts with separators; `None` for a field that has none.
    pub(super) fn new(recipe: &FieldRecipe) -> Option<Self> {
        let separator = recipe.separator.as_ref()?;
        let weight_separator = recipe.weight_separator.as_ref();
        Some(Self {
            separator: Some(memmem::Finder::new(separator.as_bytes()).into_owned()),
            weight_separator: weight_separator
                .map(|separator| memmem::FinderRev::new(separator.as_bytes()).into_owned()),
            length_max: recipe.max_length.map_or(usize::MAX, |length| length as usize),
            keep: recipe.keep.unwrap_or_default(),
        })
    }

    /// Its keys have weights.
    pub(super) fn is_weighted(&self) -> bool {
        self.weight_separator.is_some()
    }

    /// Appends the items that are not missing, as many as there may be, with their weights where
    /// they have any. A weight is read and must be one even if its item is too many. `clean` makes
    /// of a text what counts of it, nothing where it is missing.
    pub(super) fn push<'a>(
        &self,
        items: impl Iterator<Item = &'a [u8]> + Clone,
        clean: impl Fn(&[u8]) -> &[u8],
        weight: impl Fn(&[u8]) -> Result<f32, Malformed>,
        (keys, weights): (&mut TextKeys, &mut Vec<f32>),
    ) -> Result<(), Malformed> {
        let items = items.map(|item| self.cut(clean(item), &clean));
        let items = items.filter(|(key, _)| !key.is_empty());
        let skipped = match self.keep {
            Keep::First => 0,
            Keep::Last => items.clone().count().saturating_sub(self.length_max),
        };
        let kept = skipped..skipped.saturating_add(self.length_max);
        if self.weight_separator.is_none() {
            items.skip(skipped).take(self.length_max).for_each(|(key, _)| keys.push(key));
            return Ok(());
        }
        for (at, (key, text)) in items.enumerate() {
            let weight = if text.is_empty() { 1.0 } else { weight(text)? };
            if kept.contains(&at) {
                keys.push(key);
                weights.push(weight);
            }
        }
        Ok(())
    }

    /// The key of an item and the text of its weight, either empty where it is missing.
    fn cut<'a>(&self, item: &'a [u8], clean: &impl Fn(&[u8]) -> &[u8]) -> (&'a [u8], &'a [u8]) {
        let Some(separator) = &self.weight_separator else { return (item, b"") };
        match separator.rfind(item) {
            None => (item, b""),
            Some(at) => {
                let weight = &item[at + separator.needle().len()..];
                (clean(&item[..at]), clean(weight))
            }
        }
    }
}

/// The texts between separators.
pub(super) fn pieces<'a>(
    separator: &memmem::Finder<'_>,
    text: &'a [u8],
) -> impl Iterator<Item = &'a [u8]> + Clone {
    let mut rest = Some(text);
    core::iter::from_fn(move || {
        let text = rest.take()?;
        match separator.find(text) {
            Some(at) => {
                rest = Some(&text[at + separator.needle().len()..]);
                Some(&text[..at])
            }
            None => Some(text),
        }
    })
}
