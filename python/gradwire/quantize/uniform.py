"""A uniform grid with stochastic rounding."""

import dataclasses
from typing import ClassVar, Literal, Self

from gradwire import _validate
from gradwire.quantize.base import Quantizer

__all__ = ["Uniform"]


@dataclasses.dataclass(frozen=True, repr=False)
class Uniform(Quantizer):
    """A sign and a level between zero and the norm of the block, rounded stochastically.

    The rounding is unbiased, so errors average out over ranks and steps. They are large: with
    ``norm="l2"`` larger than a residual can absorb, which then grows from step to step. Use it
    without a memory, or with ``norm="max"`` and enough bits.

    Costs one more read of the values, from the cache. Blocks of zeros decode to zeros.

    Parameters
    ----------
    bits : int
        Bits per entry including the sign, 2 to 8: ``2 ** (bits - 1) - 1`` levels above zero.
    block : int
        Entries per norm. Each norm takes four bytes.
    norm : {"l2", "max"}
        Upper end of the grid: the Euclidean norm of the block, as in the paper, or its largest
        magnitude, which gives a finer grid.
    seed : int
        Seed of the random numbers, which also depend on the name of the tensor, the step and the
        stream of the `gradwire.State`.

    Raises
    ------
    ValueError, TypeError
        Bits outside 2 to 8, a block outside 1 to 2**32 - 1, an unknown norm, or a seed outside 0
        to 2**63 - 1.

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
    summed_as: ClassVar[str | None] = None
    needs_memory: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._set("bits", _validate.integer("bits", self.bits, low=2, high=8))
        block = _validate.integer("block", self.block, low=1, high=_validate.MAX_NUMEL)
        self._set("block", block)
        _validate.choice("norm", self.norm, ("l2", "max"))
        self._set("seed", _validate.integer("seed", self.seed, low=0))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return a few of these with different options."""
        return (cls(), cls(8, 32, norm="max", seed=5))
