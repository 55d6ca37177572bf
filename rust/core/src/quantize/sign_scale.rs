//! One bit per entry, its sign, and one magnitude for all entries.
//!
//! Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes `SignSGD` and other Gradient Compression
//! Schemes", ICML 2019, send the mean of magnitudes; Tang et al., "1-bit Adam", ICML 2021, the root
//! of the mean square. One bit cannot represent zero: zeros count as positive, and the memory
//! corrects the error.

use super::code::Work;
use super::coding::Head;
use super::fit::one;
use super::signs::{self, Signs};
use super::{Code, Facts, Fit, Grouping, Quantize};
use crate::part::{Options, Part};
use crate::sparsify::SparsifierId;
use crate::{Error, Result};

/// The sign, and one magnitude for all entries.
///
/// Karimireddy et al., "Error Feedback Fixes `SignSGD` and other Gradient Compression Schemes",
/// ICML 2019.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignScale {
    /// Which magnitude.
    pub magnitude: Magnitude,
}

/// Which magnitude goes with the signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Magnitude {
    /// The mean of magnitudes.
    #[default]
    Mean,
    /// The root of the mean square.
    RootMeanSquare,
    /// What the sparsifier says that its entries have.
    Selector,
}

impl Part for SignScale {
    const KIND: &'static str = "sign_scale";

    fn read(options: &Options) -> Result<Self> {
        // Any other word is the name of a sparsifier that tells the magnitude.
        let selector = |name: &str| SparsifierId::KNOWN.iter().any(|&(_, known)| known == name);
        let magnitude = match options.get::<String>("scale")?.as_str() {
            "mean" => Magnitude::Mean,
            "rms" => Magnitude::RootMeanSquare,
            name if selector(name) => Magnitude::Selector,
            name => {
                let reason = format!("scale must be mean, rms or a sparsifier, got {name:?}");
                return Err(Error::argument(reason));
            }
        };
        Ok(Self { magnitude })
    }

    fn examples() -> Vec<Self> {
        [Magnitude::Mean, Magnitude::RootMeanSquare, Magnitude::Selector]
            .map(|magnitude| Self { magnitude })
            .to_vec()
    }
}

impl Quantize for SignScale {
    type Coding = Coding;

    fn facts(self) -> Facts {
        let needs_magnitude = self.magnitude == Magnitude::Selector;
        Facts { needs_magnitude, ..Facts::default() }
    }

    fn coding(self, _: u64, _: f32) -> Coding {
        Coding
    }

    fn fit(self) -> Fit<Self> {
        match self.magnitude {
            Magnitude::Mean => Fit::Sides(|_, summary, _| one(summary.mean_magnitude() as f32)),
            Magnitude::RootMeanSquare => {
                Fit::Squares(|_, summary, _| one(summary.mean_square().sqrt() as f32))
            }
            Magnitude::Selector => Fit::Sides(|_, summary, told| {
                one(told.unwrap_or_else(|| summary.mean_magnitude() as f32))
            }),
        }
    }
}

/// A sign, and one magnitude for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coding;

impl Code for Coding {
    fn parse(_: Head, _: &[u8]) -> Result<Self> {
        Ok(Self)
    }

    fn bits(self) -> u32 {
        1
    }

    fn grouping(self) -> Grouping {
        Grouping::Whole
    }

    fn encode(self, values: &[f32], codes: &mut [u8], work: Work<'_>) {
        signs::encode(values, codes, &work);
    }

    fn encode_left(self, values: &mut [f32], codes: &mut [u8], work: Work<'_>) {
        signs::encode_left(self, values, codes, work);
    }

    fn decode(self, codes: &[u8], values: &mut [f32], work: Work<'_>) {
        signs::decode(self, codes, values, work);
    }
}

impl Signs for Coding {
    fn sides(self, scales: &[[u8; 4]], ones: &mut [f32], zeros: &mut [f32]) {
        for ((one, zero), scale) in ones.iter_mut().zip(zeros).zip(scales) {
            let scale = f32::from_le_bytes(*scale);
            (*one, *zero) = (-scale, scale);
        }
    }
}
