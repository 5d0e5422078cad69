//! What was seen of the text: rows, malformed lines, keys.

use super::plan::Plan;
use super::slots::Slot;
use crate::prepare::error::PrepareError;
use crate::prepare::options::{BAD_ROWS_SHOWN, BadRow};

/// What was seen so far.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) rows: u64,
    pub(crate) rows_bad: u64,
    /// Of these, lines that end inside quotes.
    pub(crate) rows_open: u64,
    pub(crate) lines_skipped: u64,
    pub(crate) label_sum: f64,
    pub(crate) bad_rows: Vec<BadRow>,
    /// Keys of each field. `[S]`
    pub(crate) values: Vec<u64>,
    /// Lines of the current file before the current block.
    lines_before: u64,
}

impl Totals {
    /// Adds a block; blocks come in the order of the text.
    pub(super) fn add(&mut self, plan: &Plan, slot: &Slot) -> Result<(), PrepareError> {
        let Slot { block, parsed, .. } = slot;
        if block.starts_file() {
            self.lines_before = 0;
        }
        for bad in &parsed.bad {
            let is_past_limit = self.rows_bad == plan.max_bad_rows;
            self.rows_bad += 1;
            self.rows_open += u64::from(bad.ends_in_quotes);
            if is_past_limit || self.bad_rows.len() < BAD_ROWS_SHOWN {
                let row = BadRow {
                    file: plan.inputs[block.file()].path.clone(),
                    line: self.lines_before + bad.line + 1,
                    reason: plan.layout.format.defect(block, bad),
                };
                if is_past_limit {
                    let max_bad_rows = plan.max_bad_rows;
                    return Err(PrepareError::BadRows { row, max_bad_rows });
                }
                self.bad_rows.push(row);
            }
        }
        self.rows += parsed.rows as u64;
        self.lines_skipped += parsed.skipped;
        self.lines_before += parsed.lines;
        self.values.resize(parsed.keys.len(), 0);
        for (field, values) in self.values.iter_mut().enumerate() {
            *values += parsed.values(field) as u64;
        }
        self.label_sum += parsed.label.iter().map(|&label| f64::from(label)).sum::<f64>();
        Ok(())
    }

    /// A dataset has at least one row.
    pub(crate) fn check_rows(&self, plan: &Plan) -> Result<(), PrepareError> {
        if self.rows > 0 {
            return Ok(());
        }
        Err(PrepareError::NoRows {
            path: plan.inputs[0].path.clone(),
            files: plan.inputs.len(),
            lines_skipped: self.lines_skipped,
            rows_bad: self.rows_bad,
        })
    }
}
