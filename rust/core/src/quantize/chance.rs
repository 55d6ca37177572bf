//! Stochastic rounding: up with a probability equal to the distance from the level below, so that
//! the expected result is the value.

use crate::rng::Key;

/// The random numbers of some entries of a frame: each its own, by its rank there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draw {
    pub key: Key,
    /// Whether there is any: where there is none, a method that can do without rounds to nearest.
    pub by_chance: bool,
    /// The rank of the first of these entries.
    pub first: u32,
}

impl Draw {
    /// Of entries from this rank on.
    pub fn of(key: Option<Key>, first: u32) -> Self {
        Self { key: key.unwrap_or(Key::from_bits(0)), by_chance: key.is_some(), first }
    }
}
