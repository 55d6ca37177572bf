//! float32 to the codes of 8-bit floats and back.
//!
//! Micikevicius et al., "FP8 Formats for Deep Learning", 2022, as the Open Compute Project has
//! standardised them ("OCP 8-bit Floating Point Specification", revision 1.0, 2023): a sign, then an
//! exponent field, then the mantissa; an exponent field of zero holds zero and the subnormals.
//! [`Format::E5M2`] has infinities and NaNs as IEEE formats do, [`Format::E4M3`] has one NaN of each sign and no
//! infinity. Neither is ever written: what exceeds the largest finite code becomes that code.
//!
//! | kernel | what it does |
//! |---|---|
//! | [`nearest`] | rounds to the nearest code, ties to even |
//! | [`stochastic`] | rounds randomly to one of the two neighbours, so that the mean is the value |
//! | [`decode`] | codes back to float32, exactly |
//!
//! The first two exist twice: `left` also subtracts from each value what its code stands for. All of
//! them are arithmetic on the bits of a float32, without a table: a vector at a time. Factors and
//! scales are given for each entry, so that blocks of any size run through the same loop.

pub(in crate::simd) mod decode;
pub(in crate::simd) mod nearest;
pub(in crate::simd) mod stochastic;

/// How the seven bits beside the sign are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// Five bits of exponent, two of mantissa: 2^-16 to 57344.
    E5M2,
    /// Four bits of exponent, three of mantissa: 2^-9 to 448.
    #[default]
    E4M3,
}

impl Format {
    /// The largest finite code without its sign. All above are infinite or NaN.
    pub const fn largest(self) -> u8 {
        match self {
            Self::E5M2 => 0x7B,
            Self::E4M3 => 0x7E,
        }
    }

    /// Bits of the mantissa.
    const fn mantissa(self) -> u32 {
        match self {
            Self::E5M2 => 2,
            Self::E4M3 => 3,
        }
    }

    /// Exponent field of one.
    const fn bias(self) -> u32 {
        match self {
            Self::E5M2 => 15,
            Self::E4M3 => 7,
        }
    }

    /// Bits of a float32's mantissa that a code has no room for.
    const fn shift(self) -> u32 {
        23 - self.mantissa()
    }

    /// The smallest normal number, as the bits of a float32.
    const fn smallest_normal(self) -> u32 {
        (128 - self.bias()) << 23
    }

    /// What the exponent field of a float32 has too much, where a code has its own.
    const fn excess(self) -> u32 {
        (127 - self.bias()) << self.mantissa()
    }

    /// The float32 whose last bit is worth one subnormal step, as bits.
    const fn anchor(self) -> u32 {
        (128 - self.bias() + self.shift()) << 23
    }
}

#[cfg(test)]
mod tests;
