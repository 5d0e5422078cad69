//! One block of text in memory, read as [`prepare`](super::prepare) reads it: for fuzzing, which
//! wants many of them in a second. No part of the interface of the crate.
//!
//! Checked of any text: the lines are rows, bad, blank or a header; columns are as long as there
//! are rows; a bad line says what is wrong with it; blocks that are cut elsewhere give the same
//! rows; and rows that are kept come back.

use super::error::PrepareError;
use super::formats::kept::{self, KeptBlock};
use super::formats::parsed::{Block, Parsed, RowFormat};
use super::formats::schema_file::SchemaFile;
use super::formats::table::Table;
use super::keys::key_column::Keys;
use super::keys::vocabulary::{KeyList, Numbering};
use super::options::PrepareOptions;
use super::passes::plan::Plan;
use super::text::blocks::TextBlock;

/// A format of text, ready to read blocks.
pub struct Target {
    plan: Plan,
    whole: Parsed,
    part: Parsed,
}

impl Target {
    /// Of `options`, whose inputs are there and of the format.
    ///
    /// # Errors
    /// As [`prepare`](super::prepare) before it reads rows.
    pub fn new(options: &PrepareOptions) -> Result<Self, PrepareError> {
        let plan = Plan::new(options, 1 << 20)?;
        let [whole, part] = [(); 2].map(|()| plan.layout.format.columns());
        Ok(Self { plan, whole, part })
    }

    /// Reads the file `text`, and again in two blocks where `again`. Returns its rows.
    ///
    /// # Errors
    /// What does not hold that must.
    pub fn read(&mut self, text: &[u8], again: bool) -> Result<usize, String> {
        let Self { plan, whole, part } = self;
        let format = &plan.layout.format;
        let all = block(text, true);
        whole.parse(format, &all);
        check(format, whole, &all)?;
        let mut numbers = vec![Vec::new(); whole.keys.len()];
        for (keys, numbers) in whole.keys.iter().zip(&mut numbers) {
            let numbering = Numbering::new(plan.layout.spelling, KeyList::default());
            numbering.map_err(|_| "no keys are misspelt")?.add(keys, numbers);
            equal("numbers of keys", &numbers.len(), &keys.len())?;
        }
        if !again {
            return Ok(whole.rows);
        }
        let (shape, columns) = kept::columns(whole, numbers.iter().map(Vec::as_slice));
        let mut restored = format.columns();
        KeptBlock { bytes: columns.concat(), shape }.restore(&mut restored);
        let keys: Vec<Keys> = numbers.iter().cloned().map(Keys::Numbered).collect();
        equal("keys that were kept", &restored.keys, &keys)?;
        equal("labels that were kept", &bits(&restored.label), &bits(&whole.label))?;
        equal("numbers that were kept", &bits(&restored.dense), &bits(&whole.dense))?;
        equal("bags that were kept", &restored.bag_ends, &whole.bag_ends)?;
        let middle = text.len() / 2;
        let Some(at) = memchr::memchr(b'\n', &text[middle..]) else { return Ok(whole.rows) };
        let (first, second) = text.split_at(middle + at + 1);
        part.parse(format, &block(first, true));
        let (mut label, mut dense) = (bits(&part.label), bits(&part.dense));
        let mut group = part.group.clone();
        let (rows, bad) = (part.rows, part.bad.len());
        part.parse(format, &block(second, false));
        label.extend(bits(&part.label));
        dense.extend(bits(&part.dense));
        group.extend(&part.group);
        equal("rows of two blocks", &(rows + part.rows), &whole.rows)?;
        equal("bad lines of two blocks", &(bad + part.bad.len()), &whole.bad.len())?;
        equal("labels of two blocks", &label, &bits(&whole.label))?;
        equal("numbers of two blocks", &dense, &bits(&whole.dense))?;
        equal("groups of two blocks", &group, &whole.group)?;
        Ok(whole.rows)
    }
}

/// Reads a schema, and finds its columns in the first line of a text. Whether it is one.
#[must_use]
pub fn schema(text: &str, header: &[u8]) -> bool {
    let found = SchemaFile::parse(text).and_then(|schema| {
        let names = schema.column_names(header);
        Table::new(&schema, names, None)
    });
    // The message is made too.
    found.map_err(|error| error.to_string()).is_ok()
}

fn block(text: &[u8], starts_file: bool) -> Block {
    Block::Text(TextBlock { file: 0, starts_file, bytes: text.to_vec() })
}

fn check(format: &RowFormat, parsed: &Parsed, block: &Block) -> Result<(), String> {
    let rows = parsed.rows;
    let has_header = matches!(format, RowFormat::Lines(format) if format.has_header());
    let header = u64::from(has_header && block.starts_file() && parsed.lines > 0);
    let seen = rows as u64 + parsed.bad.len() as u64 + parsed.skipped + header;
    equal("rows, bad and blank lines and header of all lines", &seen, &parsed.lines)?;
    equal("numbers", &parsed.dense.len(), &(rows * parsed.dense_features))?;
    for optional in [parsed.label.len(), parsed.weight.len(), parsed.group.len()] {
        equal("labels, weights or groups", &optional, &if optional == 0 { 0 } else { rows })?;
    }
    for (keys, ends) in parsed.keys.iter().zip(&parsed.bag_ends) {
        let ends = ends.as_ref().map(|ends| (ends.len(), ends.last().copied().unwrap_or(0)));
        let (bags, values) = ends.unwrap_or((rows, rows));
        equal("bags, keys", &(bags, keys.len()), &(rows, values))?;
    }
    for (weights, keys) in parsed.bag_weights.iter().zip(&parsed.keys) {
        let Some(weights) = weights else { continue };
        equal("weights of keys", &weights.len(), &keys.len())?;
        if let Some(weight) = weights.iter().find(|x| !(0.0..f32::INFINITY).contains(*x)) {
            return Err(format!("a weight of {weight}"));
        }
    }
    if let Some(label) = parsed.label.iter().find(|label| !(0.0..=1.0).contains(*label)) {
        return Err(format!("a label of {label}"));
    }
    if let Some(x) = parsed.dense.iter().chain(&parsed.weight).find(|x| !x.is_finite()) {
        return Err(format!("a number of {x}"));
    }
    for bad in &parsed.bad {
        let reason = format.defect(block, bad);
        if reason.is_empty() || reason == "malformed" {
            return Err(format!("line {} is bad without a reason", bad.line));
        }
    }
    Ok(())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn equal<T: PartialEq + core::fmt::Debug>(what: &str, got: &T, expected: &T) -> Result<(), String> {
    if got == expected { Ok(()) } else { Err(format!("{what}: {got:?}, not {expected:?}")) }
}
