"""Makes the object that carries out a codec's exchange."""

from collections.abc import Callable, Mapping

import torch.distributed as dist

from gradwire.exchange import AllGather, AllReduce
from gradwire.exchange import Exchange as Part
from gradwire.torch.ddp.exchange.all_gather import Gathered
from gradwire.torch.ddp.exchange.all_reduce import Reduced
from gradwire.torch.ddp.exchange.base import Exchange
from gradwire.torch.ddp.exchange.leader_indices import Led
from gradwire.torch.ddp.exchange.postponed import Postponed

__all__ = ["build"]


def build(
    part: Part,
    group: dist.ProcessGroup,
    another: Callable[[], dist.ProcessGroup],
    carriers: Mapping[str, str],
    *,
    check_result: bool,
    postpones: bool,
) -> Exchange:
    """Return the object that carries out an exchange.

    Parameters
    ----------
    part : gradwire.exchange.Exchange
    group : torch.distributed.ProcessGroup
        A group with no other user, for tensors of the CPU and where frames are.
    another : callable
        Makes another such group for tensors of the CPU; a collective.
    carriers, check_result, postpones : bool
        See `Exchange`; only an `AllGather` postpones.
    """
    if isinstance(part, AllGather):
        kind = Postponed if postpones else Gathered
        return kind(group, carriers, check_result=check_result, mean=part.mean)
    summed = Reduced if isinstance(part, AllReduce) else Led
    return summed(group, another(), carriers, check_result=check_result)
