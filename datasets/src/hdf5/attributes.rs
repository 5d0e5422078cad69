//! Attributes of the root group, as we write them and as h5py users write them.
//!
//! We write UTF-8 strings of fixed length and 64-bit integers. We read integers of any width and
//! strings of all four kinds (fixed or variable, ASCII or UTF-8), scalar or one-dimensional.

use std::path::Path;

use hdf5::types::{TypeDescriptor, VarLenAscii, VarLenUnicode};
use hdf5::{Attribute, Container, File, H5Type};

use super::fixed_text;
use crate::DatasetError;

/// Writes the string `value` as attribute `name`.
pub(super) fn write_string(
    file: &File,
    path: &Path,
    name: &str,
    value: &str,
) -> Result<(), DatasetError> {
    write_texts(file, path, name, &[value], None)
}

/// Writes the strings `values` as attribute `name`.
pub(super) fn write_strings(
    file: &File,
    path: &Path,
    name: &str,
    values: &[String],
) -> Result<(), DatasetError> {
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    write_texts(file, path, name, &values, Some(values.len()))
}

fn write_texts(
    file: &File,
    path: &Path,
    name: &str,
    values: &[&str],
    shape: Option<usize>,
) -> Result<(), DatasetError> {
    if let Some(wrong) = values.iter().find(|value| value.contains('\0')) {
        let got = format!("{wrong:?}");
        return Err(DatasetError::mismatch(path, label(name), "text without a zero byte", got));
    }
    fixed_text::write(file, name, values, shape)
        .map_err(|e| DatasetError::hdf5(path, "write", label(name), &e))
}

/// Writes the array `values` as attribute `name`.
pub(super) fn write_slice<T: H5Type>(
    file: &File,
    path: &Path,
    name: &str,
    values: &[T],
) -> Result<(), DatasetError> {
    let attribute = file
        .new_attr::<T>()
        .shape((values.len(),))
        .create(name)
        .map_err(|e| DatasetError::hdf5(path, "create", label(name), &e))?;
    if values.is_empty() {
        return Ok(());
    }
    attribute.write_raw(values).map_err(|e| DatasetError::hdf5(path, "write", label(name), &e))
}

/// Writes the number `value` as attribute `name`.
pub(super) fn write_integer(
    file: &File,
    path: &Path,
    name: &str,
    value: u64,
) -> Result<(), DatasetError> {
    let attribute = file
        .new_attr::<u64>()
        .create(name)
        .map_err(|e| DatasetError::hdf5(path, "create", label(name), &e))?;
    attribute.write_scalar(&value).map_err(|e| DatasetError::hdf5(path, "write", label(name), &e))
}

/// Attribute `name`, or `None`.
fn find(file: &File, path: &Path, name: &str) -> Result<Option<Attribute>, DatasetError> {
    let names =
        file.attr_names().map_err(|e| DatasetError::hdf5(path, "list", "attributes", &e))?;
    if !names.iter().any(|n| n == name) {
        return Ok(None);
    }
    file.attr(name).map(Some).map_err(|e| DatasetError::hdf5(path, "open", label(name), &e))
}

/// One integer of any width.
pub(super) fn integer(file: &File, path: &Path, name: &str) -> Result<Option<u64>, DatasetError> {
    let Some(values) = integers(file, path, name)? else { return Ok(None) };
    match values[..] {
        [value] => Ok(Some(value)),
        _ => Err(DatasetError::mismatch(
            path,
            label(name),
            "one integer",
            format!("{} integers", values.len()),
        )),
    }
}

/// Integers of any width. `[length of the attribute]`
pub(super) fn integers(
    file: &File,
    path: &Path,
    name: &str,
) -> Result<Option<Vec<u64>>, DatasetError> {
    let Some(attribute) = find(file, path, name)? else { return Ok(None) };
    let wrong = |got: String| DatasetError::mismatch(path, label(name), "integers from 0", got);
    match descriptor(&attribute) {
        Some(TypeDescriptor::Unsigned(_)) => read::<u64>(&attribute, path, name).map(Some),
        Some(TypeDescriptor::Integer(_)) => read::<i64>(&attribute, path, name)?
            .into_iter()
            .map(|v| u64::try_from(v).map_err(|_| wrong(v.to_string())))
            .collect::<Result<Vec<u64>, _>>()
            .map(Some),
        other => Err(wrong(type_name(other.as_ref()))),
    }
}

/// Strings of any kind. `[length of the attribute]`
pub(super) fn strings(
    file: &File,
    path: &Path,
    name: &str,
) -> Result<Option<Vec<String>>, DatasetError> {
    let Some(attribute) = find(file, path, name)? else { return Ok(None) };
    let failed = |e: &hdf5::Error| DatasetError::hdf5(path, "read", label(name), e);
    // The binding takes the word of the file that these are UTF-8.
    let text = |bytes: &[u8]| {
        String::from_utf8(bytes.to_vec()).map_err(|e| failed(&hdf5::Error::from(e.to_string())))
    };
    let values = match descriptor(&attribute) {
        // h5py stores an empty list as an array of no floats.
        _ if attribute.size() == 0 => Vec::new(),
        Some(TypeDescriptor::VarLenUnicode) => {
            let read = read::<VarLenUnicode>(&attribute, path, name)?;
            read.iter().map(|value| text(value.as_bytes())).collect::<Result<_, _>>()?
        }
        Some(TypeDescriptor::VarLenAscii) => {
            let read = read::<VarLenAscii>(&attribute, path, name)?;
            read.iter().map(|value| text(value.as_bytes())).collect::<Result<_, _>>()?
        }
        Some(TypeDescriptor::FixedAscii(width) | TypeDescriptor::FixedUnicode(width)) => {
            fixed_text::read(&attribute, width).map_err(|e| failed(&e))?
        }
        other => {
            return Err(DatasetError::mismatch(
                path,
                label(name),
                "strings",
                type_name(other.as_ref()),
            ));
        }
    };
    Ok(Some(values))
}

/// One string of any kind.
pub(super) fn string(file: &File, path: &Path, name: &str) -> Result<Option<String>, DatasetError> {
    let Some(mut values) = strings(file, path, name)? else { return Ok(None) };
    match (values.pop(), values.len()) {
        (Some(value), 0) => Ok(Some(value)),
        (_, others) => Err(DatasetError::mismatch(
            path,
            label(name),
            "one string",
            format!("{} strings", others + 1),
        )),
    }
}

fn read<T: H5Type>(attribute: &Attribute, path: &Path, name: &str) -> Result<Vec<T>, DatasetError> {
    attribute.read_raw::<T>().map_err(|e| DatasetError::hdf5(path, "read", label(name), &e))
}

/// Type of the elements, or `None` for a type that HDF5's binding has no word for.
pub(super) fn descriptor(object: &Container) -> Option<TypeDescriptor> {
    object.dtype().and_then(|t| t.to_descriptor()).ok()
}

/// The word for a type in messages.
pub(super) fn type_name(descriptor: Option<&TypeDescriptor>) -> String {
    match descriptor {
        Some(TypeDescriptor::Float(size)) => format!("f{}", 8 * *size as usize),
        Some(TypeDescriptor::Integer(size)) => format!("i{}", 8 * *size as usize),
        Some(TypeDescriptor::Unsigned(size)) => format!("u{}", 8 * *size as usize),
        Some(other) => other.to_string(),
        None => "an unusual type".to_owned(),
    }
}

fn label(name: &str) -> String {
    format!("attribute `{name}`")
}
