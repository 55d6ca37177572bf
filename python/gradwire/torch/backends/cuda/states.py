"""States on the device: one tensor of bytes for each parameter.

It has the struct that the kernels keep, and then the buffers of the memory: the residual twice, and
what else is kept twice, of which one is current and the other one is for the next encode.
"""

import copy
import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.errors import StateInUseError
from gradwire.state import VERSION
from gradwire.torch.backends.cuda import structs
from gradwire.torch.backends.cuda.operators import operators
from gradwire.torch.backends.cuda.plans import completed
from gradwire.torch.backends.host.staging import staging

if TYPE_CHECKING:
    import gradwire.state
    from gradwire.codec import Codec

__all__ = ["State", "init_state"]

_ROOM, _ALIGN = 1024, 256  # as csrc/ops/encode.cpp has them
_MOMENTS = {"momentum_correction": "momentum", "adam_correction": "second_moment"}
_TRACKED = ("bound", "threshold", "location")
_CONTROLLER = ("stages", "last", "sum", "seen", "aim", "misses", "rest", "rests")


def init_state(codec: "Codec", numel: int, name: str, stream: int) -> "gradwire.state.State":
    """Return a new state, which takes its memory of the device at its first encode."""
    # Not one of the core's, but with all that callers use of one.
    return cast("gradwire.state.State", State(codec, numel, name=name, stream=stream))


class State:
    """A state with the attributes and methods of `gradwire.State`, on the device or on the host.

    It is on the device as long as kernels encode. `on_host` moves it to a state of the core, where
    the core has to encode, and `on_device` moves it back, bit for bit; only what the last encode
    could undo stays behind. An encode of a bucket that fails at another parameter leaves this one
    as it was, but can then no longer be rolled back.

    Parameters
    ----------
    codec, numel, name, stream
        As of `gradwire.State`.
    """

    __slots__ = (
        *("_codec", "_current", "_device", "_earlier", "_host", "_last", "_lock", "_new", "_rate"),
        *("_step", "_undoable", "_written", "name", "nbytes", "numel", "stream"),
    )

    def __init__(
        self, codec: "Codec", numel: int, *, name: str | None = None, stream: int = 0
    ) -> None:
        host = codec.init_state(numel, name=name, stream=stream)
        self._lock = threading.Lock()
        self._host: gradwire.state.State | None = host
        self._device: torch.Tensor | None = None
        self._new = True
        self._forget(codec, host.step)
        self._rate = self._written = host.learning_rate
        self.numel, self.name, self.stream, self.nbytes = (
            host.numel,
            host.name,
            host.stream,
            host.nbytes,
        )

    def _forget(self, codec: "Codec", step: int) -> None:
        self._codec, self._earlier, self._step = codec, codec, step
        self._last: dict[str, Any] | None = None
        self._undoable = False

    # Where it is ------------------------------------------------------------------------------

    def on_host(self) -> "gradwire.state.State":
        """Return the state of the core that is this one from now on."""
        with self._used():
            return self._fetched()

    @contextmanager
    def on_device(self, device: torch.device) -> Iterator[torch.Tensor]:
        """Give the bytes on the device that are this state from now on; it is in use meanwhile."""
        with self._used():
            if self._device is None or self._device.device != device:
                if self._device is not None:
                    self._fetched()
                self._upload(device)
            assert self._device is not None
            if self._rate is not None and self._rate != self._written:
                at = structs.State.rate.offset
                self._device[at : at + 8].view(torch.float64).fill_(self._rate)
                self._written = self._rate
            yield self._device

    def encoded(self, codec: "Codec", last: dict[str, Any]) -> None:
        """Remember an encode of the kernels that succeeded."""
        self._earlier, self._codec, self._last = self._codec, codec, last
        self._step += 1
        self._undoable = True

    def failed(self) -> None:
        """Remember one that did not."""
        self._undoable = False

    def _fetched(self) -> "gradwire.state.State":
        if self._host is None:
            host = self._codec.init_state(self.numel, name=self.name, stream=self.stream)
            host.load_state_dict(self._read())
            self._host, self._device = host, None
        self._new = False
        return self._host

    def _upload(self, device: torch.device) -> None:
        host = self._host
        assert host is not None
        held = host.state_dict()
        codec, last = host.codec, self.last
        self._forget(codec, host.step)
        self._last = last
        moment = _MOMENTS.get(codec.memory.kind)
        names = [name for name in ("residual", moment) if name and held[name] is not None]
        stride = _stride(self.numel)
        size = _ROOM + 2 * len(names) * stride
        state = torch.zeros(size, dtype=torch.uint8, device=device)
        struct = self._struct(codec, held["step"], held["scalars"])
        room = torch.frombuffer(bytearray(struct), dtype=torch.uint8)
        state[: len(room)].copy_(room)
        if not self._new:
            for i, name in enumerate(names):
                at = _ROOM + 2 * i * stride
                values = torch.from_numpy(held[name]).view(torch.uint8)
                state[at : at + 4 * self.numel].copy_(values)
        self._rate = self._written = host.learning_rate
        self._device, self._host, self._new = state, None, False

    def _struct(self, codec: "Codec", step: int, scalars: dict[str, float]) -> structs.State:
        piece = structs.Piece.from_buffer_copy(completed([codec], [self.numel]).numpy().data)
        state = structs.State(step=step, tensor=structs.tensor_id(self.name), stream=self.stream)
        state.rate = scalars.get("learning_rate", 1.0)
        state.moment_steps = int(scalars.get("second_moment_steps", 0))
        state.tracked.sparsify = piece.sparsify
        tracker = state.tracked.tracker
        for name in _TRACKED:
            if name in scalars:
                setattr(tracker, name, structs.Maybe(scalars[name], 1))
        for name in _CONTROLLER:
            if (value := scalars.get(f"controller.{name}")) is not None:
                whole = name not in ("last", "sum", "aim")
                setattr(tracker.controller, name, int(value) if whole else value)
        return state

    def _read(self) -> dict[str, Any]:
        """Return what `state_dict` returns, from the device."""
        state = self._head()
        scalars: dict[str, float] = {}
        moment = _MOMENTS.get(self._codec.memory.kind)
        if moment == "second_moment":
            assert self._rate is not None
            scalars["learning_rate"] = self._rate
            scalars["second_moment_steps"] = float(state.moment_steps)
        for name in _TRACKED:
            kept = getattr(state.tracked.tracker, name)
            if kept.there:
                scalars[name] = kept.value
        if self._codec.sparsify.kind == "sid":
            for name in _CONTROLLER:
                scalars[f"controller.{name}"] = float(
                    getattr(state.tracked.tracker.controller, name)
                )
        return {
            "version": VERSION,
            "numel": self.numel,
            "step": int(state.step),
            "config": self._codec.get_config(),
            "residual": self._array("residual", state.current),
            "momentum": self._array("momentum", state.current),
            "second_moment": self._array("second_moment", state.current),
            "scalars": scalars,
        }

    def _head(self) -> structs.State:
        assert self._device is not None
        size = ctypes.sizeof(structs.State)
        return structs.State.from_buffer_copy(self._device[:size].cpu().numpy().data)

    def _view(self, name: str, current: int) -> torch.Tensor | None:
        """Return a buffer on the device, float32."""
        assert self._device is not None
        memory = self._codec.memory
        if not memory.keeps or (name != "residual" and name != _MOMENTS.get(memory.kind)):
            return None
        side = current + (0 if name == "residual" else 2)
        at = _ROOM + side * _stride(self.numel)
        return self._device[at : at + 4 * self.numel].view(torch.float32)

    def _array(self, name: str, current: int) -> NDArray[np.float32] | None:
        view = self._view(name, current)
        if view is None:
            return None
        array: NDArray[np.float32] = view.to("cpu", copy=True).numpy()
        return array

    @contextmanager
    def _used(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise StateInUseError
        try:
            yield
        finally:
            self._lock.release()

    # As gradwire.State ------------------------------------------------------------------------

    @property
    def codec(self) -> "Codec":
        """The codec of the last encode; before the first, the one that created the state."""
        return self._codec if self._host is None else self._host.codec

    @property
    def step(self) -> int:
        """Number of successful encodes, without those that were rolled back."""
        return self._step if self._host is None else self._host.step

    @property
    def last(self) -> dict[str, Any] | None:
        """Results of the last encode."""
        last = None if self._host is None else self._host.last
        return self._last if last is None else last

    @property
    def residual(self) -> NDArray[np.float32] | None:
        """A copy of what has not been sent, on the host."""
        return self._kept("residual")

    @property
    def momentum(self) -> NDArray[np.float32] | None:
        """A copy of the momentum, on the host."""
        return self._kept("momentum")

    @property
    def second_moment(self) -> NDArray[np.float32] | None:
        """A copy of the second moment, on the host."""
        return self._kept("second_moment")

    def _kept(self, name: str) -> NDArray[np.float32] | None:
        with self._used():
            if self._host is None:
                return self._array(name, self._head().current)
            array: NDArray[np.float32] | None = getattr(self._host, name)
            return array

    @property
    def residual_norm(self) -> float | None:
        """Euclidean norm of the residual, in float64; computed where the residual is."""
        with self._used():
            if self._host is not None:
                return self._host.residual_norm
            view = self._view("residual", self._head().current)
            return None if view is None else float(view.double().square().sum().sqrt())

    @property
    def learning_rate(self) -> float | None:
        """With `gradwire.memory.AdamCorrection`, the learning rate of the next encode."""
        return self._rate if self._host is None else self._host.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: float) -> None:
        with self._used():
            state = self._host
            if state is None:  # one of no entries checks the number
                state = self._codec.init_state(0, name=self.name)
            state.learning_rate = learning_rate
            self._rate = state.learning_rate

    def rollback(self) -> None:
        """Undo the last encode exactly, as `gradwire.State.rollback`. Waits for the device."""
        with self._used():
            if self._host is not None:
                self._host.rollback()
                self._last = None
                return
            assert self._device is not None
            if not self._undoable:  # one that has not encoded says so
                self._codec.init_state(0, name=self.name).rollback()
            stage = staging(self._device.device)
            with stage.aside():  # the caller's stream may have all of a backward pass before it
                operators().rollback_bucket(completed([self._codec], [self.numel]), [self._device])
                stage.wait(stage.mark())  # the next encode may be on another stream
            self._forget(self._earlier, self._step - 1)

    def reset(self) -> None:
        """Reset the state to that of a new one: residual zero and step 0."""
        with self._used():
            self._fetched().reset()
            self._last = None

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit, as `gradwire.State.state_dict`."""
        with self._used():
            return self._read() if self._host is None else self._host.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, of this or of another device."""
        with self._used():
            host = self._host
            if host is None:
                host = self._codec.init_state(self.numel, name=self.name, stream=self.stream)
            host.load_state_dict(state_dict)
            self._host, self._device, self._new = host, None, False
            self._last = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.codec, self.name, self.stream, self.state_dict())

    def __deepcopy__(self, memo: dict[int, Any]) -> "State":
        return _rebuild(self.codec, self.name, self.stream, self.state_dict())

    def __copy__(self) -> "State":
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        name = "" if self.name is None else f" of {self.name!r}"
        return f"<gradwire.State{name}: {self.numel} elements, step {self.step}>"


def _stride(numel: int) -> int:
    return -(-4 * numel // _ALIGN) * _ALIGN


def _rebuild(codec: "Codec", name: str | None, stream: int, state_dict: dict[str, Any]) -> State:
    state = State(codec, state_dict["numel"], name=name, stream=stream)
    state.load_state_dict(state_dict)
    return state
