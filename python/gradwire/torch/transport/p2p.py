"""Gloo's ranks exchange parts directly, both ways at once.

In Gloo a receiver requests a message before the sender may send it, and the request waits behind
data that its rank is sending in the same direction. If a rank sends first and requests later, as in
Gloo's collectives, the two directions of a link take turns. So here all requests go out before the
first part.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch


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
