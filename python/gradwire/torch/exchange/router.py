"""Chooses the class that exchanges a bucket, by the facts of an exchange or of each codec."""

from collections.abc import Callable, Mapping

from gradwire.exchange import AllReduce
from gradwire.exchange import Exchange as Part
from gradwire.torch.engine.step import BucketTask
from gradwire.torch.exchange.all_gather import GatheredBucket
from gradwire.torch.exchange.base import RankExchange, Transfer
from gradwire.torch.transport import Channel


def build(
    part: Part,
    channel: Channel,
    another: Callable[..., Channel],
    device_backends: Mapping[str, str],
    *,
    check_result: bool,
) -> RankExchange:
    """Return the object that carries out an exchange.

    The channel supports tensors on the CPU and on the device of frames. ``another``, a collective,
    creates further channels, for the CPU and the given device backends; where frames are gathered
    none is needed. Raises a ValueError if the channel cannot do what the exchange needs.
    """
    kind = _kind(part)
    if part.divides and not hasattr(channel, "all_to_all"):
        raise ValueError(
            f"{part!r} sends different data to each rank, which gradwire does not support with "
            "Horovod: use exchange=gradwire.exchange.AllGather(), or LeaderIndices()"
        )
    second = None
    if not part.gathers_frames:
        second = another(device_backends) if part.divides else another()

    def kind_of(task: BucketTask) -> tuple[type[Transfer], Part]:
        return (_sparse() if task.contents.sparse else kind), part

    return RankExchange(kind_of, channel, second, device_backends, check_result=check_result)


def build_for_any(
    channel: Channel, second: Channel, device_backends: Mapping[str, str]
) -> RankExchange:
    """Return an object that exchanges each bucket as its codecs say, which have one exchange."""

    def kind_of(task: BucketTask) -> tuple[type[Transfer], Part]:
        compressed = task.contents.compressed
        part: Part = compressed[0].codec.exchange if compressed else AllReduce()
        return _kind(part), part

    return RankExchange(kind_of, channel, second, device_backends, check_result=False)


def _kind(part: Part) -> type[Transfer]:
    """Return the class for an exchange; most programs need no other than the first one."""
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


def _sparse() -> type[Transfer]:
    from gradwire.torch.exchange.sparse import SparseBucket

    return SparseBucket
