//! Values of 16 bits: bfloat16, the upper half of an f32.

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
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
