"""The low-pass filter of ScaleCom."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire.memory.base import Memory, StorageDtype, check_storage

__all__ = ["LowPass"]


@dataclasses.dataclass(frozen=True, repr=False)
class LowPass(Memory):
    """Keep a low-pass filtered memory of what was not sent (ScaleCom).

    The memory of an entry that is not sent becomes ``memory + beta * tensor``. For an entry that is
    sent, ``(1 - beta) * memory`` remains, plus ``beta`` times the rounding error. This keeps the
    memories of the ranks similar even at high learning rates, so that one rank can select the
    entries for all (`gradwire.exchange.LeaderIndices`).

    The state holds two buffers of n elements that swap on success, float32 or, with
    ``dtype="bfloat16"``, of half the size. The cost is that of `Residual`: one read of tensor and
    memory, one write of the memory.

    Parameters
    ----------
    beta : float
        Filter coefficient, 0 < beta <= 1. With 1 it is `Residual`, bit for bit. The paper
        uses 0.1 to 0.3 with very large batches; with ordinary ones, values below 1 cost accuracy.
    dtype : {"float32", "bfloat16"}
        What the memory is kept as; see `Residual`.
    seed : int
        Seed of the random numbers that bfloat16 is rounded with; see `Residual`.

    References
    ----------
    Chen, Ni, Lu, Cui, Chen, Sun, Wang, Venkataramani, Srinivasan, Zhang, Gopalakrishnan, "ScaleCom:
    Scalable Sparsified Gradient Compression for Communication-Efficient Distributed Training",
    NeurIPS 2020.
    """

    beta: float = 0.1
    dtype: StorageDtype = "float32"
    seed: int = 0
    kind: ClassVar[str] = "low_pass"
    keeps: ClassVar[bool] = True
    corrects: ClassVar[bool] = False
    updates: ClassVar[bool] = False
    undoable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._set("beta", _validate.unit_interval("beta", self.beta))
        self._set("seed", check_storage(self.dtype, self.seed))

    def kept_as(self, other: Memory) -> Memory:
        """Return the same filter, kept as another is."""
        if not isinstance(other, LowPass):
            return self
        return dataclasses.replace(self, dtype=other.dtype, seed=other.seed)
