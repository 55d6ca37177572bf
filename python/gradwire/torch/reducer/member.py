"""The state of a parameter that is encoded as a part of a bundle."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.torch import backends
from gradwire.torch.reducer.order import BUFFERS
from gradwire.torch.reducer.record import Parameter

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["MemberState", "Snapshots", "without_pace"]

_PACE = ("learning_rate", "second_moment_steps")
"""Scalars that are a parameter's own; all others are of the tensor that is selected from."""


class MemberState:
    """What is kept of one parameter: by itself, or as a part of a bundle's state.

    It has the attributes and methods of `gradwire.State` that the reducer uses by name. What it
    saves is a state of this parameter alone. What the bundle's selection tracks is not in it, but
    as it is in a new state.

    Attributes
    ----------
    bundle : Bundle or None
        What it is a part of.
    place : slice
        Which entries of that.
    left : Bundle or None
        What it was a part of before a part of that was undone.
    rank : int
        This rank, which selects the random numbers.

    Parameters
    ----------
    parameter : Parameter
    rank
        The attribute.
    """

    __slots__ = (
        "_ahead",
        "_before",
        "_behind",
        "_own",
        "_parameter",
        "_rate",
        "bundle",
        "left",
        "place",
        "rank",
    )

    def __init__(self, parameter: Parameter, rank: int) -> None:
        self._parameter = parameter
        self.rank = rank
        self.bundle: Any = None
        self.left: Any = None
        self.place = slice(0, 0)
        self._own: Any = None  # made when it is needed
        self._before: dict[str, Any] | None = None
        self._rate: float | None = None
        self._ahead = 0  # by how many the second moment's steps exceed the steps
        self._behind = 0  # by how many the bundle's encodes exceed those of this parameter

    @property
    def is_new(self) -> bool:
        """Whether nothing was encoded with it or loaded into it."""
        return self._own is None and self.bundle is None

    @property
    def is_apart(self) -> bool:
        """Whether it is in no bundle."""
        return self.bundle is None

    @property
    def numel(self) -> int:
        """Number of entries of the parameter."""
        return self._parameter.numel

    @property
    def step(self) -> int:
        """Number of successful encodes."""
        if self.bundle is not None:
            return int(self.bundle.state.step) - self._behind
        return 0 if self._own is None else int(self._own.step)

    @property
    def pace(self) -> int:
        """Number of gradients that the second moment has taken in."""
        if self.bundle is not None:
            return int(self.bundle.state.step) + int(self.bundle.ahead)
        return self.step + self._ahead

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of the next encode, with a memory that makes steps."""
        if not self._parameter.codec.memory.updates:
            return None
        return 1.0 if self._rate is None else self._rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if self._own is not None:
            self._own.learning_rate = rate
        self._rate = rate

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept per entry."""
        if self.bundle is not None:
            whole: int = self.bundle.state.nbytes
            share: int = whole * self.numel // max(self.bundle.numel, 1)
            return share
        return 0 if self._own is None else int(self._own.nbytes)

    @property
    def residual_norm(self) -> float | None:
        """Euclidean norm of the residual."""
        return Snapshots().residual_norm(self)

    def state_dict(self) -> dict[str, Any]:
        """Return what a state of this parameter alone would."""
        return Snapshots().of(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned, and leave the bundle."""
        own = self._new()
        own.load_state_dict(dict(state_dict))
        self._own, self._rate = own, own.learning_rate
        steps = state_dict["scalars"].get("second_moment_steps", own.step)
        self._ahead, self._behind = int(steps) - int(own.step), 0
        self.bundle = self.left = self._before = None

    def rollback(self) -> None:
        """Undo the last encode, of which the bundle has undone others before."""
        left = self.left
        if self._before is not None:
            self.load_state_dict(self._before)
            if left is not None:
                left.revert(self._parameter.name)
        self.left = left

    # What a bundle calls ----------------------------------------------------------------------

    def join(self, bundle: Any, place: slice, step: int) -> None:
        """Be these entries of a bundle, with so many encodes so far, from now on."""
        self._behind = step - self.step
        self.bundle, self.place = bundle, place
        self.left = self._own = self._before = None

    def leave(self, now: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
        """Be apart from the bundle, with what its state was; to be rolled back to another."""
        bundle = self.bundle
        undo = None if before is None else self.part_of(before)
        self.load_state_dict(self.part_of(now))
        self._before, self.left = undo, bundle

    def part_of(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Return this parameter's part of what the state of its bundle has saved."""
        arrays = {
            kind: None if whole[kind] is None else whole[kind][self.place] for kind in BUFFERS
        }
        pace = {name: whole["scalars"][name] for name in _PACE if name in whole["scalars"]}
        scalars = _begun(self._parameter.codec, self.numel) | pace
        step = int(whole["step"]) - self._behind
        return {**whole, "numel": self.numel, "step": step, **arrays, "scalars": scalars}

    def alone(self) -> Any:
        """Return the state of this parameter alone, while it is in no bundle."""
        return self._new() if self._own is None else self._own

    def _new(self) -> Any:
        parameter = self._parameter
        init = backends.of(parameter.tensor).init_state
        state: Any = init(parameter.codec, parameter.numel, parameter.name, self.rank)
        if self._rate is not None:
            state.learning_rate = self._rate
        return state


class Snapshots:
    """Reads states one after another, and what several have in common only once."""

    def __init__(self) -> None:
        self._read: tuple[Any, dict[str, Any]] | None = None
        self._residual: tuple[Any, Any] | None = None

    def of(self, state: Any) -> dict[str, Any]:
        """Return what a state saves; its arrays are not to be written to."""
        if not isinstance(state, MemberState):
            return dict(state.state_dict())
        bundle = state.bundle
        if bundle is None:
            return dict(state.alone().state_dict())
        if self._read is None or self._read[0] is not bundle:
            self._read = bundle, bundle.snapshot()
        return state.part_of(self._read[1])

    def residual_norm(self, state: Any) -> float | None:
        """Return the Euclidean norm of a state's residual, if it has one."""
        bundle = state.bundle if isinstance(state, MemberState) else None
        if bundle is None:
            alone = state.alone() if isinstance(state, MemberState) else state
            norm: float | None = alone.residual_norm
            return norm
        if self._residual is None or self._residual[0] is not bundle:
            self._residual = bundle, bundle.state.residual
        residual = self._residual[1]
        if residual is None:
            return None
        return float(np.linalg.norm(residual[state.place].astype(np.float64)))


def _begun(codec: "Codec", numel: int) -> dict[str, float]:
    """Return the scalars of a new state that are not a parameter's own."""
    # Few codecs have any, and only these need a state as large.
    if not without_pace(codec.init_state(1).state_dict()["scalars"]):
        return {}
    return without_pace(codec.init_state(numel).state_dict()["scalars"])


def without_pace(scalars: Mapping[str, float]) -> dict[str, float]:
    """Return the scalars that are of the tensor that is selected from."""
    return {name: value for name, value in scalars.items() if name not in _PACE}
