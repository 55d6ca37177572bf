"""Average gradients of simulated ranks, which are threads, by the exchanges of the package."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from gradwire import Codec
from gradwire.torch import backends
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.parameter import make_slots, set_codec
from gradwire.torch.engine.step import BucketTask, Step
from gradwire.torch.exchange import RankExchange, build
from gradwire.torch.transport import Channel, LocalChannel

MIN_NUMEL = 1024
"""Parameters with fewer entries are sent dense: the default of `gradwire.torch.ddp.attach`."""


ALIGNED = 16
"""Tensors begin at multiples of so many entries, as torch's own do: sums depend on it."""


@dataclass(frozen=True)
class Piece:
    """Where a parameter lies in the vectors."""

    name: str
    start: int
    stop: int
    shape: torch.Size


class Flat:
    """Make a model's tensors views of vectors: compressed parameters first, then the others.

    An optimizer, an average or a copy is then one operation instead of one for each parameter,
    which for small models is most of the time of a step.

    ``parameters``, ``gradients`` and ``buffers`` are float32 vectors, zero between the tensors;
    backward passes add to the gradients. ``pieces`` are the parameters that are compressed; at
    ``cut`` those begin that are sent dense: small ones, and if only ``hidden`` matrices are
    compressed, all others.
    """

    def __init__(self, model: nn.Module, hidden: bool = False) -> None:
        named = list(model.named_parameters())
        chosen = {name for name, each in named if each.numel() >= MIN_NUMEL}
        chosen &= set(hidden_matrices(model)) if hidden else chosen
        large = [pair for pair in named if pair[0] in chosen]
        small = [pair for pair in named if pair[0] not in chosen]
        tensors = [each for _, each in large + small]
        self.model = model
        self.parameters = _merge(tensors)
        self.gradients = torch.zeros_like(self.parameters)
        for tensor, gradient in zip(tensors, _views(self.gradients, tensors), strict=True):
            tensor.grad = gradient
        self.buffers = _merge([each for each in model.buffers() if each.is_floating_point()])
        starts = _starts(tensors)
        self.cut = starts[len(large)]
        self.numel = sum(each.numel() for each in tensors)
        self.numel_dense = sum(each.numel() for _, each in small)
        self.pieces = [
            Piece(name, start, start + each.numel(), each.shape)
            for start, (name, each) in zip(starts, large, strict=False)
        ]


def hidden_matrices(model: nn.Module) -> list[str]:
    """Return the names of the weights of all linear layers but the last, which is the head."""
    layers = [name for name, each in model.named_modules() if isinstance(each, nn.Linear)]
    return [f"{name}.weight" for name in layers[:-1]]


def _starts(tensors: Sequence[Tensor]) -> list[int]:
    """Return where each tensor begins, and the length of all together."""
    lengths = (-(-each.numel() // ALIGNED) * ALIGNED for each in tensors)
    return list(itertools.accumulate(lengths, initial=0))


def _merge(tensors: Sequence[Tensor]) -> Tensor:
    """Return one vector with the contents of all tensors, which become parts of it."""
    vector = torch.zeros(_starts(tensors)[-1])
    for tensor, part in zip(tensors, _views(vector, tensors), strict=True):
        part.copy_(tensor.detach())
        tensor.data = part
    return vector


def _views(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    return [
        vector[start : start + each.numel()].view(each.shape)
        for start, each in zip(_starts(like), like, strict=False)
    ]


class Dense:
    """Every entry in float32; ``nbytes`` is what a rank sends in a ring all-reduce of all."""

    def __init__(self, flat: Flat, ranks: int, start: int = 0) -> None:
        self._ranks = ranks
        self._sum = torch.zeros_like(flat.gradients[start:])
        self.nbytes = 2 * (ranks - 1) / ranks * self._sum.itemsize * flat.numel

    def take(self, rank: int, gradients: Tensor) -> None:
        if rank == 0:
            self._sum.copy_(gradients)
        else:
            self._sum.add_(gradients)

    def average(self, out: Tensor) -> None:
        torch.div(self._sum, self._ranks, out=out)


class Hub:
    """Where so many ranks of one channel meet."""

    def __init__(self, size: int) -> None:
        self.given: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)


class Ended:
    """A collective of threads, which has ended when it was started on every rank."""

    def wait(self) -> None:
        """Return at once."""


class Local(LocalChannel):
    """The channel of one rank. Its collectives raise a RuntimeError once the barrier is broken."""

    is_open = True

    def __init__(self, hub: Hub, rank: int) -> None:
        self.rank, self.size = rank, len(hub.given)
        self._hub = hub

    def _meet(self, given: Any, take: Callable[[list[Any]], Any]) -> Any:
        """Return what this rank takes of what all have given, once every rank has taken its own."""
        self._hub.given[self.rank] = given
        self._hub.barrier.wait()
        taken = take(self._hub.given)
        self._hub.barrier.wait()
        return taken

    def all_gather(self, out: Tensor, mine: Tensor) -> Ended:
        rows = out.view(self.size, -1)  # of which this rank's may be `mine`
        self._meet(
            mine, lambda every: [row.copy_(one) for row, one in zip(rows, every, strict=True)]
        )
        return Ended()

    def all_reduce(self, tensor: Tensor) -> Ended:
        tensor.copy_(self._meet(tensor, lambda every: sum(every[1:], every[0])))
        return Ended()

    def broadcast(self, tensor: Tensor, source: int) -> Ended:
        self._meet(tensor, lambda every: tensor.copy_(every[source]))
        return Ended()

    def all_to_all(
        self,
        out: Tensor,
        mine: Tensor,
        out_sizes: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> Ended:
        def take(every: list[Sequence[Tensor]]) -> None:
            for part, parts in zip(self._parts(out, out_sizes), every, strict=True):
                part.copy_(parts[self.rank])

        self._meet(self._parts(mine, sizes), take)
        return Ended()

    def _parts(self, tensor: Tensor, sizes: Sequence[int] | None) -> Sequence[Tensor]:
        return tensor.chunk(self.size) if sizes is None else torch.split(tensor, list(sizes))

    def set_timeout(self, timeout: timedelta) -> None:
        """Return: threads of one process do not lose each other."""


def channels(hubs: list[Hub], rank: int, ranks: int) -> Callable[..., Local]:
    """Return what makes the channels of a rank, which every rank makes in the same order."""
    numbers = itertools.count()

    def make(*device_backends: object) -> Local:
        number = next(numbers)
        if number == len(hubs):
            hubs.append(Hub(ranks))
        return Local(hubs[number], rank)

    return make


class Exchanged:
    """Large parameters through the exchange of a codec, the others dense.

    ``nbytes`` is what a rank sent in the last step.
    """

    def __init__(self, flat: Flat, ranks: int, codec: Codec) -> None:
        self._flat = flat
        self._hubs: list[Hub] = []
        self._ranks = [
            _Rank(channels(self._hubs, rank, ranks), flat, codec) for rank in range(ranks)
        ]
        self._threads = ThreadPoolExecutor(ranks, "simulated-rank")
        self._steps = itertools.count()
        self._others = Dense(flat, ranks, flat.cut)
        self.nbytes = 0.0

    def change(self, codec: Codec) -> None:
        for each in self._ranks:
            each.use(codec)

    def set_learning_rate(self, rate: float) -> None:
        for each in self._ranks:
            each.set_learning_rate(rate)

    def take(self, rank: int, gradients: Tensor) -> None:
        self._ranks[rank].take(gradients)
        self._others.take(rank, gradients[self._flat.cut :])

    def average(self, out: Tensor) -> None:
        self._others.average(out[self._flat.cut :])
        number = next(self._steps)
        work = [self._threads.submit(self._exchange, each, number) for each in self._ranks]
        errors = [error for each in work if (error := each.exception()) is not None]
        if errors:  # those of ranks that only lost another one come last
            raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
        dense = 2 * (len(work) - 1) / len(work) * 4 * self._flat.numel_dense
        self.nbytes = dense + max(each.result() for each in work)
        self._ranks[0].read(out)

    def _exchange(self, rank: "_Rank", number: int) -> float:
        try:
            return rank.exchange(number)
        except BaseException:  # the other ranks may wait
            for hub in self._hubs:
                hub.barrier.abort()
            raise


class _Rank:
    """What a rank has: an exchange, and the compressed parameters as one bucket."""

    def __init__(self, make: Callable[..., Channel], flat: Flat, codec: Codec) -> None:
        self._exchange: RankExchange = build(codec.exchange, make(), make, {}, check_result=False)
        self._gathers = codec.exchange.gathers_frames
        named = dict(flat.model.named_parameters())
        large = {piece.name for piece in flat.pieces}
        made = make_slots(
            named, set(named) - large, lambda name: codec, self._exchange.rank, None,
            lambda name, tensor: None,
        )  # fmt: skip
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
