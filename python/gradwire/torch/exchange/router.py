"""Chooses the class that exchanges a bucket, by the facts of the exchange of its codecs."""

from collections.abc import Callable, Mapping

from gradwire.exchange import AllReduce
from gradwire.exchange import Exchange as Part
from gradwire.torch.exchange.all_gather import GatheredBucket
from gradwire.torch.exchange.base import RankExchange, Transfer
from gradwire.torch.transport import Channel


def build(
    part: Part | None,
    channel: Channel,
    another: Callable[..., Channel],
    device_backends: Mapping[str, str],
    *,
    check_result: bool,
) -> RankExchange:
    """Return the object that carries out an exchange; for None, that of the codecs of each bucket.

    The channel supports tensors on the CPU and on the device of frames. ``another``, a collective,
    creates further channels, for the CPU and the given device backends; where frames are gathered
    none is needed. Raises a ValueError if the channel cannot do what the exchange needs.
    """
    second = None
    if part is None:
        second = another()
    elif not part.gathers_frames:
        if part.divides and not hasattr(channel, "all_to_all"):
            raise ValueError(
                f"{part!r} sends different data to each rank, which gradwire does not support with "
                "Horovod: use exchange=gradwire.exchange.AllGather(), or LeaderIndices()"
            )
        second = another(device_backends) if part.divides else another()
    return RankExchange(part, _kind_of, channel, second, device_backends, check_result=check_result)


def _kind_of(part: Part | None) -> type[Transfer]:
    """Return the class for an exchange, or for sparse gradients if None.

    Most programs need no other than the first one.
    """
    if part is None:
        from gradwire.torch.exchange.value_sum import SparseBucket

        return SparseBucket
    if part.gathers_frames:
        return GatheredBucket
    if part.divides:
        from gradwire.torch.exchange.owners import OwnedBucket

        return OwnedBucket
    if isinstance(part, AllReduce):
        from gradwire.torch.exchange.value_sum import ReducedBucket

        return ReducedBucket
    from gradwire.torch.exchange.leader import LedBucket

    return LedBucket
