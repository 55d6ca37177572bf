//! Bitmap: one bit per element.

use super::bits::{self, Ones, OnesReader};
use crate::{Error, Result};

/// Exact length in bytes.
pub(super) fn len(numel: u64) -> usize {
    numel.div_ceil(8) as usize
}

pub(super) fn encode(indices: &[u32], out: &mut [u8]) {
    bits::write_ones(out, 0, indices.iter().map(|&i| i as usize));
}

/// Reads positions off a section.
#[derive(Clone)]
pub(super) struct Reader<'a>(OnesReader<'a>);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], numel: u64, count: u64) -> Result<Self> {
        let ones = Ones::new(bytes, 0);
        let (found, end) = ones.count_and_end();
        if found != count {
            return Err(Error::corrupt(format!("bitmap holds {found} positions, not {count}")));
        }
        if end > numel {
            return Err(Error::corrupt("bitmap padding is not zero"));
        }
        Ok(Self(ones.reader()))
    }

    pub(super) fn read(&mut self, out: &mut [u32]) {
        let mut slots = out.iter_mut();
        self.0.read(slots.len(), |position| {
            if let Some(slot) = slots.next() {
                *slot = position as u32;
            }
        });
    }
}
