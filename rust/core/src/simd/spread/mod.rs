//! Writes the numbers of groups down for each of their entries.
//!
//! Groups have `len` entries each, but for the first, of which `skip` were before. Sixteen entries are
//! written at a time, beyond the end of a group, where the next one overwrites them: `out` has room
//! for fifteen entries more than the groups have, or ends with entries that nobody reads.

use super::LANES;
use super::stamp::stamp;

#[inline(always)]
fn body(numbers: &[f32], len: usize, skip: usize, out: &mut [f32]) {
    let (mut at, mut size) = (0, len - skip);
    for &number in numbers {
        let lanes = out[at..].as_chunks_mut::<LANES>().0;
        let whole = size.div_ceil(LANES).min(lanes.len());
        for lanes in &mut lanes[..whole] {
            *lanes = [number; LANES];
        }
        at += size;
        size = len;
    }
}

stamp!(fn(numbers: &[f32], len: usize, skip: usize, out: &mut [f32]) => body);

#[cfg(test)]
mod tests {
    use crate::simd::{Kernels, LANES, available_levels};

    #[test]
    fn every_entry_has_the_number_of_its_group() {
        for kernels in available_levels().into_iter().filter_map(Kernels::of) {
            for (len, groups) in (1..=70).flat_map(|len| [1, 2, 9].map(|groups| (len, groups))) {
                for skip in [0, len / 2, len - 1] {
                    let numbers: Vec<f32> = (0..groups).map(|group| group as f32).collect();
                    let entries = groups * len - skip;
                    let mut out = vec![f32::NAN; entries + LANES - 1];
                    kernels.spread(&numbers, len, skip, &mut out);
                    let expected = (skip..groups * len).map(|i| (i / len) as f32);
                    assert!(out[..entries].iter().copied().eq(expected), "{len} {groups} {skip}");
                }
            }
        }
    }
}
