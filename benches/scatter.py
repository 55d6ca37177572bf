"""Bytes of the sparse reduce-scatter beside those of the all-gather, and what carries its parts.

    python -m benches.scatter                    # bytes a step, 2 to 8 processes
    python -m benches.scatter --carriers         # all_to_all_single against isend and irecv

Every rank is a process of its own, over Gloo on the loopback device. Gradients are drawn: a tenth
of their energy is common to all ranks, so that ranks select a part of their entries alike.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

import gradwire
import gradwire.torch.ddp
from gradwire.exchange import AllGather, Exchange, ReduceScatter

RANKS = (2, 3, 4, 8)
STEPS = 6
FORK = multiprocessing.get_context("fork")  # torch is imported once
SHAPES = [(1000, 1000)] * 2 + [(300, 700), (5000, 20), (3000,), (1000,), (50,)]
EXCHANGES: dict[str, Exchange] = {"AllGather": AllGather(), "ReduceScatter": ReduceScatter()}


class Given(torch.nn.Module):
    """Parameters whose gradients are what the forward pass is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(shape) for shape in SHAPES)

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        terms = [(w * g).sum() for w, g in zip(self.weights, gradients, strict=True)]
        return torch.stack(terms).sum()


def volume(rank: int, size: int, ratio: float) -> list[dict[str, float]]:
    """Return what each exchange passes to collectives in a step, and sends: the mean over steps."""
    found = []
    for exchange in EXCHANGES.values():
        model = torch.nn.parallel.DistributedDataParallel(Given())
        codec = gradwire.Codec(sparsify=gradwire.sparsify.TopK(ratio=ratio), exchange=exchange)
        handle = gradwire.torch.ddp.attach(model, codec)
        for step in range(2 * STEPS):
            if step == STEPS:
                handle.report(reset=True)
            model.zero_grad()
            model(_gradients(rank, step)).backward()
        report, passed = handle.report(), handle._exchange.times.slot_bytes
        sums = torch.tensor([report.wire_bytes, passed / STEPS], dtype=torch.float64)
        dist.all_reduce(sums)
        wire, passed = (sums / size).tolist()
        found.append({"wire": wire, "passed": passed})
        handle.detach()
    return found


def _gradients(rank: int, step: int) -> list[torch.Tensor]:
    common = torch.Generator().manual_seed(step)
    own = torch.Generator().manual_seed(1000 * step + rank + 1)
    return [
        0.1**0.5 * torch.randn(shape, generator=common)
        + 0.9**0.5 * torch.randn(shape, generator=own)
        for shape in SHAPES
    ]


def carriers(rank: int, size: int, nbytes: int) -> dict[str, float]:
    """Return milliseconds in which every rank sends so many bytes, in equal parts, to all."""
    mine, out = (torch.zeros(nbytes, dtype=torch.uint8) for _ in range(2))
    sizes = [nbytes * (each + 1) // size - nbytes * each // size for each in range(size)]
    parts, theirs = torch.split(mine, sizes), torch.split(out, sizes)

    def by_pairs() -> None:
        others = [each for each in range(size) if each != rank]
        calls = [dist.P2POp(dist.irecv, theirs[each], each) for each in others]
        calls += [dist.P2POp(dist.isend, parts[each], each) for each in others]
        for work in dist.batch_isend_irecv(calls):
            work.wait()

    ways: dict[str, Callable[[], Any]] = {
        "all_to_all_single": lambda: dist.all_to_all_single(out, mine, sizes, sizes),
        "isend and irecv": by_pairs,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(40):
        for name, way in ways.items():
            dist.barrier()
            start = time.perf_counter()
            way()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: median(each[5:]) for name, each in times.items()}


def _rank(rank: int, size: int, folder: str, act: Callable[..., Any], given: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size
    )
    found = act(rank, size, given)
    if rank == 0:
        torch.save(found, f"{folder}/found")
    dist.barrier()
    dist.destroy_process_group()


def run(act: Callable[..., Any], size: int, given: Any) -> Any:
    """Call a function on so many processes; return what it returns on the first."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        started = [
            FORK.Process(target=_rank, args=(r, size, folder, act, given)) for r in range(size)
        ]
        for each in started:
            each.start()
        for each in started:
            each.join()
        return torch.load(f"{folder}/found", weights_only=True)


def _print_volume(ratio: float) -> None:
    dense = 4 * sum(torch.Size(shape).numel() for shape in SHAPES)
    print(f"kB a rank and step; {dense / 1e3:.0f} kB of gradients, top-k with ratio {ratio}\n")
    print("Sent is without what a rank has for itself, and passed to collectives with it. In")
    print("brackets: times that of 2 ranks.\n")
    print("| ranks | exchange | passed to collectives | sent |")
    print("|---:|---|---:|---:|")
    first: dict[tuple[str, str], float] = {}
    for size in RANKS:
        for name, each in zip(EXCHANGES, run(volume, size, ratio), strict=True):
            shown = [
                f"{value / 1e3:.1f} ({value / first.setdefault((name, what), value):.2f})"
                for what, value in sorted(each.items())
            ]
            print(f"| {size} | `{name}` | {' | '.join(shown)} |", flush=True)


def _print_carriers() -> None:
    print("milliseconds, the median of 35, on rank 0\n")
    print("| ranks | bytes a rank | all_to_all_single | isend and irecv |")
    print("|---:|---:|---:|---:|")
    for size in (2, 4, 8):
        for nbytes in (1_000, 100_000, 2_000_000):
            found = run(carriers, size, nbytes)
            shown = " | ".join(f"{each:.2f}" for each in found.values())
            print(f"| {size} | {nbytes} | {shown} |", flush=True)


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--carriers", action="store_true")
    parser.add_argument("--ratio", type=float, default=0.01)
    arguments = parser.parse_args()
    if arguments.carriers:
        _print_carriers()
    else:
        _print_volume(arguments.ratio)


if __name__ == "__main__":
    main()
