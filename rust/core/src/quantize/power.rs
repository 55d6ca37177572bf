//! Scales that are powers of two: products by them are exact.

/// The exponent of the smallest float32 above zero.
const LOWEST: i32 = -149;

/// Exponent and significand, in [1, 2), of a magnitude that is finite and not zero; of others
/// whatever.
pub(super) fn split(magnitude: f32) -> (i32, f64) {
    // Every float32 is a normal float64.
    let bits = f64::from(magnitude).to_bits();
    let significand = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    ((bits >> 52 & 0x7FF) as i32 - 1023, significand)
}

/// Two to this exponent, or to the nearest one from -149 to `highest`.
pub(super) fn of(exponent: i32, highest: i32) -> f32 {
    wide(exponent.clamp(LOWEST, highest)) as f32
}

/// Whether a scale is zero or a power of two, at most two to `highest`.
#[inline]
pub(super) fn is_at_most(scale: f32, highest: i32) -> bool {
    let field = scale.to_bits() >> 23;
    if field << 23 == scale.to_bits() && (1..=254).contains(&field) {
        return field as i32 - 127 <= highest;
    }
    let (exponent, significand) = split(scale);
    let is_power = scale > 0.0 && scale.is_finite() && significand == 1.0;
    scale.to_bits() == 0 || (is_power && exponent <= highest)
}

/// Two factors whose product is one over a power of two: that of the smallest is no float32. For a
/// scale of zero that product is zero.
#[inline]
pub(super) fn inverse(scale: f32) -> [f32; 2] {
    const SMALLEST: u32 = f32::MIN_POSITIVE.to_bits();
    let bits = scale.to_bits();
    if (SMALLEST..254 << 23).contains(&bits) {
        // Both exponents are those of normal numbers.
        return [f32::from_bits((254 << 23) - bits), 1.0];
    }
    if scale == 0.0 {
        return [0.0, 1.0];
    }
    let exponent = -split(scale).0;
    let first = exponent.clamp(-127, 127);
    [wide(first) as f32, wide(exponent - first) as f32]
}

/// Two to a small exponent.
fn wide(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_power_is_known_and_has_an_inverse() {
        for exponent in LOWEST..=127 {
            let power = of(exponent, 127);
            assert_eq!(f64::from(power), 2.0_f64.powi(exponent));
            assert_eq!(split(power), (exponent, 1.0));
            let [a, b] = inverse(power).map(f64::from);
            assert_eq!(f64::from(power) * a * b, 1.0);
            assert!(is_at_most(power, 127) && is_at_most(power, exponent));
            assert!(!is_at_most(power, exponent - 1) && !is_at_most(-power, 127));
        }
        assert_eq!((of(-200, 127), of(200, 119)), (of(-149, 127), of(119, 127)));
        assert!(is_at_most(0.0, 0) && !is_at_most(-0.0, 0) && !is_at_most(3.0, 127));
        assert!(!is_at_most(f32::INFINITY, 127) && !is_at_most(f32::NAN, 127));
        assert!(!is_at_most(f32::from_bits(3), 127));
    }
}
