//! What the parts of a codec have in common, and how they are registered.
//!
//! A part is a struct of its options in a file of its own, and one row of its kind's registry
//! ([`Sparsifier`](crate::sparsify::Sparsifier), [`Quantizer`](crate::quantize::Quantizer),
//! [`Memory`](crate::memory::Memory)). The row makes a variant of the enum, and names its ids in
//! frames. Nothing else knows the part by its name.
//!
//! A trait of parts has a default where a part may have nothing to say: no range to check, no scale, no
//! memory of its own. What a part must say has none, and what is done for all parts has no default arm:
//! a new part that leaves it out does not compile.

mod options;
mod registry;

pub use options::{Options, Read, Value};
pub(crate) use registry::{parts, payload, unit};

use crate::Result;
use std::fmt::Debug;

/// What parts of every kind say about themselves.
pub(crate) trait Part: Copy + PartialEq + Debug {
    /// Its name in a configuration.
    const KIND: &'static str;

    /// Reads its options. What they may be is for [`Part::check`].
    fn read(options: &Options) -> Result<Self>;

    /// An error if an option is out of its range.
    fn check(self) -> Result<()> {
        Ok(())
    }

    /// The same part, but for options that only say how much is sent: those of `other`. States may
    /// be used with all parts that are equal then.
    fn sized_as(self, _other: Self) -> Self {
        self
    }

    /// Some of it, with every option at two values or more, for tests, fuzzers and benches: they use
    /// all there are.
    fn examples() -> Vec<Self>;
}

/// What a part without options says as a [`Part`].
macro_rules! without_options {
    ($part:ident, $kind:literal) => {
        impl $crate::part::Part for $part {
            const KIND: &'static str = $kind;

            fn read(_: &$crate::part::Options) -> $crate::Result<Self> {
                Ok(Self)
            }

            fn examples() -> Vec<Self> {
                vec![Self]
            }
        }
    };
}
pub(crate) use without_options;

#[cfg(test)]
mod tests;
