//! The entry of largest magnitude in each chunk of a block.
//!
//! `leaders(x, chunk, base, indices, values) -> count` writes position `base + i` and value of the
//! first largest magnitude of each `chunk` elements of `x`, the last of which may be fewer, to the
//! front of `indices` and `values`. A chunk of zeros gives nothing. Both outputs hold an element for
//! each chunk at least; what lies behind the count is unspecified. All magnitudes are finite.

use super::stamp::stamp;

#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// The largest magnitude, and then the lowest place that has it: two loops that a compiler makes
/// vectors of, each faster than one loop that keeps both.
#[inline(always)]
fn first_largest(x: &[f32]) -> usize {
    let highest = x.iter().fold(0, |highest, &value| magnitude(value).max(highest));
    let mut first = u32::MAX;
    for (i, &value) in x.iter().enumerate() {
        first = first.min(if magnitude(value) == highest { i as u32 } else { u32::MAX });
    }
    // Another thread may have written to the tensor between the loops.
    (first as usize).min(x.len() - 1)
}

#[inline(always)]
fn body(x: &[f32], chunk: usize, base: u32, indices: &mut [u32], values: &mut [f32]) -> usize {
    let mut count = 0;
    for (c, part) in x.chunks(chunk).enumerate() {
        let at = first_largest(part);
        (indices[count], values[count]) = (base + (c * chunk + at) as u32, part[at]);
        count += usize::from(magnitude(part[at]) > 0);
    }
    count
}

stamp!(fn(x: &[f32], chunk: usize, base: u32, indices: &mut [u32], values: &mut [f32]) -> usize => body);

#[cfg(test)]
mod tests {
    use crate::reference::largest_of_chunks;
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn equals_sorting_each_chunk_on_every_level() {
        levels_and_lengths(|kernels, mut x| {
            x.iter_mut().skip(60).take(40).for_each(|v| *v = 0.0);
            for chunk in [1, 2, 3, 15, 16, 17, 31, 33, 64, 100, 2000] {
                let expected = largest_of_chunks(&x, chunk, 1);
                let capacity = x.len().div_ceil(chunk);
                let (mut indices, mut values) = (vec![9; capacity], vec![f32::NAN; capacity]);
                let count = kernels.leaders(&x, chunk, 1000, &mut indices, &mut values);
                let found: Vec<u32> = indices[..count].iter().map(|i| i - 1000).collect();
                assert_eq!(found, expected, "{:?} {} {chunk}", kernels.level(), x.len());
                let same = |(&i, v): (&u32, &f32)| x[i as usize].to_bits() == v.to_bits();
                assert!(found.iter().zip(&values).all(same));
            }
        });
    }
}
