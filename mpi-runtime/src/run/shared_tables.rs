//! Fields that share a table: `embedding.shared`.
//!
//! What a shop has sold and what a visitor has looked at are both items: with one table for both,
//! an item is learnt from either, and takes memory once. A shared table is the first field's, in
//! the order of the data.
//!
//! Invariant: an id means the same in all fields that share, as far as the data say what ids mean.

use umbra_datasets::Dataset;

use crate::error::Error;

/// The field whose table every field of `data` uses: the first of its group in `shared`, itself
/// without one; empty where no fields share. `[fields]`
///
/// # Errors
/// When a name is of no field or stands twice, or fields of a group have other ids.
pub fn table_of(shared: &[Vec<String>], data: &Dataset) -> Result<Vec<u32>, Error> {
    if shared.is_empty() {
        return Ok(vec![]);
    }
    let (names, vocabulary) = (data.sparse_names(), data.vocabulary());
    let refuse = |message: String| Err(Error::Usage(format!("embedding.shared: {message}")));
    let mut group_of = vec![None; names.len()];
    let mut table_of: Vec<u32> = (0..).take(names.len()).collect();
    for (group, members) in shared.iter().enumerate() {
        for name in members {
            let Some(field) = names.iter().position(|known| known == name) else {
                return refuse(no_such_field(names, name));
            };
            if group_of[field].replace(group).is_some() {
                return refuse(format!("\"{name}\" stands there twice"));
            }
        }
        let mut fields = (0..names.len()).filter(|field| group_of[*field] == Some(group));
        let Some(first) = fields.next() else { continue };
        for field in fields {
            let rows = [first, field].map(|field| data.cardinality()[field]);
            if rows[0] != rows[1] {
                return refuse(format!(
                    "\"{}\" has {} ids and \"{}\" has {}: fields that share a table have the same",
                    names[first], rows[0], names[field], rows[1]
                ));
            }
            if vocabulary.is_some_and(|keys| keys[first] != keys[field]) {
                return refuse(format!(
                    "\"{}\" and \"{}\" have key lists of their own, so an id is another key in \
                     each: give both the same hash_size (and salt) in the schema",
                    names[first], names[field]
                ));
            }
            table_of[field] = table_of[first];
        }
    }
    Ok(table_of)
}

/// That the data have no field `name`, for a message.
pub(super) fn no_such_field(names: &[String], name: &str) -> String {
    let near = names.iter().min_by_key(|known| strsim::levenshtein(known, name));
    let near = near.map_or_else(String::new, |near| format!("; nearest is \"{near}\""));
    format!("the data have no field \"{name}\"{near}")
}
