//! What positions cost beside the information bound log2 C(n, k), over all densities in use.

use gradwire_core::pack::{self, IndexCoding, Pattern};

const NUMEL: u64 = 10_000_000;

/// 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8 in each decade from 1e-4, up to one half.
fn densities() -> impl Iterator<Item = f64> {
    let steps = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0];
    let decades = [1e-4, 1e-3, 1e-2, 1e-1];
    decades.into_iter().flat_map(move |d| steps.map(|s| s * d)).filter(|&p| p <= 0.5)
}

/// Independent picks with probability `density`: geometric gaps from a fixed stream (`SplitMix64`).
fn support(density: f64) -> Vec<u32> {
    let mut state = density.to_bits();
    let mut uniform = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = state;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        libm::ldexp(((x ^ (x >> 31)) >> 11) as f64, -53)
    };
    let per_gap = 1.0 / libm::log1p(-density);
    let mut next = 0_u64;
    let mut out = Vec::new();
    loop {
        next += libm::floor(libm::log1p(-uniform()) * per_gap) as u64;
        if next >= NUMEL {
            return out;
        }
        out.push(next as u32);
        next += 1;
    }
}

/// log2 of the number of supports of this size.
fn log2_choose(n: u64, k: u64) -> f64 {
    let ln_factorial = |x: u64| libm::lgamma(x as f64 + 1.0);
    (ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k)) / std::f64::consts::LN_2
}

/// Bits an entry of the smallest coding that is allowed.
fn cost(allowed: IndexCoding, indices: &[u32]) -> f64 {
    pack::choose(allowed, Pattern::Any, indices, NUMEL).1 as f64 * 8.0 / indices.len() as f64
}

#[test]
fn positions_cost_little_more_than_the_information_in_them() {
    use IndexCoding::{Auto, Bitmap, EliasFano, Rice};
    for density in densities() {
        let indices = support(density);
        let count = indices.len() as u64;
        let entropy = log2_choose(NUMEL, count) / count as f64;
        let [auto, rice, elias_fano, bitmap] =
            [Auto, Rice, EliasFano, Bitmap].map(|allowed| cost(allowed, &indices));
        assert!(rice >= entropy, "no code beats the bound on average");
        assert!(rice - entropy <= 0.15, "Rice at {density}: {}", rice - entropy);
        assert!(auto - entropy <= 0.15, "the choice at {density}: {}", auto - entropy);
        assert!(auto <= rice && auto <= elias_fano && auto <= bitmap);
        // Below 5 % the bound of the next test comes to this.
        if density <= 0.05 {
            assert!(elias_fano - entropy <= 0.6, "EF at {density}: {}", elias_fano - entropy);
        }
        // Between, neither EF nor a bitmap comes close: the worst is at one in four, where both take
        // four bits and the information is 3.245.
        assert!(elias_fano.min(bitmap) - entropy <= 0.76);
    }
}

/// With r = n / k and w = floor(log2 r), Elias-Fano takes at most `w + 1 + r / 2^w` bits an entry,
/// and `1 + f - log2 f <= 2` for `f = r / 2^w` in [1, 2]. The best w takes no more.
#[test]
fn elias_fano_takes_at_most_two_bits_more_than_log2_of_the_mean_distance() {
    for numel in [2_u64, 3, 10, 64, 1000, 65_537, 10_000_000, u64::from(u32::MAX)] {
        for step in 0..200 {
            let count = libm::pow(numel as f64, f64::from(step) / 200.0) as u64;
            let bound = count as f64 * (2.0 + libm::log2(numel as f64 / count as f64));
            let len = pack::max_len(IndexCoding::EliasFano, Pattern::Any, numel, count);
            assert!(len as f64 <= (bound / 8.0).ceil(), "{count} of {numel}: {len} bytes");
        }
    }
}
