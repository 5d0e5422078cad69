//! `[sync.switch]`: changing the method during a run.

use serde::{Deserialize, Serialize};

use super::error::ConfigError;
use super::sync::{SyncConfig, SyncMethod};

/// `[sync.switch]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchConfig {
    /// The other method, beside `sync.method`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<SyncMethod>,
    /// Steps at which training changes from one to the other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<u64>,
}

impl SwitchConfig {
    /// Nothing is changed.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }
}

impl SyncConfig {
    /// The methods that a run trains by: one, or two with the first first.
    pub fn methods(&self) -> impl Iterator<Item = SyncMethod> {
        core::iter::once(self.method).chain(self.switch.to)
    }

    /// The run trains by this method, or at times.
    #[must_use]
    pub fn uses(&self, method: SyncMethod) -> bool {
        self.methods().any(|own| own == method)
    }

    /// The method of a run after so many steps, where steps decide; `None` where nothing changes.
    #[must_use]
    pub fn method_at(&self, step: u64) -> Option<SyncMethod> {
        let to = self.switch.to?;
        let changes = self.switch.at.iter().filter(|at| **at <= step).count();
        Some(if changes.is_multiple_of(2) { self.method } else { to })
    }

    /// The first change after `step`.
    #[must_use]
    pub fn next_switch(&self, step: u64) -> Option<u64> {
        self.switch.at.iter().copied().find(|at| *at > step)
    }

    /// A change must lead from one method to another that begins where it ended.
    pub(super) fn check_switch(&self) -> Result<(), ConfigError> {
        let SwitchConfig { to, at } = &self.switch;
        let Some(to) = *to else {
            let missing = |key, what: &str| ConfigError::Missing { key, expected: what.into() };
            return if at.is_empty() {
                Ok(())
            } else {
                Err(missing("sync.switch.to", "the method that training changes to"))
            };
        };
        let fits = |method: SyncMethod| method == SyncMethod::Bsp || method.is_served();
        for (key, method) in [("sync.method", self.method), ("sync.switch.to", to)] {
            if !fits(method) {
                return Err(ConfigError::value(
                    key,
                    format!("\"{}\"", method.name()),
                    "\"bsp\" or a method on parameter servers where methods change \
                     (sync.switch): the others have no one model to go on from",
                ));
            }
        }
        if to == self.method {
            return Err(ConfigError::value(
                "sync.switch.to",
                format!("\"{}\"", to.name()),
                "another method than sync.method",
            ));
        }
        if at.is_empty() {
            return Err(ConfigError::Missing {
                key: "sync.switch.at",
                expected: "the steps at which training changes, for example [1000, 2000]".into(),
            });
        }
        if !at.is_sorted_by(|one, next| one < next) {
            return Err(ConfigError::value("sync.switch.at", format!("{at:?}"), "ascending steps"));
        }
        Ok(())
    }
}
