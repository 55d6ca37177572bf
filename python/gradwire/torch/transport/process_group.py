"""The transport of torch.distributed: makes and destroys the process groups of one attachment."""

import hashlib
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from typing_extensions import override

from gradwire import _validate
from gradwire.torch import backends
from gradwire.torch.errors import ExchangeError
from gradwire.torch.transport.channel import (
    NO_DEVICE_BACKENDS,
    Channel,
    LocalChannel,
    Work,
    close_in_time,
)

_ABSENT = re.compile(r"wait timeout(?: after \d+ ?ms, keys: \S*/(\d+))?$", re.IGNORECASE)
"""A wait for the address of a rank of a new group, which that rank has never written."""

_BY_HOST = ("gloo", "mpi", "ucc", "undefined")
"""Backends that frames on a device are not given to: Gloo copies to the host by itself, slowly."""

_distributed: Any = dist  # whose options are not among its exported types

_names: "weakref.WeakKeyDictionary[dist.ProcessGroup, Counter[tuple[int, ...]]]"
_names = weakref.WeakKeyDictionary()
"""How many groups of the same ranks were made, in the lifetime of that of all ranks."""


class PointToPoint:
    """Parts in transfer from and to other ranks; `wait` waits for them in order.

    The timeout applies to each part; it defaults to that of the group.
    """

    def __init__(self, works: Sequence[Any], timeout: timedelta | None = None) -> None:
        self._works = works
        self._timeout = timeout

    def wait(self) -> None:
        """Wait until all parts have arrived, and sent ones may be overwritten; see `Work`."""
        for work in self._works:
            came = work.wait() if self._timeout is None else work.wait(self._timeout)
            if came is False:  # the group was taken down meanwhile
                raise RuntimeError("a message between two ranks was given up")


def swap(
    group: Any,
    rank: int,
    theirs: Sequence[torch.Tensor],
    mine: Sequence[torch.Tensor],
    timeout: timedelta | None = None,
) -> PointToPoint:
    """Start to send one part to each rank, and to receive one of each, both in rank order.

    In Gloo a receiver requests a message before the sender may send it, and the request waits
    behind data that its rank is sending in the same direction. If a rank sends first and requests
    later, as in Gloo's collectives, the two directions of a link take turns. So here all requests
    go out before the first part.

    The group is a ProcessGroup or ProcessGroupGloo, which uses Gloo for CPU tensors, and has no
    other user. Parts are on the CPU, and contiguous; empty ones are not sent.
    """
    size = len(mine)
    theirs[rank].copy_(mine[rank])
    works = []
    # Each rank first receives from the one that sends to it first.
    for step in range(1, size):
        other = (rank - step) % size
        if theirs[other].numel():
            works.append(group.recv([theirs[other]], other, 0))
    for step in range(1, size):
        other = (rank + step) % size
        if mine[other].numel():
            works.append(group.send([mine[other]], other, 0))
    return PointToPoint(works, timeout)


class ProcessGroupChannel(LocalChannel):
    """A channel: a process group with no other user."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank: int = group.rank()
        self.size: int = group.size()
        self._timeout: timedelta | None = None

    @property
    @override
    def is_open(self) -> bool:
        return _is_registered(self.group)

    @override
    def all_gather(self, out: torch.Tensor, mine: torch.Tensor) -> Work:
        if self.size == 2 and out.is_cpu:
            parts = out.chunk(2), (mine, mine)
            return self._start(swap, self.group, self.rank, *parts, self._timeout)
        return self._start(self.group._allgather_base, out, mine)

    @override
    def all_to_all(
        self,
        out: torch.Tensor,
        mine: torch.Tensor,
        out_sizes: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> Work:
        even = mine.numel() // self.size
        theirs, sent = (
            [even] * self.size if lengths is None else list(lengths)
            for lengths in (out_sizes, sizes)
        )
        if out.is_cpu:
            parts = torch.split(out, theirs), torch.split(mine, sent)
            return self._start(swap, self.group, self.rank, *parts, self._timeout)
        return self._start(self.group.alltoall_base, out, mine, theirs, sent)

    @override
    def all_reduce(self, tensor: torch.Tensor) -> Work:
        return self._start(self.group.allreduce, [tensor])

    @override
    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        options = _distributed.BroadcastOptions()
        options.rootRank = source
        return self._start(self.group.broadcast, [tensor], options)

    @override
    def gather(self, mine: torch.Tensor, to: int) -> list[torch.Tensor]:
        parts = [torch.empty_like(mine) for _ in range(self.size)] if self.rank == to else []
        options = _distributed.GatherOptions()
        options.rootRank = to
        self._start(self.group.gather, [parts] if parts else [], [mine], options).wait()
        return parts

    @override
    def set_timeout(self, timeout: timedelta) -> None:
        # Of collectives, and of messages between two ranks.
        self.group._get_backend(torch.device("cpu"))._set_default_timeout(timeout)
        self._timeout = timeout

    def _start(self, start: Callable[..., Work], *arguments: Any) -> Work:
        """Start a collective; a failure is reported as one of the other ranks."""
        other = 1 - self.rank if self.size == 2 else None
        try:
            return _Collective(start(*arguments), other)
        except RuntimeError as error:
            if "onnection" not in str(error):  # what is wrong is here
                raise
            raise _lost(other, error) from error


class _Collective:
    """A collective in progress, with the other rank if there is only one."""

    def __init__(self, work: Work, other: int | None) -> None:
        self._work = work
        self._other = other

    def wait(self) -> None:
        """Wait for it."""
        try:
            self._work.wait()
        except RuntimeError as error:
            raise _lost(self._other, error) from error


def _lost(rank: int | None, error: RuntimeError) -> ExchangeError:
    who = "another rank" if rank is None else f"rank {rank}"
    return ExchangeError(
        f"{who} has failed, has ended or did not take part in time; see its output "
        f"({str(error).strip()})",
        rank,
    )


class ProcessGroups:
    """Makes process groups of the same ranks as a given one, and destroys them.

    gradwire uses its own groups, so that its collectives cannot mix with those of DDP. Each group
    costs three threads and five file descriptors, and torch keeps it until it is destroyed. All of
    them support CPU tensors, over Gloo: for messages, and for frames on the host. The new groups
    have these global ranks, by default those of the given group, and this timeout, by default that
    of the given group.
    """

    def __init__(
        self,
        over: dist.ProcessGroup,
        timeout: timedelta | None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        _validate.timeout(timeout)
        self._given: dist.ProcessGroup | None = over
        self._timeout = timeout
        self._ranks = dist.get_process_group_ranks(over) if ranks is None else list(ranks)
        self._whole = over is dist.group.WORLD and len(self._ranks) == over.size()
        self._made: list[dist.ProcessGroup] = []

    @property
    def _over(self) -> dist.ProcessGroup:
        if self._given is None:
            raise RuntimeError("no more groups can be made after seal()")
        return self._given

    def seal(self) -> None:
        """Make no more groups, and release the given one for garbage collection."""
        self._given = None

    def device_backends(
        self, tensors: Iterable[torch.Tensor], *, frames: bool = True
    ) -> dict[str, str]:
        """Return the communication backend for frames on these tensors' devices, by device type.

        This is the given group's backend for the device, such as ``{"cuda": "nccl"}``, if frames
        can stay there; without ``frames``, if values can. Devices without an entry use the host.
        """
        stays = "can_stay_on_device" if frames else "values_stay"
        stays_by_kind = [
            (tensor.device.type, getattr(backends.backend_for(tensor), stays)) for tensor in tensors
        ]
        # One device of a kind may not run the kernels.
        there = {kind for kind, _ in stays_by_kind} - {
            kind for kind, stays in stays_by_kind if not stays
        }
        config = dist.BackendConfig(dist.get_backend_config(self._over))
        known = config.get_device_backend_map().items()
        return {kind: by for kind, by in known if kind in there and by not in _BY_HOST}

    def make(self, device_backends: Mapping[str, str] = NO_DEVICE_BACKENDS) -> ProcessGroupChannel:
        """Make another group, which also supports tensors on these devices. A collective.

        Returns once all ranks have the group: whoever left it before would end the connections
        that another rank is still making. Raises an ExchangeError if Gloo could not connect them.
        """
        timeout = self._timeout
        if timeout is None:
            timeout = _timeout(self._over)
        kinds = {"cpu": "gloo", **device_backends}
        world: Any = dist.group.WORLD
        bound = getattr(world, "bound_device_id", None)
        if bound is not None and self._whole:
            # torch asks such a group what moves tensors of that device
            kinds.setdefault(bound.type, "gloo")
        elif bound is not None:
            # torch would split the group off that of all ranks, which every one of them has to do,
            # attached or not. So these ranks connect by themselves, as without devices.
            world.bound_device_id = None
        try:
            group = _new_group(
                self._ranks,
                timeout=timeout,
                backend=",".join(f"{kind}:{by}" for kind, by in kinds.items()),
                use_local_synchronization=not self._whole,
                group_desc="gradwire",
            )
        except RuntimeError as error:
            if absent := _ABSENT.search(str(error).strip()):
                rank = None if absent[1] is None else int(absent[1])  # some stores do not say
                who = "another rank" if rank is None else f"rank {rank}"
                raise ExchangeError(
                    f"{who} did not call attach() in time: every rank has to call it; see the "
                    f"output of that rank ({str(error).strip()})",
                    rank,
                ) from error
            raise ExchangeError(
                "gradwire could not make a process group: its messages between the ranks go over "
                "Gloo, even if frames go over NCCL. If Gloo finds no network that connects the "
                f"machines, name its interface with GLOO_SOCKET_IFNAME ({str(error).strip()})"
            ) from error
        finally:
            if bound is not None:
                world.bound_device_id = bound
        if not isinstance(group, dist.ProcessGroup):
            raise ValueError("this rank is not in the process group passed to attach()")
        self._made.append(group)
        channel = ProcessGroupChannel(group)
        channel.all_reduce(torch.zeros(1, device="cpu")).wait()  # whatever the default device is
        return channel

    def connect(
        self, channel: Channel, device_backends: Mapping[str, str], tensors: Iterable[torch.Tensor]
    ) -> None:
        """Connect the ranks of a channel on the devices of these tensors. A collective.

        NCCL connects in the first collective on a device. That takes memory and time, and may wait
        for the device: not in the middle of a backward pass.
        """
        for device in dict.fromkeys(tensor.device for tensor in tensors):
            by = device_backends.get(device.type)
            if by is None:
                continue
            one = torch.ones(1, device=device)
            try:
                channel.all_reduce(one).wait()
                one.item()  # which waits for it
            except RuntimeError as error:
                raise ExchangeError(
                    f"the ranks could not be connected by {by} on {device}: {str(error).strip()}"
                ) from error

    def leave(self) -> None:
        """Destroy all groups. A second call has no effect.

        Does not wait for other ranks; a rank that still reads is cut off. When torch destroys a
        group, it waits for collectives in progress; if that takes long, it continues on a thread of
        its own. Groups that no longer exist, because torch.distributed was shut down (and perhaps
        initialized again) in between, are only dropped.
        """
        made, self._made = [group for group in self._made if _is_registered(group)], []
        # Nobody else refers to a group then: whoever drops the last reference has to wait, too.
        close_in_time(dist.destroy_process_group, made)


def _new_group(ranks: Sequence[int], *, use_local_synchronization: bool, **options: Any) -> Any:
    """Make a group, as `torch.distributed.new_group` does.

    torch names a group that other ranks do not know by its ranks, and in releases such as 2.11 by
    the number of groups. So a group that replaces a destroyed one has the same name, reads the old
    group's addresses in the store, and never connects. And ranks with different numbers of other
    groups give it different names.
    """
    named_by = "_hash_ranks_to_str"
    original: Any = getattr(c10d, named_by, None)
    if not use_local_synchronization or original is None:
        return dist.new_group(ranks, use_local_synchronization=use_local_synchronization, **options)
    world = dist.group.WORLD
    assert world is not None
    counts = _names.setdefault(world, Counter())
    counts[tuple(ranks)] += 1
    text = "_".join(map(str, ["gradwire", counts[tuple(ranks)], *ranks]))
    name = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    setattr(c10d, named_by, lambda ranks: name)
    try:
        return dist.new_group(ranks, use_local_synchronization=True, **options)
    finally:
        setattr(c10d, named_by, original)


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """Return the timeout of a group; None for torch's default if it does not tell."""
    for device in group._device_types:
        try:
            timeout: timedelta = group._get_backend(device).options._timeout
        except (RuntimeError, AttributeError):
            continue
        return timeout
    return None


def _is_registered(group: dist.ProcessGroup) -> bool:
    try:
        return dist.is_initialized() and bool(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return False
