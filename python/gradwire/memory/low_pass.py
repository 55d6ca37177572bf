"""The low-pass filter of ScaleCom."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire._part import Part

__all__ = ["LowPass"]


@dataclasses.dataclass(frozen=True, repr=False)
class LowPass(Part):
    """Keep a share of what was not sent: the memory follows it slowly.

    An entry that is not sent becomes ``memory + beta * tensor``; of one that is sent
    ``(1 - beta) * memory`` stays, and ``beta`` times what rounding took away. The memories of
    different ranks stay alike that way even at high learning rates, so that one rank can choose the
    entries for all (`gradwire.exchange.LeaderIndices`).

    The state holds two float32 buffers of n elements that swap on success. The cost is that of
    `Residual`: one read of tensor and memory, one write of the memory.

    Parameters
    ----------
    beta : float
        Share taken in per step, 0 < beta <= 1. With 1 it is `Residual`, to the last bit. The paper
        uses 0.1 to 0.3 with very large batches; with usual ones less than 1 costs accuracy.

    References
    ----------
    Chen, Ni, Lu, Cui, Chen, Sun, Wang, Venkataramani, Srinivasan, Zhang, Gopalakrishnan, "ScaleCom:
    Scalable Sparsified Gradient Compression for Communication-Efficient Distributed Training",
    NeurIPS 2020.
    """

    beta: float = 0.1
    kind: ClassVar[str] = "low_pass"

    def __post_init__(self) -> None:
        self._set("beta", _validate.unit_interval("beta", self.beta))
