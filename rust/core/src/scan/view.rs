//! What there is to encode, whatever the memory: for looks before the first read and after it.

use super::source::{Field, Scratch, Source};
use super::{Corrected, Preview};
use crate::simd::sweep::{Found, Gather};
use crate::simd::{BLOCK, Kernels};
use crate::{Input, Result, room};

/// The tensor that entries are selected of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum View<'a> {
    /// It is in memory: the input itself, or the sums that were written.
    Plain(Field<'a>),
    /// It is not, or not yet: gradient and residual are added in each look.
    Sum(Preview<'a>),
    /// The same of a gradient that moves a momentum.
    Corrected(Corrected<'a>),
}

impl View<'_> {
    /// The element at a position.
    pub fn at(&self, i: usize) -> f32 {
        match self {
            Self::Plain(field) => field.at(i),
            Self::Sum(sum) => sum.at(i),
            Self::Corrected(velocity) => velocity.at(i),
        }
    }

    /// The elements at these positions.
    pub fn gather(&self, positions: &[u32], out: &mut [f32]) {
        let out = out.iter_mut().zip(positions);
        if let Self::Plain(Field(Input::F32(x))) = self {
            out.for_each(|(value, &position)| *value = x[position as usize]);
        } else {
            out.for_each(|(value, &position)| *value = self.at(position as usize));
        }
    }

    /// The `len` elements from position `at`, in `buffer` if they are not in memory as float32.
    /// An error where there is no memory for that.
    pub fn run<'b>(
        &'b self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        buffer: &'b mut Vec<f32>,
    ) -> Result<&'b [f32]> {
        if let Self::Plain(Field(Input::F32(x))) = self {
            return Ok(&x[at..at + len]);
        }
        room::resize(buffer, len)?;
        self.copy(kernels, at, buffer);
        Ok(buffer)
    }

    /// Copies the elements from position `at`.
    pub fn copy(&self, kernels: &Kernels, at: usize, out: &mut [f32]) {
        let range = at..at + out.len();
        match self {
            Self::Plain(Field(Input::F32(x))) => out.copy_from_slice(&x[range]),
            Self::Plain(field) => {
                field.float32(kernels, at, out.len(), out);
            }
            Self::Sum(Preview { gradient: Field(Input::F32(x)), residual, decay }) => {
                kernels.add(out, &x[range.clone()], &residual[range], *decay);
            }
            _ => {
                let mut scratch = Scratch::default();
                for (i, out) in out.chunks_mut(BLOCK).enumerate() {
                    let block = self.block(kernels, at + i * BLOCK, out.len(), &mut scratch);
                    out.copy_from_slice(block);
                }
            }
        }
    }
}

impl Source for View<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Plain(field) => field.len(),
            Self::Sum(sum) => sum.len(),
            Self::Corrected(velocity) => velocity.len(),
        }
    }

    fn split_at(self, middle: usize) -> (Self, Self) {
        match self {
            Self::Plain(field) => {
                let (head, rest) = field.split_at(middle);
                (Self::Plain(head), Self::Plain(rest))
            }
            Self::Sum(sum) => {
                let (head, rest) = sum.split_at(middle);
                (Self::Sum(head), Self::Sum(rest))
            }
            Self::Corrected(velocity) => {
                let (head, rest) = velocity.split_at(middle);
                (Self::Corrected(head), Self::Corrected(rest))
            }
        }
    }

    fn sweep(
        &mut self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &mut Scratch,
        gather: Gather<'_>,
    ) -> Found {
        match self {
            Self::Plain(field) => field.sweep(kernels, at, len, scratch, gather),
            Self::Sum(sum) => sum.sweep(kernels, at, len, scratch, gather),
            Self::Corrected(velocity) => velocity.sweep(kernels, at, len, scratch, gather),
        }
    }

    fn swept<'a>(
        &'a self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        match self {
            Self::Plain(field) => field.swept(kernels, at, len, scratch),
            Self::Sum(sum) => sum.swept(kernels, at, len, scratch),
            Self::Corrected(velocity) => velocity.swept(kernels, at, len, scratch),
        }
    }

    fn block<'a>(
        &'a self,
        kernels: &Kernels,
        at: usize,
        len: usize,
        scratch: &'a mut Scratch,
    ) -> &'a [f32] {
        match self {
            Self::Plain(field) => field.block(kernels, at, len, scratch),
            Self::Sum(sum) => sum.block(kernels, at, len, scratch),
            Self::Corrected(velocity) => velocity.block(kernels, at, len, scratch),
        }
    }

    fn fetch(&self, kernels: &Kernels, at: usize) {
        match self {
            Self::Plain(field) => field.fetch(kernels, at),
            Self::Sum(sum) => sum.fetch(kernels, at),
            Self::Corrected(velocity) => velocity.fetch(kernels, at),
        }
    }
}
