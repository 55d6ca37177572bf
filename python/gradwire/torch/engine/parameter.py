"""The record that is kept of a parameter, and its place in a bucket."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.engine.sharding import Shard

__all__ = ["BucketSlice", "ParameterSlot"]


@dataclass(slots=True, eq=False)
class ParameterSlot:
    """The record of one parameter, kept under its name throughout training.

    Attributes
    ----------
    codec : gradwire.Codec or None
        The current codec; None, like state and limit, for a parameter that is always sent dense.
    state : gradwire.State or None
        Residual and controller.
    limit : SizeLimit or None
        Size limit of its frames, or with a leader, of its positions.
    turn : int
        Determines the leader: in step s, rank s + turn modulo the world size.
    run : tuple of int
        Determines the owners of its entries: the entries of compressed parameters after it in the
        model, and how many of them a bucket has.
    paused : bool
        The parameter is currently sent dense, and keeps its state.
    measured : numpy.ndarray or None
        float32, shape (numel,): the sum of this rank's gradients, if a schedule needs it.
    measured_before : numpy.ndarray or None
        The same sum without the last gradient.
    strides : tuple of int or None
        Strides of its gradient in the bucket, and of its residual. None before the first bucket.
    share : Shard or None
        The part of it that this rank encodes, and keeps a state of; None for all of it.
    spread : float or None
        How many times the square of the ranks' average the mean square of their own gradients is:
        1 if they are equal, the number of ranks if they have nothing in common. None until it was
        measured.
    taken : float or None
        The spread by which a second moment was multiplied that was taken over in this pass.
    """

    name: str
    tensor: torch.Tensor
    codec: Any = None
    state: Any = None
    limit: Any = None
    turn: int = 0
    run: tuple[int, int] = (0, 1)
    paused: bool = False
    measured: NDArray[np.float32] | None = None
    measured_before: NDArray[np.float32] | None = None
    strides: tuple[int, ...] | None = None
    share: Shard | None = None
    spread: float | None = None
    taken: float | None = None

    @property
    def compressed(self) -> bool:
        """Whether it is currently sent compressed."""
        return self.state is not None and not self.paused

    @property
    def computed(self) -> bool:
        """Whether its codec does a part of the optimizer's work: what arrives is no gradient."""
        return self.state is not None and (self.codec.memory.updates or self.codec.memory.corrects)

    def measure(self, gradient: NDArray[Any]) -> None:
        """Add a gradient to the measured sum; `unmeasure` subtracts it exactly."""
        if self.measured is None:
            return
        total = self.measured_before
        total = np.empty_like(self.measured) if total is None else total
        np.add(self.measured, gradient, out=total, casting="unsafe")
        self.measured, self.measured_before = total, self.measured

    def unmeasure(self) -> None:
        """Restore the sum without the last gradient. Only one gradient can be undone."""
        if self.measured is not None and self.measured_before is not None:
            self.measured, self.measured_before = self.measured_before, self.measured

    @property
    def numel(self) -> int:
        """Number of entries of which this rank keeps a state."""
        return self.tensor.numel() if self.share is None else self.share.numel

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what this rank keeps a state of."""
        return tuple(self.tensor.shape) if self.share is None else self.share.shape

    def own(self, values: torch.Tensor) -> torch.Tensor:
        """Return what this rank keeps a state of, from values of the parameter's shape."""
        return values if self.share is None else self.share.of(values)

    @property
    def step(self) -> int | None:
        """Encodes so far; None where its state does not count them."""
        return getattr(self.state, "step", None)

    @property
    def nbytes(self) -> int:
        """Bytes kept for it between steps. Call it when no other thread uses the state."""
        measured = (self.measured, self.measured_before)
        sums = sum(each.nbytes for each in measured if each is not None)
        return sums + (0 if self.state is None else int(self.state.nbytes))

    @property
    def width(self) -> int:
        """Numbers per entry in a bucket: DDP views a complex entry as two."""
        return 2 if self.tensor.is_complex() else 1


@dataclass(frozen=True, slots=True)
class BucketSlice:
    """A parameter's place in a bucket's flat buffer: entries start to stop."""

    parameter: ParameterSlot
    start: int
    stop: int
