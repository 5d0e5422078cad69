//! Random numbers of a text that a test writes, the same in every run.

/// Numbers below a bound of at most 2¹⁶: the upper half of the state of a linear congruential
/// generator, with the constants of "Numerical Recipes".
pub fn draws() -> impl FnMut(u32) -> u32 {
    let mut state = 1u32;
    move |bound| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % bound
    }
}
