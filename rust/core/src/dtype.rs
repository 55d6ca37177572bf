//! The element types of tensors, and a borrowed tensor of any of them.

use half::{bf16, f16};
use std::ops::Range;

/// Element type of the tensor that was encoded; recorded in the frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Dtype {
    /// IEEE binary32.
    F32 = 0,
    /// IEEE binary64.
    F64 = 1,
    /// IEEE binary16.
    F16 = 2,
    /// bfloat16.
    BF16 = 3,
}

/// A flat tensor to encode, read in place.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// float32 elements.
    F32(&'a [f32]),
    /// float64 elements; each is rounded to float32 before use.
    F64(&'a [f64]),
    /// float16 elements.
    F16(&'a [f16]),
    /// bfloat16 elements.
    BF16(&'a [bf16]),
}

impl Input<'_> {
    /// The elements of a range of positions.
    pub(crate) fn range(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(x) => Self::F32(&x[range]),
            Self::F64(x) => Self::F64(&x[range]),
            Self::F16(x) => Self::F16(&x[range]),
            Self::BF16(x) => Self::BF16(&x[range]),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::F64(x) => x.len(),
            Self::F16(x) => x.len(),
            Self::BF16(x) => x.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::F32(_) => Dtype::F32,
            Self::F64(_) => Dtype::F64,
            Self::F16(_) => Dtype::F16,
            Self::BF16(_) => Dtype::BF16,
        }
    }
}
