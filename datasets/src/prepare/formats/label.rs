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
        label.ok_or_else(|| Malformed::Label { expected: self.expected(), got: Quoted::new(text) })
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
