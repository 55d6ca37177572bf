//! Plain Rust: stored always, counted on a hit.

pub(in crate::simd) fn run(indices: &mut [u32], values: &mut [f32], bound: f32) -> usize {
    from(0, 0, indices, values, bound)
}

/// Goes on from position `at` with `count` entries kept.
pub(super) fn from(
    at: usize,
    mut count: usize,
    indices: &mut [u32],
    values: &mut [f32],
    bound: f32,
) -> usize {
    for i in at..values.len() {
        let (index, value) = (indices[i], values[i]);
        (indices[count], values[count]) = (index, value);
        count += usize::from(value.abs() > bound);
    }
    count
}
