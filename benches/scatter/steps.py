"""Time of a step: encodes, exchange and decodes, without any other computation."""

import time
from statistics import median

import torch
import torch.distributed as dist

import gradwire
import gradwire.torch.ddp
from gradwire.exchange import QuantizedAllReduce

from .processes import Given, gradients, run

__all__ = ["table"]

SIZES = (2_000_000, 8_000_000)
STEPS, WARM = 12, 4


def steps(rank: int, size: int, numel: int) -> dict[str, float]:
    """Return milliseconds of a step of one large matrix by each exchange, in turns."""
    shapes: list[tuple[int, ...]] = [(numel // 1000, 1000)]
    codecs = {
        "`AllGather`": gradwire.onebit(),
        "`QuantizedAllReduce`": gradwire.onebit(exchange=QuantizedAllReduce()),
    }
    # One bucket. The gradient is the same tensor in every step: a copy is all that DDP does.
    attached = []
    for codec in codecs.values():
        model = torch.nn.parallel.DistributedDataParallel(Given(shapes), bucket_cap_mb=1000)
        attached.append((model, gradwire.torch.ddp.attach(model, codec)))
    given = gradients(shapes, rank, 0)
    times: dict[str, list[float]] = {name: [] for name in codecs}
    for _ in range(STEPS + WARM):
        for (model, handle), kept in zip(attached, times.values(), strict=True):
            model.zero_grad()
            loss = model(given)
            dist.barrier()
            start = time.perf_counter()
            loss.backward()
            handle.report()
            taken = torch.tensor(1e3 * (time.perf_counter() - start))
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            kept.append(float(taken))
    for _, handle in attached:
        handle.detach()
    return {name: median(each[WARM:]) for name, each in times.items()}


def table(ranks: int) -> None:
    """Print the times of this many ranks."""
    print(f"milliseconds of a backward pass of onebit, {ranks} ranks; the slowest rank, the median")
    print(f"of {STEPS}\n")
    print("| entries | `AllGather` | `QuantizedAllReduce` |")
    print("|---:|---:|---:|")
    for numel in SIZES:
        found = run(steps, ranks, numel)
        shown = " | ".join(f"{each:.0f}" for each in found.values())
        print(f"| {numel} | {shown} |", flush=True)
