//! Takes the magnitudes inside a window out of a list, and counts those above it.
//!
//! `window(values, low, high, out) -> (inside, above)` writes the bits of each magnitude in
//! `(low, high]`, in order, to the front of `out` and returns how many there are, and how many
//! magnitudes are larger. `low` and `high` are bits of magnitudes, `low <= high`. `out` holds at
//! least `values.len() + SLACK` elements, because whole vectors are stored; what lies behind the
//! count is unspecified.

mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(in crate::simd) use scalar::run as scalar;
#[cfg(target_arch = "aarch64")]
pub(in crate::simd) use scalar::run as neon;
#[cfg(target_arch = "x86_64")]
pub(in crate::simd) use x86::{avx2::run as avx2, avx512::run as avx512};

#[cfg(test)]
mod tests {
    use crate::simd::above::SLACK;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn equals_a_filter_on_every_level() {
        levels_and_lengths(|kernels, x| {
            let all: Vec<u32> = x.iter().map(|v| v.abs().to_bits()).collect();
            for (low, high) in
                [(0.0_f32, 0.0), (0.0, 0.25), (0.2, 0.25), (0.25, 1e30), (1e-40, f32::MAX)]
            {
                let (low, high) = (low.to_bits(), high.to_bits());
                let mut out = vec![u32::MAX; x.len() + SLACK];
                let (inside, above) = kernels.window(&x, low, high, &mut out);
                let expected: Vec<u32> =
                    all.iter().copied().filter(|bits| (low + 1..=high).contains(bits)).collect();
                assert_eq!(out[..inside], expected, "{:?} {}", kernels.level(), x.len());
                assert_eq!(above, all.iter().filter(|bits| **bits > high).count());
            }
        });
    }
}
