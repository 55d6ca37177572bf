"""The state of one tensor: everything that changes from one encode to the next."""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from gradwire import _native, _validate
from gradwire._validate import refuse_type, require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gradwire._codec import Codec

__all__ = ["State", "on_host"]

VERSION = 1  # version of the dict that `State.state_dict` returns

_BUFFERS = ("residual", "momentum", "second_moment", "estimate")
_KEYS = {"version", "numel", "step", "config", "scalars", *_BUFFERS[:3]}


class StateBase:
    """Copying, pickling and repr of a state, on any device, by its `State.state_dict`."""

    __slots__ = ()

    def on_host(self) -> Any:
        """Return this state, which is already on the host."""
        return self

    def __reduce__(self: Any) -> tuple[Any, ...]:
        return _rebuild, (self.codec, self.name, self.stream, self.state_dict(), type(self))

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        return _rebuild(self.codec, self.name, self.stream, self.state_dict(), type(self))

    def __copy__(self) -> Any:
        # If two states shared a residual, both would be wrong after the next encode.
        return copy.deepcopy(self)

    def __repr__(self: Any) -> str:
        name = "" if self.name is None else f" of {self.name!r}"
        return f"<gradwire.State{name}: {self.numel} elements, step {self.step}>"


class State(StateBase, _native.State):
    """Residual, controller and step count of one tensor; created by `Codec.init_state`.

    A state belongs to one tensor and to one codec. Between calls, only *how much* the codec sends
    may change (ratio, k or threshold); schedules do that.

    Pickling and copying keep everything except the undo buffer: a copy cannot be rolled back.

    Attributes
    ----------
    codec : Codec
        The codec of the last encode; before the first, the one that created the state.
    numel : int
        Number of entries of the tensor.
    name : str or None
        Name for errors. Random numbers depend on it, if the codec draws any.
    stream : int
        Stream of the random numbers for stochastic rounding. Two ranks should have different ones.
    step : int
        Number of successful encodes, not counting those that were rolled back.
    nbytes : int
        Bytes of everything that is kept per entry: residual and moments, each with the second
        buffer that an undo needs. Everything else does not grow with the tensor.
    residual : numpy.ndarray or None
        A copy of the entries not yet sent, float32 whatever the dtype in memory, shape (numel,);
        None without a memory. With `gradwire.memory.MomentumCorrection`, the velocity; with
        `gradwire.memory.Estimate`, this rank's estimate.
    residual_norm : float or None
        Euclidean norm of the residual, summed in float64; reads the residual once, without a copy.
    momentum, second_moment : numpy.ndarray or None
        Copies of the moments, float32, shape (numel,); None without
        `gradwire.memory.MomentumCorrection` or `gradwire.memory.AdamCorrection`. With
        `gradwire.memory.Estimate`, the momentum, with Nesterov's times the factor of momentum.
    estimate : numpy.ndarray or None
        With `gradwire.memory.Estimate`, a copy of the mean of all ranks' estimates, float32, shape
        (numel,); else None.
    learning_rate : float or None
        With `gradwire.memory.AdamCorrection`, the learning rate of the next encode, 1.0 at first;
        else None. Set it between encodes, to a finite number >= 0: `rollback` does not bring an
        earlier one back, `state_dict` has it. Setting it raises a ValueError if there is none.
    last : dict or None
        Results of the last encode: ``count`` (entries sent), ``target`` (entries asked for, or
        None), ``threshold`` (magnitude above which entries were sent) and ``trimmed`` (entries
        that were selected but left out because of ``max_nbytes``).
    """

    __slots__ = ("__weakref__",)

    def __new__(
        cls, codec: "Codec", numel: int, *, name: str | None = None, stream: int = 0
    ) -> Self:
        """Create the state of a tensor with ``numel`` entries, like `Codec.init_state`."""
        return super().__new__(cls, codec._codec, numel, name, stream)

    def rollback(self) -> None:
        """Undo the last encode exactly, restoring residual, controller and codec.

        Only the last encode can be undone, and only until the next one begins, even if that fails.

        Raises
        ------
        ValueError
            There is nothing to undo.
        StateInUseError
            Another thread is encoding with this state.
        """
        super().rollback()

    def deliver(self, mean: "NDArray[np.float32]", scale: float = 1.0) -> None:
        """Add the mean of all ranks' decoded frames to the mean of their estimates.

        For `gradwire.memory.Estimate`, once after each encode; `rollback` then undoes both.

        Parameters
        ----------
        mean : numpy.ndarray
            float32, shape (numel,), times ``scale``. Receives the mean of the estimates, times
            ``scale``.
        scale : float
            A loss scale.

        Raises
        ------
        NonFiniteError
            The result would not be finite. Nothing has changed.
        ValueError
            The codec has no estimate, or the array another length.
        """
        super().deliver(mean, scale)

    def reset(self) -> None:
        """Reset the state to that of a new one: residual zero and step 0.

        Raises a `StateInUseError` while another thread is encoding with this state.
        """
        super().reset()

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit, as plain values and arrays.

        Returns
        -------
        dict
            ``version`` (int), ``numel`` (int), ``step`` (int), ``config`` (the codec's),
            ``residual``, ``momentum`` and ``second_moment`` (float32 arrays of shape (numel,),
            copies, or None; what is kept in bfloat16 as uint16, its bits) and ``scalars`` (dict of
            str to float: thresholds and controllers of the sparsifier, and the learning rate where
            there is one); and where there is one, ``estimate``.
        """
        arrays, scalars = self._get()
        names = _BUFFERS if arrays["estimate"] is not None else _BUFFERS[:3]
        return {
            "version": VERSION,
            "numel": self.numel,
            "step": int(scalars.pop("step")),
            "config": self.codec.get_config(),
            **{name: arrays[name] for name in names},
            "scalars": scalars,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict`. All of it is checked before anything changes.

        The quantizer and the storage of the memory may differ between the two states
        (``low_memory`` and ``seed``); this one keeps its own setting. bfloat16 becomes float32
        exactly; float32 is rounded to the nearest bfloat16, ties to even, at most the largest
        finite.

        Raises
        ------
        ValueError
            Another version, length or codec; missing or unknown entries; a residual or moment
            that is not finite or has the wrong length; a second moment below zero.
        TypeError
            A value of the wrong type.
        """
        if isinstance(state_dict, dict) and state_dict.get("estimate", ...) is None:
            state_dict = {key: value for key, value in state_dict.items() if key != "estimate"}
        estimates = self.codec.memory.estimates
        _validate.keys("state_dict", state_dict, _KEYS | ({"estimate"} if estimates else set()))
        version, numel = state_dict["version"], state_dict["numel"]
        require(version == VERSION, "state_dict has version {!r}, expected {}", version, VERSION)
        message = "state_dict is for a tensor of {!r} elements, but this state is for one of {}"
        require(numel == self.numel, message, numel, self.numel)
        codec = self._compatible(state_dict["config"])
        step = _validate.integer("step", state_dict["step"], low=0, high=2**53)
        arrays = {name: _array(name, state_dict.get(name)) for name in _BUFFERS}
        if not isinstance(scalars := state_dict["scalars"], dict):
            refuse_type("scalars", "a dict", scalars)
        self._set(codec._codec, arrays, scalars | {"step": float(step)})

    def _compatible(self, config: object) -> "Codec":
        present = self.codec
        if config == present.get_config():
            return present
        codec = type(present).from_config(cast("dict[str, Any]", config))
        # What is kept does not depend on how values are sent.
        memory = codec.memory.kept_as(present.memory)
        codec = codec.replace(memory=memory, quantize=present.quantize)
        require(
            present._codec.same_kind(codec._codec),
            "state_dict is for {!r}, but this state is for {!r}; only ratio, k, threshold and the "
            "quantizer may differ",
            *(codec, present),
        )
        return codec


def _array(name: str, values: object) -> "NDArray[np.float32] | NDArray[np.uint16] | None":
    if values is None:
        return None
    array = np.ascontiguousarray(values)
    rounds = name not in ("momentum", "estimate")
    if array.dtype == np.float32 or (rounds and array.dtype == np.uint16):
        return array
    allowed = "float32, or uint16 with the bits of bfloat16" if rounds else "float32"
    raise TypeError(f"{name} must be {allowed}, got {array.dtype}")


def _rebuild(
    codec: "Codec",
    name: str | None,
    stream: int,
    state_dict: dict[str, Any],
    kind: Callable[..., Any] = State,
) -> Any:
    state = kind(codec, state_dict["numel"], name=name, stream=stream)
    state.load_state_dict(state_dict)
    return state


def on_host(state: Any) -> Any:
    """Return the state for the core; a state on a device is moved to the host."""
    return state.on_host() if isinstance(state, StateBase) else state
