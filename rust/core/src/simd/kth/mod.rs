//! The k-th largest of a short list of magnitudes, by bisection over the bits.
//!
//! `kth(bits, k, slack) -> bound` gives the largest bound that at least `k` of the list reach, for `1
//! <= k <= bits.len()`. With `slack` it may stop at any bound that `k` to `k + slack` of them reach.
//! Counting has no branches, so that a list of some hundred is searched faster than it could be
//! ordered, and whatever the data.

use super::stamp::stamp;

#[inline(always)]
fn body(bits: &[u32], k: usize, slack: usize) -> u32 {
    let highest = bits.iter().fold(0, |highest, &b| highest.max(b));
    let lowest = bits.iter().fold(u32::MAX, |lowest, &b| lowest.min(b));
    // `k` reach the first, fewer than `k` reach the second.
    let (mut low, mut high) = (u64::from(lowest), u64::from(highest) + 1);
    while high - low > 1 {
        let middle = u64::midpoint(low, high);
        let bound = middle as u32;
        let reach: u32 = bits.iter().map(|&b| u32::from(b >= bound)).sum();
        let reach = reach as usize;
        if reach < k {
            high = middle;
        } else {
            low = middle;
            if reach <= k + slack && slack > 0 {
                break;
            }
        }
    }
    low as u32
}

stamp!(fn(bits: &[u32], k: usize, slack: usize) -> u32 => body);

#[cfg(test)]
mod tests {
    use crate::simd::testing::levels_and_lengths;

    #[test]
    fn equals_sorting_on_every_level() {
        levels_and_lengths(|kernels, x| {
            let bits: Vec<u32> = x.iter().map(|v| v.abs().to_bits()).collect();
            let mut sorted = bits.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            for k in [1, 2, x.len() / 3, x.len() / 2, x.len()] {
                if (1..=x.len()).contains(&k) {
                    assert_eq!(kernels.kth(&bits, k, 0), sorted[k - 1], "{k} of {}", x.len());
                    let bound = kernels.kth(&bits, k, 5);
                    let reach = bits.iter().filter(|&&b| b >= bound).count();
                    assert!(reach >= k && (reach <= k + 5 || bound == sorted[k - 1]));
                }
            }
        });
    }
}
