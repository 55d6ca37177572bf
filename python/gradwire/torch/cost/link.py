"""The link between the ranks of a process group, measured on the group itself."""

import statistics
import time
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist

from gradwire import _validate
from gradwire.cost import Link
from gradwire.cost.calibration import line

_SMALL = 64
_FIRST = 1 << 14
_GROWTH = 4
_LARGEST = 1 << 26
_MOST = 8
"""Sizes from the smallest to the largest."""
_REPEATS = (5, 25)
_LEAST = 5
"""Sizes that are measured at least, up to 1 MiB."""
_FEW, _SLOW = 4, 0.2
"""As many, up to 256 KiB, are enough where one all-reduce takes this share of the seconds: smaller
ones go through at once after a pause, as far as a link lets them."""


class Collectives(Protocol):
    """The collectives with which a link is measured."""

    size: int
    """Number of ranks."""

    def add_up(self, vector: torch.Tensor) -> None:
        """Replace a vector by its sum over all ranks."""

    def meet(self) -> None:
        """Wait until all ranks are here."""

    def longest(self, times: torch.Tensor) -> torch.Tensor:
        """Return the largest of each of these times on all ranks."""


class _Group:
    """The collectives of a process group."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.size = dist.get_world_size(group)

    def add_up(self, vector: torch.Tensor) -> None:
        dist.all_reduce(vector, group=self._group)

    def meet(self) -> None:
        dist.barrier(group=self._group)

    def longest(self, times: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(times, op=dist.ReduceOp.MAX, group=self._group)
        return times


def measure_link(
    group: dist.ProcessGroup | None = None,
    *,
    seconds: float = 1.0,
    device: torch.device | str = "cpu",
    progress: Callable[[str, float], object] | None = None,
) -> Link:
    """Measure latency, bandwidth and processor time by all-reduces of growing size.

    All ranks of the group must call it. An all-reduce takes as long as on its slowest rank, and the
    median of several of one size is used: the fastest profits from the burst that a link lets
    through after a pause, and training does not pause. The smallest size gives the latency of
    `gradwire.cost.Network`, of a ring of all ranks, and the largest its bandwidth: sizes in between
    may or may not fit into a burst of the link. The smallest processor times are used, as other
    work only adds to them.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        The default group if None.
    seconds : float
        About how long it takes: sizes grow until a twentieth of it is one all-reduce, and to 64 MiB
        at most. They grow to at least 1 MiB, or to 256 KiB if one all-reduce takes a fifth of it
        then.
    device : torch.device or str
        Device of the tensors: "cuda" for NCCL.
    progress : callable, optional
        Called as ``progress(what, done)`` with the size that is measured and the share of all sizes
        that is done, from 0 to 1, on the ranks that are given one. It must not raise: other ranks
        would wait.

    Returns
    -------
    Link
        The same on all ranks. Its bandwidth is that of payload, below the wire's, and includes the
        additions. Its overhead and processor time are those of this process, 0 for a device.

    Raises
    ------
    ValueError
        The group has one rank, or no time is given.
    """
    return measure_by(_Group(group), seconds=seconds, device=device, progress=progress)


def measure_by(
    collectives: Collectives,
    *,
    seconds: float,
    device: torch.device | str = "cpu",
    progress: Callable[[str, float], object] | None = None,
) -> Link:
    """Measure a link as `measure_link` does, by these collectives."""
    tell = _validate.progress(progress)
    if not _validate.positive("seconds", seconds) > 0.0:
        raise ValueError("seconds must be above 0, got 0")
    ranks = collectives.size
    if ranks < 2:
        raise ValueError("measuring a link needs two ranks, and this process group has one")
    vector = torch.zeros(_LARGEST // 4, device=device)
    nbytes, last = _SMALL, 0.0
    points: list[tuple[float, float, float]] = []
    least, most = _REPEATS
    while (
        len(points) < _FEW
        or (len(points) < _LEAST and last < _SLOW * seconds)
        or (nbytes <= _LARGEST and last < seconds / (_GROWTH * least))
    ):
        tell(f"{nbytes:,} bytes", len(points) / _MOST)
        fitting = most if last == 0.0 else int(seconds / (2 * _GROWTH * last))
        found = _all_reduce(vector[: nbytes // 4], collectives, min(max(least, fitting), most))
        points.append((float(nbytes), *found))
        last = found[0]
        nbytes = max(_FIRST, nbytes * _GROWTH)
    tell("done", 1.0)
    fixed = min(points[0][1], last)
    # All sizes may take one time where the link is fast and the processor busy.
    per_byte = max(last - fixed, 1e-3 * last) / points[-1][0]
    rounds = 2 * (ranks - 1)
    bandwidth = 8.0 * rounds / ranks / per_byte
    if vector.is_cuda:
        return Link(bandwidth, fixed / rounds)
    used = line([(nbytes, 0.0, max(processor, 1e-9)) for nbytes, _, processor in points])
    overhead = min(used.fixed, fixed)
    return Link(
        bandwidth,
        (fixed - overhead) / rounds,
        overhead / rounds,
        used.per_numel * ranks / rounds,
    )


def _all_reduce(
    vector: torch.Tensor, collectives: Collectives, repeats: int
) -> tuple[float, float]:
    """Return the median time of an all-reduce, and the least of a processor, on all ranks."""
    times = torch.zeros(2, repeats, dtype=torch.float64, device=vector.device)
    collectives.add_up(vector)
    for repeat in range(repeats):
        collectives.meet()
        begin, worked = time.perf_counter(), time.process_time()
        collectives.add_up(vector)
        if vector.is_cuda:
            torch.cuda.synchronize(vector.device)
        times[0, repeat] = time.perf_counter() - begin
        times[1, repeat] = time.process_time() - worked
    seconds, processor = collectives.longest(times).tolist()
    return statistics.median(seconds), min(processor)
