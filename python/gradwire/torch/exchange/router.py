"""Creates the object that carries out an exchange, and routes each bucket by its codec."""

from collections.abc import Callable, Mapping

from gradwire.exchange import AllGather, AllReduce, ByRanks
from gradwire.exchange import Exchange as Part
from gradwire.exchange.frames import Owners
from gradwire.torch.engine.metrics import StepTimes
from gradwire.torch.engine.step import BucketTask, InFlightBucket
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange.all_gather import AllGatherExchange
from gradwire.torch.exchange.base import ExchangeBase
from gradwire.torch.exchange.leader import LeaderExchange
from gradwire.torch.exchange.owners import OwnerExchange
from gradwire.torch.exchange.value_sum import AllReduceExchange
from gradwire.torch.transport import Channel


def build(
    part: Part,
    channel: Channel,
    another: Callable[..., Channel],
    device_backends: Mapping[str, str],
    *,
    check_result: bool,
) -> ExchangeBase:
    """Return the object that carries out an exchange; see `ExchangeBase`.

    The channel supports tensors on the CPU and on the device of frames. ``another``, a collective,
    creates further channels, for the CPU and the given device backends; an `AllGather` needs none.
    A `ByRanks` resolves to an `AllGather` here. Raises a ValueError if the channel cannot do what
    the exchange needs.
    """
    if isinstance(part, ByRanks):
        part = AllGather()
    if isinstance(part, AllGather):
        return AllGatherExchange(
            channel, device_backends, check_result=check_result, mean=part.mean
        )
    if not isinstance(part, Owners):
        summed = AllReduceExchange if isinstance(part, AllReduce) else LeaderExchange
        return summed(channel, device_backends, check_result=check_result, second=another())
    if not hasattr(channel, "all_to_all"):
        raise ValueError(
            f"{part!r} sends different data to each rank, which gradwire does not support with "
            "Horovod: use exchange=gradwire.exchange.AllGather(), or LeaderIndices()"
        )
    second = another(device_backends)
    return OwnerExchange(channel, device_backends, check_result=check_result, second=second)


class ExchangeRouter:
    """Exchanges buckets of any codec; all compressed tensors of one bucket share one exchange.

    The exchanges share two channels, which are those of an `ExchangeBase`, because each thread
    starts its collectives in one order; and their running sums.
    """

    def __init__(
        self, channel: Channel, second: Channel, device_backends: Mapping[str, str]
    ) -> None:
        self._channels: tuple[Channel, Channel] | None = channel, second
        self.device_backends = device_backends
        self.times = StepTimes()
        self._exchanges: dict[Part, ExchangeBase] = {}

    def close(self) -> None:
        """Release both channels, without closing them, and the memory of all exchanges."""
        self._channels = None
        for exchange in self._exchanges.values():
            exchange.close()

    def start(self, task: BucketTask, sequence: int) -> InFlightBucket:
        """Start the exchange of a bucket; see `BucketExchange`."""
        return self._exchange_of(task).start(task, sequence)

    def receive(self, flight: InFlightBucket) -> None:
        """Wait for a bucket and write the average into its buffer; see `BucketExchange`."""
        self._exchange_of(flight.task).receive(flight)

    def _exchange_of(self, task: BucketTask) -> ExchangeBase:
        compressed = task.contents.compressed
        part: Part = compressed[0].codec.exchange if compressed else AllReduce()
        exchange = self._exchanges.get(part)
        if exchange is None:
            if self._channels is None:
                raise ExchangeError("the exchange was closed")
            channel, second = self._channels
            exchange = build(
                part, channel, lambda *_: second, self.device_backends, check_result=False
            )
            exchange.times = self.times
            self._exchanges[part] = exchange
        return exchange
