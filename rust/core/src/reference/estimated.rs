//! Selections by an estimated threshold, each by filters over the whole tensor.

use super::{above, largest};
use crate::fit::normal;

/// Deep Gradient Compression: the threshold is the smallest of the `most` largest of the sample, and
/// is lowered to `lower` of itself, ten times at most, while fewer than `lower * k` entries are at or
/// above it. Of more than `k` the largest.
pub fn sampled(x: &[f32], sample: &[f32], most: usize, k: usize, lower: f32) -> Vec<u32> {
    let mut magnitudes: Vec<f32> = sample.iter().map(|v| v.abs()).collect();
    magnitudes.sort_by(|a, b| b.total_cmp(a));
    let mut threshold = magnitudes[most - 1];
    let at_least = |threshold: f32| above(x, threshold.next_down().max(0.0));
    for _ in 0..10 {
        if at_least(threshold).len() as f64 >= f64::from(lower) * k as f64 {
            break;
        }
        threshold *= lower;
    }
    let selected = at_least(threshold);
    if threshold == 0.0 || selected.len() > k { largest(x, k) } else { selected }
}

/// A normal distribution's threshold, in the loop of Gaussian-k's authors: three counts, each followed
/// by a correction, of which the last is not used. Everything above the last threshold counted goes.
pub fn gaussian(x: &[f32], k: usize) -> Vec<u32> {
    let n = x.len() as f64;
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let deviations = x.iter().map(|&v| f64::from(v) - mean);
    let squares: f64 = deviations.map(|d| d * d).sum();
    let deviation = libm::sqrt(squares / (n - 1.0));
    let mut threshold = (mean + deviation * normal::two_sided(k as f64 / n)).max(0.0) as f32;
    let mut selected = Vec::new();
    for _ in 0..3 {
        selected = above(x, threshold);
        if 3 * selected.len() < 2 * k {
            threshold *= 0.5;
        } else if 3 * selected.len() > 4 * k {
            threshold *= 1.5;
        } else {
            break;
        }
    }
    if selected.is_empty() { largest(x, k) } else { selected }
}

/// RedSync's binary search: `k` to `2 k` entries, or the `k` largest where it does not find any.
pub fn redsync(x: &[f32], k: usize, step: f64) -> Vec<u32> {
    let mean = x.iter().map(|v| f64::from(v.abs())).sum::<f64>() / x.len() as f64;
    let most = f64::from(x.iter().fold(0.0f32, |most, v| most.max(v.abs())));
    let (mut low, mut high) = (0.0, 1.0);
    while high - low > step {
        let r = f64::midpoint(low, high);
        let selected = above(x, (mean + r * (most - mean)) as f32);
        if selected.len() < k {
            high = r;
        } else if selected.len() > 2 * k {
            low = r;
        } else {
            return selected;
        }
    }
    largest(x, k)
}

/// Dryden's two thresholds from a sample of which `kept` entries are kept; the `most` largest of what
/// is beyond them.
pub fn two_sided(x: &[f32], sample: &[f32], kept: usize, most: usize) -> Vec<u32> {
    let mut sample = sample.to_vec();
    sample.sort_by(|a, b| b.abs().total_cmp(&a.abs()));
    let least = sample[kept - 1].abs();
    let kept: Vec<f32> = sample.into_iter().filter(|v| v.abs() >= least).collect();
    let positive = kept.iter().copied().filter(|&v| v > 0.0).reduce(f32::min);
    let negative = kept.iter().copied().filter(|&v| v < 0.0).reduce(f32::max);
    let (positive, negative) = match (positive, negative) {
        _ if kept.contains(&0.0) => (0.0, 0.0),
        (Some(positive), None) => (positive, -positive),
        (None, Some(negative)) => (-negative, negative),
        (Some(positive), Some(negative)) => (positive, negative),
        (None, None) => (0.0, 0.0),
    };
    let beyond = |v: f32| v != 0.0 && (v >= positive || v <= negative);
    let sent: Vec<f32> = x.iter().map(|&v| if beyond(v) { v } else { 0.0 }).collect();
    largest(&sent, most)
}
