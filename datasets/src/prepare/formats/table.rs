//! Rows of named columns to labels, numbers and keys, as a schema says.
//!
//! Missing values: an empty value, or one of the schema's. A missing number is filled in or the
//! feature 0, a missing category is the key `""`, a missing bag is empty, a missing label or weight
//! is malformed.

use super::bag::{Bag, pieces};
use super::features::{FieldRecipe, NumberRecipe};
use super::label::LabelRule;
use super::malformed::{Malformed, Quoted};
use super::number::number;
use super::parsed::Parsed;
use super::schema_file::{Column, Dense, SchemaFile};
use super::transform::NumberTransform;
use crate::prepare::error::SchemaError;
use crate::prepare::keys::hash::hash_key;
use crate::prepare::keys::key_column::{Keys, TextKeys};
use crate::prepare::options::DenseTransform;

/// The values of one row, by the number of their column from 0.
pub(crate) trait Row {
    /// The text of a value.
    fn at(&self, column: usize) -> &[u8];

    /// The items of a list; `None` of a column without lists.
    fn items(&self, column: usize) -> Option<impl Iterator<Item = &[u8]> + Clone>;
}

/// A schema whose columns have been found.
#[derive(Clone)]
pub(crate) struct Table {
    /// Of all columns of the text.
    names: Vec<String>,
    trim: bool,
    missing: Vec<Vec<u8>>,
    label: Option<(usize, LabelRule)>,
    dense: Vec<(usize, NumberTransform)>,
    sparse: Vec<Field>,
    weight: Option<usize>,
    group: Vec<usize>,
}

/// A sparse field.
#[derive(Clone)]
struct Field {
    name: String,
    /// One, or those of a cross.
    columns: Vec<usize>,
    kind: FieldKind,
    recipe: FieldRecipe,
}

#[derive(Clone)]
enum FieldKind {
    Value,
    Bag(Box<Bag>),
    Bucket,
}

impl Table {
    /// Looks up the columns of `schema` among `names`. `dense_transform` overrides the schema's
    /// default.
    pub(crate) fn new(
        schema: &SchemaFile,
        names: Vec<String>,
        dense_transform: Option<DenseTransform>,
    ) -> Result<Self, SchemaError> {
        let find = |key: &'static str, column: &Column| find(&names, key, column);
        let find_all = |key, columns: &[Column]| {
            columns.iter().map(|column| find(key, column)).collect::<Result<Vec<_>, _>>()
        };
        let default = dense_transform.or(schema.dense_transform).unwrap_or(DenseTransform::None);
        let mut dense = Vec::new();
        for feature in &schema.dense {
            let (transform, recipe) = match feature {
                Dense::Plain(_) => (None, NumberRecipe::default()),
                Dense::Own(own) => {
                    let (clip, fill, missing_flag) = (own.clip, own.fill, own.missing_flag);
                    let recipe = NumberRecipe { clip, fill, missing_flag, ..Default::default() };
                    (own.transform, recipe)
                }
            };
            let column = find("dense", feature.column())?;
            defect_of("dense", &names[column], recipe.defect())?;
            let transform = NumberTransform::new(transform.unwrap_or(default), recipe);
            dense.push((column, transform));
        }
        let mut sparse = Vec::new();
        for field in &schema.sparse {
            let column = find("sparse", field.column())?;
            sparse.push(Field::new(names[column].clone(), vec![column], field.recipe())?);
        }
        for cross in &schema.cross {
            let columns = find_all("cross", cross.columns())?;
            let parts: Vec<String> = columns.iter().map(|&column| names[column].clone()).collect();
            if parts.len() < 2 {
                return Err(SchemaError::ShortCross);
            }
            let settings = cross.settings();
            let name = parts.join("_x_");
            let recipe = FieldRecipe { columns: parts, settings, ..FieldRecipe::default() };
            sparse.push(Field::new(name, columns, recipe)?);
        }
        let label = schema.label.as_ref().map(|column| find("label", column)).transpose()?;
        let table = Self {
            trim: schema.trim,
            missing: schema.missing.iter().map(|marker| marker.clone().into_bytes()).collect(),
            label: label.map(|column| (column, LabelRule::new(schema))),
            dense,
            sparse,
            weight: schema.weight.as_ref().map(|column| find("weight", column)).transpose()?,
            group: find_all("group", &schema.group)?,
            names,
        };
        table.check_uses()?;
        Ok(table)
    }

    /// The label is nothing else, and features have names of their own. A number may also be
    /// bucketed, any value may be part of a cross and of a group.
    fn check_uses(&self) -> Result<(), SchemaError> {
        let mut uses = vec![None; self.names.len()];
        let mut note = |column: usize, second: &'static str| match uses[column].replace(second) {
            Some(first) => {
                let name = self.names[column].clone();
                Err(SchemaError::UsedTwice { name, first, second })
            }
            None => Ok(()),
        };
        let label = self.label.iter().map(|(column, _)| *column).next();
        label.map_or(Ok(()), |column| note(column, "the label"))?;
        for (column, _) in &self.dense {
            note(*column, "a dense feature")?;
        }
        for field in &self.sparse {
            if matches!(
                (&field.columns[..], &field.kind),
                ([_], FieldKind::Value | FieldKind::Bag(_))
            ) {
                note(field.columns[0], "a sparse field")?;
            }
        }
        let buckets = self.sparse.iter().filter(|field| matches!(field.kind, FieldKind::Bucket));
        let crosses = self.sparse.iter().filter(|field| field.columns.len() > 1);
        let more = self.weight.iter().map(|column| (*column, "the weight"));
        let more = more.chain(buckets.map(|field| (field.columns[0], "a sparse field")));
        let columns = crosses.flat_map(|field| field.columns.iter());
        let more = more.chain(columns.map(|column| (*column, "a part of a cross")));
        for (column, second) in more {
            if label == Some(column) {
                let name = self.names[column].clone();
                return Err(SchemaError::UsedTwice { name, first: "the label", second });
            }
        }
        for names in [self.dense_names(), self.sparse_names()] {
            for (at, name) in names.iter().enumerate() {
                if names[..at].contains(name) {
                    return Err(SchemaError::SameFeature { name: name.clone() });
                }
                if name.contains('\0') {
                    return Err(SchemaError::NulInName { name: name.escape_debug().to_string() });
                }
            }
        }
        Ok(())
    }

    /// Numbers and names of the columns that are read.
    pub(crate) fn used(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut used = vec![false; self.names.len()];
        let dense = self.dense.iter().map(|(column, _)| *column);
        let sparse = self.sparse.iter().flat_map(|field| field.columns.iter().copied());
        let others = self.label.iter().map(|(column, _)| *column).chain(self.weight);
        let all = dense.chain(sparse).chain(others).chain(self.group.iter().copied());
        all.for_each(|column| used[column] = true);
        let names = self.names.iter().map(String::as_str).enumerate();
        names.filter(move |(column, _)| used[*column])
    }

    /// Sparse fields of the columns that hold lists, and are nothing else, are bags from now on.
    pub(crate) fn set_lists(&mut self, holds_lists: impl Fn(&str) -> bool) {
        let others: Vec<usize> = self.group.iter().copied().chain(self.weight).collect();
        let crosses = self.sparse.iter().filter(|field| field.columns.len() > 1);
        let crossed: Vec<usize> = crosses.flat_map(|field| field.columns.clone()).collect();
        for field in &mut self.sparse {
            let [column] = field.columns[..] else { continue };
            let is_more = others.contains(&column) || crossed.contains(&column);
            if !is_more && holds_lists(&self.names[column]) {
                match &mut field.kind {
                    FieldKind::Value => field.kind = FieldKind::Bag(Box::new(Bag::list())),
                    FieldKind::Bag(bag) => bag.separator = None,
                    FieldKind::Bucket => {}
                }
            }
        }
    }

    /// True of a column whose lists are bags.
    pub(crate) fn is_list(&self, column: usize) -> bool {
        let holds_lists = |kind: &FieldKind| match kind {
            FieldKind::Bag(bag) => bag.separator.is_none(),
            FieldKind::Value | FieldKind::Bucket => false,
        };
        self.sparse.iter().any(|field| field.columns == [column] && holds_lists(&field.kind))
    }

    /// True if a row can have any number of ids in a field.
    pub(crate) fn has_bags(&self) -> bool {
        let is_bag = |field: &Field| matches!(field.kind, FieldKind::Bag(_));
        self.sparse.iter().any(|field| is_bag(field) || field.recipe.settings.hashes == Some(2))
    }

    /// True if ids have weights in their bags.
    pub(crate) fn has_value_weights(&self) -> bool {
        self.sparse.iter().any(Field::is_weighted)
    }

    /// Of all columns of the text.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    pub(crate) fn dense_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (column, transform) in &self.dense {
            let name = &self.names[*column];
            names.push(name.clone());
            if transform.recipe().missing_flag {
                names.push(format!("{name}.missing"));
            }
        }
        names
    }

    pub(crate) fn sparse_names(&self) -> Vec<String> {
        self.sparse.iter().map(|field| field.name.clone()).collect()
    }

    /// Name, transform and recipe of each number that becomes a feature.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (&str, &NumberTransform)> {
        self.dense.iter().map(|(column, transform)| (self.names[*column].as_str(), transform))
    }

    /// Name and recipe of each sparse field.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &FieldRecipe)> {
        self.sparse.iter().map(|field| (field.name.as_str(), &field.recipe))
    }

    pub(crate) fn has_weight(&self) -> bool {
        self.weight.is_some()
    }

    pub(crate) fn has_group(&self) -> bool {
        !self.group.is_empty()
    }

    /// The label's column and rule, for people.
    pub(crate) fn label(&self) -> Option<String> {
        self.label.as_ref().map(|(column, rule)| rule.describe(&self.names[*column]))
    }

    /// Sets mean and deviation of the z-scores, in order.
    pub(crate) fn learn(&mut self, moments: &[(f64, f64)]) {
        let scores = self.dense.iter_mut().map(|(_, transform)| transform);
        let scores = scores.filter(|transform| transform.kind() == DenseTransform::ZScore);
        for (transform, (mean, deviation)) in scores.zip(moments) {
            transform.learn(*mean, *deviation);
        }
    }

    /// Makes the z-scores of rows that were read before mean and deviation were known.
    pub(crate) fn score(&self, columns: &mut Parsed) {
        let Parsed { dense, measured, dense_features, .. } = columns;
        let mut measured = measured.iter();
        let mut at = 0;
        for (_, transform) in &self.dense {
            if transform.kind() == DenseTransform::ZScore {
                let places = dense.iter_mut().skip(at).step_by(*dense_features);
                for (place, x) in places.zip(measured.next().into_iter().flatten()) {
                    let x = Some(*x).filter(|x| !x.is_nan());
                    // One that is not finite is refused by whoever writes it.
                    *place = transform.feature(x).unwrap_or(f32::INFINITY);
                }
            }
            at += 1 + usize::from(transform.recipe().missing_flag);
        }
    }

    /// Empty columns of this table's shape.
    pub(crate) fn columns(&self) -> Parsed {
        let scores = self.dense.iter().filter(|(_, t)| t.kind() == DenseTransform::ZScore);
        let bags = |field: &Field| matches!(field.kind, FieldKind::Bag(_)).then(Vec::new);
        Parsed {
            dense_features: self.dense_names().len(),
            keys: self.sparse.iter().map(|_| Keys::Text(TextKeys::default())).collect(),
            bag_ends: self.sparse.iter().map(bags).collect(),
            bag_weights: self.sparse.iter().map(|f| f.is_weighted().then(Vec::new)).collect(),
            measured: vec![Vec::new(); scores.count()],
            ..Parsed::default()
        }
    }

    /// Appends a row. After an error the columns may hold part of it.
    pub(crate) fn push_row(&self, row: &impl Row, columns: &mut Parsed) -> Result<(), Malformed> {
        let value = |column: usize| self.clean(row.at(column));
        if let Some((column, rule)) = &self.label {
            columns.label.push(rule.label(value(*column))?);
        }
        if let Some(column) = self.weight {
            columns.weight.push(self.weight(column, value(column))?);
        }
        let mut measured = 0;
        for (column, transform) in &self.dense {
            let text = value(*column);
            let malformed = || self.not_a_number(*column, text);
            let x = if text.is_empty() { None } else { Some(number(text).ok_or_else(malformed)?) };
            columns.dense.push(transform.feature(x).ok_or_else(malformed)?);
            if transform.recipe().missing_flag {
                columns.dense.push(f32::from(u8::from(x.is_none())));
            }
            if transform.kind() == DenseTransform::ZScore {
                columns.measured[measured].push(x.map_or(f64::NAN, |x| transform.clip(x)));
                measured += 1;
            }
        }
        let mut unweighted = Vec::new();
        for (at, (field, keys)) in self.sparse.iter().zip(&mut columns.keys).enumerate() {
            let Keys::Text(keys) = keys else { continue };
            match (&field.columns[..], &field.kind) {
                (&[column], FieldKind::Value) => keys.push(value(column)),
                (&[column], FieldKind::Bag(bag)) => {
                    let weights = columns.bag_weights[at].as_mut().unwrap_or(&mut unweighted);
                    let out = (&mut *keys, weights);
                    match (row.items(column), &bag.separator) {
                        (Some(items), _) => self.push_bag(column, bag, items, out),
                        (None, Some(separator)) => {
                            let items = pieces(separator, value(column));
                            self.push_bag(column, bag, items, out)
                        }
                        (None, None) => {
                            self.push_bag(column, bag, [value(column)].into_iter(), out)
                        }
                    }?;
                    columns.bag_ends[at].get_or_insert_default().push(keys.len());
                }
                (&[column], FieldKind::Bucket) => {
                    let text = value(column);
                    let x = || number(text).ok_or_else(|| self.not_a_number(column, text));
                    let bounds = field.recipe.buckets.as_deref().unwrap_or_default();
                    if text.is_empty() {
                        keys.push(b"");
                    } else {
                        let x = x()?;
                        let bucket = bounds.partition_point(|bound| *bound <= x);
                        keys.push(bucket.to_string().as_bytes());
                    }
                }
                (parts, _) => keys.push_joined(parts.iter().map(|part| value(*part)), SEPARATOR),
            }
        }
        match self.group[..] {
            [] => {}
            [column] => columns.group.push(hash_key(value(column), 0)),
            _ => {
                let texts: Vec<&[u8]> = self.group.iter().map(|column| value(*column)).collect();
                columns.group.push(hash_key(&texts.join(&SEPARATOR[..]), 0));
            }
        }
        Ok(())
    }

    /// The items of one bag that are not missing, as many as it may have, with their weights.
    fn push_bag<'a>(
        &self,
        column: usize,
        bag: &Bag,
        items: impl Iterator<Item = &'a [u8]> + Clone,
        out: (&mut TextKeys, &mut Vec<f32>),
    ) -> Result<(), Malformed> {
        bag.push(items, |text| self.clean(text), |text| self.weight(column, text), out)
    }

    /// The value without blanks where they are trimmed; empty where it is missing.
    fn clean<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        let text = if self.trim { text.trim_ascii() } else { text };
        if self.missing.iter().any(|marker| marker == text) { b"" } else { text }
    }

    fn not_a_number(&self, column: usize, text: &[u8]) -> Malformed {
        Malformed::Number {
            name: self.names[column].clone(),
            or_missing: " or a missing value",
            got: Quoted::new(text),
        }
    }

    fn weight(&self, column: usize, text: &[u8]) -> Result<f32, Malformed> {
        #[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
        let weight = number(text).map(|x| x as f32);
        weight.filter(|x| x.is_finite() && *x >= 0.0).ok_or_else(|| Malformed::Weight {
            name: self.names[column].clone(),
            got: Quoted::new(text),
        })
    }
}

impl Field {
    fn new(name: String, columns: Vec<usize>, recipe: FieldRecipe) -> Result<Self, SchemaError> {
        defect_of("sparse", &name, recipe.defect())?;
        let kind = match (Bag::new(&recipe), &recipe.buckets) {
            (Some(bag), _) => FieldKind::Bag(Box::new(bag)),
            (None, Some(_)) => FieldKind::Bucket,
            (None, None) => FieldKind::Value,
        };
        Ok(Self { name, columns, kind, recipe })
    }

    fn is_weighted(&self) -> bool {
        matches!(&self.kind, FieldKind::Bag(bag) if bag.is_weighted())
    }
}

fn defect_of(
    list: &'static str,
    name: &str,
    defect: Option<(&'static str, &'static str)>,
) -> Result<(), SchemaError> {
    defect.map_or(Ok(()), |(key, expected)| {
        Err(SchemaError::Setting { list, name: name.into(), key, expected })
    })
}

fn find(names: &[String], key: &'static str, column: &Column) -> Result<usize, SchemaError> {
    let found = match column {
        Column::Name(name) => names.iter().position(|known| known == name),
        Column::Number(number) => number.checked_sub(1).filter(|at| *at < names.len()),
    };
    found.ok_or_else(|| SchemaError::NoColumn {
        key,
        column: column.to_string(),
        known: names.join(", "),
    })
}

/// Columns that share a name get their number, from 1, behind it: `b.1` and `b.3`.
pub(crate) fn unique_names(names: Vec<String>) -> Vec<String> {
    let mut uses = std::collections::HashMap::new();
    names.iter().for_each(|name| *uses.entry(name.clone()).or_insert(0) += 1);
    let named = |(number, name): (usize, String)| match uses[&name] {
        1 => name,
        _ => format!("{name}.{number}"),
    };
    (1..).zip(names).map(named).collect()
}

/// Between the values of a cross and of a group of several columns: the ASCII unit separator.
const SEPARATOR: [u8; 1] = [0x1f];
