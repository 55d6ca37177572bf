"""The interface of every transport, which moves bytes between ranks."""

import abc
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Protocol

import torch

from gradwire.torch.errors import ExchangeError
from gradwire.torch.transport import messages

NO_DEVICE_BACKENDS: Mapping[str, str] = MappingProxyType({})  # frames are on the host
_PATIENCE = 5.0  # seconds to wait for collectives in progress when channels are closed


class Work(Protocol):
    """A collective that was started."""

    def wait(self) -> Any:
        """Wait for the collective; for one on a device, on the current stream.

        Raises a RuntimeError if it failed: another rank has stopped, or did not start it in time.
        """


class Channel(abc.ABC):
    """Collectives between fixed ranks, which are counted from 0.

    Every rank starts the same ones in the same order. Collectives of different channels never mix;
    so a channel has one user, and one thread at a time.
    """

    rank: int
    size: int

    @property
    @abc.abstractmethod
    def is_open(self) -> bool:
        """Whether collectives can still be started: not after the transport was shut down."""

    @abc.abstractmethod
    def all_gather(self, out: torch.Tensor, mine: torch.Tensor) -> Work:
        """Start to fill ``out`` with ``mine`` of all ranks, in rank order.

        ``mine`` has the shape (n,) and one dtype on every rank, ``out`` (size * n,). It may be this
        rank's part of ``out``.
        """

    @abc.abstractmethod
    def all_reduce(self, tensor: torch.Tensor) -> Work:
        """Start to replace a tensor by its sum over all ranks, the same bits on each of them.

        A sparse tensor has any number of entries on each rank.
        """

    @abc.abstractmethod
    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        """Start to replace a tensor by that of one rank."""

    @abc.abstractmethod
    def set_timeout(self, timeout: timedelta) -> None:
        """Limit waits to this time from now on, if the transport supports it."""

    def gather(self, mine: torch.Tensor, to: int) -> list[torch.Tensor]:
        """Return the tensors of all ranks on one of them; an empty list on the others."""
        every = mine.new_empty(self.size * mine.numel())
        self.all_gather(every, mine.flatten()).wait()
        return [row.view_as(mine) for row in every.chunk(self.size)] if self.rank == to else []

    def all_gather_object(self, mine: Any) -> list[Any]:
        """Return the objects of all ranks, in rank order.

        Objects are JSON: text, finite numbers, bool, None, and lists, tuples and dicts of these.
        Tuples arrive as lists, and keys as text, also on this rank. Every rank raises an
        ExchangeError if the object of one is anything else, or too large.
        """
        failure: Exception | None = None
        data = b""
        try:
            data = messages.write(mine)
        except (TypeError, ValueError, RecursionError) as error:
            failure = error  # told below: the other ranks wait for a message
        lengths = torch.zeros(self.size, dtype=torch.int64, device="cpu")
        self.all_gather(lengths, torch.tensor([len(data)], device="cpu")).wait()
        for rank, length in enumerate(lengths.tolist()):
            if length == 0:
                reason = "" if failure is None else f": {failure}"
                raise ExchangeError(
                    f"rank {rank} has a message that JSON cannot represent{reason}", rank
                ) from failure
            if not 0 < length <= messages.LIMIT:
                raise ExchangeError(
                    f"rank {rank} sends a message of {length} bytes, expected at most "
                    f"{messages.LIMIT}",
                    rank,
                )
        longest = int(lengths.max())
        message = torch.frombuffer(bytearray(data.ljust(longest)), dtype=torch.uint8)
        every = message.new_empty(self.size * longest)
        self.all_gather(every, message).wait()
        return [_read(rank, row) for rank, row in enumerate(every.view(self.size, longest))]


@dataclass(frozen=True, slots=True)
class RankTopology:
    """The position of a rank: it owns one share of every gradient, as does one rank per node."""

    rank: int  # among all ranks
    node: int
    share: int  # in that node
    grid: tuple[tuple[int, int], ...]  # node and share of every rank

    @classmethod
    def alone(cls, rank: int, size: int) -> "RankTopology":
        """Return the place of a rank that is a node by itself."""
        return cls(rank, rank, 0, tuple((node, 0) for node in range(size)))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.grid)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return max(node for node, _ in self.grid) + 1

    @property
    def shares(self) -> int:
        """Number of ranks per node, which is also the number of shares."""
        return max(share for _, share in self.grid) + 1

    @property
    def measures(self) -> bool:
        """Whether this rank's gradients are measured for all: those of the first node."""
        return self.node == 0

    @property
    def partners(self) -> list[int]:
        """The ranks that own the same share as this rank, in the order of nodes."""
        return [self.grid.index((node, self.share)) for node in range(self.nodes)]

    def rank_of(self, node: int | None, share: int) -> int | None:
        """Return the rank that has a share in a node; None for an unknown node."""
        return None if node is None or node < 0 else self.grid.index((node, share))


class LocalChannel(Channel):
    """A channel that also has all-to-all collectives."""

    @abc.abstractmethod
    def all_to_all(
        self,
        out: torch.Tensor,
        mine: torch.Tensor,
        out_sizes: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> Work:
        """Start to send one part of ``mine`` to each rank, and to fill ``out`` with theirs.

        Both are one-dimensional, with the parts in rank order, which have these lengths; by default
        all are equal.
        """


class Transport(Protocol):
    """Makes the channels of one attachment, and closes them."""

    def device_backends(
        self, tensors: Iterable[torch.Tensor], *, frames: bool = True
    ) -> dict[str, str]:
        """Return the communication backend for frames on these devices, by device type.

        For example ``{"cuda": "nccl"}``. Devices without an entry use the host; by default all do.
        Without ``frames``, return the backends for values that are sent uncompressed or summed,
        which need no kernels.
        """
        return {}

    def make(self, device_backends: Mapping[str, str] = NO_DEVICE_BACKENDS) -> Channel:
        """Make a channel, which also supports tensors on these devices. A collective.

        Raises an ExchangeError if the ranks could not be connected; so does `connect`.
        """

    def connect(
        self, channel: Channel, device_backends: Mapping[str, str], tensors: Iterable[torch.Tensor]
    ) -> None:
        """Connect the ranks of a channel on the devices of these tensors. A collective.

        By default, `make` has connected them.
        """
        return

    def leave(self) -> None:
        """Close all channels, without waiting for other ranks. A second call has no effect."""
        return


def close_in_time(close: Callable[[Any], None], made: list[Any]) -> None:
    """Close a transport's resources. If that takes long, it continues in another thread."""

    def close_all() -> None:
        while made:
            close(made.pop())

    if made:
        thread = threading.Thread(target=close_all, name="gradwire-leave", daemon=True)
        thread.start()
        thread.join(_PATIENCE)


def _read(rank: int, row: torch.Tensor) -> Any:
    try:
        return messages.read(row.numpy().tobytes())
    except ValueError as error:
        raise ExchangeError(f"rank {rank} sent a message that cannot be read: {error}", rank) from (
            error
        )
