//! The model and the tables of a job: `embedding.dims`, `embedding.columns`, `embedding.shared`.
//!
//! Tables of several widths are cut into strips as wide as all of them allow, each a table to
//! whoever holds rows (`umbra_core::sparse::cut`); so are tables of one width where they are to be
//! placed by columns.

use umbra_core::model::{Model, StripShape};
use umbra_datasets::Dataset;

use crate::config::{Config, convert};
use crate::error::Error;
use crate::rows::tables::TableLayout;
use crate::run::shared_tables;

/// The model of `config` on these data, and its tables in `partitions`, their rows dealt.
///
/// # Errors
/// When they do not go together.
pub fn of_job(
    config: &Config,
    data: &Dataset,
    partitions: u32,
) -> Result<(Model, TableLayout), Error> {
    let on_data = |error| Error::Usage(format!("[model] on this data: {error}"));
    let model = convert::trained_model(config, data.dense_features(), data.fields());
    let mut model = model.map_err(on_data)?;
    let table_of = shared_tables::table_of(&config.embedding.shared, data)?;
    let widths = widths(config, data.sparse_names())?;
    for (field, owner) in table_of.iter().enumerate() {
        let (own, other) = (widths[field], widths[*owner as usize]);
        if own != other {
            let names = data.sparse_names();
            return Err(Error::Usage(format!(
                "embedding.dims: \"{}\" has vectors of {own} and \"{}\", whose table it shares, of \
                 {other}: expected the same",
                names[field], names[*owner as usize]
            )));
        }
    }
    let mut strips = vec![];
    if let Some(width) = strip_width(config, &widths)? {
        strips.extend(widths.iter().map(|wide| wide / width));
        let narrow = widths.iter().filter(|wide| **wide != config.model.embedding_dim);
        let shape = StripShape { width, strips: strips.iter().sum(), projected: narrow.sum() };
        model = model.with_strips(shape).map_err(on_data)?;
    }
    let optimizer = convert::sparse_optimizer(&config.optim.sparse);
    let layout = TableLayout::new(data.cardinality(), partitions, model.row_width(), optimizer)
        .and_then(|layout| layout.in_strips(&strips, model.first_order_columns()))
        .and_then(|layout| layout.sharing(table_of))
        .map_err(|error| Error::Data(error.to_string()))?
        .with_precision(convert::precision(config.embedding.precision));
    Ok((model, layout))
}

/// Elements of the vectors of every field. `[fields]`
fn widths(config: &Config, names: &[String]) -> Result<Vec<usize>, Error> {
    let mut widths = vec![config.model.embedding_dim; names.len()];
    for (name, width) in &config.embedding.dims {
        let Some(field) = names.iter().position(|known| known == name) else {
            return Err(Error::Usage(format!(
                "embedding.dims: {}",
                shared_tables::no_such_field(names, name)
            )));
        };
        widths[field] = *width;
    }
    Ok(widths)
}

/// Columns of a strip; `None` where every vector is one row.
fn strip_width(config: &Config, widths: &[usize]) -> Result<Option<usize>, Error> {
    let all = config.model.embedding_dim;
    let common = widths.iter().fold(all, |a, b| greatest_common_divisor(a, *b));
    let one_width = widths.iter().all(|wide| *wide == all);
    match config.embedding.columns {
        columns if one_width && (columns == 0 || columns == all) => Ok(None),
        0 => Ok(Some(common)),
        columns if common.is_multiple_of(columns) => Ok(Some(columns)),
        columns => Err(Error::Usage(format!(
            "embedding.columns = {columns}: expected a divisor of {common}, which all vectors can \
             be cut into"
        ))),
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
