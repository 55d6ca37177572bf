//! What the values of a memory are kept as.

use bytemuck::Pod;
use half::bf16;

use crate::Result;
use crate::part::Options;

/// What the values of a memory are kept as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Storage {
    /// float32, four bytes.
    #[default]
    Float32,
    /// bfloat16, two bytes: what it becomes is made in float32 and rounded by chance.
    BFloat16 {
        /// Of the random numbers.
        seed: u64,
    },
}

impl Storage {
    /// Reads the options `low_memory` and `seed`.
    pub(super) fn read(options: &Options) -> Result<Self> {
        let (low_memory, seed) = (options.get("low_memory")?, options.get("seed")?);
        Ok(if low_memory { Self::BFloat16 { seed } } else { Self::Float32 })
    }

    /// Whether values are rounded.
    pub(super) fn rounds(self) -> bool {
        matches!(self, Self::BFloat16 { .. })
    }

    /// The seed, if random numbers are drawn.
    pub(crate) fn seed(self) -> Option<u64> {
        match self {
            Self::Float32 => None,
            Self::BFloat16 { seed } => Some(seed),
        }
    }
}

/// A type that values are kept as.
pub(crate) trait Stored: Pod {
    /// A finite value to the nearest, ties to even, and never to infinity.
    fn nearest(value: f32) -> Self;

    /// The value, exactly.
    fn value(self) -> f32;
}

impl Stored for f32 {
    fn nearest(value: f32) -> Self {
        value
    }

    fn value(self) -> f32 {
        self
    }
}

impl Stored for bf16 {
    fn nearest(value: f32) -> Self {
        let rounded = Self::from_f32(value);
        if rounded.is_finite() { rounded } else { Self::MAX.copysign(rounded) }
    }

    fn value(self) -> f32 {
        self.to_f32()
    }
}
