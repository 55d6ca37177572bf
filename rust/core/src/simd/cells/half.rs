//! Numbers of float16, in float32.

/// Bits of float32 that float16 lacks.
const CUT: u32 = 0x1FFF;

/// The least magnitude that is a normal number of float16.
const NORMAL: f32 = 6.103_515_6e-5;

/// The nearest float16, ties to even, of a number that is not beyond them.
#[inline(always)]
pub(crate) fn near(number: f32) -> f32 {
    // One half has a last bit of 2^-24, as the subnormal numbers of float16.
    let subnormal = (number.abs() + 0.5) - 0.5;
    let bits = number.abs().to_bits();
    let normal = f32::from_bits((bits + (CUT >> 1) + (bits >> 13 & 1)) & !CUT);
    (if number.abs() < NORMAL { subnormal } else { normal }).copysign(number)
}

/// The largest float16 that is not above.
#[inline(always)]
pub(crate) fn down(number: f32) -> f32 {
    let near = near(number);
    // A number plus one in its last place, or minus: below 2^-24 that is the next subnormal.
    if near <= number { near } else { near - last_place(number) }
}

/// The least float16 that is not below.
#[inline(always)]
pub(crate) fn up(number: f32) -> f32 {
    -down(-number)
}

/// What the last bit of a number is worth in float16.
#[inline(always)]
fn last_place(number: f32) -> f32 {
    let exponent = number.abs().max(NORMAL).to_bits() & 0x7F80_0000;
    f32::from_bits(exponent) * 9.765_625e-4
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn numbers_are_rounded_to_float16_as_the_half_crate_does_and_to_either_side() {
        let numbers = (0..=f16::from_f32(32752.0).to_bits()).flat_map(|bits| {
            let [here, next] = [bits, bits + 1].map(|bits| f16::from_bits(bits).to_f32());
            [here, here + 0.25 * (next - here), 0.5 * (here + next), here + 0.75 * (next - here)]
        });
        for number in numbers.flat_map(|number| [number, -number]) {
            assert_eq!(near(number), f16::from_f32(number).to_f32(), "{number}");
            let (below, above) = (f16::from_f32(down(number)), f16::from_f32(up(number)));
            assert!(below.to_f32() == down(number) && above.to_f32() == up(number), "{number}");
            assert!(below.to_f32() <= number && number <= above.to_f32(), "{number}");
            let steps = i32::from(above.to_bits() & 0x7FFF) - i32::from(below.to_bits() & 0x7FFF);
            assert!(steps.abs() <= 1, "{number}");
        }
    }
}
