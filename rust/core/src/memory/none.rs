//! No memory.

use super::{Keeps, Kept, Remember, Storage};
use crate::part::without_options;
use crate::scan::{Field, Tensor, Update};

/// What is not sent is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct None;

without_options!(None, "none");

impl Remember for None {
    fn masks(self) -> bool {
        false
    }

    fn is_in_place(self) -> bool {
        false
    }

    fn takes_in_place(self) -> bool {
        false
    }

    fn keeps(self) -> Keeps {
        Keeps::Nothing
    }

    fn storage(self) -> Storage {
        Storage::Float32
    }

    fn clip(self) -> Option<f32> {
        Option::None
    }

    fn becomes_sums(self) -> bool {
        false
    }

    fn tensor<'a>(self, gradient: Field<'a>, _: &'a Kept, _: f32) -> Tensor<'a> {
        gradient.into()
    }

    fn update<'a>(self, gradient: Field<'a>, _: &'a mut Kept, _: f32) -> Update<'a> {
        Tensor::from(gradient).into()
    }

    fn left(self, _: f32, left: f32) -> f32 {
        left
    }
}
