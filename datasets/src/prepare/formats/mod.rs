//! Raw text formats: from a line to numbers and keys.
//!
//! - `parsed`: what a format is ([`LineFormat`](parsed::LineFormat)), and the columns that the
//!   lines of one block become.
//! - `criteo`, `libfm`, `csv`: the formats. `schema_file`: the TOML file that a csv needs.
//! - `parquet`: columns instead of lines, through the same schema; `parquet_file` reads them,
//!   `parquet_text` spells them.
//! - `table`: rows of named columns by a schema; `features`: what is made of its columns, `label`
//!   of the label's, `bag` of one with many keys. `values`: a line of a csv, split at its `marks`;
//!   `number`: numbers in text.
//! - `kept`: the columns of a block as bytes.
//! - `transform`: numbers to dense features.
//! - `malformed`: why a line is not a row.

mod bag;
pub(super) mod criteo;
pub(super) mod csv;
pub(super) mod features;
pub(super) mod kept;
mod label;
pub(super) mod libfm;
mod malformed;
mod marks;
mod number;
pub(super) mod parquet;
mod parquet_file;
mod parquet_text;
pub(super) mod parsed;
pub(super) mod schema_file;
pub(super) mod table;
pub(super) mod transform;
mod values;
