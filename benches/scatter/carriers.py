"""What carries parts: `all_to_all_single` against `isend` and `irecv`."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from .processes import run

__all__ = ["table"]


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


def table() -> None:
    """Print milliseconds of both."""
    print("milliseconds, the median of 35, on rank 0\n")
    print("| ranks | bytes a rank | all_to_all_single | isend and irecv |")
    print("|---:|---:|---:|---:|")
    for size in (2, 4, 8):
        for nbytes in (1_000, 100_000, 2_000_000):
            found = run(carriers, size, nbytes)
            shown = " | ".join(f"{each:.2f}" for each in found.values())
            print(f"| {size} | {nbytes} | {shown} |", flush=True)
