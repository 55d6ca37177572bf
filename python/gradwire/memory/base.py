"""The base class of memories; none, error feedback's residual, and ScaleCom's filter."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from gradwire._part import Part
from gradwire._validate import Seed, Share


@dataclasses.dataclass(frozen=True, repr=False)
class Memory(Part):
    """The base class of memories."""

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = ("keeps", "corrects", "updates")
    estimates: ClassVar[bool] = False
    """Decoded values change an estimate that all ranks share, and that takes their place."""

    keeps: ClassVar[bool]  #: what is not sent is kept for later
    corrects: ClassVar[bool]  #: the optimizer's momentum is applied here, and must not be again
    updates: ClassVar[bool]
    """Decoded values are updates, to be subtracted from the parameter unchanged, not gradients:
    the optimizer's step was computed here, with `gradwire.State.learning_rate`."""
    _KEPT_AS: ClassVar[tuple[str, ...]] = ()  # how it is kept, without effect on training
    _OPTIMIZER_DEFAULTS: ClassVar[Mapping[str, Any]] = {}  # options of an optimizer, None here

    def for_optimizer(self, options: Mapping[str, Any]) -> Self:
        """Return a copy whose options that are None are taken from an optimizer.

        Options that the optimizer lacks get their usual values.
        """
        part = {
            name: options.get(name, usual)
            for name, usual in self._OPTIMIZER_DEFAULTS.items()
            if getattr(self, name) is None
        }
        return dataclasses.replace(self, **part) if part else self

    def kept_as(self, other: "Memory") -> "Memory":
        """Return the same memory, kept in the same dtype as another."""
        if type(other) is not type(self):
            return self
        options: dict[str, Any] = {name: getattr(other, name) for name in self._KEPT_AS}
        return dataclasses.replace(self, **options)


@dataclasses.dataclass(frozen=True, repr=False)
class NoMemory(Memory):
    """Drop the entries that are not sent."""

    kind: ClassVar[str] = "none"
    keeps: ClassVar[bool] = False
    corrects: ClassVar[bool] = False
    updates: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, repr=False)
class Feedback(Memory):
    """The family of memories that add what was not sent to the next tensor."""

    keeps: ClassVar[bool] = True
    corrects: ClassVar[bool] = False
    updates: ClassVar[bool] = False
    _KEPT_AS: ClassVar[tuple[str, ...]] = ("low_memory", "seed")


@dataclasses.dataclass(frozen=True, repr=False)
class Residual(Feedback):
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

    decay: Share = 1.0
    low_memory: bool = False
    seed: Seed = 0
    kind: ClassVar[str] = "residual"


@dataclasses.dataclass(frozen=True, repr=False)
class LowPass(Feedback):
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

    beta: Share = 0.1
    low_memory: bool = False
    seed: Seed = 0
    kind: ClassVar[str] = "low_pass"
