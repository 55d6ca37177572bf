//! bfloat16: the upper half of a float32.

use super::code::Work;
use super::coding::Head;
use super::{Code, Quantize, finite_halves};
use crate::Result;
use crate::part::without_options;

/// The upper 16 bits of a float32, rounded to nearest even; saturates at the largest finite value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BFloat16;

without_options!(BFloat16, "bfloat16");

impl Quantize for BFloat16 {
    type Coding = Coding;

    fn coding(self, _: u64, _: f32) -> Coding {
        Coding
    }
}

/// The upper half of a binary32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coding;

impl Code for Coding {
    fn parse(_: Head, _: &[u8]) -> Result<Self> {
        Ok(Self)
    }

    fn bits(self) -> u32 {
        16
    }

    fn are_valid(self, codes: &[u8]) -> bool {
        finite_halves(codes, 0x7F80)
    }

    fn encode(self, values: &[f32], codes: &mut [u8], work: Work<'_>) {
        work.kernels.narrow_bf16(values, codes.as_chunks_mut().0);
    }

    fn encode_left(self, values: &mut [f32], codes: &mut [u8], work: Work<'_>) {
        work.kernels.narrow_bf16_left(values, codes.as_chunks_mut().0);
    }

    fn decode(self, codes: &[u8], values: &mut [f32], _: Work<'_>) {
        let (codes, _) = codes.as_chunks();
        for (value, code) in values.iter_mut().zip(codes) {
            *value = f32::from_bits(u32::from(u16::from_le_bytes(*code)) << 16);
        }
    }
}
