//! Results as a table of two columns, for stdout.

use core::fmt;

/// Names and values, aligned.
#[derive(Default)]
pub(super) struct Table(Vec<(String, String)>);

impl Table {
    /// Adds a row.
    pub(super) fn row(&mut self, name: &str, value: impl fmt::Display) {
        self.0.push((name.into(), value.to_string()));
    }

    /// Adds a row when there is a value.
    pub(super) fn figure(&mut self, name: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.row(name, format_args!("{value:.6}"));
        }
    }

    /// Writes it to stdout. A closed stdout is no failure of the work that was done.
    pub(super) fn print(&self) {
        use std::io::Write;
        let _ = write!(std::io::stdout().lock(), "{self}");
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        self.0.iter().try_for_each(|(name, value)| writeln!(f, "{name:width$}  {value}"))
    }
}
