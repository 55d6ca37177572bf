//! What a sparsifier remembers about a tensor from one encode to the next.

use super::sid::Stages;
use crate::{Error, Result};

/// What is remembered of a tensor.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Tracker {
    /// A magnitude that a little more than the wanted entries exceeded the last time.
    pub bound: Option<f32>,
    /// The smallest magnitude selected the last time.
    pub threshold: Option<f32>,
    /// What SIDCo remembers besides.
    pub stages: Option<Stages>,
}

impl Tracker {
    /// All of it by name, for a checkpoint.
    pub fn scalars(&self) -> Vec<(String, f64)> {
        let own = [("bound", self.bound), ("threshold", self.threshold)];
        let own = own.into_iter().filter_map(|(name, value)| Some((name, f64::from(value?))));
        let stages = self.stages.iter().flat_map(Stages::scalars);
        own.map(|(name, value)| (name.to_owned(), value)).chain(stages).collect()
    }

    /// Restores what [`Tracker::scalars`] gave, or nothing of it.
    pub fn load(&mut self, scalars: &[(String, f64)]) -> Result<()> {
        let (bound, threshold) = (magnitude(scalars, "bound")?, magnitude(scalars, "threshold")?);
        self.stages.as_mut().map_or(Ok(()), |stages| stages.load(scalars))?;
        (self.bound, self.threshold) = (bound, threshold);
        Ok(())
    }
}

/// A scalar that is a magnitude, if it is there.
pub(super) fn magnitude(scalars: &[(String, f64)], name: &str) -> Result<Option<f32>> {
    match scalars.iter().find(|(n, _)| n == name) {
        Some(&(_, value)) if !(value >= 0.0 && (value as f32).is_finite()) => {
            Err(Error::argument(format!("'{name}' must be finite and >= 0, got {value}")))
        }
        found => Ok(found.map(|&(_, value)| value as f32)),
    }
}
