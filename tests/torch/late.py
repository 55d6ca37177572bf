"""A simulated device whose streams do everything as late as they may, and only when waited for.

Whoever reads a result without waiting for it reads what was there before, every time: on a real
device, that is a race. Tensors are `Late`, on the device ``late:0``; `late` is its module, as
`torch.cuda` is CUDA's. Registered once, with what torch offers for backends written in Python.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

__all__ = ["Late", "late", "register"]

_VIEWS = ("as_strided", "detach", "slice", "view", "alias", "_unsafe_view", "unsqueeze", "select")


class LateStream:
    """Work in its order, none of it done until somebody waits."""

    def __init__(self, device: Any = None) -> None:
        self._waiting: list[Callable[[], object]] = []
        self._done = 0

    @property
    def given(self) -> int:
        """How much work it was given so far."""
        return self._done + len(self._waiting)

    def give(self, work: Callable[[], object]) -> None:
        self._waiting.append(work)

    def advance(self, to: int) -> None:
        while self._done < to:
            work = self._waiting.pop(0)
            self._done += 1
            work()

    def wait_event(self, event: "LateEvent") -> None:
        stream, at = event.stream, event.at
        self.give(lambda: stream.advance(at))

    def synchronize(self) -> None:
        self.advance(self.given)


class LateEvent:
    """A place in the work of a stream."""

    def record(self, stream: LateStream) -> None:
        self.stream, self.at = stream, stream.given

    def synchronize(self) -> None:
        late.waits.append(threading.current_thread())
        self.stream.advance(self.at)


class Module:
    """What `torch.late` is."""

    Stream, Event = LateStream, LateEvent

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all streams; from here on, `waits` lists the threads that have waited."""
        self._local = threading.local()
        self._default = LateStream()
        self.waits: list[threading.Thread] = []

    def current_stream(self, device: Any = None) -> LateStream:
        current: LateStream = getattr(self._local, "stream", self._default)
        return current

    @contextlib.contextmanager
    def stream(self, stream: LateStream) -> Iterator[None]:
        before = self.current_stream()
        self._local.stream = stream
        yield
        self._local.stream = before

    # What torch asks of a device's module.
    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True


late = Module()


def register() -> bool:
    """Register the device; return whether this release of torch can."""
    setup = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if setup is None:
        return False
    if not hasattr(torch, "late"):
        setup("late", backend_module=late)
        LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
    return True


LIBRARY = torch.library.Library("aten", "IMPL")
"""Kept alive with the one operator of the device that takes none of its tensors."""


def _empty_strided(size: list[int], stride: list[int], *, dtype: Any = None, **_: Any) -> "Late":
    return Late(torch.empty_strided(size, stride, dtype=dtype))


class Late(torch.Tensor):
    """A tensor on the device. ``raw`` is its memory, as it is by now."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> "Late":
        made: Late = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device("late:0"),
        )
        made.raw = raw
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        stream, name = late.current_stream(), func._schema.name.removeprefix("aten::")
        given = [_raw(each) for each in args]
        if name == "copy_":
            target, source = given[:2]
            stream.give(lambda: target.copy_(source))
            if not (len(args) > 2 and args[2]):  # blocking
                stream.synchronize()
            return args[0]
        if name == "fill_":
            stream.give(lambda: given[0].fill_(given[1]))
            return args[0]
        if name == "clone":
            made = torch.empty_like(given[0])
            stream.give(lambda: made.copy_(given[0]))
            return Late(made)
        device = kwargs.pop("device", None)
        if name not in _VIEWS:
            stream.synchronize()
        out = func(*given, **tree_map(_raw, kwargs))
        if not isinstance(out, torch.Tensor) or torch.device(device or "late").type == "cpu":
            return out
        return Late(out)


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, Late) else value
