//! Where the blocks of a scan come from.

use super::Preview;
use crate::Input;
use crate::simd::sweep::{Feedback, Found, Gather};
use crate::simd::{BLOCK, Kernels};

/// A tensor that is read block by block as float32.
pub(crate) trait Source: Send + Sized {
    /// Number of elements.
    fn len(&self) -> usize;

    /// The elements before position `middle`, and those from there on.
    fn split_at(self, middle: usize) -> (Self, Self);

    /// Reads the `len` elements from position `at` and gathers from them.
    fn sweep(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &mut Scratch,
        gather: Gather<'_>,
    ) -> Found;

    /// The elements that the last sweep read, if it did not stream them away; in `scratch` if they
    /// are not in memory as float32.
    fn swept<'a>(
        &'a self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'a mut Scratch,
    ) -> &'a [f32];

    /// The `len` elements from position `at` and nothing else, in `scratch` if they are not in memory
    /// as float32.
    fn block<'a>(
        &'a self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'a mut Scratch,
    ) -> &'a [f32];

    /// Has what the next [`STEP`] elements from position `at` are made of brought to the caches.
    fn fetch(&self, _kernels: &Kernels, _at: usize) {}
}

/// Elements that are asked for ahead at once: no more lines than a processor waits for at a time.
pub(crate) const STEP: usize = BLOCK / 4;

/// Asks for up to [`STEP`] elements; behind the end there is nothing to ask for.
pub(super) fn fetch(kernels: &Kernels, x: &[f32], at: usize) {
    if let Some(rest) = x.get(at..) {
        kernels.fetch(&rest[..STEP.min(rest.len())]);
    }
}

/// A source that writes down what a memory becomes.
pub(crate) trait Remembered: Source {
    /// What there is to encode of the `len` elements from position `at`, in scratch memory.
    fn take<'s>(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> &'s mut [f32];

    /// Writes down what the memory becomes of a block that was taken, of which `left` was not sent.
    fn keep(&mut self, kernels: &Kernels, at: usize, left: &mut [f32]);
}

/// Writes a block, past the caches if asked to.
pub(super) fn write(kernels: &Kernels, target: &mut [f32], block: &[f32], streams: bool) {
    if streams { kernels.stream(target, block) } else { target.copy_from_slice(block) }
}

/// Three blocks of scratch memory: for elements made float32, for their sums, and for what a memory
/// becomes.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(super) widened: [f32; BLOCK],
    pub(super) sum: [f32; BLOCK],
    pub(super) next: [f32; BLOCK],
}

impl Default for Scratch {
    fn default() -> Self {
        Self { widened: [0.0; BLOCK], sum: [0.0; BLOCK], next: [0.0; BLOCK] }
    }
}

impl Scratch {
    /// A copy of a block.
    pub fn copy(&mut self, block: &[f32]) -> &[f32] {
        let copy = &mut self.sum[..block.len()];
        copy.copy_from_slice(block);
        copy
    }
}

/// A tensor to read as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<'a>(pub Input<'a>);

impl<'a> Field<'a> {
    /// A field of float32 elements.
    pub fn plain(x: &'a [f32]) -> Self {
        Self(Input::F32(x))
    }

    /// The element at a position, as float32.
    pub fn at(&self, i: usize) -> f32 {
        match self.0 {
            Input::F32(x) => x[i],
            Input::F64(x) => x[i] as f32,
            Input::F16(x) => x[i].to_f32(),
            Input::BF16(x) => x[i].to_f32(),
        }
    }
}

impl Source for Field<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn split_at(self, middle: usize) -> (Self, Self) {
        macro_rules! halves {
            ($variant:path, $x:expr) => {{
                let (a, b) = $x.split_at(middle);
                (Self($variant(a)), Self($variant(b)))
            }};
        }
        match self.0 {
            Input::F32(x) => halves!(Input::F32, x),
            Input::F64(x) => halves!(Input::F64, x),
            Input::F16(x) => halves!(Input::F16, x),
            Input::BF16(x) => halves!(Input::BF16, x),
        }
    }

    fn sweep(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        _scratch: &mut Scratch,
        gather: Gather<'_>,
    ) -> Found {
        kernels.sweep(self.0.range(at..at + len), None, gather)
    }

    fn swept<'a>(
        &'a self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        self.block(kernels, at, len, scratch)
    }

    fn block<'a>(
        &'a self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        self.float32(kernels, at, len, &mut scratch.widened)
    }

    fn fetch(&self, kernels: &Kernels, at: usize) {
        // Other types are half as long or rare.
        if let Input::F32(x) = self.0 {
            fetch(kernels, x, at);
        }
    }
}

impl<'x> Field<'x> {
    /// The `len` elements from position `at`, in `widened` if they are not float32.
    pub(super) fn float32<'a>(
        &self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        widened: &'a mut [f32],
    ) -> &'a [f32]
    where
        'x: 'a,
    {
        let range = at..at + len;
        let scratch = &mut widened[..len];
        match self.0 {
            Input::F32(x) => return &x[range],
            Input::F64(x) => kernels.widen_f64(&x[range], scratch),
            Input::F16(x) => kernels.widen_f16(&x[range], scratch),
            Input::BF16(x) => kernels.widen_bf16(&x[range], scratch),
        }
        scratch
    }

    /// As [`Field::float32`], but always in `widened`: what is used twice has to be read once, or
    /// another thread could change it in between.
    pub(super) fn float32_once<'a>(
        &self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        widened: &'a mut [f32],
    ) -> &'a [f32]
    where
        'x: 'a,
    {
        match self.0 {
            Input::F32(x) => {
                widened[..len].copy_from_slice(&x[at..at + len]);
                &widened[..len]
            }
            _ => self.float32(kernels, at, len, widened),
        }
    }
}

/// A gradient to which the residual is added; the sum is written down and read from there.
#[derive(Debug)]
pub(crate) struct Accumulated<'a> {
    pub gradient: Field<'a>,
    /// None if `sum` holds it: then the sum is written in place.
    pub residual: Option<&'a [f32]>,
    pub decay: f32,
    pub sum: &'a mut [f32],
    /// Whether sums are written past the caches.
    pub streams: bool,
}

/// Whether so many elements, those of the residual and their sums are beyond what common caches hold
/// together.
pub(super) fn is_streamed(len: usize) -> bool {
    len >= 1 << 21
}

impl<'a> Accumulated<'a> {
    pub fn new(
        gradient: Field<'a>,
        residual: Option<&'a [f32]>,
        decay: f32,
        sum: &'a mut [f32],
    ) -> Self {
        let streams = residual.is_some() && is_streamed(sum.len());
        Self { gradient, residual, decay, sum, streams }
    }

    /// The sums that are going to be written; in place, where none was written yet.
    pub fn preview(&self) -> Preview<'_> {
        let residual = self.residual.unwrap_or(self.sum);
        Preview { gradient: self.gradient, residual, decay: self.decay }
    }
}

impl Remembered for Accumulated<'_> {
    fn take<'s>(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'s mut Scratch,
    ) -> &'s mut [f32] {
        self.preview().add(kernels, at, len, scratch)
    }

    fn keep(&mut self, kernels: &Kernels, at: usize, left: &mut [f32]) {
        write(kernels, &mut self.sum[at..at + left.len()], left, self.streams);
    }
}

impl Source for Accumulated<'_> {
    fn len(&self) -> usize {
        self.sum.len()
    }

    fn split_at(self, middle: usize) -> (Self, Self) {
        let (gradient, later) = self.gradient.split_at(middle);
        let (residual, late) = self.residual.map(|r| r.split_at(middle)).unzip();
        let (sum, rest) = self.sum.split_at_mut(middle);
        let (decay, streams) = (self.decay, self.streams);
        (
            Self { gradient, residual, decay, sum, streams },
            Self { gradient: later, residual: late, decay, sum: rest, streams },
        )
    }

    fn sweep(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        _scratch: &mut Scratch,
        gather: Gather<'_>,
    ) -> Found {
        let gradient = self.gradient.0.range(at..at + len);
        let feedback = Feedback {
            residual: self.residual.map(|residual| &residual[at..at + len]),
            decay: self.decay,
            sum: &mut self.sum[at..at + len],
            streams: self.streams,
        };
        kernels.sweep(gradient, Some(feedback), gather)
    }

    fn swept<'a>(
        &'a self,
        _kernels: &Kernels,
        at: usize,
        len: usize,
        _scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        &self.sum[at..at + len]
    }

    fn block<'a>(
        &'a self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        self.preview().add(kernels, at, len, scratch)
    }

    fn fetch(&self, kernels: &Kernels, at: usize) {
        self.preview().fetch(kernels, at);
    }
}
