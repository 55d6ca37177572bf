//! One bit an element.

use super::bits::{self, Ones};
use crate::{Error, Result};

/// Exact length in bytes.
pub(super) fn len(numel: u64) -> usize {
    numel.div_ceil(8) as usize
}

pub(super) fn encode(indices: &[u32], out: &mut [u8]) {
    bits::write_ones(out, 0, indices.iter().map(|&i| i as usize));
}

pub(super) fn decode(bytes: &[u8], numel: u64, count: u64, out: &mut Vec<u32>) -> Result<()> {
    let ones = Ones::new(bytes, 0);
    let (found, end) = ones.count_and_end();
    if found != count {
        return Err(Error::corrupt(format!("bitmap holds {found} positions, not {count}")));
    }
    if end > numel {
        return Err(Error::corrupt("bitmap padding is not zero"));
    }
    out.resize(count as usize, 0);
    let mut slots = out.iter_mut();
    ones.for_each(|position| {
        if let Some(slot) = slots.next() {
            *slot = position as u32;
        }
    });
    Ok(())
}
