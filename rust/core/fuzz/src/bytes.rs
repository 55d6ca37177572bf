//! Numbers and tensors that bytes stand for.

use crate::drawn::{DTYPES, Numbers, Tensor};

/// Bytes that are used up one after another; zeros come after them.
#[derive(Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number below `n`, of as many bytes as it needs.
    pub fn below(&mut self, n: u64) -> u64 {
        let mut number = u64::from(self.byte());
        let mut most = 256;
        while most < n {
            number = number << 8 | u64::from(self.byte());
            most = most.saturating_mul(256);
        }
        number % n
    }

    /// A number of elements, mostly small.
    pub fn numel(&mut self) -> usize {
        // At times beyond the 2048 elements that are read at once.
        let most = match self.byte() {
            0..=160 => 40,
            161..=251 => 300,
            _ => 2500,
        };
        self.below(most) as usize
    }

    /// These scalars of a state with some of them altered or left out, and perhaps another.
    pub fn scalars(&mut self, mut scalars: Vec<(String, f64)>) -> Vec<(String, f64)> {
        scalars.push((if self.byte() < 128 { "bound" } else { "unknown" }.into(), 0.5));
        scalars.retain_mut(|(_, value)| {
            let choice = self.byte() % 8;
            match choice {
                1 => *value = f64::from_bits(u64::from(self.word()) << 32 | u64::from(self.word())),
                2 => *value = f64::from(self.byte()),
                3 => *value *= f64::from(self.byte()) / 16.0,
                _ => {}
            }
            choice > 0
        });
        scalars
    }

    /// A tensor of `numel` elements, for which a few bytes are used again and again.
    pub fn tensor(&mut self, numel: usize) -> Tensor {
        let dtype = DTYPES[self.below(4) as usize];
        Tensor::of(dtype, self.floats(numel))
    }

    /// Numbers as those of a tensor, the first few of them any, infinite or none at all.
    pub fn floats(&mut self, numel: usize) -> Vec<f32> {
        let exact = usize::from(self.byte() % 8);
        let seeds: Vec<u32> = (0..self.below(24) + 1).map(|_| self.word()).collect();
        let entry = |i: usize| {
            let seed = seeds[i % seeds.len()];
            if i < exact {
                return f32::from_bits(seed);
            }
            // Between 2^-7 and 2 in magnitude, and not the same for the same seed.
            let bits = seed.wrapping_add((i / seeds.len()) as u32).wrapping_mul(0x9e37_79b1);
            f32::from_bits(bits & 0x83ff_ffff | 0x3c00_0000)
        };
        (0..numel).map(entry).collect()
    }
}

/// What the choices in `drawn` are made with.
pub fn draw<T>(bytes: &mut Bytes<'_>, choose: impl FnOnce(&mut Numbers<'_>) -> T) -> T {
    choose(&mut Numbers(&mut |n| bytes.below(n)))
}
