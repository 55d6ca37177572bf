//! The sum of the natural logarithms of the non-zero magnitudes, without a logarithm in the loop.
//!
//! A magnitude is `m * 2^e` with `m` in [1, 2): the exponents are summed as integers and the
//! mantissas multiplied, sixteen lanes each. After each block the products are brought back into
//! [1, 2), so that they cannot overflow; a chunk costs sixteen logarithms in the end.

use super::stamp::stamp;
use super::{BLOCK, LANES, reduce};

const MANTISSA: u64 = (1 << 52) - 1;
const ONE: u64 = 1023 << 52;

// A lane multiplies BLOCK / 16 mantissas below 2 before it is brought back.
const _: () = assert!(BLOCK / LANES < 1000);

/// Running exponents and products; one set for each chunk of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lanes {
    exponent: [i64; LANES],
    product: [f64; LANES],
}

impl Default for Lanes {
    fn default() -> Self {
        Self { exponent: [0; LANES], product: [1.0; LANES] }
    }
}

impl Lanes {
    /// The sum of `ln |x|` over the non-zero elements.
    pub fn sum_ln(&self) -> f64 {
        let mut logs = [0.0; LANES];
        for ((log, &exponent), &product) in logs.iter_mut().zip(&self.exponent).zip(&self.product) {
            *log = exponent as f64 * std::f64::consts::LN_2 + libm::log(product);
        }
        reduce(&logs)
    }
}

/// Splits a positive normal float64 into its exponent and its mantissa in [1, 2).
#[inline(always)]
fn split(value: f64) -> (i64, f64) {
    let bits = value.to_bits();
    ((bits >> 52) as i64 - 1023, f64::from_bits(bits & MANTISSA | ONE))
}

#[inline(always)]
fn step(exponent: &mut i64, product: &mut f64, value: f32) {
    // Every float32 but zero, subnormals too, is a normal float64; a zero counts as one.
    let (e, m) = split(if value == 0.0 { 1.0 } else { f64::from(value.abs()) });
    *exponent += e;
    *product *= m;
}

#[inline(always)]
fn body(x: &[f32], lanes: &mut Lanes) {
    let Lanes { mut exponent, mut product } = *lanes;
    let (groups, rest) = x.as_chunks::<LANES>();
    for group in groups {
        for i in 0..LANES {
            step(&mut exponent[i], &mut product[i], group[i]);
        }
    }
    for (i, &value) in rest.iter().enumerate() {
        step(&mut exponent[i], &mut product[i], value);
    }
    for i in 0..LANES {
        let (e, m) = split(product[i]);
        exponent[i] += e;
        product[i] = m;
    }
    *lanes = Lanes { exponent, product };
}

stamp!(fn(x: &[f32], lanes: &mut Lanes) => body);

#[cfg(test)]
mod tests {
    use super::Lanes;
    use crate::simd::{Kernels, Level, testing::levels_and_lengths};

    #[test]
    fn equals_a_sum_of_logarithms() {
        levels_and_lengths(|kernels, x| {
            let logs = x.iter().filter(|v| **v != 0.0).map(|v| f64::from(v.abs()).ln());
            let (expected, size) = logs.fold((0.0, 1.0), |(s, a), l| (s + l, a + l.abs()));
            let mut lanes = Lanes::default();
            kernels.log_sum(&x, &mut lanes);
            let error = (lanes.sum_ln() - expected).abs();
            assert!(error <= 1e-13 * size, "{:?} {} {error}", kernels.level(), x.len());
        });
    }

    #[test]
    fn gives_the_same_bits_on_every_level() {
        let scalar = Kernels::of(Level::Scalar).unwrap();
        levels_and_lengths(|kernels, x| {
            let (mut a, mut b) = (Lanes::default(), Lanes::default());
            for _ in 0..3 {
                kernels.log_sum(&x, &mut a);
                scalar.log_sum(&x, &mut b);
            }
            assert_eq!(a, b);
        });
    }
}
