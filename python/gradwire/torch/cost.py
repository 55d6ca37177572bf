"""The link between the ranks of a process group, measured on the group itself."""

import statistics
import time

import torch
import torch.distributed as dist

from gradwire import _validate
from gradwire.cost import Link
from gradwire.cost.calibration import line

__all__ = ["measure_link"]

_SMALL = 64
_FIRST = 1 << 14
_GROWTH = 4
_LARGEST = 1 << 26
_REPEATS = 5
_LEAST = 4


def measure_link(
    group: dist.ProcessGroup | None = None,
    *,
    seconds: float = 1.0,
    device: torch.device | str = "cpu",
) -> Link:
    """Measure latency and bandwidth by all-reduces of growing size.

    All ranks of the group must call it. Each all-reduce takes as long as its slowest rank says; a
    line through their times gives the link of `gradwire.cost.Network`, of a ring of all ranks.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        The default group if None.
    seconds : float
        About how long it takes: sizes grow to at least 256 KiB, until a fifth of it is one
        all-reduce, and to 64 MiB at most.
    device : torch.device or str
        Where the tensors lie: "cuda" for NCCL.

    Returns
    -------
    Link
        The same on all ranks. Its bandwidth is that of payload, below the wire's, and includes the
        additions.

    Raises
    ------
    ValueError
        The group has one rank, or no time is given.
    """
    if not _validate.positive("seconds", seconds) > 0.0:
        raise ValueError("seconds must be above 0, got 0")
    ranks = dist.get_world_size(group)
    if ranks < 2:
        raise ValueError("a link takes two ranks, and this process group has one")
    vector = torch.zeros(_LARGEST // 4, device=device)
    points = [(float(_SMALL), _all_reduce(vector[: _SMALL // 4], group))]
    nbytes = _FIRST
    while len(points) < _LEAST or (
        nbytes <= _LARGEST and points[-1][1] < seconds / (_GROWTH * _REPEATS)
    ):
        points.append((float(nbytes), _all_reduce(vector[: nbytes // 4], group)))
        nbytes *= _GROWTH
    found = line([(nbytes, 0.0, seconds) for nbytes, seconds in points])
    # The largest message alone, where all would have one time.
    per_byte = max(found.per_numel, 1e-3 * points[-1][1] / points[-1][0])
    rounds = 2 * (ranks - 1)
    return Link(8.0 * rounds / ranks / per_byte, found.fixed / rounds)


def _all_reduce(vector: torch.Tensor, group: dist.ProcessGroup | None) -> float:
    """Return the median time of an all-reduce on the slowest rank, the same on all ranks."""
    times = torch.zeros(_REPEATS, dtype=torch.float64, device=vector.device)
    dist.all_reduce(vector, group=group)
    for repeat in range(_REPEATS):
        dist.barrier(group=group)
        begin = time.perf_counter()
        dist.all_reduce(vector, group=group)
        if vector.is_cuda:
            torch.cuda.synchronize(vector.device)
        times[repeat] = time.perf_counter() - begin
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=group)
    return float(statistics.median(times.tolist()))
