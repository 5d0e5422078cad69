//! Values of 16 bits and of 8.
//!
//! - bfloat16 is the upper half of an f32
//! - of 8 bits five are an exponent and two a fraction, as in E5M2 (arXiv 2209.05433) but for the
//!   range: from 9.3e-9 to 14, without steps that become finer towards 0
//!
//! Invariant: what is no 0 becomes none, and what is finite or not stays so.

/// The bfloat16 nearest to `x`, the even one of two; not a number stays none. A finite number stays
/// finite: what would round to infinity becomes the largest there is.
#[inline(always)]
#[must_use]
pub const fn to_half(x: f32) -> u16 {
    let word = x.to_bits();
    let upper = (word >> 16) as u16;
    if !x.is_finite() {
        // What makes it not a number may stand in the lower half alone.
        return if x.is_nan() { upper | 0x40 } else { upper };
    }
    let rounded = (word.wrapping_add(0x7fff + (upper as u32 & 1)) >> 16) as u16;
    if rounded & 0x7f80 == 0x7f80 { upper } else { rounded }
}

/// The f32 that it stands for.
#[inline(always)]
#[must_use]
pub const fn from_half(half: u16) -> f32 {
    f32::from_bits((half as u32) << 16)
}

/// The value of 8 bits nearest to `x`, the even one of two; not a number stays none. What is less
/// than all of them but 0 becomes the smallest, and what is finite and larger the largest.
#[inline(always)]
#[must_use]
pub const fn to_quarter(x: f32) -> u8 {
    let word = x.to_bits();
    let sign = (word >> 24) as u8 & 0x80;
    let size = word & 0x7fff_ffff;
    let rounded = size.wrapping_add(0xf_ffff + (size >> 21 & 1)) >> 21;
    let code = match size {
        0 => 0,
        INFINITY => QUARTER_INFINITY,
        size if size > INFINITY => QUARTER_NAN,
        _ if rounded <= OFFSET => 1,
        _ if rounded - OFFSET >= QUARTER_INFINITY => QUARTER_INFINITY - 1,
        _ => rounded - OFFSET,
    };
    sign | code.to_le_bytes()[0]
}

/// The f32 that it stands for.
#[inline(always)]
#[must_use]
pub const fn from_quarter(quarter: u8) -> f32 {
    let code = quarter as u32 & 0x7f;
    let size = match code {
        0 => 0,
        QUARTER_INFINITY => INFINITY,
        code if code > QUARTER_INFINITY => INFINITY | 0x40_0000,
        code => (code + OFFSET) << 21,
    };
    f32::from_bits((quarter as u32 & 0x80) << 24 | size)
}

/// What stands for exponent and fraction of these, as bits of an f32 and of 8.
const INFINITY: u32 = f32::INFINITY.to_bits();
const QUARTER_INFINITY: u32 = 0x7c;
const QUARTER_NAN: u32 = 0x7f;
/// The upper bits of an f32 less those of 8: the largest is 14.
const OFFSET: u32 = (14.0f32.to_bits() >> 21) - (QUARTER_INFINITY - 1);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// No other value of 8 bits is nearer, but for 0.
        #[test]
        fn the_nearest_of_8_bits_is_taken(
            word in prop_oneof![
                any::<u32>(),
                (0u32..1 << 30).prop_map(|word| word / 2 + (1 << 29)),
            ],
        ) {
            let x = f32::from_bits(word);
            let rounded = from_quarter(to_quarter(x));
            if x.is_nan() {
                prop_assert!(rounded.is_nan());
            } else if x.is_infinite() || x == 0.0 {
                prop_assert_eq!(rounded.to_bits(), x.to_bits());
            } else {
                prop_assert!(rounded.is_finite() && rounded != 0.0);
                let off = |y: f32| (f64::from(y) - f64::from(x)).abs();
                let all = (0..=u8::MAX).map(from_quarter);
                let mut others = all.filter(|y| y.is_finite() && *y != 0.0);
                prop_assert!(others.all(|y| off(rounded) <= off(y)));
                if (1e-8..14.0).contains(&x.abs()) {
                    prop_assert!(off(rounded) <= f64::from(x.abs()) / 8.0);
                }
            }
        }

        /// No other bfloat16 is nearer.
        #[test]
        fn the_nearest_is_taken(word in any::<u32>()) {
            let x = f32::from_bits(word);
            let rounded = from_half(to_half(x));
            if x.is_nan() {
                prop_assert!(rounded.is_nan());
            } else if x.is_infinite() {
                prop_assert_eq!(rounded, x);
            } else {
                prop_assert!(rounded.is_finite());
                let half = to_half(x);
                let off = |half: u16| {
                    let other = from_half(half);
                    let off = (f64::from(other) - f64::from(x)).abs();
                    if other.is_finite() { off } else { f64::MAX }
                };
                let own = off(half);
                prop_assert!(own <= off(half.wrapping_add(1)) && own <= off(half.wrapping_sub(1)));
            }
        }
    }
}
