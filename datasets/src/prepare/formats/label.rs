//! From a value to a label: by a list, by a bound, or as the number itself.

use super::malformed::{Malformed, Quoted};
use super::number::number;
use super::schema_file::SchemaFile;

/// How a value becomes a label.
#[derive(Clone)]
pub(crate) enum LabelRule {
    /// Listed values are 1; others 0, or malformed when the zeros are listed too.
    OneOf { positive: Vec<String>, negative: Option<Vec<String>> },
    /// Numbers from this on are 1.
    AtLeast(f64),
    /// The number itself, from 0 to 1.
    Number,
}

impl LabelRule {
    pub(crate) fn new(schema: &SchemaFile) -> Self {
        match (&schema.label_positive, schema.label_at_least) {
            (Some(positive), _) => {
                Self::OneOf { positive: positive.clone(), negative: schema.label_negative.clone() }
            }
            (None, Some(bound)) => Self::AtLeast(bound),
            (None, None) => Self::Number,
        }
    }

    pub(crate) fn label(&self, text: &[u8]) -> Result<f32, Malformed> {
        let among = |list: &[String]| list.iter().any(|one| one.as_bytes() == text);
        let label = match self {
            Self::OneOf { positive, .. } if among(positive) => Some(1.0),
            Self::OneOf { negative: Some(negative), .. } => among(negative).then_some(0.0),
            Self::OneOf { negative: None, .. } => (!text.is_empty()).then_some(0.0),
            Self::AtLeast(bound) => number(text).map(|x| f32::from(u8::from(x >= *bound))),
            #[expect(clippy::cast_possible_truncation, reason = "labels are f32")]
            Self::Number => number(text).filter(|x| (0.0..=1.0).contains(x)).map(|x| x as f32),
        };
        label.ok_or_else(|| {
            let (expected, cure) = (self.expected(), self.cure(text));
            Malformed::Label { expected, got: Quoted::new(text), cure }
        })
    }

    /// The keys of the schema that would make a label of `text`.
    fn cure(&self, text: &[u8]) -> String {
        let quoted = text.escape_ascii();
        match (self, number(text)) {
            (Self::Number, Some(x)) if x > 1.0 => format!(
                ": a label says whether there was a click: of ratings, label_at_least = {quoted} \
                 in the schema takes this one and those above as 1; of classes, label_positive = \
                 [\"{quoted}\"] takes this one as 1, and others as 0"
            ),
            (Self::Number, Some(x)) if x < 0.0 => {
                ": of labels -1 and 1, label_at_least = 1 in the schema takes 1 as 1, and others \
                 as 0"
                    .into()
            }
            (Self::Number | Self::AtLeast(_), None) if !text.is_empty() => format!(
                ": of words, label_positive = [\"{quoted}\"] in the schema takes this one as 1, \
                 and others as 0; label_negative lists those that are 0"
            ),
            _ => String::new(),
        }
    }

    /// The rule for people, where `name` is the label's column.
    pub(crate) fn describe(&self, name: &str) -> String {
        match self {
            Self::OneOf { positive, .. } => format!("{name} is one of {positive:?}"),
            Self::AtLeast(bound) => format!("{name} is at least {bound}"),
            Self::Number => name.into(),
        }
    }

    fn expected(&self) -> String {
        match self {
            Self::OneOf { positive, negative: Some(negative) } => {
                format!("one of {positive:?} or {negative:?}")
            }
            Self::OneOf { negative: None, .. } => "a value".into(),
            Self::AtLeast(_) => "a number".into(),
            Self::Number => "a number from 0 to 1".into(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_label_is_refused_with_the_key_that_mends_it() {
        let schema = |text: &str| -> SchemaFile { toml::from_str(text).unwrap() };
        let plain = "label = 'y'\nsparse = ['a']";
        let at_least = "label = 'y'\nlabel_at_least = 4\nsparse = ['a']";
        for (keys, text, cure) in [
            (plain, "3", Some("label_at_least = 3")),
            (plain, "9", Some("label_positive = [\"9\"]")),
            (plain, "-1", Some("label_at_least = 1")),
            (plain, "yes", Some("label_positive = [\"yes\"]")),
            (plain, "", None),
            (at_least, "good", Some("label_positive = [\"good\"]")),
        ] {
            let error = LabelRule::new(&schema(keys)).label(text.as_bytes()).unwrap_err();
            let said = error.to_string();
            assert!(said.contains(cure.unwrap_or("got nothing")), "{text}: {said}");
            assert_eq!(said.contains("label_"), cure.is_some(), "{text}: {said}");
            // The cure is one.
            let Some(cure) = cure else { continue };
            let mended = schema(&format!("{cure}\nlabel = 'y'\nsparse = ['a']"));
            LabelRule::new(&mended).label(text.as_bytes()).unwrap();
        }
    }
}
