//! The few functions of a real variable that training needs.
//!
//! `exp` and `ln` come from `libm` on every platform, so their bits never depend on the system's C
//! library; `sqrt` is correctly rounded everywhere (IEEE 754 §5.4.1), so the hardware's is used.

/// Square root, correctly rounded.
#[cfg(feature = "std")]
#[inline]
#[must_use]
pub fn sqrt(x: f32) -> f32 {
    x.sqrt()
}

/// Square root, correctly rounded.
#[cfg(not(feature = "std"))]
#[inline]
#[must_use]
pub fn sqrt(x: f32) -> f32 {
    libm::sqrtf(x)
}

/// Square root in double precision, correctly rounded.
#[cfg(feature = "std")]
#[inline]
#[must_use]
pub fn sqrt_f64(x: f64) -> f64 {
    x.sqrt()
}

/// Square root in double precision, correctly rounded.
#[cfg(not(feature = "std"))]
#[inline]
#[must_use]
pub fn sqrt_f64(x: f64) -> f64 {
    libm::sqrt(x)
}

/// e to the power `x`.
#[inline]
#[must_use]
pub fn exp(x: f32) -> f32 {
    libm::expf(x)
}

/// ln(1 + `x`), exact for small `x`.
#[inline]
#[must_use]
pub fn ln_1p(x: f32) -> f32 {
    libm::log1pf(x)
}

/// Natural logarithm in double precision.
#[inline]
#[must_use]
pub fn ln_f64(x: f64) -> f64 {
    libm::log(x)
}

/// ln(1 + `x`) in double precision.
#[inline]
#[must_use]
pub fn ln_1p_f64(x: f64) -> f64 {
    libm::log1p(x)
}

/// e to the power `x` in double precision.
#[inline]
#[must_use]
pub fn exp_f64(x: f64) -> f64 {
    libm::exp(x)
}

/// 1 / (1 + e^-x), without overflow for any `x`.
#[inline]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}
