//! Values at the positions of a mask, without saying again which these are.
//!
//! arXiv 2010.08899, model parallelism: the gradient of what was sent goes back to the same
//! elements, in their order.

use super::code::{Malformed, Values};
use super::half::{from_half, from_quarter};
use super::mask::Mask;

/// Writes the values of `vector` at the mask's positions to `out`; returns how many bytes.
///
/// # Panics
/// When there is no room.
pub fn gather(vector: &[f32], mask: &Mask<'_>, values: Values, out: &mut [u8]) -> usize {
    values.write(vector, Some(mask), out)
}

/// Adds such values to `vector`.
///
/// # Errors
/// When they are not as many as the mask has positions.
pub fn scatter(
    bytes: &[u8],
    mask: &Mask<'_>,
    values: Values,
    vector: &mut [f32],
) -> Result<(), Malformed> {
    if bytes.len() != mask.count() * values.bytes() {
        return Err(Malformed);
    }
    match values {
        Values::F32 => {
            let mut values = bytes.as_chunks::<4>().0.iter();
            let mut next = || values.next().map_or(0.0, |x| f32::from_le_bytes(*x));
            mask.visit(|at| vector[at] += next());
        }
        Values::Bf16 => {
            let mut values = bytes.as_chunks::<2>().0.iter();
            let mut next = || values.next().map_or(0.0, |x| from_half(u16::from_le_bytes(*x)));
            mask.visit(|at| vector[at] += next());
        }
        Values::F8 => {
            let mut values = bytes.iter();
            let mut next = || values.next().map_or(0.0, |x| from_quarter(*x));
            mask.visit(|at| vector[at] += next());
        }
    }
    Ok(())
}
