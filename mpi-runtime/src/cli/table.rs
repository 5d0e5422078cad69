//! Results as tables for stdout: names and values, and rows of several columns.

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

/// Rows under headings, each column as wide as it has to be: what begins with a letter to the left,
/// numbers to the right.
pub(super) struct Grid(Vec<Vec<String>>);

impl Grid {
    /// A table without rows.
    pub(super) fn new(headings: impl IntoIterator<Item = &'static str>) -> Self {
        Self(vec![headings.into_iter().map(str::to_owned).collect()])
    }

    /// Adds a row, with as many cells as there are headings.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().map(|cell| plain(&cell)).collect());
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.0.first().map_or(0, Vec::len);
        let cells = |column: usize| self.0.iter().filter_map(move |row| row.get(column));
        let width = |column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let is_text = |column| {
            let mut below = cells(column).skip(1).filter(|cell| *cell != "-");
            column == 0 || below.any(|cell| cell.starts_with(char::is_alphabetic))
        };
        let shape: Vec<(usize, bool)> = (0..columns).map(|c| (width(c), is_text(c))).collect();
        for row in &self.0 {
            let mut line = String::new();
            for (cell, (width, is_text)) in row.iter().zip(&shape) {
                line += &if *is_text {
                    format!("{cell:width$}  ")
                } else {
                    format!("{cell:>width$}  ")
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A text as a part of one line, whatever somebody has called his run.
pub(super) fn plain(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}
