//! Codecs, tensors and limits drawn from numbers: those of a generator for `tests/digest.rs`, those that
//! bytes stand for in the fuzz targets.

#![allow(dead_code, reason = "each that includes this uses a part of it")]

pub mod parts;

use gradwire_core::codec::Codec;
use gradwire_core::frame::HEADER_LEN;
use gradwire_core::memory::Memory;
use gradwire_core::pack::{Chunks, Draw, DrawKind, IndexCoding, Pattern};
use gradwire_core::quantize::Quantizer;
use gradwire_core::rng::Key;
use gradwire_core::simd::Kernels;
use gradwire_core::sparsify::Sparsifier;
use gradwire_core::{Dtype, Input, Result};
use half::{bf16, f16};
use parts::Drawn;

/// A source of numbers: what is called gives one below its argument.
pub struct Numbers<'a>(pub &'a mut dyn FnMut(u64) -> u64);

impl Numbers<'_> {
    /// A number below `n`, which is above zero.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.0)(n)
    }

    /// True once in `n` draws.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// One of these, or none.
    pub fn perhaps<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        if self.once_in(2) { None } else { Some(self.pick(choices)) }
    }

    /// A share in (0, 1], in steps of a hundredth, a thousandth or a ten-thousandth.
    pub fn share(&mut self) -> f64 {
        let steps = self.pick(&[100, 1000, 10_000]);
        let most = if self.once_in(2) { steps } else { steps / 50 };
        (self.below(most) + 1) as f64 / steps as f64
    }
}

/// The kinds that a codec is drawn of: sparsifier, memory and quantizer.
#[derive(Debug, Clone, Copy)]
pub struct Family([&'static str; 3]);

impl Family {
    /// Every family.
    pub fn all() -> impl Iterator<Item = Self> {
        Sparsifier::KINDS.iter().flat_map(|sparsifier| {
            Memory::KINDS.iter().chain(&parts::BFLOAT16).flat_map(move |memory| {
                Quantizer::KINDS.iter().map(move |quantizer| Self([sparsifier, memory, quantizer]))
            })
        })
    }

    /// One of them.
    pub fn draw(draw: &mut Numbers<'_>) -> Self {
        let memories = [Memory::KINDS, &parts::BFLOAT16].concat();
        Self([Sparsifier::KINDS, &memories, Quantizer::KINDS].map(|kinds| draw.pick(kinds)))
    }

    /// The names of its parts.
    pub fn name(&self) -> String {
        self.0.join("/")
    }

    /// A codec for tensors of `numel` elements; an error where the parts do not go together.
    pub fn codec(&self, numel: usize, draw: &mut Numbers<'_>) -> Result<Codec> {
        let [sparsifier, memory, quantizer] = self.0;
        let sparsifier = Sparsifier::draw(sparsifier, draw, numel);
        let memory = Memory::draw(memory, draw, numel);
        let quantizer = Quantizer::draw(quantizer, draw, numel);
        Codec::new(sparsifier, quantizer, memory, draw.pick(&CODINGS))
    }
}

/// A limit for a frame of at most `longest` bytes, if any: some are too small for any frame.
pub fn limit(longest: usize, draw: &mut Numbers<'_>) -> Option<usize> {
    let sections = (longest - HEADER_LEN.min(longest)) as u64;
    match draw.below(10) {
        0 => Some(draw.below(longest as u64 + 8) as usize),
        1 => Some(HEADER_LEN + draw.below(sections / 8 + 40) as usize),
        2 | 3 => Some(HEADER_LEN + draw.below(sections + 8) as usize),
        _ => None,
    }
}

/// Ascending positions below `numel`, a share of them all.
pub fn positions(numel: usize, draw: &mut Numbers<'_>) -> Vec<u32> {
    let gap = draw.pick(&[1, 2, 10, 500]);
    let mut all = Vec::new();
    let mut next = draw.below(gap);
    while next < numel as u64 {
        all.push(next as u32);
        next += 1 + draw.below(2 * gap - 1);
    }
    all
}

/// Any quantizer.
pub fn quantizer(draw: &mut Numbers<'_>, numel: usize) -> Quantizer {
    let kind = draw.pick(Quantizer::KINDS);
    Quantizer::draw(kind, draw, numel)
}

/// Positions below `numel`, and what a writer may know of them.
pub fn support(draw: &mut Numbers<'_>, numel: usize) -> (Pattern, Vec<u32>) {
    let mut all = positions(numel, draw);
    match draw.below(4) {
        0 => {
            let kind = draw.pick(&[DrawKind::Subset, DrawKind::Run]);
            let seeded = Draw { kind, key: Key::from_bits(draw.below(1 << 16)) };
            let (count, kernels) = (all.len() as u64, Kernels::current());
            seeded.positions_into(kernels, numel as u64, count, &mut all).unwrap();
            (Pattern::Drawn(seeded), all)
        }
        1 => match Chunks::new(2 + draw.below(70) as u32, 1 + draw.below(4) as u32) {
            Some(chunks) => {
                all = (0..numel as u32).filter(|at| at % chunks.size() < chunks.k()).collect();
                (Pattern::Chunks(chunks), all)
            }
            None => (Pattern::Any, all),
        },
        _ => (Pattern::Any, all),
    }
}

/// A tensor of any element type.
#[derive(Debug, Clone)]
pub enum Tensor {
    F32(Vec<f32>),
    F64(Vec<f64>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

impl Tensor {
    /// These finite values, rounded to the element type and never to infinity.
    pub fn of(dtype: Dtype, values: Vec<f32>) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(values),
            // Numbers that are no float32, so that they have to be rounded.
            Dtype::F64 => Self::F64(values.iter().map(|&v| f64::from(v) * (1.0 + 1e-9)).collect()),
            Dtype::F16 => {
                Self::F16(values.iter().map(|v| f16::from_f32(v.clamp(-6e4, 6e4))).collect())
            }
            Dtype::BF16 => {
                Self::BF16(values.iter().map(|v| bf16::from_f32(v.clamp(-1e38, 1e38))).collect())
            }
        }
    }

    pub fn input(&self) -> Input<'_> {
        match self {
            Self::F32(x) => Input::F32(x),
            Self::F64(x) => Input::F64(x),
            Self::F16(x) => Input::F16(x),
            Self::BF16(x) => Input::BF16(x),
        }
    }

    /// Makes an entry infinite.
    pub fn spoil(&mut self, at: usize) {
        match self {
            Self::F32(x) => x[at] = f32::NEG_INFINITY,
            Self::F64(x) => x[at] = f64::NAN,
            Self::F16(x) => x[at] = f16::INFINITY,
            Self::BF16(x) => x[at] = bf16::NAN,
        }
    }
}

pub const DTYPES: [Dtype; 4] = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::BF16];

pub const CODINGS: [IndexCoding; 4] =
    [IndexCoding::Auto, IndexCoding::EliasFano, IndexCoding::Rice, IndexCoding::Bitmap];
