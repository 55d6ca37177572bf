//! Rounding by chance: up as often as the value is far from below, so that the mean is the value.

use crate::rng::Key;

/// The random numbers of some entries of a frame: each its own, by its rank there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draw {
    pub key: Key,
    /// Whether there is any: where there is none, a method that can do without rounds to nearest.
    pub by_chance: bool,
    /// The rank of the first of these entries.
    pub first: u32,
}

impl Draw {
    /// Of entries from this rank on.
    pub fn of(key: Option<Key>, first: u32) -> Self {
        Self { key: key.unwrap_or(Key::from_bits(0)), by_chance: key.is_some(), first }
    }

    /// The number of entry `i` of these, in [0, 1).
    #[inline(always)]
    pub fn unit(self, i: usize) -> f32 {
        self.key.unit(self.first.wrapping_add(i as u32))
    }

    /// The numbers from entry `i` of these on.
    pub fn skip(self, i: usize) -> Self {
        Self { first: self.first.wrapping_add(i as u32), ..self }
    }
}

/// Magnitudes as multiples of `scale / levels`, to float32's precision at any scale.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    /// A power of two that keeps `factor` a normal number.
    shift: f32,
    factor: f32,
}

impl Share {
    /// Of a scale that is finite and not negative; zero has no multiples, all shares are zero.
    pub fn of(scale: f32, levels: f32) -> Self {
        let shift = match scale {
            ..1e-18 => 18_446_744_073_709_551_616.0, // 2^64
            1e18.. => 1.0 / 18_446_744_073_709_551_616.0,
            _ => 1.0,
        };
        Self { shift, factor: if scale > 0.0 { levels / (scale * shift) } else { 0.0 } }
    }

    /// The share of a magnitude.
    #[inline(always)]
    pub fn get(self, magnitude: f32) -> f32 {
        (magnitude * self.shift) * self.factor
    }
}
