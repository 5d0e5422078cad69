//! `[sync.switch]`: changing the method during a run.

use serde::{Deserialize, Serialize};
use umbra_core::sync::switching::Policy;

use super::error::ConfigError;
use super::sync::{SyncConfig, SyncMethod};

/// `[sync.switch]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchConfig {
    /// The other method, beside `sync.method`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<SyncMethod>,
    /// Steps at which training changes from one to the other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<u64>,
    /// What decides.
    pub policy: SwitchPolicy,
    /// `stragglers`: steps of a window.
    pub window: u64,
    /// `stragglers`: asynchronous steps are predicted to be so many times as fast, or more.
    pub leave_above: f64,
    /// `stragglers`: they are predicted to be so many times as fast, or less.
    pub return_below: f64,
    /// `stragglers`: windows that must ask, at least.
    pub patience: u32,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        let Policy { leave_above, return_below, patience } = Policy::default();
        let (to, at, policy, window) = (None, vec![], SwitchPolicy::Steps, 50);
        Self { to, at, policy, window, leave_above, return_below, patience }
    }
}

/// What decides when methods change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SwitchPolicy {
    /// The steps that are given.
    #[default]
    Steps,
    /// The times of trainers' steps.
    Stragglers,
}

impl SwitchConfig {
    /// Nothing is changed.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }

    /// The run decides by itself.
    #[must_use]
    pub fn is_by_policy(&self) -> bool {
        self.to.is_some() && self.policy == SwitchPolicy::Stragglers
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
        let to = self.switch.to.filter(|_| !self.switch.is_by_policy())?;
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
        let SwitchConfig { to, at, .. } = &self.switch;
        let Some(to) = *to else {
            let missing = |key, what: &str| ConfigError::Missing { key, expected: what.into() };
            return if self.switch.is_off() {
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
        if self.switch.is_by_policy() {
            return self.check_policy(to);
        }
        let plain = SwitchConfig { to: Some(to), at: at.clone(), ..SwitchConfig::default() };
        if self.switch != plain {
            let expected = "\"stragglers\" with window, leave_above, return_below or patience";
            return Err(ConfigError::value("sync.switch.policy", "\"steps\"", expected));
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

    /// One method waits for all workers and the other does not.
    fn check_policy(&self, to: SyncMethod) -> Result<(), ConfigError> {
        let SwitchConfig { at, leave_above, return_below, .. } = &self.switch;
        if !at.is_empty() {
            let expected = "no steps with sync.switch.policy = \"stragglers\"";
            return Err(ConfigError::value("sync.switch.at", format!("{at:?}"), expected));
        }
        let waits = |method| matches!(method, SyncMethod::Bsp | SyncMethod::BspPs);
        let goes_on = |method| matches!(method, SyncMethod::Gba | SyncMethod::AsyncPs);
        let pair = (self.method, to);
        if !(waits(pair.0) && goes_on(pair.1) || goes_on(pair.0) && waits(pair.1)) {
            return Err(ConfigError::value(
                "sync.switch.to",
                format!("\"{}\"", to.name()),
                "\"bsp\" or \"bsp_ps\" for one of sync.method and sync.switch.to, \"gba\" or \
                 \"async_ps\" for the other, with sync.switch.policy = \"stragglers\"",
            ));
        }
        if leave_above <= return_below {
            let expected = format!("more than sync.switch.return_below = {return_below}");
            return Err(ConfigError::value("sync.switch.leave_above", leave_above, expected));
        }
        Ok(())
    }
}
