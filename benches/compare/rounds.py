"""Interleaved rounds: each contestant, and a copy, works once per round on the same gradient.

Interleaving makes a disturbance of the machine affect all contestants alike; the ratio to the copy
of the same round is comparable between machines. Contestants slower than `SLOW` seconds take part
in only `SLOW_ROUNDS` rounds.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import gradwire

from . import memory
from .contestant import Array, Contestant
from .laws import gradients

SLOW, SLOW_ROUNDS = 0.08, 3


@dataclass(frozen=True)
class Case:
    """What is compressed, and with how many threads."""

    law: str
    numel: int
    ratio: float
    threads: int

    def __str__(self) -> str:
        return f"{self.law}, {self.numel:,} float32, ratio {self.ratio:g}, {threads(self.threads)}"


def threads(number: int) -> str:
    return "one thread" if number == 1 else f"{number} threads"


@dataclass
class Spread:
    """Figures of the rounds, in the order of the rounds."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def record(self) -> dict[str, float]:
        return {"median": self.median, "min": min(self.values), "max": max(self.values)}


@dataclass
class Result:
    """What one contestant did in one case.

    Times in seconds, ``copies`` in copies; ``held`` and ``extra`` in bytes: what it keeps between
    steps, and what it takes on top of that at the worst moment of an encode.
    """

    name: str
    whole: bool
    encode: Spread = field(default_factory=Spread)
    decode: Spread = field(default_factory=Spread)
    encode_copies: Spread = field(default_factory=Spread)
    decode_copies: Spread = field(default_factory=Spread)
    nbytes: Spread = field(default_factory=Spread)
    count: Spread = field(default_factory=Spread)
    held: int | None = None
    extra: int | None = None

    def record(self) -> dict[str, Any]:
        spreads = {key: value for key, value in vars(self).items() if isinstance(value, Spread)}
        facts = {
            "name": self.name,
            "whole": self.whole,
            "rounds": len(self.encode.values),
            "held": self.held,
            "extra": self.extra,
        }
        return facts | {key: value.record() for key, value in spreads.items()}


@dataclass
class Outcome:
    """One case, the copy, and everyone's results."""

    case: Case
    copy: Spread
    results: list[Result]

    def record(self) -> dict[str, Any]:
        results = [result.record() for result in self.results]
        return {"case": vars(self.case), "copy": self.copy.record(), "results": results}


def set_threads(number: int) -> None:
    gradwire.set_num_threads(number)
    torch.set_num_threads(number)


def run(
    case: Case, kinds: Sequence[type[Contestant]], rounds: int, tick: Callable[[str], None]
) -> Outcome:
    """Run one case. ``tick`` is told each time somebody begins."""
    set_threads(case.threads)
    torch.manual_seed(0)
    tick("drawing gradients")
    steps = gradients(case.law, case.numel)
    copied, out = np.zeros_like(steps[0]), np.zeros_like(steps[0])
    results = [Result(kind.name, kind.whole) for kind in kinds]
    entrants = []
    slow: set[str] = set()
    for kind, result in zip(kinds, results, strict=True):
        tick(f"{kind.name}, memory")
        entrant, seconds = _enter(kind, case, result, steps)
        entrants.append(entrant)
        if seconds > SLOW:
            slow.add(result.name)
    outcome = Outcome(case, Spread(), results)
    warm_up = 6 if case.numel <= 1_000_000 else 2  # enough for a controller to settle
    # Short work is repeated within a round until the clock resolves it.
    repeats = min(50, max(1, 200_000 // case.numel))
    for turn in range(-warm_up, rounds):
        gradient = steps[turn % len(steps)]
        tick("copy")
        copy = timed(lambda g=gradient: np.copyto(copied, g), repeats)[0]  # type: ignore[misc]
        if turn >= 0:
            outcome.copy.values.append(copy)
        for entrant, result in zip(entrants, results, strict=True):
            if result.name in slow and not 0 <= turn < SLOW_ROUNDS:
                continue
            tick(entrant.name)
            encode, decode, wire = _step(entrant, gradient, out, repeats)
            if turn >= 0:
                result.encode.values.append(encode)
                result.decode.values.append(decode)
                result.encode_copies.values.append(encode / copy)
                result.decode_copies.values.append(decode / copy)
                result.nbytes.values.append(entrant.nbytes(wire))
                result.count.values.append(entrant.count(wire))
    return outcome


def _enter(
    kind: type[Contestant], case: Case, result: Result, steps: Sequence[Array]
) -> tuple[Contestant, float]:
    """Make a contestant, let it get over its start, and see what memory and time it needs."""
    before = memory.resident()
    entrant = kind(case.numel, case.ratio)
    entrant.settle(steps[0])
    seconds = 0.0
    for gradient in steps:
        entrant.ready(gradient)
        seconds, _ = timed(lambda g=gradient: entrant.encode(g))  # type: ignore[misc]
    after = memory.resident()
    if before is not None and after is not None:
        result.held = max(0, after - before)
    entrant.ready(steps[0])
    result.extra = memory.extra(lambda: entrant.encode(steps[0]))
    return entrant, seconds


def _step(
    entrant: Contestant, gradient: Array, out: Array, repeats: int
) -> tuple[float, float, Any]:
    encode, wire = timed(lambda: entrant.encode(gradient), repeats, lambda: entrant.ready(gradient))
    out.fill(0)
    decode, _ = timed(lambda: entrant.decode_add(wire, out), repeats)
    return encode, decode, wire


def timed(
    work: Callable[[], Any], repeats: int = 1, before: Callable[[], None] | None = None
) -> tuple[float, Any]:
    """Return the seconds of one call, the median of the repeats, and what the last one gave."""
    seconds = []
    answer = None
    for _ in range(repeats):
        if before:
            before()
        answer = None  # the memory of the one before is free for the next
        _finish()
        began = time.perf_counter()
        answer = work()
        _finish()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), answer


def _finish() -> None:
    """Wait for what was given to a GPU: calls return before their work is done."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
