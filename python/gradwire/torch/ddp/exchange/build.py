"""Makes the object that carries out a codec's exchange."""

from collections.abc import Callable

import torch.distributed as dist

from gradwire.exchange import AllGather, AllReduce
from gradwire.exchange import Exchange as Part
from gradwire.torch.ddp.exchange.all_gather import Gathered
from gradwire.torch.ddp.exchange.all_reduce import Reduced
from gradwire.torch.ddp.exchange.base import Exchange
from gradwire.torch.ddp.exchange.leader_indices import Led

__all__ = ["build"]


def build(
    part: Part,
    group: dist.ProcessGroup,
    another: Callable[[], dist.ProcessGroup],
    *,
    check_result: bool,
) -> Exchange:
    """Return the object that carries out an exchange.

    Parameters
    ----------
    part : gradwire.exchange.Exchange
    group : torch.distributed.ProcessGroup
        A group with no other user.
    another : callable
        Makes another such group; a collective.
    check_result : bool
        See `Exchange`.
    """
    if isinstance(part, AllGather):
        return Gathered(group, check_result=check_result, mean=part.mean)
    summed = Reduced if isinstance(part, AllReduce) else Led
    return summed(group, another(), check_result=check_result)
