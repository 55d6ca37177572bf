"""States on the device: one tensor of bytes for each parameter."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.errors import StateInUseError
from gradwire.state import VERSION, Copied
from gradwire.torch.backends.cuda.layout import Layout, scalars_of, struct_of
from gradwire.torch.backends.cuda.operators import operators
from gradwire.torch.backends.cuda.plans import Plans, completed
from gradwire.torch.backends.host.staging import staging

if TYPE_CHECKING:
    import gradwire.state
    from gradwire.codec import Codec

__all__ = ["State", "init_state", "rollback"]


def init_state(codec: "Codec", numel: int, name: str | None, stream: int) -> "gradwire.state.State":
    """Return a new state, which takes its memory of the device at its first encode."""
    # Not one of the core's, but with all that callers use of one.
    return cast("gradwire.state.State", State(codec, numel, name=name, stream=stream))


class State(Copied):
    """A state with the attributes and methods of `gradwire.State`, on the device or on the host.

    It is on the device as long as kernels encode. `on_host` moves it to a state of the core, where
    the core has to encode, and `on_device` moves it back, bit for bit; only what the last encode
    could undo stays behind. An encode of a bucket that fails at another parameter leaves this one
    as it was, but can then no longer be rolled back.

    Parameters
    ----------
    codec, numel, name, stream
        As of `gradwire.State`.

    Attributes
    ----------
    plans : Plans
        Of the buckets that begin with this tensor.
    pending : bool
        Whether kernels have encoded, and are to write the memory.
    """

    __slots__ = (
        *("_codec", "_device", "_earlier", "_host", "_last", "_lock", "_new", "_rate", "_step"),
        *("_undoable", "_written", "name", "nbytes", "numel", "pending", "plans", "stream"),
        "__weakref__",
    )

    def __init__(
        self, codec: "Codec", numel: int, *, name: str | None = None, stream: int = 0
    ) -> None:
        host = codec.init_state(numel, name=name, stream=stream)
        self.plans = Plans(4)
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
        self._undoable = self.pending = False

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
                Layout.put_rate(self._device, self._rate)
                self._written = self._rate
            yield self._device

    def encoded(self, codec: "Codec", last: dict[str, Any], *, deferred: bool = False) -> None:
        """Remember an encode of the kernels that succeeded, or the first half of one."""
        self._earlier, self._codec, self._last = self._codec, codec, last
        self._step += not deferred
        self._undoable = deferred or codec.memory.undoable
        self.pending = deferred

    def committed(self, *, done: bool) -> None:
        """Remember the second half of an encode."""
        self._step += done
        self._undoable = self.pending = False

    def failed(self) -> None:
        """Remember one that did not."""
        self._undoable = self.pending = False

    def _fetched(self) -> "gradwire.state.State":
        if self._host is None:
            host = self._codec.init_state(self.numel, name=self.name, stream=self.stream)
            host.load_state_dict(self._read())
            self._host, self._device = host, None
            self._undoable = self.pending = False
        self._new = False
        return self._host

    def _upload(self, device: torch.device) -> None:
        host = self._host
        assert host is not None
        held = host.state_dict()
        codec, last = host.codec, self.last
        self._forget(codec, host.step)
        self._last = last
        layout = Layout(codec, self.numel)
        state = torch.zeros(layout.nbytes, dtype=torch.uint8, device=device)
        step, scalars = held["step"], held["scalars"]
        struct = struct_of(codec, self.numel, self.name, self.stream, step, scalars)
        layout.put_struct(state, struct)
        if not self._new:
            for name in layout.names:
                buffer = layout.buffer(state, name, 0)
                assert buffer is not None
                buffer.copy_(torch.from_numpy(held[name]).view(buffer.dtype))
        self._rate = self._written = host.learning_rate
        self._device, self._host, self._new = state, None, False

    def _read(self) -> dict[str, Any]:
        """Return what `state_dict` returns, from the device."""
        assert self._device is not None
        layout, struct = Layout(self._codec, self.numel), Layout.struct(self._device)
        arrays = {
            name: layout.array(self._device, name, struct.current)
            for name in ("residual", "momentum", "second_moment")
        }
        return {
            "version": VERSION,
            "numel": self.numel,
            "step": int(struct.step),
            "config": self._codec.get_config(),
            **arrays,
            "scalars": scalars_of(self._codec, struct, self._rate),
        }

    def _view(self, name: str) -> torch.Tensor | None:
        """Return the current values of a buffer on the device, in what they are kept as."""
        assert self._device is not None
        side = Layout.struct(self._device).current
        return Layout(self._codec, self.numel).buffer(self._device, name, side)

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
                view = self._view(name)
                return None if view is None else view.to("cpu", torch.float32, copy=True).numpy()
            array: NDArray[np.float32] | None = getattr(self._host, name)
            return array

    @property
    def residual_norm(self) -> float | None:
        """Euclidean norm of the residual, in float64; computed where the residual is."""
        with self._used():
            if self._host is not None:
                return self._host.residual_norm
            view = self._view("residual")
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
            if self.pending:  # at another rate
                self.failed()

    def rollback(self) -> None:
        """Undo the last encode exactly, as `gradwire.State.rollback`. Waits for the device."""
        rollback([self])

    def _undo_on_host(self) -> bool:
        """Undo the last encode if it is on the host; tell whether it was."""
        if self._host is not None:
            self._host.rollback()
            self._last = None
        elif not self._undoable:  # one that has not encoded says so
            self._codec.init_state(0, name=self.name).rollback()
        return self._host is not None

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
        there: dict[torch.device, list[State]] = {}
        for state in states:
            if not isinstance(state, State):
                state.rollback()
                continue
            stack.enter_context(state._used())
            if not state._undo_on_host():
                assert state._device is not None
                there.setdefault(state._device.device, []).append(state)
        for device, own in there.items():
            stage = staging(device)
            pieces = completed([state._codec for state in own], [state.numel for state in own])
            with stage.aside():  # the caller's stream may have all of a backward pass before it
                operators().rollback_bucket(pieces, [state._device for state in own])
                stage.wait(stage.mark())  # the next encode may be on another stream
            for state in own:
                state._forget(state._earlier, state._step - (not state.pending))
