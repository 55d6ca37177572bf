"""The transport of Horovod: collectives with names, negotiated by its background thread."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import torch
from typing_extensions import override

from gradwire.torch.errors import ExchangeError
from gradwire.torch.transport.channel import NO_DEVICE_BACKENDS, Channel, Transport, Work

try:
    import horovod.torch as hvd
    from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
    from horovod.torch import mpi_ops
except ImportError as error:
    raise ImportError(
        "gradwire.torch.horovod needs Horovod 0.28 built for this PyTorch: its last release builds "
        f"against today's torch only with the changes that docs/horovod.md describes ({error})"
    ) from error

library: Any = hvd  # which has no types
InternalError: Any = HorovodInternalError  # it has lost a rank, or was shut down
HostsUpdated: Any = HostsUpdatedInterrupt  # ranks are to join or leave

_SHORT, _LONG = 2e-4, 1e-3  # seconds between looks at a collective
_BRIEF = 50
_NAMES = 64  # of a channel, used in turn: new ones would fill Horovod's response cache


class LostRankError(ExchangeError, InternalError):  # type: ignore[misc]  # it has no types
    """An `ExchangeError` because a rank has stopped or did not take part in time.

    Also a ``HorovodInternalError``: ``hvd.elastic.run`` restores the last commit after it, and
    continues with the remaining ranks.
    """


def check_initialized() -> None:
    """Raise a ValueError unless ``hvd.init()`` was called."""
    if not hvd.is_initialized():
        raise ValueError("Horovod is not initialized: call hvd.init() first")


def initialization() -> object:
    """Return an object that Horovod replaces whenever it is initialized: its map of handles."""
    return mpi_ops._handle_map


def _await_shutdown() -> None:
    """Wait until Horovod, if it is shutting down, has answered all collectives in progress.

    It answers them under a lock, and frees their tensors, for which it takes the GIL. Starting a
    collective takes that lock with the GIL held, and would deadlock. This takes the lock without
    the GIL.
    """
    mpi_ops._basics.MPI_LIB_CTYPES.horovod_number_of_process_sets()


class _Pending:
    """A collective of Horovod in progress. Horovod's result is passed to ``finish``, once."""

    def __init__(
        self,
        handle: int,
        finish: Callable[[torch.Tensor], Any],
        timeout: Callable[[], timedelta | None],
    ) -> None:
        self._handle = handle
        self._finish = finish
        self._timeout = timeout
        self._lock = threading.Lock()
        self._done = False
        self._failure: RuntimeError | None = None

    def wait(self) -> None:
        """Wait until it is done.

        Raises a LostRankError if another rank has stopped or did not take part in time, and a
        RuntimeError if the ranks did not start the same collective.
        """
        with self._lock:
            if not self._done:
                self._await()
                self._done, self._finish = True, _nothing  # what it holds may go
        if self._failure is not None:
            raise self._failure

    def _await(self) -> None:
        timeout = self._timeout()
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        try:
            looks = 0
            while not library.poll(self._handle):
                if deadline is not None and time.monotonic() > deadline:
                    raise LostRankError(f"another rank did not take part within {timeout}")
                looks += 1
                time.sleep(_SHORT if looks < _BRIEF else _LONG)
            self._finish(library.synchronize(self._handle))
        except LostRankError as error:
            self._failure = error
        except InternalError as error:
            _await_shutdown()  # whoever is told of it may start something else
            self._failure = _lost(error)
        except RuntimeError as error:
            self._failure = error
        except ValueError as error:  # what poll() raises for a handle of before hvd.shutdown()
            self._failure = _lost(error)


class _All:
    """Several collectives, and a function to call after all of them."""

    def __init__(self, works: Iterable[Work], finish: Callable[[], Any]) -> None:
        self._works = list(works)
        self._finish: Callable[[], Any] | None = finish
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait until all of them are done."""
        with self._lock:
            for work in self._works:
                work.wait()
            if self._finish is not None:
                self._finish()
                self._finish = None


def _nothing(result: torch.Tensor) -> None:
    """Do nothing: the collective worked in place."""


def _lost(error: Exception) -> LostRankError:
    lost = LostRankError(
        "Horovod has stopped exchanging: another rank has stopped or failed, or Horovod was shut "
        f"down ({str(error).strip()})"
    )
    lost.__cause__ = error
    return lost


class _Numbers:
    """Numbers of channels, counted equally on all ranks since Horovod's last initialization."""

    def __init__(self) -> None:
        self._since: object = None
        self._next: dict[tuple[int, ...], int] = {}

    def take(self, process_set: tuple[int, ...]) -> int:
        if self._since is not initialization():
            self._since, self._next = initialization(), {}
        number = self._next.get(process_set, 0)
        self._next[process_set] = number + 1
        return number


_numbers = _Numbers()


class HorovodChannel(Channel):
    """Collectives of one process set, under names that nothing else uses.

    Horovod matches collectives by name, and refuses a name that is in progress. All ranks start the
    same ones in the same order, so the names of a channel are used in turn. Without a timeout, this
    rank waits forever for the others, as Horovod does.
    """

    def __init__(self, process_set: Any, timeout: timedelta | None) -> None:
        self._set = process_set
        self.timeout = timeout
        self.rank = int(process_set.rank())
        self.size = int(process_set.size())
        self._initialization = initialization()
        self._number = _numbers.take(tuple(process_set.ranks))
        self._started = 0
        self._latest: deque[_Pending] = deque(maxlen=_NAMES)

    @property
    @override
    def is_open(self) -> bool:
        return bool(library.is_initialized()) and self._initialization is initialization()

    @override
    def all_gather(self, out: torch.Tensor, mine: torch.Tensor) -> Work:

        def finish(result: torch.Tensor) -> None:
            target = _bytes(out)
            if result.numel() != target.numel():
                raise RuntimeError(
                    f"the ranks sent {result.numel()} bytes, expected {target.numel()}: they did "
                    "not start the same collectives"
                )
            target.copy_(result)

        return self._start(library.allgather_async, _bytes(mine), finish=finish)

    @override
    def all_reduce(self, tensor: torch.Tensor) -> Work:
        """Start to replace a tensor by its sum over all ranks; bfloat16 is summed in float32."""
        if tensor.layout != torch.strided:
            return self._sum_sparse(tensor)
        return self._reduce(tensor, library.Sum)

    def average(self, tensor: torch.Tensor) -> Work:
        """Start to replace a tensor by its average, as Horovod's own optimizer takes it.

        bfloat16 is summed in float32, and a sparse tensor by its entries.
        """
        if tensor.layout != torch.strided:
            return _All([self._sum_sparse(tensor)], lambda: tensor.div_(self.size))
        return self._reduce(tensor, library.Average)

    @override
    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        return self._start(library.broadcast_async_, _bytes(tensor), self._set.ranks[source])

    @override
    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout

    def _reduce(self, tensor: torch.Tensor, op: Any) -> Work:
        bf16 = tensor.dtype == torch.bfloat16  # which Horovod does not know
        wire, finish = (tensor.float(), tensor.copy_) if bf16 else (tensor, _nothing)
        return self._start(library.allreduce_async_, wire, finish=finish, op=op)

    def _sum_sparse(self, tensor: torch.Tensor) -> Work:
        """Gather the entries of all ranks, and sum those with equal indices, in rank order."""
        part = tensor if tensor.is_coalesced() else tensor.coalesce()
        indices = part.indices().t().contiguous()  # an entry after another
        values = part.values().contiguous()
        results: list[torch.Tensor] = []
        works = [
            self._start(library.allgather_async, _bytes(tensor), finish=results.append)
            for tensor in (indices, values)
        ]

        def finish() -> None:
            places, numbers = results
            every = torch.sparse_coo_tensor(
                places.view(indices.dtype).view(-1, indices.shape[1]).t(),
                numbers.view(values.dtype).view(-1, *values.shape[1:]),
                tensor.shape,
                check_invariants=False,
            )
            total = every.coalesce()
            # In place: the caller has this tensor.
            tensor.zero_()
            tensor.add_(total.to(tensor.device))

        return _All(works, finish)

    def _start(
        self,
        start: Callable[..., int],
        *arguments: Any,
        finish: Callable[[torch.Tensor], Any] = _nothing,
        **options: Any,
    ) -> _Pending:
        if not self.is_open:
            raise ExchangeError(
                "hvd.init() or hvd.shutdown() was called since this optimizer was made: make it "
                "again"
            )
        if len(self._latest) == _NAMES:  # the name of the oldest one is used again
            self._latest[0].wait()
        name = f"gradwire.{self._number}.{self._started % _NAMES}"
        self._started += 1
        _await_shutdown()
        try:
            handle = start(*arguments, name=name, process_set=self._set, **options)
        except InternalError as error:
            raise _lost(error) from error
        work = _Pending(handle, finish, lambda: self.timeout)
        self._latest.append(work)
        return work


class HorovodTransport(Transport):
    """Makes channels of one process set; see `HorovodChannel`."""

    def __init__(self, process_set: Any, timeout: timedelta | None) -> None:
        self._set = process_set
        self._timeout = timeout

    @override
    def device_backends(
        self, tensors: Iterable[torch.Tensor], *, frames: bool = True
    ) -> dict[str, str]:
        """Return no device backends: Horovod transfers frames from host memory."""
        return {"cpu": "horovod"}

    @override
    def make(self, device_backends: Mapping[str, str] = NO_DEVICE_BACKENDS) -> HorovodChannel:
        """Make a channel. It costs nothing: a channel is a name."""
        return HorovodChannel(self._set, self._timeout)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor: Horovod does not support every dtype, such as bfloat16."""
    return tensor.contiguous().view(-1).view(torch.uint8)
