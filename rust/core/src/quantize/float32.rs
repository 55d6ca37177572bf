//! 32 bits, exact.

use super::code::Work;
use super::coding::Head;
use super::{BLOCK, Code, Facts, Quantize};
use crate::Result;
use crate::part::without_options;

/// 32 bits, exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Float32;

without_options!(Float32, "float32");

impl Quantize for Float32 {
    type Coding = Coding;

    fn facts(self) -> Facts {
        Facts { is_exact: true, ..Facts::default() }
    }

    fn coding(self, _: u64, _: f32) -> Coding {
        Coding
    }
}

/// IEEE binary32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coding;

impl Code for Coding {
    fn parse(_: Head, _: &[u8]) -> Result<Self> {
        Ok(Self)
    }

    fn bits(self) -> u32 {
        32
    }

    fn are_valid(self, codes: &[u8]) -> bool {
        const EXPONENT: u32 = 0x7F80_0000;
        let (codes, _) = codes.as_chunks();
        codes.chunks(BLOCK).all(|block| {
            let finite = |code: &[u8; 4]| u32::from_le_bytes(*code) & EXPONENT != EXPONENT;
            block.iter().fold(true, |all, code| all & finite(code))
        })
    }

    fn encode(self, values: &[f32], codes: &mut [u8], work: Work<'_>) {
        if let Some(kernels) = work.streams.filter(|_| cfg!(target_endian = "little"))
            && let Ok(codes) = bytemuck::try_cast_slice_mut(codes)
        {
            return kernels.stream(codes, values);
        }
        let (codes, _) = codes.as_chunks_mut();
        for (code, value) in codes.iter_mut().zip(values) {
            *code = value.to_le_bytes();
        }
    }

    fn decode(self, codes: &[u8], values: &mut [f32], _work: Work<'_>) {
        let (codes, _) = codes.as_chunks();
        for (value, code) in values.iter_mut().zip(codes) {
            *value = f32::from_le_bytes(*code);
        }
    }
}
