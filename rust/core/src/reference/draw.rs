//! Random positions, one after the other, each looked up in a list of those before.

use crate::rng::Key;

/// The first `count` distinct positions below `numel` that a key draws, ascending; where they are
/// more than half of all, those that the first `numel - count` leave.
pub fn subset(key: Key, numel: u64, count: u64) -> Vec<u32> {
    if 2 * count > numel {
        let left_out = subset_of(key, numel, numel - count);
        return (0..numel as u32).filter(|position| !left_out.contains(position)).collect();
    }
    subset_of(key, numel, count)
}

fn subset_of(key: Key, numel: u64, count: u64) -> Vec<u32> {
    let (mut found, mut at) = (Vec::new(), 0);
    while (found.len() as u64) < count {
        let word = u64::from(key.bits(at));
        at += 1;
        let position = ((word * numel) >> 32) as u32;
        // The words below this remainder would make some positions more likely than others.
        let fair = (word * numel) % (1 << 32) >= (1 << 32) % numel;
        if fair && !found.contains(&position) {
            found.push(position);
        }
    }
    found.sort_unstable();
    found
}
