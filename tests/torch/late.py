"""A simulated device whose streams do everything as late as they may, and only when waited for.

Whoever reads a result without waiting for it reads what was there before, every time: on a real
device, that is a race. Tensors are `Late`, on the device ``late:0``; `late` is its module, as
`torch.cuda` is CUDA's. Registered once, with what torch offers for backends written in Python.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

__all__ = ["Late", "late", "register"]

_VIEWS = (
    *("as_strided", "detach", "slice", "view", "alias", "_unsafe_view", "unsqueeze", "select"),
    *("expand", "split_with_sizes", "unbind"),
)
_GARBAGE = 0xA5
_lock = threading.RLock()


class LateStream:
    """Work in its order, none of it done until somebody waits.

    An ``eager`` one does everything at once, and what that has to wait for: whoever writes over
    what another stream is still to read, without waiting for it, has then done so.
    """

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self._waiting: list[Callable[[], object]] = []
        self._done = 0
        self.eager = False
        self.priority = priority
        self.givers: set[str] = set()

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -1

    @property
    def given(self) -> int:
        """How much work it was given so far."""
        return self._done + len(self._waiting)

    def give(self, work: Callable[[], object]) -> None:
        with _lock:
            self.givers.add(threading.current_thread().name)
            self._waiting.append(work)
            if self.eager:
                self.synchronize()

    def advance(self, to: int) -> None:
        with _lock:
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
        late.waited(self.stream.advance, self.at)


class Module:
    """What `torch.late` is."""

    Stream, Event = LateStream, LateEvent

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all streams, and what was recorded: who waited, uses of memory, operations.

        ``blocked`` has the thread's name for every wait: for events, and for what a copy or a read
        of a number waits for.
        """
        self._local = threading.local()
        self._default = LateStream()
        self.waits: list[threading.Thread] = []
        self.blocked: list[str] = []
        self.records: list[tuple[int, LateStream]] = []
        self.operations: set[tuple[str, ...]] = set()

    def waited(self, act: Callable[..., None], *given: Any) -> None:
        """Wait for the device in this thread."""
        self.blocked.append(threading.current_thread().name)
        act(*given)

    def current_stream(self, device: Any = None) -> LateStream:
        current: LateStream = getattr(self._local, "stream", self._default)
        return current

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before = getattr(self._local, "device", None)
        self._local.device = device
        yield
        self._local.device = before

    @contextlib.contextmanager
    def stream(self, stream: LateStream) -> Iterator[None]:
        # Of several devices, another thread than the first has the wrong one.
        if threading.current_thread() is not threading.main_thread():
            assert getattr(self._local, "device", None) is not None
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
        LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
    return True


LIBRARY = torch.library.Library("aten", "IMPL")
"""Kept alive with the operators of the device that take none of its tensors."""


def _empty_strided(size: list[int], stride: list[int], *, dtype: Any = None, **_: Any) -> "Late":
    return Late(torch.empty_strided(size, stride, dtype=dtype))


def _empty(size: list[int], *, dtype: Any = None, **_: Any) -> "Late":
    made = torch.empty(size, dtype=dtype)
    made.view(-1).view(torch.uint8).fill_(_GARBAGE)
    return Late(made)


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

    def record_stream(self, stream: Any) -> None:
        late.records.append((self.raw.untyped_storage().data_ptr(), stream))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        stream, name = late.current_stream(), func._schema.name.removeprefix("aten::")
        given = tree_map(_raw, args)
        if name not in _VIEWS:
            late.operations.add((str(func), *map(str, _dtypes(args))))
        if name == "copy_":
            target, source = given[:2]
            stream.give(lambda: target.copy_(source))
            if not (len(args) > 2 and args[2]):  # blocking
                late.waited(stream.synchronize)
            return args[0]
        device = torch.device(kwargs.pop("device", None) or "late")
        named = tree_map(_raw, kwargs)
        if name in _VIEWS:
            return tree_map(_there, func(*given, **named))
        if name.endswith("_") or "out" in kwargs:
            stream.give(lambda: func(*given, **named))
            return kwargs.get("out", args[0]) if func._schema.returns else None
        if name == "_local_scalar_dense" or device.type == "cpu":
            late.waited(stream.synchronize)
            return func(*given, **named)
        shape = func(*tree_map(_meta, given), **tree_map(_meta, named))
        made = torch.empty_like(shape, device="cpu")
        stream.give(lambda: made.copy_(func(*given, **named)))
        return Late(made)


def _dtypes(args: Any) -> Iterator[torch.dtype]:
    """Yield the dtypes of the first tensors, of a list of the first: what chooses a kernel."""
    for each in args:
        if isinstance(each, (list, tuple)):
            yield from itertools.islice(_dtypes(each), 1)
        elif isinstance(each, torch.Tensor):
            yield each.dtype


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, Late) else value


def _meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def _there(value: Any) -> Any:
    return Late(value) if isinstance(value, torch.Tensor) else value
