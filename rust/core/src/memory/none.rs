//! No memory.

use super::{Keeps, Kept, Remember};
use crate::Result;
use crate::part::{Options, Part};
use crate::scan::{Field, Tensor, Update};

/// What is not sent is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct None;

impl Part for None {
    const KIND: &'static str = "none";

    fn read(_: &Options) -> Result<Self> {
        Ok(Self)
    }

    fn check(self) -> Result<()> {
        Ok(())
    }

    fn sized_as(self, _: Self) -> Self {
        self
    }

    fn examples() -> Vec<Self> {
        vec![Self]
    }
}

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
