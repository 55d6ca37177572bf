"""Randomly drawn entries, the same on all ranks."""

import dataclasses
import math
from typing import ClassVar

from gradwire import _validate
from gradwire.sparsify.base import Sparsifier


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class RandomK(Sparsifier):
    """Select k entries uniformly at random without replacement.

    The positions depend only on the seed, the name of the state (`Codec.init_state`) and its step
    count, and take nine bytes per frame, whatever k is. Ranks that agree on these draw the same
    positions, and every step draws new ones. No other random state is read or written.

    Every drawn entry is sent, including zeros, so that all ranks have the same positions. A limit
    on the size of the frame reduces the number of entries drawn, equally on all ranks with the same
    limit.

    With a residual, a step costs one pass over n values. Without a memory only the drawn entries
    are read, so a non-finite value is detected only if it is drawn.

    Parameters
    ----------
    ratio : float, optional
        Share of the entries to send: k = max(1, floor(ratio * n)), 0 < ratio <= 1.
    k : int, optional
        Number of entries, at least 1, instead of ``ratio``.
        A tensor with fewer entries sends all of them.
    block : bool
        Draw one run of k consecutive entries that starts anywhere and wraps around the end.
    seed : int
        0 to 2**64 - 1.
    scaled : bool
        Multiply values by n / k, which makes the decoded tensor an unbiased estimate. Only for
        codecs without a memory.

    References
    ----------
    Konečný, McMahan, Yu, Richtárik, Suresh, Bacon, "Federated Learning: Strategies for Improving
    Communication Efficiency", arXiv 1610.05492 (2016), section 2: a random mask, from a seed.

    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, section 2: with a memory.
    """

    ratio: float | None = None
    k: int | None = None
    block: bool = False
    seed: int = 0
    scaled: bool = False
    kind: ClassVar[str] = "random_k"
    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = True
    magnitude: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        _validate.either("RandomK", ratio=self.ratio, k=self.k)
        self._check_given("ratio", _validate.ratio, k=True)
        self._check_given("k", _validate.integer, low=1, high=_validate.MAX_NUMEL)
        _validate.boolean("block", self.block)
        self._check("seed", _validate.integer, low=0, high=2**64 - 1)
        _validate.boolean("scaled", self.scaled)

    def count(self, numel: int) -> int:
        """Return the number of entries that every rank draws."""
        if self.ratio is not None:
            return min(max(1, math.floor(self.ratio * numel)), numel)
        assert self.k is not None
        return min(self.k, numel)
