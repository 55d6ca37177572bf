//! Steps that are made of a gradient as it is loaded: what [`adam`] and a sweep give one after the other.

use crate::simd::adam;

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
