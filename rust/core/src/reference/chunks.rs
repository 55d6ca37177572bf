//! Top-k of each chunk, by sorting one after the other.

use super::largest;

/// Positions of the `k` largest magnitudes of every `len` consecutive entries, ascending.
pub fn largest_of_chunks(x: &[f32], len: usize, k: usize) -> Vec<u32> {
    let chunk = |(i, chunk): (usize, &[f32])| {
        largest(chunk, k).into_iter().map(|at| (i * len) as u32 + at).collect::<Vec<_>>()
    };
    x.chunks(len).enumerate().flat_map(chunk).collect()
}

/// The same for the tiles of a matrix with so many columns, which stand row by row.
pub fn largest_of_tiles(x: &[f32], columns: usize, tile: (usize, usize), k: usize) -> Vec<u32> {
    let rows = x.len() / columns;
    let mut found = Vec::new();
    for top in (0..rows).step_by(tile.0) {
        for left in (0..columns).step_by(tile.1) {
            let places: Vec<usize> = (top..rows.min(top + tile.0))
                .flat_map(|r| (left..columns.min(left + tile.1)).map(move |c| r * columns + c))
                .collect();
            let values: Vec<f32> = places.iter().map(|&at| x[at]).collect();
            found.extend(largest(&values, k).into_iter().map(|i| places[i as usize] as u32));
        }
    }
    found.sort_unstable();
    found
}
