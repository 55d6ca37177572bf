"""Levels of a uniform grid, by chance."""

import dataclasses
from typing import ClassVar, Literal

from gradwire import _validate
from gradwire._part import Part

__all__ = ["Uniform"]


@dataclasses.dataclass(frozen=True, repr=False)
class Uniform(Part):
    """A sign and a level between zero and the norm of a block, rounded by chance: unbiased.

    A value is rounded up to the next level as often as it is far from the one below, so that the
    mean of what is sent is the value, and errors average out over ranks and steps. They are large:
    with ``norm="l2"`` larger than a residual can take back, which then grows from step to step. Use
    it without a memory, or with ``norm="max"`` and enough bits.

    Costs one more read of the values in the cache. Zero blocks decode to zeros.

    Parameters
    ----------
    bits : int
        Bits of an entry, sign and level together, 2 to 8: ``2 ** (bits - 1) - 1`` levels above
        zero.
    block : int
        Entries that share a norm, which takes four bytes.
    norm : {"l2", "max"}
        What the grid reaches up to: the root of the block's sum of squares, as in the paper, or its
        largest magnitude, which is finer.
    seed : int
        What the random numbers begin from. They depend also on the name of the tensor, the step and
        the stream of the `gradwire.State`.

    Raises
    ------
    ValueError, TypeError
        Bits outside of 2 to 8, a block that is not from 1 to 2**32 - 1, another norm, a seed that
        is not from 0 to 2**63 - 1.

    References
    ----------
    Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", NeurIPS 2017, section 3.
    """

    bits: int = 4
    block: int = 512
    norm: Literal["l2", "max"] = "l2"
    seed: int = 0
    kind: ClassVar[str] = "uniform"

    def __post_init__(self) -> None:
        self._set("bits", _validate.integer("bits", self.bits, low=2, high=8))
        block = _validate.integer("block", self.block, low=1, high=_validate.MAX_NUMEL)
        self._set("block", block)
        _validate.choice("norm", self.norm, ("l2", "max"))
        self._set("seed", _validate.integer("seed", self.seed, low=0))
