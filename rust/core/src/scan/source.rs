//! Where the blocks of a scan come from.

use crate::Input;
use crate::simd::Kernels;
use half::slice::HalfFloatSliceExt;

/// A tensor that is read block by block as float32.
pub(crate) trait Source: Send + Sized {
    /// Number of elements.
    fn len(&self) -> usize;

    /// The elements before position `middle`, and those from there on.
    fn split_at(self, middle: usize) -> (Self, Self);

    /// The `len` elements from position `at`, in `scratch` if they have to be made.
    fn block<'a>(
        &'a mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'a mut [f32],
    ) -> &'a [f32];
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

    fn block<'a>(
        &'a mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'a mut [f32],
    ) -> &'a [f32] {
        let range = at..at + len;
        let scratch = &mut scratch[..len];
        match self.0 {
            Input::F32(x) => return &x[range],
            Input::F64(x) => (kernels.widen_f64)(&x[range], scratch),
            Input::F16(x) => x[range].convert_to_f32_slice(scratch),
            Input::BF16(x) => (kernels.widen_bf16)(&x[range], scratch),
        }
        scratch
    }
}

/// A gradient to which the residual is added; the sum is written down and read from there.
#[derive(Debug)]
pub(crate) struct Accumulated<'a> {
    pub gradient: Field<'a>,
    pub residual: &'a [f32],
    pub decay: f32,
    pub sum: &'a mut [f32],
}

impl Accumulated<'_> {
    /// What the sum at a position will be.
    pub fn at(&self, i: usize) -> f32 {
        let kept = self.decay * self.residual[i];
        self.gradient.at(i) + kept
    }
}

impl Source for Accumulated<'_> {
    fn len(&self) -> usize {
        self.residual.len()
    }

    fn split_at(self, middle: usize) -> (Self, Self) {
        let (gradient, later) = self.gradient.split_at(middle);
        let (residual, late) = self.residual.split_at(middle);
        let (sum, rest) = self.sum.split_at_mut(middle);
        let decay = self.decay;
        (
            Self { gradient, residual, decay, sum },
            Self { gradient: later, residual: late, decay, sum: rest },
        )
    }

    fn block<'a>(
        &'a mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'a mut [f32],
    ) -> &'a [f32] {
        let range = at..at + len;
        let sum = &mut self.sum[range.clone()];
        let gradient = self.gradient.block(kernels, at, len, scratch);
        (kernels.add)(sum, gradient, &self.residual[range], self.decay);
        sum
    }
}
