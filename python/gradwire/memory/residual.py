"""The residual of error feedback."""

import dataclasses
from typing import ClassVar, Self

from gradwire import _validate
from gradwire.memory.base import Memory

__all__ = ["Residual"]


@dataclasses.dataclass(frozen=True, repr=False)
class Residual(Memory):
    """Keep what is not sent and add it to the next tensor (error feedback).

    The state holds two float32 buffers of n elements that swap on success, so that a failed encode
    changes nothing and a successful one can be rolled back exactly; or, with ``low_memory``, one.

    Parameters
    ----------
    decay : float
        The next tensor is encoded as ``tensor + decay * residual``; 0 < decay <= 1.
    low_memory : bool
        Keep one buffer of n elements instead of two, for the same frames and the same residual.
        Every encode first reads tensor and residual once more, to find non-finite values before
        it writes; a failed encode still changes nothing. `gradwire.State.rollback` raises an error,
        because there is nothing to go back to. `gradwire.torch.ddp` needs the rollback and refuses
        such codecs.

    References
    ----------
    Seide, Fu, Droppo, Li, Yu, "1-bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014, section 3.

    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """

    decay: float = 1.0
    low_memory: bool = False
    kind: ClassVar[str] = "residual"
    keeps: ClassVar[bool] = True
    corrects: ClassVar[bool] = False
    updates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._set("decay", _validate.unit_interval("decay", self.decay))
        _validate.boolean("low_memory", self.low_memory)

    @property
    def undoable(self) -> bool:
        """Whether there is a second buffer, from which an encode can be undone."""
        return not self.low_memory

    def kept_as(self, other: Memory) -> Memory:
        """Return the same residual in as many buffers as another: it does not affect training."""
        if not isinstance(other, Residual):
            return self
        return dataclasses.replace(self, low_memory=other.low_memory)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return a few of these with different options."""
        return (cls(), cls(decay=0.9), cls(decay=0.9, low_memory=True))
