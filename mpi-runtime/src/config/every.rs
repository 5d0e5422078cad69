//! How often: so many steps, examples or seconds.

use core::fmt;
use core::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// What lies between two checkpoints: `500` or `"500 steps"`, `"2000000 examples"`, `"90 s"`,
/// `"10 min"`, `"2 h"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Every {
    /// Steps of every worker.
    Steps(u64),
    /// Examples of all workers together, at least.
    Examples(u64),
    /// Seconds of training, about.
    Seconds(f64),
}

impl Every {
    /// A share of it; of steps and examples at least one.
    #[must_use]
    pub fn share(self, share: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a number"
        )]
        let of = |count: u64| ((count as f64 * share).round() as u64).max(1);
        match self {
            Self::Steps(count) => Self::Steps(of(count)),
            Self::Examples(count) => Self::Examples(of(count)),
            Self::Seconds(seconds) => Self::Seconds(seconds * share),
        }
    }
}

/// A length of time: `90` or `"90 s"`, `"10 min"`, `"2 h"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds(pub f64);

/// What a text is to be.
pub(super) const EXPECTED: &str = "a number of steps, or one with a unit: \"500 steps\", \
                                   \"1000000 examples\", \"90 s\", \"10 min\", \"2 h\"";

/// The same of a length of time.
pub(super) const EXPECTED_SECONDS: &str = "seconds, or a time: \"90 s\", \"10 min\", \"2 h\"";

impl FromStr for Every {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let text = text.trim();
        let split = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let number = number.trim();
        let count = || number.parse().ok().filter(|count| *count > 0).ok_or(());
        match unit {
            "" | "step" | "steps" => count().map(Self::Steps),
            "example" | "examples" => count().map(Self::Examples),
            _ => text.parse().map(|Seconds(seconds)| Self::Seconds(seconds)),
        }
    }
}

impl FromStr for Seconds {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let text = text.trim();
        let split = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit = match unit {
            "" | "s" => 1.0,
            "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(()),
        };
        let number: f64 = number.trim().parse().map_err(drop)?;
        let seconds = number * unit;
        if seconds.is_finite() && seconds > 0.0 { Ok(Self(seconds)) } else { Err(()) }
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0)
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(count) => write!(f, "{count} steps"),
            Self::Examples(count) => write!(f, "{count} examples"),
            Self::Seconds(seconds) => Seconds(*seconds).fmt(f),
        }
    }
}

/// Both are texts, or whole numbers, in a configuration.
macro_rules! as_text {
    ($name:ident, $expected:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$name, E> {
                        self.visit_str(&number.to_string())
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(|()| E::custom(format_args!("expected {}", $expected)))
                    }
                }
                deserializer.deserialize_any(Text)
            }
        }
    };
}

as_text!(Every, EXPECTED);
as_text!(Seconds, EXPECTED_SECONDS);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_and_not_nothing() {
        assert_eq!(Every::Steps(500).share(0.125), Every::Steps(63));
        assert_eq!(Every::Examples(3).share(0.125), Every::Examples(1));
        assert_eq!(Every::Seconds(60.0).share(0.5), Every::Seconds(30.0));
    }

    #[test]
    fn numbers_and_units() {
        for (text, every) in [
            ("500", Every::Steps(500)),
            (" 1 step", Every::Steps(1)),
            ("20 steps", Every::Steps(20)),
            ("1000000 examples", Every::Examples(1_000_000)),
            ("1.5 s", Every::Seconds(1.5)),
            ("10min", Every::Seconds(600.0)),
            ("2 h", Every::Seconds(7200.0)),
        ] {
            assert_eq!(text.parse(), Ok(every), "{text}");
            assert_eq!(every.to_string().parse(), Ok(every));
        }
        for text in ["", "0", "-3", "1.5", "0 s", "-1 s", "inf s", "5 days", "s", "1e3 steps"] {
            assert_eq!(text.parse::<Every>(), Err(()), "{text}");
        }
    }
}
