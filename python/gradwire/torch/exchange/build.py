"""Makes the object that carries out a codec's exchange."""

from collections.abc import Callable, Mapping

from gradwire.exchange import AllGather, AllReduce, LowRank
from gradwire.exchange import Exchange as Part
from gradwire.exchange.owners import Owners
from gradwire.torch.exchange.all_gather import AllGatherExchange
from gradwire.torch.exchange.all_reduce import AllReduceExchange
from gradwire.torch.exchange.base import ExchangeBase
from gradwire.torch.exchange.deferred import DeferredAllGather
from gradwire.torch.exchange.leader import LeaderExchange
from gradwire.torch.exchange.owners import OwnerExchange
from gradwire.torch.exchange.powersgd import PowerSGDExchange
from gradwire.torch.transport import Channel

__all__ = ["build"]


def build(
    part: Part,
    channel: Channel,
    another: Callable[[], Channel],
    carriers: Mapping[str, str],
    *,
    check_result: bool,
    postpones: bool,
) -> ExchangeBase:
    """Return the object that carries out an exchange.

    Parameters
    ----------
    part : gradwire.exchange.Exchange
    channel : Channel
        A channel with no other user, for tensors of the CPU and where frames are.
    another : callable
        Makes another such channel for tensors of the CPU; a collective.
    carriers, check_result, postpones : bool
        See `ExchangeBase`; only an `AllGather` postpones.

    Raises
    ------
    ValueError
        The channel cannot do what the exchange needs.
    """
    if isinstance(part, AllGather):
        kind = DeferredAllGather if postpones else AllGatherExchange
        return kind(channel, carriers, check_result=check_result, mean=part.mean)
    if isinstance(part, LowRank):
        return PowerSGDExchange(
            channel, another(), carriers, check_result=check_result, rank=part.rank
        )
    if isinstance(part, Owners):
        if not hasattr(channel, "all_to_all"):
            raise ValueError(
                f"{part!r} has something else for each rank, which this package does not send with "
                "Horovod: use exchange=gradwire.exchange.AllGather(), or LeaderIndices()"
            )
        return OwnerExchange(channel, another(), check_result=check_result)
    summed = AllReduceExchange if isinstance(part, AllReduce) else LeaderExchange
    return summed(channel, another(), carriers, check_result=check_result)
