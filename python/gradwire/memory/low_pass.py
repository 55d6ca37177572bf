"""The low-pass filter of ScaleCom."""

import dataclasses
from typing import ClassVar, Self

from gradwire import _validate
from gradwire.memory.base import Memory

__all__ = ["LowPass"]


@dataclasses.dataclass(frozen=True, repr=False)
class LowPass(Memory):
    """Keep a low-pass filtered memory of what was not sent (ScaleCom).

    The memory of an entry that is not sent becomes ``memory + beta * tensor``. For an entry that is
    sent, ``(1 - beta) * memory`` remains, plus ``beta`` times the rounding error. This keeps the
    memories of the ranks similar even at high learning rates, so that one rank can select the
    entries for all (`gradwire.exchange.LeaderIndices`).

    The state holds two float32 buffers of n elements that swap on success. The cost is that of
    `Residual`: one read of tensor and memory, one write of the memory.

    Parameters
    ----------
    beta : float
        Filter coefficient, 0 < beta <= 1. With 1 it is `Residual`, bit for bit. The paper
        uses 0.1 to 0.3 with very large batches; with ordinary ones, values below 1 cost accuracy.

    References
    ----------
    Chen, Ni, Lu, Cui, Chen, Sun, Wang, Venkataramani, Srinivasan, Zhang, Gopalakrishnan, "ScaleCom:
    Scalable Sparsified Gradient Compression for Communication-Efficient Distributed Training",
    NeurIPS 2020.
    """

    beta: float = 0.1
    kind: ClassVar[str] = "low_pass"
    keeps: ClassVar[bool] = True
    corrects: ClassVar[bool] = False
    updates: ClassVar[bool] = False
    undoable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._set("beta", _validate.unit_interval("beta", self.beta))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return a few of these with different options."""
        return (cls(0.3), cls(1))
