"""Entries drawn by chance, the same on all ranks."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire._part import Part

__all__ = ["RandomK"]


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class RandomK(Part):
    """k entries drawn by chance, each set of k as likely as the other.

    The positions follow from the seed, the name of the state (`Codec.init_state`) and its step, and
    from nothing else: ranks that agree on these draw the same, another step draws others, and no
    random state but that is read or written. On the wire they take nine bytes, however many.

    What is drawn is sent, zeros too: unlike with any other sparsifier, ranks can rely on having
    the same positions. A limit of bytes makes a step draw fewer, the same on ranks of one limit.

    With a residual a step is one pass of n. Without a memory only the entries drawn are read, and
    one that is not finite is noticed if it is among them.

    Parameters
    ----------
    ratio : float, optional
        k = max(1, floor(ratio * n)), 0 < ratio <= 1.
    k : int, optional
        How many entries, at least 1; a tensor of fewer entries sends all of them.
    block : bool
        One run of k consecutive entries, from anywhere, wrapping around the end.
    seed : int
        0 to 2**64 - 1.
    scaled : bool
        Send values times n / k: then what is decoded is the tensor in expectation. For codecs
        without a memory, which is what makes up for entries not sent otherwise.

    Raises
    ------
    ValueError, TypeError
        A value out of range or of the wrong type; not exactly one of ratio and k.

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

    def __post_init__(self) -> None:
        if (self.ratio is None) == (self.k is None):
            raise TypeError(
                f"RandomK takes either ratio= or k=, got ratio={self.ratio!r} and k={self.k!r}"
            )
        if self.ratio is not None:
            self._set("ratio", _validate.unit_interval("ratio", self.ratio))
        if self.k is not None:
            self._set("k", _validate.integer("k", self.k, low=1, high=_validate.MAX_NUMEL))
        _validate.boolean("block", self.block)
        self._set("seed", _validate.integer("seed", self.seed, low=0, high=2**64 - 1))
        _validate.boolean("scaled", self.scaled)
