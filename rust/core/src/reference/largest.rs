//! Top-k by sorting.

/// Positions of the `k` largest magnitudes that are not zero, ties by lower position, ascending.
pub fn largest(x: &[f32], k: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..x.len() as u32).filter(|&i| x[i as usize] != 0.0).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(x[i as usize].abs().to_bits()), i));
    order.truncate(k);
    order.sort_unstable();
    order
}

/// Positions of the magnitudes strictly above a threshold, ascending.
pub fn above(x: &[f32], threshold: f32) -> Vec<u32> {
    (0..x.len() as u32).filter(|&i| x[i as usize].abs() > threshold).collect()
}
