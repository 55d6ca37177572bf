//! The elements of an input, as float32.

use std::ops::Range;

use crate::Input;
use crate::simd::{BLOCK, Kernels};

/// Elements that are asked for ahead at once: no more lines than a processor waits for at a time.
pub(crate) const STEP: usize = BLOCK / 4;

/// A tensor to read as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<'a>(pub Input<'a>);

impl<'a> Field<'a> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The element at a position.
    pub fn at(&self, i: usize) -> f32 {
        match self.0 {
            Input::F32(x) => x[i],
            Input::F64(x) => x[i] as f32,
            Input::F16(x) => x[i].to_f32(),
            Input::BF16(x) => x[i].to_f32(),
        }
    }

    /// Copies the elements in a range.
    pub fn copy(&self, kernels: &Kernels, range: Range<usize>, out: &mut [f32]) {
        match self.0 {
            Input::F32(x) => out.copy_from_slice(&x[range]),
            Input::F64(x) => kernels.widen_f64(&x[range], out),
            Input::F16(x) => kernels.widen_f16(&x[range], out),
            Input::BF16(x) => kernels.widen_bf16(&x[range], out),
        }
    }

    /// The elements in a range, in `widened` if they are not float32.
    pub fn float32<'s>(
        &self,
        kernels: &Kernels,
        range: Range<usize>,
        widened: &'s mut [f32],
    ) -> &'s [f32]
    where
        'a: 's,
    {
        match self.0 {
            Input::F32(x) => &x[range],
            _ => self.float32_once(kernels, range, widened),
        }
    }

    /// As [`Field::float32`], but always in `widened`: what is used twice has to be read once, or
    /// another thread could change it in between.
    pub fn float32_once<'s>(
        &self,
        kernels: &Kernels,
        range: Range<usize>,
        widened: &'s mut [f32],
    ) -> &'s [f32] {
        let widened = &mut widened[..range.len()];
        self.copy(kernels, range, widened);
        widened
    }

    /// Has the next [`STEP`] elements from position `at` brought to the caches.
    pub fn fetch(&self, kernels: &Kernels, at: usize) {
        // Other types are half as long or rare.
        if let Input::F32(x) = self.0 {
            fetch(kernels, x, at);
        }
    }
}

/// Asks for up to [`STEP`] elements; behind the end there is nothing to ask for.
pub(super) fn fetch(kernels: &Kernels, x: &[f32], at: usize) {
    if let Some(rest) = x.get(at..) {
        kernels.fetch(bytemuck::cast_slice(&rest[..STEP.min(rest.len())]));
    }
}
