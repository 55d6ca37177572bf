//! The largest magnitude of each column, where a block is laid out in rows.
//!
//! `maxima(x, out)` lays `x` out in rows of `out.len()` elements, the last of which may be shorter, and
//! writes the bits of the largest magnitude of each column to `out`.
//!
//! The k-th largest of these maxima is a magnitude that k elements at least reach, and, with a few
//! times as many columns as k, hardly more: a bound to select above that holds on any data.

use super::stamp::stamp;

#[inline(always)]
fn body(x: &[f32], out: &mut [u32]) {
    out.fill(0);
    for row in x.chunks(out.len().max(1)) {
        for (largest, value) in out.iter_mut().zip(row) {
            *largest = (*largest).max(value.to_bits() & 0x7fff_ffff);
        }
    }
}

stamp!(fn(x: &[f32], out: &mut [u32]) => body);

#[cfg(test)]
mod tests {
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn equals_the_maximum_of_each_column_on_every_level() {
        levels_and_lengths(|kernels, x| {
            for columns in [1, 3, 16, 48, 128] {
                let mut out = vec![77; columns];
                kernels.maxima(&x, &mut out);
                for (j, &found) in out.iter().enumerate() {
                    let column = x.iter().skip(j).step_by(columns);
                    let expected = column.fold(0.0_f32, |m, v| m.max(v.abs())).to_bits();
                    assert_eq!(found, expected, "{:?} {} {columns}", kernels.level(), x.len());
                }
            }
        });
    }
}
