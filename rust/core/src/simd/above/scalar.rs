//! Plain Rust: LLVM vectorises the test of a group, hits are pushed one by one.

use super::{GROUP, SLACK};

#[inline(always)]
fn push(x: &[f32], bound: f32, base: u32, indices: &mut [u32], values: &mut [f32]) -> usize {
    let mut count = 0;
    for (i, &value) in x.iter().enumerate() {
        // Stored always, counted on a hit: no branch to mispredict.
        indices[count] = base + i as u32;
        values[count] = value;
        count += usize::from(value.abs() > bound);
    }
    count
}

pub(in crate::simd) fn run(
    x: &[f32],
    bound: f32,
    base: u32,
    indices: &mut [u32],
    values: &mut [f32],
) -> usize {
    let capacity = x.len() + SLACK;
    assert!(
        indices.len() >= capacity && values.len() >= capacity,
        "outputs of above hold the input and the slack"
    );
    let mut count = 0;
    let (groups, rest) = x.as_chunks::<GROUP>();
    for (g, group) in groups.iter().enumerate() {
        let mut any = false;
        for value in group {
            any |= value.abs() > bound;
        }
        if any {
            let at = base + (g * GROUP) as u32;
            count += push(group, bound, at, &mut indices[count..], &mut values[count..]);
        }
    }
    let at = base + (x.len() - rest.len()) as u32;
    count + push(rest, bound, at, &mut indices[count..], &mut values[count..])
}
