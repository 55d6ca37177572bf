//! Plain Rust: stored always, counted on a hit.

pub(in crate::simd) fn run(values: &[f32], low: u32, high: u32, out: &mut [u32]) -> (usize, usize) {
    from(0, (0, 0), values, (low, high), out)
}

/// Goes on from position `at` with what was found before it.
pub(super) fn from(
    at: usize,
    (mut inside, mut above): (usize, usize),
    values: &[f32],
    (low, high): (u32, u32),
    out: &mut [u32],
) -> (usize, usize) {
    for value in &values[at..] {
        let bits = value.to_bits() & 0x7fff_ffff;
        out[inside] = bits;
        let larger = bits > high;
        above += usize::from(larger);
        inside += usize::from(bits > low && !larger);
    }
    (inside, above)
}
