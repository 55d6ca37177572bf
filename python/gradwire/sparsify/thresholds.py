"""Entries beyond a threshold: fixed, from a distribution, or from the values."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from gradwire import _validate
from gradwire._validate import Band, Check, Entries, ProperShare, Ratio, Seed
from gradwire.sparsify.base import OwnSelection

_FLOAT32_MAX = 3.4028234663852886e38


@dataclasses.dataclass(frozen=True, repr=False)
class Threshold(OwnSelection):
    """Select the entries whose magnitude is strictly above a fixed threshold.

    Parameters
    ----------
    threshold : float
        In the units of the tensor, finite and >= 0, rounded to float32. 0 sends all non-zeros.
    """

    threshold: Annotated[float, Check(_validate.positive, high=_FLOAT32_MAX)]
    kind: ClassVar[str] = "threshold"
    magnitude: ClassVar[str | None] = "threshold"


def _stages(name: str, value: object) -> object:
    if isinstance(value, str):
        return _validate.choice(name, value, ("adaptive", "paper", "tracking"))
    return _validate.integer(name, value, low=1, high=64)


@dataclasses.dataclass(frozen=True, repr=False)
class SID(OwnSelection):
    """A threshold from fitted sparsity-inducing distributions (SIDCo).

    The distribution of magnitudes is fitted in stages, each to the entries that exceeded the
    threshold of the stage before (peaks over threshold). No selection over all n entries is needed.

    If the number of entries above the fitted threshold is outside the band, the step selects
    exactly the target number instead. If that happens in most steps, the following steps skip the
    fit and select exactly; the fit is tried again after 64 steps, later after up to 1024.

    Parameters
    ----------
    ratio : float
        Fraction of entries to send, 0 < ratio <= 1.
    distribution : {"pareto", "exponential", "gamma"}
        Distribution of the magnitudes: generalized Pareto at every stage (SIDCo-P in the paper),
        exponential at every stage (SIDCo-E), or gamma in the first stage and generalized Pareto in
        the later ones (SIDCo-GP).
    stages : {"adaptive", "paper", "tracking"} or int
        How the number of stages is chosen. ``"adaptive"``: a controller per tensor corrects the
        stages towards the target. ``"tracking"``: the same, but only the tail above a bound kept
        from step to step is fitted. ``"paper"``: the published rule, which can get stuck on heavy
        tails; it includes exact zeros in the fit, the others leave them out. An integer, 1 to 64:
        always that many stages.
    band : (float, float) or None
        Guaranteed bounds on achieved count / target count, 0 <= low <= 1 <= high. None accepts
        whatever the fitted threshold selects, as published.
    first_ratio : float
        Fraction that the first stage keeps, 0 < first_ratio < 1.

    Notes
    -----
    ``stages="paper", band=None`` follows the classes with error compensation in the authors' code
    (sands-lab/SIDCo, ``compression.py``, ``--stages -1``). ``docs/sidco.md`` lists what differs.

    References
    ----------
    Abdelmoniem, Elzanaty, Alouini, Canini, "An Efficient Statistical-based Gradient Compression
    Technique for Distributed Training Systems", MLSys 2021, section 2.
    """

    ratio: Ratio
    _: dataclasses.KW_ONLY
    distribution: Literal["pareto", "exponential", "gamma"] = "pareto"
    stages: Annotated[Literal["adaptive", "paper", "tracking"] | int, Check(_stages)] = "adaptive"
    band: Band | None = (0.8, 1.25)
    first_ratio: ProperShare = 0.25
    kind: ClassVar[str] = "sid"


_CONVOLUTION, _OTHER = 50, 500


@dataclasses.dataclass(frozen=True, repr=False)
class BinMax(OwnSelection):
    """Select the entries of each bin that pass AdaComp's soft threshold.

    Let G be the residual plus the gradient dW. An entry is selected if the magnitude of
    ``G + (soft - 1) * dW`` is at least the largest magnitude of G in its bin. The number of
    selected entries depends on the data; a bin of zeros sends nothing. Without a memory, G is dW.

    The magnitude for `gradwire.quantize.SignScale` is the mean, over all bins, of the largest
    magnitude of G in each bin.

    A step reads the n values once; each bin is read a second time from the cache.

    Parameters
    ----------
    bin : int or None
        Entries per bin; the last bin of a tensor may have fewer. None means 50 for convolution
        kernels (three dimensions or more), and 500 for all other tensors or if the shape is
        unknown.
    soft : float
        Weight of dW in the test, at least 1. The paper uses 2.

    References
    ----------
    Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan, "AdaComp : Adaptive Residual Gradient
    Compression for Data-Parallel Distributed Training", AAAI 2018, section 3.
    """

    bin: Entries | None = None
    _: dataclasses.KW_ONLY
    soft: Annotated[float, Check(_validate.positive, low=1)] = 2.0
    kind: ClassVar[str] = "bin_max"
    magnitude: ClassVar[str | None] = "bin-max"

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the part with the paper's bins for tensors of this shape, if none were set."""
        if self.bin is not None:
            return self
        return dataclasses.replace(self, bin=_CONVOLUTION if len(shape) >= 3 else _OTHER)


@dataclasses.dataclass(frozen=True, repr=False)
class TwoSided(OwnSelection):
    """Select entries at or beyond a positive and a negative threshold (Dryden et al.).

    The thresholds are estimated from a sample so that about one entry in ``proportion`` is
    selected: each is the smallest magnitude of its sign among the sample's largest entries. At
    most 4 n / proportion entries are sent, the largest, however far off the sample is.

    Parameters
    ----------
    proportion : float
        Send about one entry in this many, at least 1.
    sample : int or None
        Number of entries to sample, with replacement, from a tensor that has more; 1 to 2**24.
        None computes the exact thresholds.
    seed : int
        Seed of the sample, which also depends on the name of the tensor and the step.

    References
    ----------
    Dryden, Jacobs, Moon, Van Essen, "Communication Quantization for Data-Parallel Training of Deep
    Neural Networks", MLHPC 2016, section 3.2.
    """

    proportion: Annotated[float, Check(_validate.positive, low=1)]
    _: dataclasses.KW_ONLY
    sample: Annotated[int, Check(_validate.integer, low=1, high=2**24)] | None = 1024
    seed: Seed = 0
    kind: ClassVar[str] = "two_sided"


@dataclasses.dataclass(frozen=True, repr=False)
class Gaussian(OwnSelection):
    """Select entries whose magnitude is above a threshold from a normal distribution (Gaussian-k).

    The threshold is the mean of the values plus the number of standard deviations that a fraction
    k / n of a normal distribution exceeds on both sides. If fewer than 2/3 k or more than 4/3 k
    entries are above it, it is halved or raised by a half, and the entries are counted again. The
    corrections are coarse; `band` bounds them. If no entry is above the final threshold, the k
    largest are sent.

    The default of two corrections follows `GaussianCompressor` in the authors' code
    (hclhkbu/GaussianK-SGD, ``compression.py``): its loop corrects three times, but sends what it
    counted before the third correction.

    Parameters
    ----------
    ratio : float
        Fraction of entries to send, 0 < ratio <= 1.
    rounds : int
        Maximum number of corrections, 0 to 64.
    band : (float, float) or None
        Guaranteed bounds on achieved count / target count, 0 <= low <= 1 <= high; outside them
        exactly the target is selected. None accepts whatever the last threshold selects, as
        published.

    References
    ----------
    Shi, Chu, Cheung, See, "Understanding Top-k Sparsification in Distributed Deep Learning",
    arXiv 1911.08772, 2019, section 3.3.
    """

    ratio: Ratio
    _: dataclasses.KW_ONLY
    rounds: Annotated[int, Check(_validate.integer, low=0, high=64)] = 2
    band: Band | None = None
    kind: ClassVar[str] = "gaussian"


@dataclasses.dataclass(frozen=True, repr=False)
class Trimmed(OwnSelection):
    """Select entries above a threshold between the mean and the largest magnitude (RedSync).

    Thresholds have the form ``mean + r * (max - mean)``. ``"trim"`` lowers r from 1 until at least
    k entries are above the threshold and selects exactly k of them: the same entries as `TopK`.
    ``"search"`` bisects r until k to 2 k entries are above; if it ends without such a threshold,
    the k largest are sent. It tries three values of r, and mostly ends that way. (The search in
    the authors' code moves the wrong bound when too few entries are above.)

    Parameters
    ----------
    ratio : float
        k = max(1, floor(ratio * n)), 0 < ratio <= 1.
    method : {"trim", "search"}
        How to find the threshold.
    step : float
        Decrement of r for ``"trim"``, and the width of the interval at which ``"search"`` ends;
        0 < step < 1.

    References
    ----------
    Fang, Fu, Yang, Hsieh, "RedSync: Reducing Synchronization Bandwidth for Distributed Deep
    Learning Training System", JPDC 2019, section 5.1.
    """

    ratio: Ratio
    _: dataclasses.KW_ONLY
    method: Literal["trim", "search"] = "trim"
    step: ProperShare = 0.2
    kind: ClassVar[str] = "trimmed"
