"""Bytes of a step."""

import dataclasses

import torch
import torch.distributed as dist

import gradwire
import gradwire.torch.ddp
from gradwire import Codec
from gradwire.exchange import QuantizedAllReduce, ReduceScatter

from .processes import Given, gradients, run

__all__ = ["table"]

RANKS = (2, 3, 4, 8)
STEPS = 6
SHAPES: list[tuple[int, ...]] = [
    (1000, 1000),
    (1000, 1000),
    (300, 700),
    (5000, 20),
    (3000,),
    (1000,),
    (50,),
]


def codecs(ratio: float) -> dict[str, Codec]:
    """Return codecs by what they are called."""
    topk, onebit, qsgd = gradwire.topk(ratio=ratio), gradwire.onebit(), gradwire.qsgd()
    return {
        "`topk`, `AllGather`": topk,
        "`topk`, `ReduceScatter`": dataclasses.replace(topk, exchange=ReduceScatter()),
        "`onebit`, `AllGather`": onebit,
        "`onebit`, `QuantizedAllReduce`": gradwire.onebit(exchange=QuantizedAllReduce()),
        "`qsgd`, `AllGather`": qsgd,
        "`qsgd`, `QuantizedAllReduce`": gradwire.qsgd(exchange=QuantizedAllReduce()),
    }


def volume(rank: int, size: int, ratio: float) -> list[dict[str, float]]:
    """Return what each codec passes to collectives in a step, and sends: the mean over steps."""
    found = []
    for codec in codecs(ratio).values():
        model = torch.nn.parallel.DistributedDataParallel(Given(SHAPES))
        handle = gradwire.torch.ddp.attach(model, codec)
        for step in range(2 * STEPS):
            if step == STEPS:
                handle.report(reset=True)
            model.zero_grad()
            model(gradients(SHAPES, rank, step)).backward()
        report, passed = handle.report(), handle._engine.exchange.times.slot_bytes
        sums = torch.tensor([report.wire_bytes, passed / STEPS], dtype=torch.float64)
        dist.all_reduce(sums)
        wire, passed = (sums / size).tolist()
        found.append({"wire": wire, "passed": passed})
        handle.detach()
    return found


def table(ratio: float) -> None:
    """Print bytes of all codecs and numbers of ranks."""
    dense = 4 * sum(torch.Size(shape).numel() for shape in SHAPES)
    print(f"kB a rank and step; {dense / 1e3:.0f} kB of gradients, top-k with ratio {ratio}\n")
    print("Sent is without what a rank has for itself, and passed to collectives with it. In")
    print("brackets: times that of 2 ranks.\n")
    print("| ranks | exchange | passed to collectives | sent |")
    print("|---:|---|---:|---:|")
    first: dict[tuple[str, str], float] = {}
    for size in RANKS:
        for name, each in zip(codecs(ratio), run(volume, size, ratio), strict=True):
            shown = [
                f"{value / 1e3:.1f} ({value / first.setdefault((name, what), value):.2f})"
                for what, value in sorted(each.items())
            ]
            print(f"| {size} | {name} | {' | '.join(shown)} |", flush=True)
