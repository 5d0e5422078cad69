//! Types of the numbers in a file, and their casts to those of a batch.
//!
//! We write f32, u32 and u64. Files of others may hold any float of four or eight bytes, any
//! integer and h5py's bool; what a batch's type has no word for is an error. Integers above 2^24
//! and f64 are rounded to the nearest f32.

use bytemuck::{AnyBitPattern, Pod};
use hdf5::types::{FloatSize, IntSize, TypeDescriptor};
use hdf5::{Dataset as H5Dataset, H5Type};

use super::attributes;

/// Type of the numbers of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    /// h5py's: an enumeration in one byte.
    Bool,
}

impl Element {
    /// That of `dataset`, or `None` for one that we do not read.
    pub(super) fn of(dataset: &H5Dataset) -> Option<Self> {
        Some(match attributes::descriptor(dataset)? {
            TypeDescriptor::Float(FloatSize::U4) => Self::F32,
            TypeDescriptor::Float(FloatSize::U8) => Self::F64,
            TypeDescriptor::Integer(IntSize::U1) => Self::I8,
            TypeDescriptor::Integer(IntSize::U2) => Self::I16,
            TypeDescriptor::Integer(IntSize::U4) => Self::I32,
            TypeDescriptor::Integer(IntSize::U8) => Self::I64,
            TypeDescriptor::Unsigned(IntSize::U1) => Self::U8,
            TypeDescriptor::Unsigned(IntSize::U2) => Self::U16,
            TypeDescriptor::Unsigned(IntSize::U4) => Self::U32,
            TypeDescriptor::Unsigned(IntSize::U8) => Self::U64,
            TypeDescriptor::Boolean => Self::Bool,
            _ => return None,
        })
    }

    pub(super) fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// Size of a number.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// The bytes of `dataset`, of this type, are those of a number in our memory.
    pub(super) fn is_native(self, dataset: &H5Dataset) -> bool {
        fn same<T: H5Type>(dataset: &H5Dataset) -> bool {
            dataset.dtype().is_ok_and(|found| found.is::<T>())
        }
        cfg!(target_endian = "little")
            && match self {
                Self::F32 => same::<f32>(dataset),
                Self::F64 => same::<f64>(dataset),
                Self::I8 => same::<i8>(dataset),
                Self::I16 => same::<i16>(dataset),
                Self::I32 => same::<i32>(dataset),
                Self::I64 => same::<i64>(dataset),
                Self::U8 => same::<u8>(dataset),
                Self::U16 => same::<u16>(dataset),
                Self::U32 => same::<u32>(dataset),
                Self::U64 => same::<u64>(dataset),
                // One byte, whatever its enumeration calls them.
                Self::Bool => true,
            }
    }

    /// Number `index` of `bytes`, as it is in the file.
    pub(super) fn text(self, bytes: &[u8], index: usize) -> String {
        fn of<T: AnyBitPattern + ToString>(bytes: &[u8], index: usize) -> String {
            let at = index * size_of::<T>();
            bytes
                .get(at..at + size_of::<T>())
                .map_or_else(String::new, |b| bytemuck::pod_read_unaligned::<T>(b).to_string())
        }
        match self {
            Self::F32 => of::<f32>(bytes, index),
            Self::F64 => of::<f64>(bytes, index),
            Self::I8 => of::<i8>(bytes, index),
            Self::I16 => of::<i16>(bytes, index),
            Self::I32 => of::<i32>(bytes, index),
            Self::I64 => of::<i64>(bytes, index),
            Self::U8 | Self::Bool => of::<u8>(bytes, index),
            Self::U16 => of::<u16>(bytes, index),
            Self::U32 => of::<u32>(bytes, index),
            Self::U64 => of::<u64>(bytes, index),
        }
    }
}

/// A type of the numbers of a batch.
pub(super) trait Value: Pod {
    /// The type of a file that needs no cast.
    const OWN: Element;

    /// Appends the numbers of type `element` in `bytes` to `out`.
    ///
    /// # Errors
    /// The index of the first number that has no place in this type.
    fn cast(element: Element, bytes: &[u8], out: &mut Vec<Self>) -> Result<(), usize>;
}

impl Value for f32 {
    const OWN: Element = Element::F32;

    fn cast(element: Element, bytes: &[u8], out: &mut Vec<Self>) -> Result<(), usize> {
        #[expect(clippy::cast_possible_truncation, reason = "what becomes infinite is refused")]
        fn narrow(wide: f64) -> (f32, bool) {
            let narrow = wide as f32;
            (narrow, wide.is_finite() && !narrow.is_finite())
        }
        #[expect(clippy::cast_precision_loss, reason = "rounding is what is promised")]
        match element {
            Element::F32 => append(bytes, out, |v: Self| (v, false)),
            Element::F64 => append(bytes, out, narrow),
            Element::I8 => append(bytes, out, |v: i8| (Self::from(v), false)),
            Element::I16 => append(bytes, out, |v: i16| (Self::from(v), false)),
            Element::I32 => append(bytes, out, |v: i32| (v as Self, false)),
            Element::I64 => append(bytes, out, |v: i64| (v as Self, false)),
            Element::U8 => append(bytes, out, |v: u8| (Self::from(v), false)),
            Element::U16 => append(bytes, out, |v: u16| (Self::from(v), false)),
            Element::U32 => append(bytes, out, |v: u32| (v as Self, false)),
            Element::U64 => append(bytes, out, |v: u64| (v as Self, false)),
            Element::Bool => append(bytes, out, |v: u8| (Self::from(v), v > 1)),
        }
    }
}

impl Value for u32 {
    const OWN: Element = Element::U32;

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what does not fit is told beside it"
    )]
    fn cast(element: Element, bytes: &[u8], out: &mut Vec<Self>) -> Result<(), usize> {
        match element {
            Element::U32 => append(bytes, out, |v: Self| (v, false)),
            Element::U64 => append(bytes, out, |v: u64| (v as Self, v > u64::from(Self::MAX))),
            Element::U16 => append(bytes, out, |v: u16| (Self::from(v), false)),
            Element::U8 => append(bytes, out, |v: u8| (Self::from(v), false)),
            Element::Bool => append(bytes, out, |v: u8| (Self::from(v), v > 1)),
            Element::I64 => {
                append(bytes, out, |v: i64| (v as Self, (v as u64) > u64::from(Self::MAX)))
            }
            Element::I32 => append(bytes, out, |v: i32| (v as Self, v < 0)),
            Element::I16 => append(bytes, out, |v: i16| (v as Self, v < 0)),
            Element::I8 => append(bytes, out, |v: i8| (v as Self, v < 0)),
            Element::F32 | Element::F64 => Err(0),
        }
    }
}

impl Value for u64 {
    const OWN: Element = Element::U64;

    #[expect(clippy::cast_sign_loss, reason = "what does not fit is told beside it")]
    fn cast(element: Element, bytes: &[u8], out: &mut Vec<Self>) -> Result<(), usize> {
        match element {
            Element::U64 => append(bytes, out, |v: Self| (v, false)),
            Element::U32 => append(bytes, out, |v: u32| (Self::from(v), false)),
            Element::U16 => append(bytes, out, |v: u16| (Self::from(v), false)),
            Element::U8 => append(bytes, out, |v: u8| (Self::from(v), false)),
            Element::Bool => append(bytes, out, |v: u8| (Self::from(v), v > 1)),
            Element::I64 => append(bytes, out, |v: i64| (v as Self, v < 0)),
            Element::I32 => append(bytes, out, |v: i32| (v as Self, v < 0)),
            Element::I16 => append(bytes, out, |v: i16| (v as Self, v < 0)),
            Element::I8 => append(bytes, out, |v: i8| (v as Self, v < 0)),
            Element::F32 | Element::F64 => Err(0),
        }
    }
}

/// Appends what `cast` makes of every number in `bytes`, and says where it is first wrong.
fn append<T: AnyBitPattern, U>(
    bytes: &[u8],
    out: &mut Vec<U>,
    cast: impl Fn(T) -> (U, bool),
) -> Result<(), usize> {
    let numbers = || bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned::<T>);
    let mut wrong = false;
    out.extend(numbers().map(|number| {
        let (value, bad) = cast(number);
        wrong |= bad;
        value
    }));
    if wrong { Err(numbers().position(|number| cast(number).1).unwrap_or(0)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cast<T: Pod, U: Value>(element: Element, values: &[T]) -> Result<Vec<U>, usize> {
        let mut out = Vec::new();
        U::cast(element, bytemuck::cast_slice(values), &mut out).map(|()| out)
    }

    #[test]
    fn numbers_are_cast_and_what_does_not_fit_is_named() {
        assert_eq!(cast(Element::F64, &[0.5, 1e300]), Err::<Vec<f32>, _>(1));
        assert_eq!(cast(Element::F64, &[0.5, -2.0]), Ok(vec![0.5f32, -2.0]));
        assert_eq!(cast(Element::I64, &[-3i64, 1 << 40]), Ok(vec![-3.0f32, 1_099_511_627_776.0]));
        assert_eq!(cast(Element::Bool, &[0u8, 1]), Ok(vec![0.0f32, 1.0]));
        assert_eq!(cast(Element::Bool, &[0u8, 1, 2]), Err::<Vec<f32>, _>(2));
        assert_eq!(cast(Element::I64, &[7i64, u32::MAX.into()]), Ok(vec![7, u32::MAX]));
        assert_eq!(cast(Element::I64, &[7i64, 1 << 32]), Err::<Vec<u32>, _>(1));
        assert_eq!(cast(Element::I32, &[7i32, 8, -1]), Err::<Vec<u32>, _>(2));
        assert_eq!(cast(Element::U64, &[1u64 << 32]), Err::<Vec<u32>, _>(0));
        assert_eq!(cast(Element::I16, &[7i16, -9]), Err::<Vec<u64>, _>(1));
        assert_eq!(cast(Element::U8, &[7u8, 255]), Ok(vec![7u64, 255]));
        assert_eq!(Element::I64.text(bytemuck::cast_slice(&[5i64, -6]), 1), "-6");
    }
}
