"""Where a run is made, how large its tensors are, and by which clock."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benches.compare.interleave import Clock

LEAD = 4_000_000
"""Cycles that the device waits before the work: two milliseconds, in which all is queued."""


@dataclass(frozen=True)
class Sizes:
    """Entries of the tensors; of the bucket, how many parameters they are shared out to."""

    large: int
    bucket: int
    parameters: int
    small: int


FULL = Sizes(large=100_000_000, bucket=25_000_000, parameters=300, small=1_000_000)
QUICK = Sizes(large=25_000_000, bucket=25_000_000, parameters=300, small=1_000_000)


@dataclass(frozen=True)
class Setup:
    """How a run is made.

    Attributes
    ----------
    device : str
        ``"cuda"``; the tests, which have no GPU, take ``"cpu"`` with emulated kernels.
    clock
        Times what the device does in a call.
    sizes, rounds, warm_up
        Of the tensors; rounds that count, and those before.
    """

    device: str
    clock: Clock
    sizes: Sizes
    rounds: int
    warm_up: int


def by_events(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that the device takes for a call, and what it gave.

    The device is kept busy first, so that launches do not wait for Python; a call that waits for
    the device itself pays for that.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(LEAD)  # type: ignore[no-untyped-call]
    begin.record()
    answer = work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, answer


def by_calls(setup: Setup, work: Callable[[], object]) -> float:
    """Return the median seconds from a call to its return, the device's work included."""
    seconds = []
    for _ in range(setup.warm_up + setup.rounds):
        finish(setup)
        began = time.perf_counter()
        work()
        finish(setup)
        seconds.append(time.perf_counter() - began)
    return sorted(seconds[setup.warm_up :])[setup.rounds // 2]


def finish(setup: Setup) -> None:
    """Wait for the device."""
    if setup.device == "cuda":
        torch.cuda.synchronize()
