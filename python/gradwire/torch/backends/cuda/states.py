"""States on the device: one tensor of bytes for each parameter.

It has the struct that kernels keep, and then buffers: the residual first, then the moment beside
it, as far as a memory has them; each twice, of which one is current and the other one is for the
next encode, or with ``low_memory`` once.
"""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire._codec import Codec
from gradwire.errors import StateInUseError
from gradwire.state import VERSION, State, StateBase
from gradwire.torch.backends.cuda import structs
from gradwire.torch.backends.cuda.operators import PlanCache, completed, operators
from gradwire.torch.backends.host import staging, told

_ROOM, _ALIGN = 1024, 256  # as csrc/ops/pieces.h has them
_MOMENTS = {"momentum_correction": "momentum", "adam_correction": "second_moment"}
_TRACKED = ("bound", "threshold", "location")
_CONTROLLER = ("stages", "last", "sum", "seen", "aim", "misses", "rest", "rests")


def init_state(codec: Codec, numel: int, name: str | None, stream: int) -> State:
    """Return a new state, which takes its memory of the device at its first encode."""
    # Not one of the core's, but with all that callers use of one.
    return cast(State, DeviceState(codec, numel, name=name, stream=stream))


class DeviceState(StateBase):
    """A state with the attributes and methods of `gradwire.State`, on the device or on the host.

    It is on the device as long as kernels encode. `on_host` moves it to a state of the core, where
    the core has to encode, and `on_device` moves it back, bit for bit; only what the last encode
    could undo stays behind. An encode of a bucket that fails at another parameter leaves this one
    as it was, but can then no longer be rolled back.

    ``plans`` are those of the buckets that begin with this tensor; ``pending`` tells whether
    kernels have encoded, and are to write the memory.
    """

    __slots__ = (
        *("_codec", "_device", "_earlier", "_host", "_last", "_lock", "_new", "_rate", "_step"),
        *("_undoable", "_written", "name", "nbytes", "numel", "pending", "plans", "stream"),
        "__weakref__",
    )

    def __init__(
        self, codec: Codec, numel: int, *, name: str | None = None, stream: int = 0
    ) -> None:
        host = codec.init_state(numel, name=name, stream=stream)
        self.plans = PlanCache(4)
        self._lock = threading.Lock()
        self._host: State | None = host
        self._device: torch.Tensor | None = None
        self._new = True
        self._forget(codec, host.step)
        self._rate = self._written = host.learning_rate
        self.numel, self.nbytes = host.numel, host.nbytes
        self.name, self.stream = host.name, host.stream

    def _forget(self, codec: Codec, step: int) -> None:
        self._codec, self._earlier, self._step = codec, codec, step
        self._last: dict[str, Any] | None = None
        self._undoable = self.pending = False

    # Where it is ------------------------------------------------------------------------------

    def on_host(self) -> State:
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
                at = structs.State.rate.offset  # filled in there, without waiting for the device
                self._device[at : at + 8].view(torch.float64).fill_(self._rate)
                self._written = self._rate
            yield self._device

    def encoded(self, codec: Codec, last: dict[str, Any], *, deferred: bool = False) -> None:
        """Remember an encode of the kernels that succeeded, or the first half of one."""
        self._earlier, self._codec, self._last = self._codec, codec, last
        self._step += not deferred
        self._undoable = deferred or codec.memory.undoable
        self.pending = deferred

    def committed(self, *, done: bool) -> None:
        """Remember the second half of an encode."""
        self._step += done
        self.failed()

    def failed(self) -> None:
        """Remember that there is nothing to undo, and no memory to write."""
        self._undoable = self.pending = False

    def _fetched(self) -> State:
        if self._host is None:
            host = self._codec.init_state(self.numel, name=self.name, stream=self.stream)
            host.load_state_dict(self._read())
            self._host, self._device = host, None
            self.failed()
        self._new = False
        return self._host

    def _upload(self, device: torch.device) -> None:
        host = self._host
        assert host is not None
        held = host.state_dict()
        codec, last = host.codec, self.last
        self._forget(codec, host.step)
        self._last = last
        layout = StateLayout(codec, self.numel)
        state = torch.zeros(layout.nbytes, dtype=torch.uint8, device=device)
        data = torch.frombuffer(bytearray(self._struct(codec, held)), dtype=torch.uint8)
        state[: len(data)].copy_(data)
        if not self._new:
            for name, buffer in layout.buffers(state, 0).items():
                buffer.copy_(torch.from_numpy(held[name]).view(buffer.dtype))
        self._rate = self._written = host.learning_rate
        self._device, self._host, self._new = state, None, False

    def _struct(self, codec: Codec, held: dict[str, Any]) -> structs.State:
        """Return the struct of the state that a state dict holds."""
        scalars: dict[str, float] = held["scalars"]
        piece = structs.Piece.from_buffer_copy(completed([codec], [self.numel]).numpy().data)
        struct = structs.State(tensor=structs.tensor_id(self.name), stream=self.stream)
        struct.step, struct.rate = held["step"], scalars.get("learning_rate", 1.0)
        struct.moment_steps = int(scalars.get("second_moment_steps", 0))
        struct.tracked.sparsify = piece.sparsify
        tracker = struct.tracked.tracker
        for each in _TRACKED:
            if each in scalars:
                setattr(tracker, each, structs.Maybe(scalars[each], 1))
        for each in _CONTROLLER:
            if (value := scalars.get(f"controller.{each}")) is not None:
                whole = each not in ("last", "sum", "aim")
                setattr(tracker.controller, each, int(value) if whole else value)
        return struct

    def _read(self) -> dict[str, Any]:
        """Return what `state_dict` returns, from the device."""
        assert self._device is not None
        with told(self._device.device):
            return self._read_device()

    def _read_device(self) -> dict[str, Any]:
        struct, buffers = self._current()
        arrays: dict[str, Any] = dict.fromkeys(("residual", "momentum", "second_moment"))
        for name, each in buffers.items():
            bits = each.view(torch.uint16) if each.dtype == torch.bfloat16 else each
            arrays[name] = bits.to("cpu", copy=True).numpy()
        return {
            "version": VERSION,
            "numel": self.numel,
            "step": int(struct.step),
            "config": self._codec.get_config(),
            **arrays,
            "scalars": scalars_of(self._codec, struct, self._rate),
        }

    def _current(self) -> tuple[structs.State, dict[str, torch.Tensor]]:
        """Return a copy of the struct on the host, and the current buffers on the device."""
        assert self._device is not None
        data = self._device[: ctypes.sizeof(structs.State)].cpu().numpy().data
        struct = structs.State.from_buffer_copy(data)
        layout = StateLayout(self._codec, self.numel)
        return struct, layout.buffers(self._device, struct.current)

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
    def codec(self) -> Codec:
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
                kept = self._current()[1].get(name)
                return None if kept is None else kept.to("cpu", torch.float32, copy=True).numpy()
            array: NDArray[np.float32] | None = getattr(self._host, name)
            return array

    @property
    def residual_norm(self) -> float | None:
        """Euclidean norm of the residual, in float64; computed where the residual is."""
        with self._used():
            if self._host is not None:
                return self._host.residual_norm
            kept = self._current()[1].get("residual")
            return None if kept is None else float(kept.double().square().sum().sqrt())

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
            if self.pending:  # at another rate
                self.failed()

    def rollback(self) -> None:
        """Undo the last encode exactly, as `gradwire.State.rollback`. Waits for the device."""
        rollback([self])

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
            self.failed()


def rollback(states: Sequence[Any]) -> None:
    """Undo the last encode of each state; on a device with one call and one wait for it."""
    with ExitStack() as stack:
        there: dict[torch.device, list[DeviceState]] = {}
        for state in states:
            if not isinstance(state, DeviceState):
                state.rollback()
                continue
            stack.enter_context(state._used())
            if state._host is not None:
                state._host.rollback()
                state._last = None
                continue
            if not state._undoable:  # one that has not encoded says so
                state._codec.init_state(0, name=state.name).rollback()
            assert state._device is not None
            there.setdefault(state._device.device, []).append(state)
        for device, own in there.items():
            stage = staging(device)
            pieces = completed([state._codec for state in own], [state.numel for state in own])
            with (
                told(device),
                stage.writing(),
            ):  # the caller's stream may have all of a backward pass before it
                operators().rollback_bucket(pieces, [state._device for state in own])
                stage.wait(stage.mark())  # the next encode may be on another stream
            for state in own:
                state._forget(state._earlier, state._step - (not state.pending))


class StateLayout:
    """Where the buffers are in the ``nbytes`` of a state, after its struct."""

    def __init__(self, codec: Codec, numel: int) -> None:
        memory = structs.memory_of(codec.memory)
        sides = 1 if memory.low_memory else 2
        dtypes = {"residual": torch.bfloat16 if memory.narrow else torch.float32}
        if codec.memory.kind in _MOMENTS:
            dtypes[_MOMENTS[codec.memory.kind]] = torch.float32
        if not codec.memory.keeps:
            dtypes = {}
        self._numel, self.nbytes = numel, _ROOM
        self._places: dict[str, tuple[torch.dtype, list[int]]] = {}
        for name, dtype in dtypes.items():
            room = -(-dtype.itemsize * numel // _ALIGN) * _ALIGN
            self._places[name] = dtype, [self.nbytes + side * room for side in range(sides)]
            self.nbytes += sides * room

    def buffers(self, state: torch.Tensor, side: int) -> dict[str, torch.Tensor]:
        """Return the buffers that there are, without copies, in what they are kept as.

        They have the names of `gradwire.State.state_dict`.
        """
        return {
            name: state[starts[side] :][: dtype.itemsize * self._numel].view(dtype)
            for name, (dtype, starts) in self._places.items()
        }


def scalars_of(codec: Codec, state: structs.State, rate: float | None) -> dict[str, float]:
    """Return the scalars of a state dict from the struct."""
    scalars: dict[str, float] = {}
    if rate is not None:
        scalars["learning_rate"] = rate
        scalars["second_moment_steps"] = float(state.moment_steps)
    tracker = state.tracked.tracker
    for each in _TRACKED:
        kept = getattr(tracker, each)
        if kept.there:
            scalars[each] = kept.value
    if codec.sparsify.kind == "sid":
        for each in _CONTROLLER:
            scalars[f"controller.{each}"] = float(getattr(tracker.controller, each))
    return scalars
