"""The residual of error feedback, and the low-pass filter of ScaleCom."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire.memory.base import Memory


@dataclasses.dataclass(frozen=True, repr=False)
class Residual(Memory):
    """Keep the entries that are not sent and add them to the next tensor (error feedback).

    The state holds two buffers of n elements that swap on success, so that a failed encode changes
    nothing and a successful one can be rolled back exactly. They are float32, or with
    ``low_memory`` bfloat16, of half the size.

    Parameters
    ----------
    decay : float
        The next tensor is encoded as ``tensor + decay * residual``; 0 < decay <= 1.
    low_memory : bool
        Keep the residual in bfloat16. All arithmetic is in float32, and the new residual is then
        rounded stochastically, without bias. So decoded values and residual add up to the input, to
        one unit in the last place of bfloat16, and exactly on average over steps: even gradients
        far below a unit of the residual are not lost. A residual beyond the largest finite bfloat16
        (3.39e38) is kept as that.
    seed : int
        Seed of the random numbers that bfloat16 is rounded with, 0 <= seed < 2**63. They depend on
        it, the name and the stream of the state, the step and the position, and on nothing else.

    References
    ----------
    Seide, Fu, Droppo, Li, Yu, "1-bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014, section 3.

    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """

    decay: float = 1.0
    low_memory: bool = False
    seed: int = 0
    kind: ClassVar[str] = "residual"
    keeps: ClassVar[bool] = True
    corrects: ClassVar[bool] = False
    updates: ClassVar[bool] = False
    _KEPT_AS: ClassVar[tuple[str, ...]] = ("low_memory", "seed")

    def __post_init__(self) -> None:
        self._check("decay", _validate.unit_interval)
        _validate.boolean("low_memory", self.low_memory)
        self._check("seed", _validate.integer, low=0)


@dataclasses.dataclass(frozen=True, repr=False)
class LowPass(Memory):
    """Keep a low-pass filtered memory of entries that were not sent (ScaleCom).

    The memory of an entry that is not sent becomes ``memory + beta * tensor``. For an entry that is
    sent, ``(1 - beta) * memory`` remains, plus ``beta`` times the rounding error. This keeps the
    memories of the ranks similar even at high learning rates, so that one rank can select the
    entries for all (`gradwire.exchange.LeaderIndices`). Its state and its cost are those of
    `Residual`: one read of tensor and memory, one write of the memory.

    Parameters
    ----------
    beta : float
        Filter coefficient, 0 < beta <= 1. With 1 it is `Residual`, bit for bit. The paper
        uses 0.1 to 0.3 with very large batches; with ordinary ones, values below 1 cost accuracy.
    low_memory, seed
        Keep the memory in bfloat16, and the seed of its rounding; see `Residual`.

    References
    ----------
    Chen et al., "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient
    Distributed Training", NeurIPS 2020.
    """

    beta: float = 0.1
    low_memory: bool = False
    seed: int = 0
    kind: ClassVar[str] = "low_pass"
    keeps: ClassVar[bool] = True
    corrects: ClassVar[bool] = False
    updates: ClassVar[bool] = False
    _KEPT_AS: ClassVar[tuple[str, ...]] = ("low_memory", "seed")

    def __post_init__(self) -> None:
        self._check("beta", _validate.unit_interval)
        _validate.boolean("low_memory", self.low_memory)
        self._check("seed", _validate.integer, low=0)
