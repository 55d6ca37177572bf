//! Sparsifiers: which entries are sent.
//!
//! Zeros are not sent, because a missing entry decodes to zero. [`RandomK`] is an exception: it sends
//! every entry it has drawn, because ranks rely on having the same positions.
//!
//! Each has a file of its own, with a struct of its options that implements [`Sparsify`].

mod all;
mod amount;
mod bin_max;
mod bracket;
mod chunk_topk;
mod custom;
mod drawn;
mod gaussian;
mod ids;
mod largest;
mod radix;
mod random_k;
mod registry;
mod sampled;
mod sid;
mod threshold;
mod topk;
mod tracker;
mod trimmed;
mod two_sided;

pub use amount::Amount;
pub use chunk_topk::Tile;
pub(crate) use drawn::Drawn;
pub use ids::SparsifierId;
pub use sampled::Plan;
pub(crate) use tracker::Tracker;
pub use trimmed::Method as TrimMethod;

use crate::pack::{Chunks, Pattern};
use crate::part::{Part, parts};
use crate::rng::Key;
use crate::scan::{MOST_LOOKED_AT, Request, Scanner, Tensor, Totals};
use crate::{Result, allocate};

registry::sparsifiers! { $
    All in all = 0 "all";
    Threshold (Threshold) in threshold = 1 "threshold";
    TopK (TopK) in topk = 2 "top-k";
    Sid (Sid) in sid = 3 "sid";
    SampledTopK (SampledTopK) in sampled = 4 "sampled-top-k";
    ChunkTopK (ChunkTopK) in chunk_topk = 5 "chunk-top-k";
    BinMax (BinMax) in bin_max = 6 "bin-max";
    TwoSided (TwoSided) in two_sided = 7 "two-sided";
    RandomK (RandomK) in random_k = 8 "random-k";
    Gaussian (Gaussian) in gaussian = 9 "gaussian";
    Trimmed (Trimmed) in trimmed = 10 "trimmed";
    Custom (Custom) in custom = 11 "custom";
}

/// What a sparsifier says about itself, besides its options.
pub(crate) trait Sparsify: Part {
    /// What is known of it before any entry is.
    fn facts(self) -> Facts;

    /// An error if a tensor of this size is none that this can be used on.
    fn check_numel(self, _numel: usize) -> Result<()> {
        Ok(())
    }

    /// The maximum number of entries that can be selected from a tensor.
    fn max_count(self, numel: usize) -> u64 {
        numel as u64
    }

    /// Whether all entries of a tensor are asked for, as by a ratio of 1: then only zeros are left out.
    fn asks_for_all(self, _numel: usize) -> bool {
        false
    }

    /// The tracker of a new tensor.
    fn tracker(self, _numel: usize) -> Tracker {
        Tracker::default()
    }

    /// How many numbers [`Sparsify::wanted`] puts into its scratch memory at most, besides what it
    /// takes to find a first bound.
    fn scratch(self, _numel: usize) -> usize {
        0
    }

    /// What to gather in the first read. Asked on [`Route::Selected`] alone, as is what follows.
    fn wanted(self, unread: &mut Unread<'_>) -> Wanted;

    /// Selects: narrows the scanner's candidates down to the entries that go.
    fn select(self, tracker: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected;
}

/// What is known of a sparsifier before any entry is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub route: Route,
    pub positions: Positions,
    /// What the numbers begin from that it draws; none if what is selected does not depend on any.
    pub seed: Option<u64>,
    /// Whether [`Selected::magnitude`] says something.
    pub tells_magnitude: bool,
}

impl Facts {
    /// Of a sparsifier that selects at any positions, and draws nothing.
    const SELECTED: Self = Self {
        route: Route::Selected,
        positions: Positions::Any,
        seed: None,
        tells_magnitude: false,
    };
}

/// How entries come to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// All are.
    Every,
    /// The sparsifier selects them.
    Selected,
    /// Somebody else does.
    Given,
}

/// What is known of the positions before any entry is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Positions {
    /// Nothing.
    Any,
    /// As a rule there are equally many in all chunks.
    Chunks(Chunks),
    /// They are drawn, whatever the entries are.
    Drawn(Drawn),
}

impl Sparsifier {
    /// What its numbers begin from, if what is selected depends on any, and so on the step.
    pub fn seed(self) -> Option<u64> {
        each_sparsifier!(self, sparsifier => sparsifier.facts().seed)
    }

    /// The maximum number of entries that can be selected from a tensor.
    pub fn max_count(self, numel: usize) -> u64 {
        each_sparsifier!(self, sparsifier => sparsifier.max_count(numel))
    }

    /// Whether all entries of a tensor are asked for: by an amount as large as the tensor, such as a
    /// ratio of 1, or because every entry is sent. A threshold asks for no number of them.
    pub fn asks_for_all(self, numel: usize) -> bool {
        each_sparsifier!(self, sparsifier => sparsifier.asks_for_all(numel))
    }

    /// Whether the positions are drawn without looking at the entries.
    pub fn is_drawn(self) -> bool {
        matches!(self.positions(), Positions::Drawn(_))
    }

    /// Whether every entry is sent: frames are dense.
    pub fn is_dense(self) -> bool {
        self.route() == Route::Every
    }

    /// Whether its positions come from outside of this crate.
    pub fn is_given(self) -> bool {
        self.route() == Route::Given
    }

    pub(crate) fn route(self) -> Route {
        each_sparsifier!(self, sparsifier => sparsifier.facts().route)
    }

    pub(crate) fn check_numel(self, numel: usize) -> Result<()> {
        each_sparsifier!(self, sparsifier => sparsifier.check_numel(numel))
    }

    pub(crate) fn tells_magnitude(self) -> bool {
        each_sparsifier!(self, sparsifier => sparsifier.facts().tells_magnitude)
    }

    pub(crate) fn positions(self) -> Positions {
        each_sparsifier!(self, sparsifier => sparsifier.facts().positions)
    }

    /// The pattern of positions that somebody else chose in the place of this sparsifier.
    pub(crate) fn pattern_of_any(self) -> Pattern {
        match self.positions() {
            // The leader of an exchange has the same ones.
            Positions::Chunks(chunks) => Pattern::Chunks(chunks),
            Positions::Any | Positions::Drawn(_) => Pattern::Any,
        }
    }

    /// What is known of the positions before any entry is, if this is the step's key.
    pub(crate) fn pattern(self, key: Key) -> Pattern {
        match self.positions() {
            Positions::Any => Pattern::Any,
            Positions::Chunks(chunks) => Pattern::Chunks(chunks),
            Positions::Drawn(drawn) => Pattern::Drawn(drawn.with(key)),
        }
    }

    pub(crate) fn tracker(self, numel: usize) -> Tracker {
        each_sparsifier!(self, sparsifier => sparsifier.tracker(numel))
    }

    /// Makes room in `scratch` for all that [`Sparsifier::wanted`] puts there.
    pub(crate) fn reserve(self, numel: usize, scratch: &mut Vec<u32>) -> Result<()> {
        let most = each_sparsifier!(self, sparsifier => sparsifier.scratch(numel));
        allocate::reserve(scratch, most.max(numel.min(MOST_LOOKED_AT)))
    }

    pub(crate) fn wanted(self, unread: &mut Unread<'_>) -> Wanted {
        each_sparsifier!(self, sparsifier => sparsifier.wanted(unread))
    }

    pub(crate) fn select(self, tracker: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
        each_sparsifier!(self, sparsifier => sparsifier.select(tracker, scanned))
    }

    /// Leaves `count` of the scanner's candidates, fewer than there are, where a frame has no room for
    /// more: the largest, or of drawn ones those that are drawn first.
    pub(crate) fn leave(
        self,
        count: u64,
        pattern: Pattern,
        tensor: &Tensor<'_>,
        scanner: &mut Scanner,
        scratch: &mut Vec<u32>,
    ) {
        let (kernels, candidates) = (scanner.kernels, scanner.candidates_mut());
        match (self.positions(), pattern) {
            (Positions::Drawn(drawn), Pattern::Drawn(draw)) => {
                drawn.gather(kernels, draw, tensor, count, candidates, scratch);
            }
            // Others may have drawn nothing, or have been given their positions.
            (Positions::Drawn(_) | Positions::Any | Positions::Chunks(_), _) => {
                largest::narrow(candidates, count, kernels, scratch);
            }
        }
    }
}

/// Results of a selection; the entries themselves are the scanner's candidates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Selected {
    /// How many entries were wanted.
    pub target: Option<u64>,
    /// Entries at most this large were left out.
    pub threshold: f32,
    /// The magnitude of its entries according to the sparsifier, for quantizers that send only
    /// signs.
    pub magnitude: Option<f32>,
}

/// A tensor before its first read, for a look at a few entries.
pub(crate) struct Unread<'a> {
    pub tensor: Tensor<'a>,
    pub tracker: &'a Tracker,
    /// The step's key, which is made of [`Sparsifier::seed`].
    pub key: Key,
    pub scratch: &'a mut Vec<u32>,
}

impl Unread<'_> {
    fn numel(&self) -> usize {
        self.tensor.len()
    }
}

/// What a sparsifier wants of the first read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub request: Request,
    /// The thresholds for either sign that it has decided on before, if it has.
    pub thresholds: Option<(f32, f32)>,
}

impl Selected {
    /// Entries of which nothing is known but how many were wanted.
    fn wanted(target: Option<u64>) -> Self {
        Self { target, threshold: 0.0, magnitude: None }
    }
}

impl From<Request> for Wanted {
    fn from(request: Request) -> Self {
        Self { request, thresholds: None }
    }
}

/// A tensor that was read once as [`Sparsifier::wanted`] says, and what came of it.
pub(crate) struct Scanned<'a, 's> {
    pub tensor: Tensor<'a>,
    pub request: Request,
    pub thresholds: Option<(f32, f32)>,
    pub totals: Totals,
    /// What [`Sparsifier::pattern`] gave.
    pub pattern: Pattern,
    pub scanner: &'s mut Scanner,
    pub scratch: &'s mut Vec<u32>,
}

impl Scanned<'_, '_> {
    fn numel(&self) -> usize {
        self.tensor.len()
    }

    /// Reads the tensor once more for the entries above `bound`; whether all could be kept.
    fn compact(&mut self, bound: f32, cap: usize) -> bool {
        self.request = Request::above(bound, cap);
        self.totals.complete = self.scanner.scan(self.tensor, &self.request).complete;
        self.totals.complete
    }

    /// How many candidates are above `bound`.
    fn count_above(&self, bound: f32) -> u64 {
        let candidates = self.scanner.candidates().values();
        candidates.iter().map(|value| u64::from(value.abs() > bound)).sum()
    }

    /// Whether the candidates are all entries above `bound`, and possibly more.
    fn covers(&self, bound: f32) -> bool {
        self.totals.complete && self.request.bound().is_some_and(|below| below <= bound)
    }
}
