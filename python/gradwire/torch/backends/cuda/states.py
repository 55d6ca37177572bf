"""States on the device: one tensor of bytes for each parameter.

It has the struct of the kernels, followed by the buffers of the memory: the residual, then the
moment, if any. Each buffer exists twice, the current one and one for the next encode.
"""

import ctypes
import functools
import operator
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
from gradwire.torch.backends.cuda.operators import EncodePlan, PlanCache, completed, operators
from gradwire.torch.backends.staging import naming_loss, staging

ROOM, _ALIGN = 1024, 256  # as csrc/ops/pieces.h has them
_MOMENTS = {"momentum_correction": "momentum", "adam_correction": "second_moment"}
_BYTES = operator.attrgetter("_device")
# The columns of the table, as csrc/bucket/piece.h numbers them.
STATUS, NBYTES, COUNT, TARGET, TRIMMED, ZERO, THRESHOLD = range(7)
COLUMNS = 10
_TRACKED = ("bound", "threshold", "location")
_CONTROLLER = ("stages", "last", "sum", "seen", "aim", "misses", "rest", "rests")


def init_state(codec: Codec, numel: int, name: str | None, stream: int) -> State:
    """Return a new state, which allocates device memory at its first encode."""
    # Not one of the core's, but with all that callers use of one.
    return cast(State, DeviceState(codec, numel, name=name, stream=stream))


class DeviceState(StateBase):
    """A state with the attributes and methods of `gradwire.State`, on the device or on the host.

    It is on the device as long as kernels encode. If the core must encode, `on_host` moves it to a
    state of the core, and `on_device` moves it back, bit for bit, but without the values that would
    undo the last encode. An encode of a bucket that fails at another parameter leaves this one as
    it was, but can then no longer be rolled back.

    ``plans`` are those of the buckets that begin with this tensor. Launched encodes are recorded at
    once, and corrected by `Encoding.outcomes` if they fail; reading anything of the state waits
    first.
    """

    __slots__ = (
        *("_codec", "_device", "_earlier", "_encoding", "_host", "_last", "_lock", "_new", "_rate"),
        *("_row", "_shared", "_step", "_undoable", "_written"),
        *("name", "nbytes", "numel", "plans", "stream"),
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
        self._shared: list[torch.Tensor] = []  # by a plan, which has `_device` in it
        self._encoding: Encoding | None = None
        self._row = 0  # of that
        self._new = True
        self._forget(codec, host.step)
        self._rate = self._written = host.learning_rate
        self.numel, self.nbytes = host.numel, host.nbytes
        self.name, self.stream = host.name, host.stream

    def _forget(self, codec: Codec, step: int) -> None:
        self._codec, self._earlier, self._step = codec, codec, step
        self._last: dict[str, Any] | None = None
        self._encoding = None
        self._undoable = False

    # Where it is ------------------------------------------------------------------------------

    def on_host(self) -> State:
        """Move this state to the core, and return the core's state."""
        with self._used():
            return self._fetched()

    def _moved(self, device: torch.device) -> torch.Tensor:
        """Move this state to the device, and return its bytes there."""
        if self._device is None or self._device.device != device:
            if self._device is not None:
                self._fetched()
            self._upload(device)
        assert self._device is not None
        return self._device

    def _leave(self) -> None:
        """Drop the bytes on the device, also from a plan that holds them."""
        if self._encoding is not None:
            self._last = self._encoding.last(self._row)
        self._device = self._encoding = None
        self._shared.clear()

    def _load(self, state_dict: dict[str, Any]) -> State:
        """Go on from a state dict on the host, and return the core's state."""
        host = self._host
        if host is None:
            host = self._codec.init_state(self.numel, name=self.name, stream=self.stream)
        host.load_state_dict(state_dict)
        self._host, self._new = host, False
        self._leave()
        self._undoable = False
        return host

    def _fetched(self) -> State:
        self._new = False
        return self._load(self._read()) if self._host is None else self._host

    def _upload(self, device: torch.device) -> None:
        host = self._host
        assert host is not None
        held = host.state_dict()
        codec, last = host.codec, self.last
        self._forget(codec, host.step)
        self._last = last
        state = torch.zeros(_buffers_of(codec, self.numel)[1], dtype=torch.uint8, device=device)
        data = torch.frombuffer(bytearray(self._struct(codec, held)), dtype=torch.uint8)
        state[: len(data)].copy_(data)
        self._device = state
        if not self._new:
            for name, buffer in self._buffers(0).items():
                buffer.copy_(torch.from_numpy(held[name]).view(buffer.dtype))
        self._rate = self._written = host.learning_rate
        self._host, self._new = None, False

    def _struct(self, codec: Codec, held: dict[str, Any]) -> Any:
        """Return the struct of the state that a state dict holds."""
        scalars: dict[str, float] = held["scalars"]
        piece = structs.Piece.from_buffer_copy(completed([codec], [self.numel]).numpy().data)
        struct = structs.State(tensor=structs.tensor_id(self.name), stream=self.stream)
        struct.step, struct.rate = held["step"], scalars.get("learning_rate", 1.0)
        struct.moment_steps = int(scalars.get("second_moment_steps", 0))
        struct.tracked.sparsify = piece.sparsify
        tracker = struct.tracked.tracker
        for name in _TRACKED:
            if name in scalars:
                setattr(tracker, name, structs.Maybe(scalars[name], 1))
        for name in _CONTROLLER:
            if (value := scalars.get(f"controller.{name}")) is not None:
                whole = name not in ("last", "sum", "aim")
                setattr(tracker.controller, name, int(value) if whole else value)
        return struct

    def _read(self) -> dict[str, Any]:
        assert self._device is not None
        arrays: dict[str, Any] = dict.fromkeys(("residual", "momentum", "second_moment"))
        with naming_loss(self._device.device):
            struct, buffers = self._current()
            for name, buffer in buffers.items():
                bits = buffer.view(torch.uint16) if buffer.dtype == torch.bfloat16 else buffer
                arrays[name] = bits.to("cpu", copy=True).numpy()
        scalars: dict[str, float] = {}
        if self._rate is not None:
            scalars["learning_rate"] = self._rate
            scalars["second_moment_steps"] = float(struct.moment_steps)
        tracker = struct.tracked.tracker
        for name in _TRACKED:
            if (maybe := getattr(tracker, name)).there:
                scalars[name] = maybe.value
        if self._codec.sparsify.kind == "sid":
            for name in _CONTROLLER:
                scalars[f"controller.{name}"] = float(getattr(tracker.controller, name))
        return {
            "version": VERSION,
            "numel": self.numel,
            "step": int(struct.step),
            "config": self._codec.get_config(),
            **arrays,
            "scalars": scalars,
        }

    def _current(self) -> tuple[Any, dict[str, torch.Tensor]]:
        """Return a copy of the struct on the host, and the current buffers on the device."""
        assert self._device is not None
        data = self._device[: ctypes.sizeof(structs.State)].cpu().numpy().data
        struct = structs.State.from_buffer_copy(data)
        return struct, self._buffers(struct.current)

    def _buffers(self, side: int) -> dict[str, torch.Tensor]:
        """Return the buffers on one side, without copies, in their dtypes."""
        assert self._device is not None
        return {
            name: self._device[starts[side] :][: dtype.itemsize * self.numel].view(dtype)
            for name, (dtype, starts) in _buffers_of(self._codec, self.numel)[0].items()
        }

    @contextmanager
    def _used(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise StateInUseError
        try:
            self._await_encode()
            yield
        finally:
            self._lock.release()

    def _await_encode(self) -> None:
        if self._encoding is not None:
            self._encoding.outcomes()

    # As gradwire.State ------------------------------------------------------------------------

    @property
    def codec(self) -> Codec:
        """The codec of the last encode; before the first, the one that created the state."""
        self._await_encode()
        return self._codec if self._host is None else self._host.codec

    @property
    def step(self) -> int:
        """Number of successful encodes, not counting those that were rolled back."""
        self._await_encode()
        return self._step if self._host is None else self._host.step

    @property
    def last(self) -> dict[str, Any] | None:
        """Results of the last encode."""
        self._await_encode()
        if self._encoding is not None:
            return self._encoding.last(self._row)
        last = None if self._host is None else self._host.last
        return self._last if last is None else last

    def _array(self, name: str) -> NDArray[np.float32] | None:
        """Return a copy of a buffer on the host, as float32; None if there is no such."""
        with self._used():
            if self._host is None:
                buffer = self._current()[1].get(name)
                return None if buffer is None else buffer.float().to("cpu", copy=True).numpy()
            array: NDArray[np.float32] | None = getattr(self._host, name)
            return array

    residual = property(functools.partial(_array, name="residual"))
    momentum = property(functools.partial(_array, name="momentum"))
    second_moment = property(functools.partial(_array, name="second_moment"))
    estimate = property(functools.partial(_array, name="estimate"))

    def deliver(self, mean: Any, scale: float = 1.0) -> None:
        """As `gradwire.State.deliver`, on the host, where codecs with estimates encode."""
        with self._used():
            self._fetched().deliver(mean, scale)

    @property
    def residual_norm(self) -> float | None:
        """Euclidean norm of the residual, in float64; computed where the residual is."""
        with self._used():
            if self._host is not None:
                return self._host.residual_norm
            residual = self._current()[1].get("residual")
            return None if residual is None else float(residual.double().square().sum().sqrt())

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

    def _lift(self, start: int, stop: int) -> Any:
        """Take the residual of a range out, as the core does; waits for the device."""
        with self._used():
            if self._host is not None:
                return self._host._lift(start, stop)
            residual = self._current()[1]["residual"][start:stop]
            if residual.dtype != torch.float32:
                return residual[:0].float()
            lifted = residual.clone()
            residual.zero_()
            return lifted

    def _lower(self, start: int, lifted: Any, step: int) -> None:
        """Put it back, into what it has become on this device or another by now."""
        with self._used():
            if self._host is not None:
                self._host._lower(start, torch.as_tensor(lifted).cpu().numpy(), step)
                return
            assert self._device is not None
            values = torch.as_tensor(lifted).to(self._device.device)
            if not values.numel():
                return
            struct, buffers = self._current()
            part = slice(start, start + values.numel())
            if self._step == step:
                buffers["residual"][part] = values
                return
            self._buffers(1 - struct.current)["residual"][part] = values
            add_flushed(buffers["residual"][part], values)

    def join(self, start: int, sums: torch.Tensor) -> torch.Tensor:
        """Add what the residual has to sums, take it out, and return it; waits for the device."""
        residual = torch.as_tensor(self._lift(start, start + sums.numel())).to(sums.device)
        if residual.numel():
            add_flushed(sums, residual)
        return residual

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
        """Load a `state_dict` of this or another device."""
        with self._used():
            self._load(state_dict)
            self._last = None


def add_flushed(values: torch.Tensor, more: torch.Tensor) -> None:
    """Add in place as the core does: a sum below the smallest normal number is 0."""
    total = values + more
    total[total.abs() < torch.finfo(torch.float32).tiny] = 0.0
    values.copy_(torch.where(more == 0.0, values, total))


@contextmanager
def on_device(
    states: Sequence[DeviceState], device: torch.device, shared: list[torch.Tensor]
) -> Iterator[None]:
    """Move the states to the device; they are in use meanwhile.

    Their bytes are then listed in `shared`, which a plan keeps: a state that leaves the device, for
    whatever reason, clears the list, and it is rebuilt if a state's bytes are missing in it.
    """
    taken = 0
    try:
        for state in states:
            if not state._lock.acquire(blocking=False):
                raise StateInUseError
            taken += 1
        for encoding in {state._encoding for state in states}:
            if encoding is not None:
                encoding.outcomes()
        same = len(shared) == taken and all(map(operator.is_, map(_BYTES, states), shared))
        if not same or shared[0].device != device:
            shared.clear()
            there = [state._moved(device) for state in states]
            for state in states:
                if state._shared is not shared:
                    state._shared.clear()  # one plan at a time: the other one may be used no more
                    state._shared = shared
            shared[:] = there
        at = structs.State.rate.offset
        for state in states:
            if state._rate != state._written:  # filled in there, without waiting for the device
                state._moved(device)[at : at + 8].view(torch.float64).fill_(state._rate or 0.0)
                state._written = state._rate
        yield
    finally:
        for state in states[:taken]:
            state._lock.release()


def is_on_device(state: Any) -> bool:
    """Tell whether kernels made the last encode with a state, or none was made."""
    return isinstance(state, DeviceState) and state._device is not None


@contextmanager
def undoable(states: Sequence[DeviceState]) -> Iterator[list[torch.Tensor]]:
    """Return the device bytes of states whose last encode can be undone; in use meanwhile.

    Raises a ValueError for others.
    """
    with ExitStack() as stack:
        for state in states:
            stack.enter_context(state._used())
        there = [state._device for state in states if state._undoable]
        if len(there) < len(states) or None in there:
            raise ValueError("residuals take what is left of sums after encodes that can be undone")
        yield cast("list[torch.Tensor]", there)


class Encoding:
    """Encodes of some states in progress on the device, until their outcome is known.

    ``table`` is that of csrc/bucket/piece.h, on the device; ``rows`` are the same, once known.
    """

    __slots__ = (
        *("_after", "_before", "_lock", "_states"),
        *("done", "rows", "shares", "table"),
    )

    def __init__(
        self, states: Sequence[DeviceState], plan: EncodePlan, table: torch.Tensor
    ) -> None:
        self.table = table
        self._states, self.shares = states, plan.shares
        self.rows: NDArray[np.int64] | None = None
        self.done = len(states)
        self._after: Any = None
        self._lock = threading.Lock()
        self._before = [(state._encoding, state._row, state._last) for state in states]
        for row, (state, codec) in enumerate(zip(states, plan.codecs, strict=True)):
            state._earlier, state._codec = state._codec, codec
            state._encoding, state._row = self, row
            state._step += 1
            state._undoable = True

    def mark(self) -> None:
        """Record the current point of the stream, for which a read of the outcome waits."""
        self._after = staging(self.table.device).mark()

    def outcomes(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Take the table, or wait for it, and correct the records of states that failed.

        Returns a row for each state that did not fail: bytes, entries sent, entries asked for or
        -1, entries trimmed, and whether all of the input was zero.
        """
        with self._lock:
            if self.rows is None:
                self._correct(rows)
            assert self.rows is not None
            return self.rows[: self.done, NBYTES : ZERO + 1]

    def _correct(self, rows: NDArray[np.int64] | None) -> None:
        if rows is None:
            rows = staging(self.table.device).fetch(self.table, self._after).numpy()
        failed = np.flatnonzero(rows[:, STATUS])
        self.done = int(failed[0]) if failed.size else len(rows)
        for state, before in list(zip(self._states, self._before, strict=True))[self.done :]:
            state._codec = state._earlier
            state._encoding, state._row, state._last = before
            state._step -= 1
            state._undoable = False
        self.rows, self._states, self._before = rows, (), []

    def last(self, row: int) -> dict[str, Any]:
        """Return the results of one encode."""
        assert self.rows is not None
        count, target, trimmed, threshold = self.rows[row, [COUNT, TARGET, TRIMMED, THRESHOLD]]
        return {
            "count": int(count),
            "target": None if target < 0 else int(target),
            "threshold": float(threshold.astype(np.uint32).view(np.float32)),
            "trimmed": int(trimmed),
        }


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
        for device, example in there.items():
            stage = staging(device)
            pieces = completed(
                [state._codec for state in example], [state.numel for state in example]
            )
            # The caller's stream may have all of a backward pass before it.
            with naming_loss(device), stage.writing():
                operators().rollback_bucket(pieces, [state._device for state in example])
                stage.wait(stage.mark())  # the next encode may be on another stream
            for state in example:
                state._forget(state._earlier, state._step - 1)


def _buffers_of(codec: Codec, numel: int) -> tuple[dict[str, tuple[torch.dtype, list[int]]], int]:
    """Return dtypes and positions of the buffers behind the struct, and the bytes of a state.

    They have the names of `gradwire.State.state_dict`, and two sides each.
    """
    dtypes: dict[str, torch.dtype] = {}
    if codec.memory.keeps:
        narrow = structs.memory_of(codec.memory).narrow
        dtypes["residual"] = torch.bfloat16 if narrow else torch.float32
    if codec.memory.kind in _MOMENTS:
        dtypes[_MOMENTS[codec.memory.kind]] = torch.float32
    places, nbytes = {}, ROOM
    for name, dtype in dtypes.items():
        room = -(-dtype.itemsize * numel // _ALIGN) * _ALIGN
        places[name] = dtype, [nbytes, nbytes + room]
        nbytes += 2 * room
    return places, nbytes
