//! Selects exactly the k entries of largest magnitude after the first read.

use super::Scanned;
use super::radix::{self, Search};
use crate::scan::{Candidates, Tensor, magnitude_above};
use crate::simd::Kernels;
use crate::simd::peak::NON_FINITE;

/// How many candidates to keep at most in a search for the `k` largest: enough for a bound that is
/// off by two thirds, and never the size of the tensor unless `k` is.
pub(super) fn cap(k: u64, numel: usize) -> usize {
    (3 * k as usize).max(numel / 64).max(4096)
}

/// How many candidates to aim at: so many more than `k` that neither chance nor a changing scale
/// leaves fewer as a rule. Where `k` is a large share of the tensor candidates cost the most, and a
/// change of scale changes their number the least.
pub(super) fn aim(k: u64, numel: usize) -> f64 {
    let margin = if k <= numel as u64 / 32 { 2.0 } else { 1.25 };
    margin * k as f64 + 4.0 * libm::sqrt(k as f64) + 8.0
}

/// A bound to begin with for the `k` largest of a tensor that nothing is known of.
pub(super) fn first_bound(k: u64, tensor: Tensor<'_>, scratch: &mut Vec<u32>) -> f32 {
    let numel = tensor.len();
    let aim = aim(k, numel);
    if aim >= numel as f64 { 0.0 } else { magnitude_above(numel, aim, |i| tensor.at(i), scratch) }
}

/// Keeps the `k` largest magnitudes of the tensor, ties by lower position, and says what
/// came of it. Fewer are kept only where the tensor has fewer that are not zero.
///
/// The candidates of the first read serve if there are enough of them: the largest of the tensor
/// are then the largest of the candidates. If not, a sample gives another bound and the tensor is
/// read once more. Only a tensor that fools the sample (most of its entries equal, say) costs a
/// search over all of it.
pub(super) fn keep(k: u64, scanned: &mut Scanned<'_, '_>) -> Kept {
    let numel = scanned.numel();
    if !suffices(k, scanned) {
        let bound = first_bound(k, scanned.tensor, scanned.scratch);
        scanned.compact(bound, cap(k, numel));
    }
    if !suffices(k, scanned) {
        search(k, scanned);
    }
    let bound = scanned.request.bound().unwrap_or(0.0);
    let candidates = scanned.scanner.candidates().len();
    let kernels = scanned.scanner.kernels;
    let threshold = narrow(scanned.scanner.candidates_mut(), k, kernels, scanned.scratch);
    Kept { threshold, bound, candidates }
}

/// What [`keep`] came to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    /// The smallest magnitude kept.
    pub threshold: f32,
    /// The bound that served in the end, and how many entries were above it.
    pub bound: f32,
    pub candidates: usize,
}

/// Whether the `k` largest of the tensor are among the candidates.
fn suffices(k: u64, scanned: &Scanned<'_, '_>) -> bool {
    // Above a bound of zero is every entry that can be selected at all.
    scanned.totals.complete
        && (scanned.covers(0.0) || scanned.scanner.candidates().len() as u64 >= k)
}

/// Keeps the `k` largest candidates; the smallest magnitude kept, zero if none is. `scratch` is
/// memory to use again.
pub(crate) fn narrow(
    candidates: &mut Candidates,
    k: u64,
    kernels: &Kernels,
    scratch: &mut Vec<u32>,
) -> f32 {
    if k == 0 {
        candidates.clear();
        return 0.0;
    }
    if candidates.len() as u64 <= k {
        let least = |least: Option<f32>, v: &f32| Some(least.map_or(v.abs(), |l| l.min(v.abs())));
        return candidates.values().iter().fold(None, least).unwrap_or(0.0);
    }
    let kth = match radix::find(candidates.values(), k, kernels, scratch) {
        Ok(kth) => kth,
        Err(error) => {
            candidates.fail(error);
            return 0.0;
        }
    };
    let threshold = f32::from_bits(kth.bits);
    if kth.equal == kth.ties && kth.bits > 0 {
        candidates.keep_above(kernels, f32::from_bits(kth.bits - 1));
    } else {
        candidates.keep_from(kernels, threshold, kth.ties);
    }
    threshold
}

/// Searches the whole tensor, a digit of the k-th magnitude in each read, until few enough entries
/// are left to keep; the candidates then hold the `k` largest.
fn search(k: u64, scanned: &mut Scanned<'_, '_>) {
    let cap = cap(k, scanned.numel());
    let mut search = Search::new(k);
    while !search.is_done() {
        let kernels = scanned.scanner.kernels;
        scanned.tensor.for_each_block(kernels, |_, block| search.count(block));
        search.next_digit();
        if k - search.rank() + search.inside() <= cap as u64 {
            // Above the magnitude just below the digits found, or above zero.
            scanned.compact(f32::from_bits(search.bits().saturating_sub(1)), cap);
            return;
        }
    }
    take_ties(&search, scanned);
}

/// Collects what is above the k-th magnitude, and of those equal to it, too many to keep, as many
/// as are wanted in the order of positions.
fn take_ties(search: &Search, scanned: &mut Scanned<'_, '_>) {
    let kernels = scanned.scanner.kernels;
    let candidates = scanned.scanner.candidates_mut();
    candidates.clear();
    let mut ties = if search.bits() == 0 { 0 } else { search.rank() };
    scanned.tensor.for_each_block(kernels, |at, block| {
        for (i, &value) in block.iter().enumerate() {
            let bits = value.to_bits() & 0x7fff_ffff;
            let tie = bits == search.bits() && ties > 0;
            // What is not finite now was not there in the first read.
            if (bits > search.bits() || tie) && bits < NON_FINITE {
                ties -= u64::from(tie);
                candidates.push((at + i) as u32, value);
            }
        }
    });
    scanned.totals.complete = true;
}
