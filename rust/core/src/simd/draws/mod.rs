//! Random positions, many at once.
//!
//! `draws(key, at, numel, out)` writes the position below `numel` that each of the key's numbers from
//! `at` on stands for, the upper half of it times `numel`, or [`NONE`] where the lower half is below
//! `2^32 mod numel`. Those left are equally many for each position (D. Lemire, "Fast Random Integer
//! Generation in an Interval", ACM Trans. Model. Comput. Simul. 2019). `numel` is not zero.

use super::stamp::stamp;
use crate::rng::Key;

/// No position: none is as large.
pub const NONE: u32 = u32::MAX;

#[inline(always)]
fn body(key: Key, at: u32, numel: u32, out: &mut [u32]) {
    let least = numel.wrapping_neg() % numel;
    for (i, out) in out.iter_mut().enumerate() {
        let product = u64::from(key.bits(at.wrapping_add(i as u32))) * u64::from(numel);
        let taken = product as u32 >= least;
        *out = if taken { (product >> 32) as u32 } else { NONE };
    }
}

stamp!(fn(key: Key, at: u32, numel: u32, out: &mut [u32]) => body);

#[cfg(test)]
mod tests {
    use super::NONE;
    use crate::rng::Key;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn equals_the_definition_on_every_level() {
        let key = Key::new(1, 2, 3, 4);
        levels_and_lengths(|kernels, x| {
            for numel in [1_u64, 2, 25_000_000, (1 << 31) + 1, u64::from(u32::MAX)] {
                let at = u32::MAX - 50;
                let mut out = vec![7; x.len()];
                kernels.draws(key, at, numel as u32, &mut out);
                for (i, &position) in out.iter().enumerate() {
                    let product = u64::from(key.bits(at.wrapping_add(i as u32))) * numel;
                    let taken = product % (1 << 32) >= (1 << 32) % numel;
                    let expected = if taken { (product >> 32) as u32 } else { NONE };
                    assert_eq!(position, expected, "{:?} {numel} {i}", kernels.level());
                }
            }
        });
    }
}
