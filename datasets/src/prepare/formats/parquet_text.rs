//! The values of a column of a Parquet file as the text that a csv of the same rows has, so that
//! both give the same keys and numbers.
//!
//! Text is Python's, since most such files are written there: `True`, `3.0`, `1e-05`, the shortest
//! digits that read back (pandas' `to_csv`; CPython, `float.__repr__`). A null and a NaN are
//! missing, which is the empty text; times are integers in the file's own unit.

use core::fmt::Write as _;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, Time32MillisecondType, Time32SecondType, Time64MicrosecondType,
    Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, PrimitiveArray};
use arrow_schema::{DataType, TimeUnit};

use crate::prepare::keys::key_column::TextKeys;

/// One column of a batch.
#[derive(Debug, Default)]
pub(crate) struct TextColumn {
    /// A value per row; of a column of lists all their items.
    values: TextKeys,
    /// Of lists: the number of items of rows 0..=i.
    ends: Option<Vec<usize>>,
}

impl TextColumn {
    /// The texts of `array`, whose type is one that [`refusal`] lets pass.
    pub(crate) fn new(array: &dyn Array) -> Self {
        let mut values = TextKeys::default();
        let Some(lists) = array.as_list_opt::<i32>() else {
            append(array, 0..array.len(), &mut values);
            return Self { values, ends: None };
        };
        let mut ends = Vec::with_capacity(lists.len());
        for row in 0..lists.len() {
            let [start, end] = [row, row + 1].map(|at| lists.value_offsets()[at] as usize);
            if lists.is_valid(row) {
                append(lists.values(), start..end, &mut values);
            }
            ends.push(values.len());
        }
        Self { values, ends: Some(ends) }
    }

    /// The value of a row; of lists that of an item.
    pub(crate) fn at(&self, row: usize) -> &[u8] {
        self.values.iter(row..row + 1).next().unwrap_or_default()
    }

    /// The items of a row's list.
    pub(crate) fn items(&self, row: usize) -> Option<impl Iterator<Item = &[u8]> + Clone> {
        let ends = self.ends.as_ref()?;
        let start = row.checked_sub(1).map_or(0, |before| ends[before]);
        Some(self.values.iter(start..ends[row]))
    }
}

/// What to do about a column of a type that is not read; `None` for one that is.
pub(crate) fn refusal(kind: &DataType) -> Option<&'static str> {
    use DataType::{
        Binary, Boolean, Date32, Decimal32, Decimal64, Decimal128, Decimal256, FixedSizeBinary,
        Float16, Float32, Float64, Int8, Int16, Int32, Int64, List, Map, Null, Struct, Time32,
        Time64, Timestamp, UInt8, UInt16, UInt32, UInt64, Utf8,
    };
    match kind {
        Utf8 | Binary | FixedSizeBinary(_) | Boolean | Float32 | Float64 => None,
        Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 => None,
        Date32 | Time32(_) | Time64(_) | Timestamp(..) => None,
        List(items) if !matches!(items.data_type(), List(_)) => refusal(items.data_type()),
        List(_) => Some("write one list, not lists of lists"),
        Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..) => {
            Some("cast it to a float, or to an integer or text for a key")
        }
        Float16 => Some("cast it to float32"),
        Struct(_) | Map(..) => Some("write its parts as columns of their own"),
        Null => Some("it has no values: leave it out"),
        _ => Some("cast it to text or to a number"),
    }
}

/// Appends the texts of values number `range`.
fn append(array: &dyn Array, range: core::ops::Range<usize>, texts: &mut TextKeys) {
    let mut spell = Spell { array, range, texts };
    match array.data_type() {
        DataType::Utf8 => spell.bytes(|at| array.as_string::<i32>().value(at).as_bytes()),
        DataType::Binary => spell.bytes(|at| array.as_binary::<i32>().value(at)),
        DataType::FixedSizeBinary(_) => spell.bytes(|at| array.as_fixed_size_binary().value(at)),
        DataType::Boolean => {
            spell.bytes(|at| if array.as_boolean().value(at) { &b"True"[..] } else { b"False" });
        }
        DataType::Float32 => {
            spell.floats(array.as_primitive::<Float32Type>(), |x, text| write!(text, "{x:?}"));
        }
        DataType::Float64 => {
            spell.floats(array.as_primitive::<Float64Type>(), |x, text| write!(text, "{x:?}"));
        }
        DataType::Int8 => spell.integers::<Int8Type>(),
        DataType::Int16 => spell.integers::<Int16Type>(),
        DataType::Int32 => spell.integers::<Int32Type>(),
        DataType::Int64 => spell.integers::<Int64Type>(),
        DataType::UInt8 => spell.integers::<UInt8Type>(),
        DataType::UInt16 => spell.integers::<UInt16Type>(),
        DataType::UInt32 => spell.integers::<UInt32Type>(),
        DataType::UInt64 => spell.integers::<UInt64Type>(),
        DataType::Date32 => spell.integers::<Date32Type>(),
        DataType::Time32(TimeUnit::Second) => spell.integers::<Time32SecondType>(),
        DataType::Time32(_) => spell.integers::<Time32MillisecondType>(),
        DataType::Time64(TimeUnit::Microsecond) => spell.integers::<Time64MicrosecondType>(),
        DataType::Time64(_) => spell.integers::<Time64NanosecondType>(),
        DataType::Timestamp(TimeUnit::Second, _) => spell.integers::<TimestampSecondType>(),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            spell.integers::<TimestampMillisecondType>();
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            spell.integers::<TimestampMicrosecondType>();
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            spell.integers::<TimestampNanosecondType>();
        }
        // Refused before any row is read.
        _ => spell.bytes(|_| b""),
    }
}

/// Values on their way to text.
struct Spell<'a> {
    array: &'a dyn Array,
    range: core::ops::Range<usize>,
    texts: &'a mut TextKeys,
}

impl<'a> Spell<'a> {
    fn bytes(&mut self, value: impl Fn(usize) -> &'a [u8]) {
        for at in self.range.clone() {
            self.texts.push(if self.array.is_valid(at) { value(at) } else { b"" });
        }
    }

    fn integers<T: ArrowPrimitiveType<Native: core::fmt::Display>>(&mut self) {
        let mut text = String::new();
        let values = self.array.as_primitive::<T>();
        for at in self.range.clone() {
            text.clear();
            if values.is_valid(at) {
                // Into memory, which takes all.
                let _ = write!(text, "{}", values.value(at));
            }
            self.texts.push(text.as_bytes());
        }
    }

    /// Rust's own text has Python's digits and changes to an exponent at the same sizes, but has
    /// no sign or leading zero in it: `1e-5` for `1e-05`, `1e16` for `1e+16`.
    fn floats<T: ArrowPrimitiveType<Native: Into<f64>>>(
        &mut self,
        values: &PrimitiveArray<T>,
        write: impl Fn(T::Native, &mut String) -> core::fmt::Result,
    ) {
        let mut text = String::new();
        for at in self.range.clone() {
            text.clear();
            if values.is_valid(at) && !values.value(at).into().is_nan() {
                // Into memory, which takes all.
                let _ = write(values.value(at), &mut text);
                if let Some((digits, exponent)) = text.split_once('e') {
                    let (sign, size) = match exponent.strip_prefix('-') {
                        Some(size) => ('-', size),
                        None => ('+', exponent),
                    };
                    text = format!("{digits}e{sign}{size:0>2}");
                }
            }
            self.texts.push(text.as_bytes());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, BooleanArray, Float32Array, Float64Array, ListArray, StringArray};
    use arrow_array::{Int8Array, TimestampMicrosecondArray, UInt64Array};

    use super::*;

    fn texts(array: ArrayRef) -> Vec<String> {
        let column = TextColumn::new(&array);
        let text = |row| String::from_utf8(column.at(row).to_vec()).unwrap();
        (0..array.len()).map(text).collect()
    }

    /// The texts are what CPython 3.12 prints for these numbers, and NumPy 2 for the narrow ones.
    #[test]
    fn numbers_have_the_text_of_python() {
        let wide = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (3.0, "3.0"),
            (0.1, "0.1"),
            (-2.5e-3, "-0.0025"),
            (1e-4, "0.0001"),
            (9.999e-5, "9.999e-05"),
            (1e-5, "1e-05"),
            (1.5e-10, "1.5e-10"),
            (5e-324, "5e-324"),
            (123456789012345.6, "123456789012345.6"),
            (9007199254740993.0, "9007199254740992.0"),
            (1e16, "1e+16"),
            (1.2345e22, "1.2345e+22"),
            (1e300, "1e+300"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, ""),
        ];
        let array = Float64Array::from_iter_values(wide.map(|(x, _)| x));
        assert_eq!(texts(Arc::new(array)), wide.map(|(_, text)| text));
        let narrow =
            [(0.1f32, "0.1"), (16777216.0, "16777216.0"), (1e-7, "1e-07"), (3e9, "3000000000.0")];
        let array = Float32Array::from_iter_values(narrow.map(|(x, _)| x));
        assert_eq!(texts(Arc::new(array)), narrow.map(|(_, text)| text));
        let array = UInt64Array::from(vec![Some(u64::MAX), None, Some(0)]);
        assert_eq!(texts(Arc::new(array)), ["18446744073709551615", "", "0"]);
        assert_eq!(texts(Arc::new(Int8Array::from(vec![-128, 7]))), ["-128", "7"]);
        let array = BooleanArray::from(vec![Some(true), Some(false), None]);
        assert_eq!(texts(Arc::new(array)), ["True", "False", ""]);
        let array = TimestampMicrosecondArray::from(vec![-1, 1_700_000_000_000_000]);
        assert_eq!(texts(Arc::new(array)), ["-1", "1700000000000000"]);
    }

    #[test]
    fn a_list_is_its_items() {
        let array = ListArray::from_iter_primitive::<Int64Type, _, _>([
            Some(vec![Some(7), None, Some(-1)]),
            None,
            Some(vec![]),
            Some(vec![Some(7)]),
        ]);
        let column = TextColumn::new(&array);
        let items = |row| -> Vec<&[u8]> { column.items(row).unwrap().collect() };
        let expected: [&[&[u8]]; 4] = [&[b"7", b"", b"-1"], &[], &[], &[b"7"]];
        assert_eq!([0, 1, 2, 3].map(items), expected);
        let plain = StringArray::from(vec!["a"]);
        assert!(TextColumn::new(&plain).items(0).is_none());
    }
}
