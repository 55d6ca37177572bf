"""The state of one tensor: everything about encoding it that changes."""

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from gradwire import _native, _validate
from gradwire.memory import Residual

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gradwire.codec import Codec

__all__ = ["State"]

VERSION = 1
"""Version of the dict that `State.state_dict` returns."""

_KEYS = {"version", "numel", "step", "config", "residual", "momentum", "scalars"}


class State(_native.State):
    """Residual, controller and step count of one tensor; made by `Codec.init_state`.

    A state belongs to one tensor and to one codec. Of the codec, only *how much* is sent may
    change between calls (ratio, k or threshold), which is what a schedule does.

    Pickling and copying keep everything but the undo buffer: a copy has nothing to roll back.

    Attributes
    ----------
    codec : Codec
        The one that encoded last, or that made the state.
    numel : int
        Entries of the tensor.
    name : str or None
        Named in errors; also what random numbers depend on, where the codec draws them.
    stream : int
        States that must not draw the same numbers when they round, as those of two ranks, differ
        in it.
    step : int
        Successful encodes that were not rolled back.
    residual : numpy.ndarray or None
        A float32 copy of what has not been sent, shape (numel,); None without a memory. With
        `gradwire.memory.MomentumCorrection` the velocity.
    residual_norm : float or None
        Euclidean norm of the residual, summed in float64: one read of it and no copy.
    momentum : numpy.ndarray or None
        A float32 copy of its momentum, shape (numel,); None without momentum correction.
    last : dict or None
        Of the last encode: ``count`` (entries sent), ``target`` (entries asked for, or None),
        ``threshold`` (magnitude above which entries went), ``trimmed`` (entries selected and then
        left out to keep ``max_nbytes``).
    """

    __slots__ = ()

    def __new__(
        cls, codec: "Codec", numel: int, *, name: str | None = None, stream: int = 0
    ) -> Self:
        """Make the state of a tensor of numel entries; the same as `Codec.init_state`."""
        return super().__new__(cls, codec._codec, numel, name, stream)

    def rollback(self) -> None:
        """Undo the last encode exactly: residual, controller and codec are those before it.

        There is one encode to undo, until the next one begins, even one that fails.

        Raises
        ------
        ValueError
            There is none, as always with ``Residual(low_memory=True)``.
        StateInUseError
            Another thread is encoding with this state.
        """
        super().rollback()

    def reset(self) -> None:
        """Forget everything: residual zero and step 0, as `Codec.init_state` makes them.

        Raises
        ------
        StateInUseError
            Another thread is encoding with this state.
        """
        super().reset()

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on bit for bit, as plain values and one array.

        Returns
        -------
        dict
            ``version`` (int), ``numel`` (int), ``step`` (int), ``config`` (the codec's),
            ``residual`` and ``momentum`` (float32 arrays of shape (numel,), copies, or None) and
            ``scalars`` (dict of str to float: thresholds and controllers of the sparsifier).
        """
        residual, momentum, scalars = self._get()
        return {
            "version": VERSION,
            "numel": self.numel,
            "step": int(scalars.pop("step")),
            "config": self.codec.get_config(),
            "residual": residual,
            "momentum": momentum,
            "scalars": scalars,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned. All of it is checked before anything changes.

        The dict may be of a state with the other ``low_memory``; this one keeps its own.

        Raises
        ------
        ValueError
            Another version, length or codec, missing or unknown entries, a residual or momentum
            that is not finite or of another length.
        TypeError
            A value of the wrong type.
        """
        if not isinstance(state_dict, dict):
            raise TypeError(f"state_dict must be a dict, got {type(state_dict).__name__}")
        if state_dict.keys() != _KEYS:
            raise ValueError(
                f"state_dict must have exactly the keys {', '.join(sorted(_KEYS))}, "
                f"got {', '.join(sorted(map(str, state_dict)))}"
            )
        if state_dict["version"] != VERSION:
            raise ValueError(
                f"state_dict has version {state_dict['version']!r}, expected {VERSION}"
            )
        if state_dict["numel"] != self.numel:
            raise ValueError(
                f"state_dict is of a tensor of {state_dict['numel']!r} elements, "
                f"this state of one of {self.numel}"
            )
        codec = self._compatible(state_dict["config"])
        step = _validate.integer("step", state_dict["step"], low=0, high=2**53)
        residual = _float32("residual", state_dict["residual"])
        momentum = _float32("momentum", state_dict["momentum"])
        scalars = state_dict["scalars"]
        if not isinstance(scalars, dict):
            raise TypeError(f"scalars must be a dict, got {type(scalars).__name__}")
        self._set(codec._codec, residual, momentum, scalars | {"step": float(step)})

    def _compatible(self, config: object) -> "Codec":
        own = self.codec
        if config == own.get_config():
            return own
        codec = type(own).from_config(cast("dict[str, Any]", config))
        if isinstance(codec.memory, Residual) and isinstance(own.memory, Residual):
            # The same residual in one buffer or two: a choice of the machine, not of the training.
            memory = dataclasses.replace(codec.memory, low_memory=own.memory.low_memory)
            codec = dataclasses.replace(codec, memory=memory)
        if not own._codec.same_kind(codec._codec):
            raise ValueError(
                f"state_dict is of {codec!r}, this state of {own!r}; "
                "only ratio, k or threshold may differ"
            )
        return codec

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.codec, self.name, self.stream, self.state_dict())

    def __deepcopy__(self, memo: dict[int, Any]) -> "State":
        return _rebuild(self.codec, self.name, self.stream, self.state_dict())

    def __copy__(self) -> "State":
        # Two states that share a residual would both be wrong after the next encode.
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        name = "" if self.name is None else f" of {self.name!r}"
        return f"<gradwire.State{name}: {self.numel} elements, step {self.step}>"


def _float32(name: str, values: object) -> "NDArray[np.float32] | None":
    if values is None:
        return None
    array = np.ascontiguousarray(values)
    if array.dtype != np.float32:
        raise TypeError(f"{name} must be float32, got {array.dtype}")
    return array


def _rebuild(codec: "Codec", name: str | None, stream: int, state_dict: dict[str, Any]) -> State:
    state = State(codec, state_dict["numel"], name=name, stream=stream)
    state.load_state_dict(state_dict)
    return state
