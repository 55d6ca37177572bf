//! Sparsifiers: which entries are sent.
//!
//! Zeros are not sent, because a missing entry decodes to zero. [`RandomK`] is an exception: it sends
//! every entry it has drawn, because ranks rely on having the same positions.

mod bin_max;
mod bracket;
mod chunk_topk;
mod custom;
mod gaussian;
mod largest;
mod radix;
mod random_k;
mod sampled;
mod sid;
mod threshold;
mod topk;
mod tracker;
mod trimmed;
mod two_sided;

pub use bin_max::BinMax;
pub use chunk_topk::{ChunkTopK, Tile};
pub use custom::Custom;
pub use gaussian::Gaussian;
use largest::narrow;
pub use random_k::RandomK;
pub use sampled::{Plan, SampledTopK};
pub use sid::Sid;
pub use threshold::Threshold;
pub use topk::TopK;
pub(crate) use tracker::Tracker;
pub use trimmed::{Method as TrimMethod, Trimmed};
pub use two_sided::TwoSided;

use crate::frame::SparsifierId;
use crate::pack::Pattern;
use crate::rng::Key;
use crate::scan::{Entries, MOST_LOOKED_AT, Request, Scanner, Source, Totals, View};
use crate::{Error, Result, room};

/// The sparsifier of a codec.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sparsifier {
    /// Every entry.
    All,
    /// Entries whose magnitude is strictly above a threshold.
    Threshold(Threshold),
    /// Exactly the entries of largest magnitude.
    TopK(TopK),
    /// Entries above a threshold that SIDCo fits.
    Sid(Sid),
    /// Entries above a threshold taken from a sample, as in Deep Gradient Compression.
    SampledTopK(SampledTopK),
    /// AdaComp's entries, bin by bin.
    BinMax(BinMax),
    /// Entries at or beyond the threshold for their sign.
    TwoSided(TwoSided),
    /// Entries above a threshold from a normal distribution.
    Gaussian(Gaussian),
    /// Entries above a threshold between the mean and the largest magnitude, as in RedSync.
    Trimmed(Trimmed),
    /// The largest entries of each chunk.
    ChunkTopK(ChunkTopK),
    /// Entries at randomly drawn positions.
    ///
    /// Konečný, McMahan, Yu, Richtárik, Suresh, Bacon, "Federated Learning: Strategies for Improving
    /// Communication Efficiency", 2016 (random masks); Stich et al., "Sparsified SGD with Memory",
    /// NeurIPS 2018 (with a memory).
    RandomK(RandomK),
    /// Entries that are selected outside of this crate.
    Custom(Custom),
}

/// How many entries to keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// A fraction of the tensor's entries, in (0, 1], rounded down, but at least one entry.
    Ratio(f64),
    /// A number of entries, at least 1.
    Count(u64),
}

impl Amount {
    /// The number of entries to keep of a tensor of `numel` elements.
    pub fn of(self, numel: usize) -> u64 {
        let numel = numel as u64;
        let wanted = match self {
            Self::Ratio(ratio) => ((numel as f64 * ratio) as u64).max(1),
            Self::Count(count) => count,
        };
        wanted.min(numel)
    }

    fn check(self) -> Result<()> {
        match self {
            Self::Ratio(ratio) if !(ratio > 0.0 && ratio <= 1.0) => {
                Err(Error::argument(format!("ratio must be in (0, 1], got {ratio}")))
            }
            Self::Count(0) => Err(Error::argument("k must be at least 1, got 0")),
            _ => Ok(()),
        }
    }
}

/// Results of a selection; the entries themselves are the scanner's survivors.
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
    pub tensor: View<'a>,
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

impl From<Request> for Wanted {
    fn from(request: Request) -> Self {
        Self { request, thresholds: None }
    }
}

/// A tensor that was read once as [`Sparsifier::wanted`] says, and what came of it.
pub(crate) struct Scanned<'a, 's> {
    pub field: View<'a>,
    pub request: Request,
    pub thresholds: Option<(f32, f32)>,
    pub totals: Totals,
    /// What [`Sparsifier::pattern`] gave.
    pub pattern: Pattern,
    pub scanner: &'s mut Scanner,
    pub scratch: &'s mut Vec<u32>,
}

impl Sparsifier {
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::Threshold(Threshold { threshold })
                if !(threshold >= 0.0 && threshold.is_finite()) =>
            {
                Err(Error::argument(format!("threshold must be finite and >= 0, got {threshold}")))
            }
            Self::All | Self::Threshold(Threshold { .. }) | Self::Custom(Custom { .. }) => Ok(()),
            Self::TopK(TopK { amount }) => amount.check(),
            Self::Sid(sid) => sid.check(),
            Self::SampledTopK(sampled) => sampled.check(),
            Self::BinMax(bin_max) => bin_max.check(),
            Self::TwoSided(two_sided) => two_sided.check(),
            Self::Gaussian(gaussian) => gaussian.check(),
            Self::Trimmed(trimmed) => trimmed.check(),
            Self::ChunkTopK(chunks) => chunks.check(),
            Self::RandomK(random) => random.check(),
        }
    }

    pub(crate) fn id(self) -> SparsifierId {
        match self {
            Self::All => SparsifierId::ALL,
            Self::Threshold(Threshold { .. }) => SparsifierId::THRESHOLD,
            Self::TopK(TopK { .. }) => SparsifierId::TOP_K,
            Self::Sid(_) => SparsifierId::SID,
            Self::SampledTopK(_) => SparsifierId::SAMPLED_TOP_K,
            Self::BinMax(_) => SparsifierId::BIN_MAX,
            Self::TwoSided(_) => SparsifierId::TWO_SIDED,
            Self::Gaussian(_) => SparsifierId::GAUSSIAN,
            Self::Trimmed(_) => SparsifierId::TRIMMED,
            Self::ChunkTopK(_) => SparsifierId::CHUNK_TOP_K,
            Self::RandomK(_) => SparsifierId::RANDOM_K,
            Self::Custom(Custom { .. }) => SparsifierId::CUSTOM,
        }
    }

    /// What the numbers depend on that it draws, if it draws any.
    pub(crate) fn seed(self) -> u64 {
        match self {
            Self::SampledTopK(SampledTopK { seed, .. }) | Self::TwoSided(TwoSided { seed, .. }) => {
                seed
            }
            Self::RandomK(RandomK { seed, .. }) => seed,
            _ => 0,
        }
    }

    /// An error if a tensor of this size is none that this can be used on.
    pub(crate) fn check_numel(self, numel: usize) -> Result<()> {
        match self {
            Self::ChunkTopK(chunks) => chunks.check_numel(numel),
            _ => Ok(()),
        }
    }

    /// The maximum number of entries that can be selected from a tensor.
    pub fn max_count(self, numel: usize) -> u64 {
        match self {
            Self::All
            | Self::Threshold(Threshold { .. })
            | Self::BinMax(_)
            | Self::Custom(Custom { .. }) => numel as u64,
            Self::TopK(TopK { amount }) => amount.of(numel),
            Self::Sid(sid) => sid.max_count(numel),
            Self::SampledTopK(sampled) => sampled.target(numel),
            Self::TwoSided(two_sided) => two_sided.max_count(numel),
            Self::Gaussian(gaussian) => gaussian.max_count(numel),
            Self::Trimmed(trimmed) => trimmed.max_count(numel),
            Self::ChunkTopK(chunks) => chunks.max_count(numel),
            Self::RandomK(random) => random.amount.of(numel),
        }
    }

    /// Whether what is selected depends on random numbers, and so on the step.
    pub fn draws(self) -> bool {
        match self {
            Self::SampledTopK(_) | Self::RandomK(_) => true,
            Self::TwoSided(two_sided) => two_sided.sample.is_some(),
            _ => false,
        }
    }

    /// Whether the positions are drawn without looking at the entries.
    pub fn is_drawn(self) -> bool {
        matches!(self, Self::RandomK(_))
    }

    /// The pattern of positions that somebody else chose in the place of this sparsifier.
    pub(crate) fn pattern_of_any(self) -> Pattern {
        match self {
            // The leader of an exchange has the same one.
            Self::ChunkTopK(chunks) => chunks.pattern(),
            _ => Pattern::Any,
        }
    }

    /// What is known of the positions before any entry is, if this is the step's key.
    pub(crate) fn pattern(self, key: Key) -> Pattern {
        match self {
            Self::RandomK(random) => Pattern::Drawn(random.draw(key)),
            _ => self.pattern_of_any(),
        }
    }

    /// Whether [`Selected::magnitude`] says something.
    pub(crate) fn tells_magnitude(self) -> bool {
        matches!(self, Self::Threshold(Threshold { .. }) | Self::BinMax(_))
    }

    /// The tracker of a new tensor.
    pub(crate) fn tracker(self, numel: usize) -> Tracker {
        let stages = match self {
            Self::Sid(sid) => Some(sid.stages(numel)),
            _ => None,
        };
        Tracker { stages, ..Tracker::default() }
    }

    /// Makes room in `scratch` for all that [`Sparsifier::wanted`] puts there.
    pub(crate) fn make_room(self, numel: usize, scratch: &mut Vec<u32>) -> Result<()> {
        let sampled = match self {
            Self::SampledTopK(sampled) => sampled.samples(numel),
            Self::TwoSided(TwoSided { sample: Some(sample), .. }) => numel.min(sample as usize),
            _ => 0,
        };
        room::reserve(scratch, sampled.max(numel.min(MOST_LOOKED_AT)))
    }

    /// What to gather in the first read.
    pub(crate) fn wanted(self, unread: &mut Unread<'_>) -> Wanted {
        match self {
            Self::All | Self::Custom(Custom { .. }) => Request::default().into(),
            Self::RandomK(_) => Request::of(Entries::Unseen).into(),
            Self::ChunkTopK(chunks) => chunks.request().into(),
            Self::BinMax(bin_max) => bin_max.request().into(),
            Self::Threshold(Threshold { threshold }) => threshold::request(threshold).into(),
            Self::TopK(TopK { amount }) => topk::request(amount.of(unread.numel()), unread).into(),
            Self::Sid(sid) => sid.request(unread).into(),
            Self::SampledTopK(sampled) => sampled.wanted(unread),
            Self::TwoSided(two_sided) => two_sided.wanted(unread),
            Self::Gaussian(gaussian) => gaussian.request(unread).into(),
            Self::Trimmed(trimmed) => trimmed.request(unread).into(),
        }
    }

    /// Selects: narrows the scanner's survivors down to the entries that go.
    pub(crate) fn select(self, tracker: &mut Tracker, scanned: &mut Scanned<'_, '_>) -> Selected {
        let numel = scanned.numel();
        match self {
            Self::All | Self::Custom(Custom { .. }) => {
                Selected { target: None, threshold: 0.0, magnitude: None }
            }
            Self::Threshold(Threshold { threshold }) => {
                Selected { target: None, threshold, magnitude: Some(threshold) }
            }
            Self::TopK(TopK { amount }) => topk::select(amount.of(numel), tracker, scanned),
            Self::Sid(sid) => sid.select(tracker, scanned),
            Self::SampledTopK(sampled) => sampled.select(tracker, scanned),
            Self::BinMax(bin_max) => bin_max.select(&scanned.totals, numel),
            Self::TwoSided(two_sided) => two_sided.select(tracker, scanned),
            Self::Gaussian(gaussian) => gaussian.select(tracker, scanned),
            Self::Trimmed(trimmed) => trimmed.select(tracker, scanned),
            Self::ChunkTopK(chunks) => chunks.select(scanned),
            Self::RandomK(random) => match scanned.pattern {
                Pattern::Drawn(draw) => random.select(draw, scanned),
                _ => Selected { target: None, threshold: 0.0, magnitude: None },
            },
        }
    }

    /// Leaves `count` of the scanner's survivors, fewer than there are, where a frame has no room for
    /// more.
    pub(crate) fn leave(
        self,
        count: u64,
        pattern: Pattern,
        field: &View<'_>,
        scanner: &mut Scanner,
        scratch: &mut Vec<u32>,
    ) {
        let (kernels, survivors) = (scanner.kernels, scanner.survivors_mut());
        match (self, pattern) {
            (Self::RandomK(random), Pattern::Drawn(draw)) => {
                random.gather(kernels, draw, field, count, survivors, scratch);
            }
            _ => _ = narrow(survivors, count, kernels, scratch),
        }
    }
}

impl Scanned<'_, '_> {
    fn numel(&self) -> usize {
        self.field.len()
    }

    /// Reads the tensor once more for the entries above `bound`; whether all could be kept.
    fn compact(&mut self, bound: f32, cap: usize) -> bool {
        self.request = Request::above(bound, cap);
        self.totals.complete = self.scanner.scan(self.field, &self.request).complete;
        self.totals.complete
    }

    /// How many survivors are above `bound`.
    fn count_above(&self, bound: f32) -> u64 {
        let survivors = self.scanner.survivors().values();
        survivors.iter().map(|value| u64::from(value.abs() > bound)).sum()
    }

    /// Whether the survivors are all entries above `bound`, and possibly more.
    fn covers(&self, bound: f32) -> bool {
        self.totals.complete && self.request.bound().is_some_and(|below| below <= bound)
    }
}
