//! What there is to encode, whatever the memory: for looks before the first read and after it.

use super::source::{Field, Scratch, Source};
use super::{Corrected, Preview};
use crate::simd::Kernels;
use crate::simd::sweep::{Found, Gather};

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

    fn swept<'a>(&'a self, at: usize, len: usize, scratch: &'a Scratch) -> &'a [f32] {
        match self {
            Self::Plain(field) => field.swept(at, len, scratch),
            Self::Sum(sum) => sum.swept(at, len, scratch),
            Self::Corrected(velocity) => velocity.swept(at, len, scratch),
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
}
