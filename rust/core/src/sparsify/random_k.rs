//! Random-k: randomly drawn positions, the same on all ranks.
//!
//! The selection does not depend on the data. Every drawn entry is sent, including zeros, so that
//! ranks with the same positions can add up their values without exchanging positions.

use super::{
    Amount, Drawn, Facts, Positions, Scanned, Selected, Sparsify, Tracker, Unread, Wanted,
};
use crate::Result;
use crate::pack::{DrawKind, Pattern};
use crate::part::{Options, Part};
use crate::scan::{Entries, Request};

/// Entries at randomly drawn positions.
///
/// Konečný, McMahan, Yu, Richtárik, Suresh, Bacon, "Federated Learning: Strategies for Improving
/// Communication Efficiency", 2016 (random masks); Stich et al., "Sparsified SGD with Memory",
/// NeurIPS 2018 (with a memory).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomK {
    /// How many entries.
    pub amount: Amount,
    /// One run of consecutive entries that begins anywhere, instead of entries all over the tensor.
    pub block: bool,
    /// Ranks that agree on it, on the tensor's name and on the step draw the same positions.
    pub seed: u64,
    /// Values times n / k: then the decoded tensor is the input in expectation.
    pub scaled: bool,
}

impl RandomK {
    fn drawn(self) -> Drawn {
        let kind = if self.block { DrawKind::Run } else { DrawKind::Subset };
        Drawn { kind, scaled: self.scaled }
    }
}

impl Part for RandomK {
    const KIND: &'static str = "random_k";

    fn read(options: &Options) -> Result<Self> {
        Ok(Self {
            amount: Amount::read(options)?,
            block: options.get("block")?,
            seed: options.get("seed")?,
            scaled: options.get("scaled")?,
        })
    }

    fn check(self) -> Result<()> {
        self.amount.check()
    }

    fn sized_as(self, other: Self) -> Self {
        Self { amount: other.amount, ..self }
    }

    fn examples() -> Vec<Self> {
        let of = |ratio, block| {
            let amount = Amount::Ratio(ratio);
            Self { amount, block, seed: 1, scaled: false }
        };
        let scaled = Self { seed: 2, scaled: true, ..of(0.05, false) };
        vec![of(0.01, false), of(0.7, false), of(0.1, true), scaled]
    }
}

impl Sparsify for RandomK {
    fn facts(self) -> Facts {
        Facts {
            positions: Positions::Drawn(self.drawn()),
            seed: Some(self.seed),
            ..Facts::SELECTED
        }
    }

    fn max_count(self, numel: usize) -> u64 {
        self.amount.of(numel)
    }

    fn asks_for_all(self, numel: usize) -> bool {
        self.amount.of(numel) == numel as u64
    }

    fn wanted(self, _: &mut Unread<'_>) -> Wanted {
        Request::of(Entries::Unseen).into()
    }

    fn select(self, _: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
        let Pattern::Drawn(draw) = scanned.pattern else { return Selected::wanted(None) };
        let k = self.amount.of(scanned.numel());
        let Scanned { tensor, scanner, scratch, .. } = scanned;
        let kernels = scanner.kernels;
        self.drawn().gather(kernels, draw, tensor, k, scanner.candidates_mut(), scratch);
        Selected::wanted(Some(k))
    }
}
