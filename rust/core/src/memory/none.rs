//! No memory.

use super::{Facts, Kept, Remember};
use crate::part::without_options;
use crate::scan::{Field, Tensor, Update};

/// What is not sent is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct None;

without_options!(None, "none");

impl Remember for None {
    fn facts(self) -> Facts {
        Facts::default()
    }

    fn tensor<'a>(self, gradient: Field<'a>, _: &'a Kept, _: f32) -> Tensor<'a> {
        gradient.into()
    }

    fn update<'a>(self, gradient: Field<'a>, _: &'a mut Kept, _: f32) -> Update<'a> {
        Tensor::from(gradient).into()
    }
}
