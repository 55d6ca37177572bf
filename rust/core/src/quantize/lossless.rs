//! Floats whose exponents and highest bits of the mantissa are coded by how often they occur.
//!
//! A section begins with four bytes: which float, whether codes are there one by one (0) or in coded blocks (1),
//! and two zeros. An encode writes them one by one, and `frame::compress` makes blocks of them where that
//! is shorter: readers and what is left for the memory know nothing but codes of a fixed length.

use super::code::Work;
use super::coding::Head;
use super::prologue::Prologue;
use super::{Code, Facts, Float16, Quantize, Quantizer, ValueCoding, bfloat16, float16, float32};
use crate::pack::floats::{self, Format};
use crate::part::{Options, Part};
use crate::{Dtype, Error, Result};

/// A float, rounded to nearest even as its own quantizer does, in fewer bits than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lossless {
    /// Which one; none for that of the tensor, which for float64 is float32.
    pub format: Option<Float>,
}

/// A float that is coded without loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Float {
    /// IEEE binary32.
    Float32,
    /// The upper half of a binary32.
    BFloat16,
    /// IEEE binary16, not scaled.
    Float16,
}

impl Float {
    /// In the order of their numbers in frames.
    const ALL: [Self; 3] = [Self::Float32, Self::BFloat16, Self::Float16];
    const WORDS: [(&str, Self); 3] =
        [("float32", Self::Float32), ("bfloat16", Self::BFloat16), ("float16", Self::Float16)];

    fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 | Dtype::F64 => Self::Float32,
            Dtype::F16 => Self::Float16,
            Dtype::BF16 => Self::BFloat16,
        }
    }

    /// Its bits.
    pub(crate) fn format(self) -> Format {
        match self {
            Self::Float32 => Format::FLOAT32,
            Self::BFloat16 => Format::BFLOAT16,
            Self::Float16 => Format::FLOAT16,
        }
    }
}

impl Part for Lossless {
    const KIND: &'static str = "lossless";

    fn read(options: &Options) -> Result<Self> {
        let given: Option<String> = options.get("format")?;
        let format = given.map(|_| options.choose("format", &Float::WORDS)).transpose()?;
        Ok(Self { format })
    }

    fn examples() -> Vec<Self> {
        let formats = Float::ALL.map(Some).into_iter().chain([None]);
        formats.map(|format| Self { format }).collect()
    }
}

impl Quantize for Lossless {
    type Coding = Coding;

    fn facts(self) -> Facts {
        Facts { is_exact: self.format == Some(Float::Float32), ..Facts::default() }
    }

    fn coding(self, _: u64, _: f32) -> Coding {
        Coding { float: self.format.unwrap_or(Float::Float32), in_blocks: false }
    }
}

impl Quantizer {
    /// For tensors of this dtype: a quantizer that goes by it becomes one that does not.
    pub(crate) fn of(self, dtype: Dtype) -> Self {
        match self {
            Self::Lossless(Lossless { format: None }) => {
                Self::Lossless(Lossless { format: Some(Float::of(dtype)) })
            }
            other => other,
        }
    }

    /// The one that sends the same values as they are.
    pub(crate) fn plain(self) -> Self {
        match self {
            Self::Lossless(Lossless { format: Some(Float::Float32) }) => Self::Float32,
            Self::Lossless(Lossless { format: Some(Float::BFloat16) }) => Self::BFloat16,
            Self::Lossless(Lossless { format: Some(Float::Float16) }) => {
                Self::Float16(Float16 { scaled: false })
            }
            other => other,
        }
    }
}

/// One of three floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coding {
    float: Float,
    /// Whether the section has coded blocks in place of codes.
    in_blocks: bool,
}

impl Coding {
    /// The entries that so many bytes of blocks may be: floats that are all one take six, behind their length.
    fn most(bytes: u64) -> u64 {
        (bytes / 10).saturating_mul(floats::BLOCK as u64)
    }
}

impl ValueCoding {
    /// The float whose codes may be put into blocks.
    pub(crate) fn float(self) -> Option<Float> {
        if let Self::Lossless(coding) = self { Some(coding.float) } else { None }
    }

    /// The same where a section has coded blocks.
    pub(crate) fn in_blocks(self) -> Option<Float> {
        self.float().filter(|_| matches!(self, Self::Lossless(Coding { in_blocks: true, .. })))
    }

    /// The same for a section of codes.
    pub(crate) fn without_blocks(self) -> Self {
        match self {
            Self::Lossless(coding) => Self::Lossless(Coding { in_blocks: false, ..coding }),
            other => other,
        }
    }

    /// Whether it has coded blocks, and their section may be as long as this: shorter than that of codes,
    /// and long enough for memory to be taken for those.
    pub(super) fn may_have_blocks(self, have: u64, codes: u64, count: u64) -> bool {
        let fits = have < codes && count <= Coding::most(have);
        fits && self.in_blocks().is_some()
    }

    /// What a section of coded blocks begins with.
    pub(crate) fn head_of_blocks(float: Float) -> [u8; 4] {
        [float as u8, 1, 0, 0]
    }
}

macro_rules! delegate {
    ($self:ident, $it:ident => $expression:expr) => {
        match $self.float {
            Float::Float32 => {
                let $it = float32::Coding;
                $expression
            }
            Float::BFloat16 => {
                let $it = bfloat16::Coding;
                $expression
            }
            Float::Float16 => {
                let $it = float16::Coding { exponent: None };
                $expression
            }
        }
    };
}

impl Code for Coding {
    fn prologue(self) -> Prologue {
        Prologue::of([self.float as u8, u8::from(self.in_blocks), 0, 0])
    }

    fn parse(_: Head, section: &[u8]) -> Result<Self> {
        let [float, in_blocks, reserved @ ..] = Prologue::read(section)?;
        match (Float::ALL.get(usize::from(float)), in_blocks, reserved) {
            (Some(&float), 0 | 1, [0, 0]) => Ok(Self { float, in_blocks: in_blocks == 1 }),
            _ => Err(Error::corrupt(format!(
                "lossless values of float {float}, kind {in_blocks}, reserved bytes {reserved:?}"
            ))),
        }
    }

    fn bits(self) -> u32 {
        delegate!(self, plain => plain.bits())
    }

    fn are_valid(self, codes: &[u8]) -> bool {
        delegate!(self, plain => plain.are_valid(codes))
    }

    fn encode(self, values: &[f32], codes: &mut [u8], work: Work<'_>) {
        delegate!(self, plain => plain.encode(values, codes, work));
    }

    fn encode_left(self, values: &mut [f32], codes: &mut [u8], work: Work<'_>) {
        delegate!(self, plain => plain.encode_left(values, codes, work));
    }

    fn decode(self, codes: &[u8], values: &mut [f32], work: Work<'_>) {
        delegate!(self, plain => plain.decode(codes, values, work));
    }
}
