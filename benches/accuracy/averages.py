"""Average gradients of simulated ranks by the exchanges of the package themselves.

Every rank is a thread; collectives are between threads.
"""

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire import Codec
from gradwire.torch import backends
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.parameter import make_slots, set_codec
from gradwire.torch.engine.step import BucketTask, Step
from gradwire.torch.exchange import RankExchange, build
from gradwire.torch.transport import Channel

from .flat import Flat
from .local import Hub, Local


class Dense:
    """Every entry: in float32, as plain DDP sends it, or as torch's ``bf16_compress_hook`` does.

    In bfloat16 gradients are rounded, divided by the ranks, and added up in their order; on a ring
    it is another one for each part of a bucket. ``nbytes`` is what a rank sends in a ring all-
    reduce.
    """

    def __init__(self, flat: Flat, ranks: int, start: int = 0, *, half: bool = False) -> None:
        self._ranks, self._half = ranks, half
        dtype = torch.bfloat16 if half else torch.float32
        self._sum = torch.zeros_like(flat.gradients[start:], dtype=dtype)
        self.nbytes = 2 * (ranks - 1) / ranks * dtype.itemsize * flat.numel

    def take(self, rank: int, gradients: Tensor) -> None:
        part = gradients.to(torch.bfloat16).div_(self._ranks) if self._half else gradients
        if rank == 0:
            self._sum.copy_(part)
        else:
            self._sum.add_(part)

    def average(self, out: Tensor) -> None:
        if self._half:
            out.copy_(self._sum)
        else:
            torch.div(self._sum, self._ranks, out=out)


class Exchanged:
    """Large parameters through the exchange of a codec, the others dense.

    ``nbytes`` is what a rank sent in the last step.
    """

    def __init__(self, flat: Flat, ranks: int, codec: Codec) -> None:
        self._flat = flat
        self._hubs: list[Hub] = []
        self._ranks = [_Rank(self._channels(rank, ranks), flat, codec) for rank in range(ranks)]
        self._threads = ThreadPoolExecutor(ranks, "simulated-rank")
        self._steps = itertools.count()
        self._others = Dense(flat, ranks, flat.cut)
        self.nbytes = 0.0

    def change(self, codec: Codec) -> None:
        for each in self._ranks:
            each.use(codec)

    def set_learning_rate(self, rate: float) -> None:
        """Have codecs that compute steps make them with this rate."""
        for each in self._ranks:
            each.set_learning_rate(rate)

    def take(self, rank: int, gradients: Tensor) -> None:
        self._ranks[rank].take(gradients)
        self._others.take(rank, gradients[self._flat.cut :])

    def average(self, out: Tensor) -> None:
        self._others.average(out[self._flat.cut :])
        number = next(self._steps)
        work = [self._threads.submit(self._exchange, each, number) for each in self._ranks]
        dense = 2 * (len(work) - 1) / len(work) * 4 * self._flat.numel_dense
        self.nbytes = dense + max(each.result() for each in work)
        self._ranks[0].read(out)

    def _exchange(self, rank: "_Rank", number: int) -> float:
        try:
            return rank.exchange(number)
        except BaseException as error:  # the other ranks may wait
            for hub in self._hubs:
                hub.fail(error)
            raise

    def _channels(self, rank: int, ranks: int) -> Callable[..., Channel]:
        """Return what makes the channels of a rank, which every rank makes in the same order."""
        return partial(self._channel, itertools.count(), rank, ranks)

    def _channel(
        self, numbers: "itertools.count[int]", rank: int, ranks: int, *device_backends: object
    ) -> Channel:
        number = next(numbers)
        if number == len(self._hubs):
            self._hubs.append(Hub(ranks))
        return Local(self._hubs[number], rank)


class _Rank:
    """What a rank has: an exchange, and the compressed parameters as one bucket."""

    def __init__(self, channels: Callable[..., Channel], flat: Flat, codec: Codec) -> None:
        self._exchange: RankExchange = build(
            codec.exchange, channels(), channels, {}, check_result=False
        )
        self._gathers = codec.exchange.gathers_frames
        named = dict(flat.model.named_parameters())
        large = {piece.name for piece in flat.pieces}
        made = make_slots(
            named,
            set(named) - large,
            lambda name: codec,
            self._exchange.rank,
            None,
            lambda name, tensor: None,
        )
        self._parameters = [each for each in made if each.name in large]
        self._contents = BucketContents(self._parameters, torch.float32)
        self._buffer = torch.zeros(self._contents.numel)
        self._views = [
            (self._buffer[own.start : own.stop], slice(piece.start, piece.stop))
            for own, piece in zip(self._contents.pieces, flat.pieces, strict=True)
        ]

    def use(self, codec: Codec) -> None:
        for each in self._parameters:
            set_codec(each, codec.for_shape(each.shape))

    def set_learning_rate(self, rate: float) -> None:
        for each in self._parameters:
            each.set_rate(rate)

    def take(self, gradients: Tensor) -> None:
        for own, place in self._views:
            own.copy_(gradients[place])

    def read(self, out: Tensor) -> None:
        for own, place in self._views:
            out[place] = own

    def exchange(self, number: int) -> float:
        """Replace what was taken by the average, and return the bytes that this rank has sent."""
        bucket = backends.backend_for(self._buffer).bucket(self._buffer, False)
        now = time.perf_counter()
        job = BucketTask(self._contents, bucket, Step(number), True, lambda: 1.0, now)
        frames = sum(each.limit.nbytes for each in self._parameters)
        flight: Any = self._exchange.start(job, number)
        self._exchange.receive(flight)
        if not self._gathers:
            return float(flight.wire)
        # A slot has room for a message at least, which dense parameters fill in a real one.
        unused: int = flight.plan.nbytes - frames
        return float(flight.wire - (self._exchange.world_size - 1) * unused)
