//! The k largest of one chunk, in the cache.

use super::Candidates;
use crate::simd::{Kernels, LANES};
use crate::{Result, allocate};

/// Columns for each entry wanted. With so many, few columns hold two of the largest.
const COLUMNS: usize = 4;

/// Adds the `k` entries of largest magnitude of `x`, which begins at position `base`: ties by lower
/// position, no zeros. `bits` is memory to use again.
///
/// The k-th largest of the maxima of columns bounds the k-th largest from below, so that few more
/// than `k` are above it; the rest is a search among those. Where columns would be short the
/// elements themselves are searched.
pub(super) fn largest(
    kernels: &Kernels,
    x: &[f32],
    k: usize,
    base: u32,
    bits: &mut Vec<u32>,
    candidates: &mut Candidates,
) {
    let columns = (COLUMNS * k).next_multiple_of(LANES);
    let bound = if k >= x.len() {
        0
    } else if 2 * columns <= x.len() {
        if !candidates.admit_memory(allocate::resize(bits, columns)) {
            return;
        }
        kernels.maxima(x, bits);
        kernels.kth(bits, k, k / 8)
    } else {
        if !candidates.admit_memory(magnitudes(x, bits)) {
            return;
        }
        kernels.kth(bits, k, 0)
    };
    let Some((indices, values)) = candidates.spare(x.len()) else { return };
    // Above the magnitude just below the bound; above zero is all that can go.
    let below = f32::from_bits(bound.saturating_sub(1));
    let found = kernels.above(x, below, base, indices, values);
    let (indices, values) = (&mut indices[..found], &mut values[..found]);
    let mut kept = found;
    if found > k {
        if let Err(error) = magnitudes(values, bits) {
            candidates.fail(error);
            return;
        }
        let kth = kernels.kth(bits, k, 0);
        let above = bits.iter().filter(|&&b| b > kth).count();
        let mut ties = k - above;
        kept = 0;
        for i in 0..found {
            let (b, index, value) = (bits[i], indices[i], values[i]);
            (indices[kept], values[kept]) = (index, value);
            let tie = b == kth && ties > 0;
            ties -= usize::from(tie);
            kept += usize::from(b > kth || tie);
        }
    }
    candidates.admit(kept);
}

fn magnitudes(x: &[f32], bits: &mut Vec<u32>) -> Result<()> {
    bits.clear();
    allocate::reserve(bits, x.len())?;
    bits.extend(x.iter().map(|value| value.to_bits() & 0x7fff_ffff));
    Ok(())
}
