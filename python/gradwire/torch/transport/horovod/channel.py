"""Channels of Horovod, whose collectives have names."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import torch

from gradwire.torch.errors import ExchangeError
from gradwire.torch.transport import messages
from gradwire.torch.transport.channel import NO_CARRIERS, Channel, Work
from gradwire.torch.transport.horovod.library import initialization, library
from gradwire.torch.transport.horovod.pending import All, Pending, nothing, starting

__all__ = ["HorovodChannel", "HorovodTransport"]

_NAMES = 64
"""Names of a channel, used in turn: new ones would fill Horovod's response cache."""


class _Numbers:
    """Numbers of channels, which all ranks count alike since Horovod was initialized last."""

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


class HorovodChannel:
    """Collectives of one process set, under names that nothing else has.

    Horovod matches collectives by name, and refuses a name that is in progress. All ranks start the
    same ones in the same order, so the names of a channel are used in turn.

    Parameters
    ----------
    process_set : horovod.ProcessSet
    timeout : datetime.timedelta, optional
        How long to wait for other ranks; for ever by default, as Horovod does.
    """

    def __init__(self, process_set: Any, timeout: timedelta | None) -> None:
        self._set = process_set
        self.timeout = timeout
        self.rank = int(process_set.rank())
        self.size = int(process_set.size())
        self._initialization = initialization()
        self._number = _numbers.take(tuple(process_set.ranks))
        self._started = 0
        self._latest: deque[Pending] = deque(maxlen=_NAMES)

    @property
    def is_open(self) -> bool:
        """Whether Horovod is still initialized, and was not shut down in between."""
        return bool(library.is_initialized()) and self._initialization is initialization()

    def all_gather(self, out: torch.Tensor, mine: torch.Tensor) -> Work:
        """Start to fill ``out`` with ``mine`` of all ranks, in rank order."""

        def finish(found: torch.Tensor) -> None:
            target = _bytes(out)
            if found.numel() != target.numel():
                raise RuntimeError(
                    f"the ranks sent {found.numel()} bytes, expected {target.numel()}: they did "
                    "not start the same collectives"
                )
            target.copy_(found)

        return self._gather(_bytes(mine), finish)

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        """Start to replace a tensor by its sum over all ranks; bfloat16 is summed in float32."""
        if tensor.layout != torch.strided:
            return self._sum_sparse(tensor)
        return self._reduce(tensor, library.Sum)

    def average(self, tensor: torch.Tensor, predivide: float = 1.0) -> Work:
        """Start to replace a tensor by its average, as Horovod's own optimizer takes it.

        Parameters
        ----------
        tensor : torch.Tensor
            bfloat16 is summed in float32, and a sparse one by its entries.
        predivide : float
            By what is divided before the sum, to multiply by it afterwards.
        """
        if tensor.layout != torch.strided:
            return All([self._sum_sparse(tensor)], lambda: tensor.div_(self.size))
        return self._reduce(
            tensor, library.Average, prescale_factor=1.0 / predivide, postscale_factor=predivide
        )

    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        """Start to replace a tensor by that of one rank."""
        root, name = self._set.ranks[source], self._name()
        with starting():
            handle = library.broadcast_async_(
                _bytes(tensor), root, name=name, process_set=self._set
            )
        return self._follow(handle, nothing)

    def gather(self, mine: torch.Tensor, to: int) -> list[torch.Tensor]:
        """Return the tensors of all ranks on one of them; an empty list on the others."""
        every = mine.new_empty(self.size * mine.numel())
        self.all_gather(every, mine.flatten()).wait()
        return [each.view_as(mine) for each in every.chunk(self.size)] if self.rank == to else []

    def all_gather_object(self, mine: Any) -> list[Any]:
        """Return what all ranks tell, as `messages.all_gather`."""
        return messages.all_gather(self, mine)

    def set_timeout(self, timeout: timedelta) -> None:
        """Wait no longer than this from now on."""
        self.timeout = timeout

    def _reduce(self, tensor: torch.Tensor, op: Any, **factors: float) -> Work:
        bf16 = tensor.dtype == torch.bfloat16  # which Horovod does not know
        wire = tensor.float() if bf16 else tensor
        name = self._name()
        with starting():
            handle = library.allreduce_async_(
                wire, name=name, op=op, process_set=self._set, **factors
            )
        return self._follow(handle, tensor.copy_ if bf16 else nothing)

    def _gather(self, mine: torch.Tensor, finish: Callable[[torch.Tensor], None]) -> Work:
        """Start to concatenate bytes of all ranks, of any number."""
        name = self._name()
        with starting():
            handle = library.allgather_async(mine, name=name, process_set=self._set)
        return self._follow(handle, finish)

    def _sum_sparse(self, tensor: torch.Tensor) -> Work:
        """Gather the entries of all ranks, and add up what has the same indices, in rank order."""
        part = tensor if tensor.is_coalesced() else tensor.coalesce()
        indices = part.indices().t().contiguous()  # an entry after another
        values = part.values().contiguous()
        found: list[torch.Tensor] = []
        works = [self._gather(_bytes(each.view(-1)), found.append) for each in (indices, values)]

        def finish() -> None:
            places, numbers = found
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

        return All(works, finish)

    def _name(self) -> str:
        if not self.is_open:
            raise ExchangeError(
                "hvd.init() or hvd.shutdown() was called since this optimizer was made: make it "
                "again"
            )
        if len(self._latest) == _NAMES:  # the name of the oldest one is used again
            self._latest[0].wait()
        name = f"gradwire.{self._number}.{self._started % _NAMES}"
        self._started += 1
        return name

    def _follow(self, handle: int, finish: Callable[[torch.Tensor], Any]) -> Pending:
        work = Pending(handle, finish, lambda: self.timeout)
        self._latest.append(work)
        return work


class HorovodTransport:
    """Makes channels of one process set.

    Parameters
    ----------
    process_set : horovod.ProcessSet
    timeout : datetime.timedelta, optional
        How long to wait for other ranks; for ever by default, as Horovod does.
    """

    def __init__(self, process_set: Any, timeout: timedelta | None) -> None:
        self._set = process_set
        self._timeout = timeout

    def carriers(self, tensors: Iterable[torch.Tensor]) -> dict[str, str]:
        """Return what moves frames: Horovod, from the memory of the host."""
        del tensors
        return {"cpu": "horovod"}

    def make(self, carriers: Mapping[str, str] = NO_CARRIERS) -> HorovodChannel:
        """Make a channel. It costs nothing: a channel is a name."""
        del carriers
        return HorovodChannel(self._set, self._timeout)

    def connect(
        self, channel: Channel, carriers: Mapping[str, str], tensors: Iterable[torch.Tensor]
    ) -> None:
        """Return: Horovod has connected the ranks."""

    def leave(self) -> None:
        """Return: there is nothing to close."""


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a tensor: Horovod does not know every dtype, bfloat16 for one."""
    return tensor.contiguous().view(-1).view(torch.uint8)
