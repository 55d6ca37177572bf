"""The process of one rank: steps of training with codecs, and with what the papers compare with."""

import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from benches.compare.exchange_rank import PAUSE, Method, attach, serve
from benches.compare.selecting import Sampling, Selecting, SidcoInTorch, TorchTopK

LAYERS, WIDTH, BATCH = 8, 1024, 64
NUMEL = LAYERS * WIDTH**2
BUCKET_MB = 2 * 4 * NUMEL // 2**20
"""Room for all of it: the authors' code merges a whole model into one tensor as well."""

PEERS: dict[str, type[Selecting]] = {
    "torch.topk": TorchTopK,
    "DGC in torch": Sampling,
    "SIDCo in torch": SidcoInTorch,
}
OURS: dict[str, Callable[[float], gradwire.Codec]] = {
    "gradwire topk": lambda ratio: gradwire.topk(ratio=ratio),
    "gradwire dgc": lambda ratio: gradwire.dgc(ratio),
    "gradwire sidco": lambda ratio: gradwire.sidco(ratio=ratio),
}
DENSE = "none"
SETTLE = 60
"""Steps before the first that is timed, of methods that adapt from step to step: SIDCo's controller
changes the number of stages by one every five steps, and has ten at most at the smallest ratio."""

ADAPTING = ("SIDCo in torch", *OURS)


class Peer:
    """A hook that gathers the positions and values that another implementation selects."""

    def __init__(self, kind: type[Selecting], ratio: float) -> None:
        self._kind, self._ratio = kind, ratio
        self._made: dict[int, Selecting] = {}
        self.nbytes = 0.0

    def hook(self, state, bucket):  # type: ignore[no-untyped-def]
        """Replace a bucket by the average over the ranks."""
        flat: Tensor = bucket.buffer()
        if bucket.index() not in self._made:
            self._made[bucket.index()] = self._kind(flat.numel(), self._ratio)
        wire = self._made[bucket.index()].encode(flat)
        ranks = dist.get_world_size()
        sizes = [wire.values.numel()] * ranks
        if self._kind is not TorchTopK:  # it alone always sends as many
            sizes = gathered(torch.tensor([sizes[0]])).flatten().tolist()
        indices = gathered(padded(wire.indices, max(sizes)))
        values = gathered(padded(wire.values, max(sizes)))
        flat.zero_()
        for rank, size in enumerate(sizes):
            flat.index_add_(0, indices[rank, :size], values[rank, :size], alpha=1 / ranks)
        self.nbytes = 8.0 * max(sizes) * (ranks - 1)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(flat)
        return future


def gathered(own: Tensor) -> Tensor:
    """Return the vectors of all ranks as rows; they are equally long."""
    ranks = dist.get_world_size()
    out = own.new_empty(ranks * own.numel())
    if own.numel():  # a threshold that is still being adapted may select nothing
        dist.all_gather_into_tensor(out, own)
    return out.view(ranks, own.numel())


def padded(vector: Tensor, length: int) -> Tensor:
    """Return a vector with zeros behind it."""
    return torch.nn.functional.pad(vector, (0, length - vector.numel()))


def model() -> DistributedDataParallel:
    """Return layers that are multiplied with, so that gradients take time to compute."""
    torch.manual_seed(0)
    parts = [
        part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())
    ]
    return DistributedDataParallel(
        nn.Sequential(*parts), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
    )


def methods(ratio: float) -> Iterator[tuple[str, Method]]:
    """Yield what takes part."""
    dense = 4.0 * NUMEL  # a ring of two: half of it to reduce, half to gather
    yield DENSE, (model(), lambda: dense)
    for name, kind in PEERS.items():
        made, peer = model(), Peer(kind, ratio)
        made.register_comm_hook(None, peer.hook)
        yield name, (made, functools.partial(getattr, peer, "nbytes"))
    for name, codec in OURS.items():
        made = model()
        handle = attach(made, codec(ratio))
        yield name, (made, lambda handle=handle: handle.report().wire_bytes)  # type: ignore[misc]


def step(made: DistributedDataParallel, given: tuple[Tensor, ...]) -> dict[str, float]:
    """Return the seconds of a whole step: forward, backward with the exchange, and SGD."""
    (inputs,) = given
    time.sleep(PAUSE)
    dist.barrier()
    began, worked = time.perf_counter(), time.process_time()
    made(inputs).square().mean().backward()
    with torch.no_grad():
        for each in made.parameters():
            assert each.grad is not None
            each.sub_(each.grad, alpha=1e-3)
    made.zero_grad()
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - worked}


def main(setup: dict[str, Any]) -> None:
    """Join the other ranks, and do what standard input says."""
    serve(
        setup,
        lambda: (torch.randn(BATCH, WIDTH),),
        functools.partial(methods, setup["ratio"]),
        NUMEL,
        step=step,
        settle=dict.fromkeys(ADAPTING, SETTLE),
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
