//! No memory.

use super::Remember;
use crate::Result;
use crate::part::{Options, Part};

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
}
