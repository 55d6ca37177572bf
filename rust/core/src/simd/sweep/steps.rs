//! What is made of a gradient as it is loaded: what [`adam`] or [`momentum`] and a sweep give one after
//! the other.

use crate::simd::{adam, momentum};

/// The second moment by which a sweep makes steps of gradients, and where the next one goes: see
/// [`adam`].
#[derive(Debug)]
pub struct Moment<'a> {
    /// As many elements as the gradient.
    pub second: &'a [f32],
    /// As many elements as the gradient, and written past the caches if the sum is.
    pub next: &'a mut [f32],
    /// How both come about.
    pub rule: adam::Rule,
}

impl Moment<'_> {
    /// The same for the first elements, and for those after them.
    pub(super) fn split_at(self, middle: usize) -> (Self, Self) {
        let Self { second, next, rule } = self;
        let (front, back) = next.split_at_mut(middle);
        let (old, older) = second.split_at(middle);
        (Self { second: old, next: front, rule }, Self { second: older, next: back, rule })
    }
}

/// The momentum that a sweep moves by gradients, and where the next one goes: see [`momentum`].
#[derive(Debug)]
pub struct Momentum<'a> {
    /// As many elements as the gradient.
    pub momentum: &'a [f32],
    /// As many elements as the gradient, and written past the caches if the sum is, or `stays`.
    pub next: &'a mut [f32],
    /// Takes a copy of the residual, past the caches if asked to, and the sum is not then; or empty.
    pub stays: &'a mut [f32],
    /// How momentum moves.
    pub rule: momentum::Rule,
}

impl Momentum<'_> {
    /// The same for the first elements, and for those after them.
    pub(super) fn split_at(self, middle: usize) -> (Self, Self) {
        let Self { momentum, next, stays, rule } = self;
        let (front, back) = next.split_at_mut(middle);
        let (old, older) = momentum.split_at(middle);
        let (here, there) = stays.split_at_mut(middle.min(stays.len()));
        (
            Self { momentum: old, next: front, stays: here, rule },
            Self { momentum: older, next: back, stays: there, rule },
        )
    }
}
