"""Interleaved rounds: in each, everyone works once on the same gradient, and a copy is timed too.

Interleaving gives a disturbance of the machine to all alike; the ratio to the copy of the same
round is what carries from one machine to another.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import gradwire

from .contestant import Array, Contestant
from .laws import LAWS


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
    """What one contestant did in one case. Times in seconds, ``copies`` in copies."""

    name: str
    whole: bool
    encode: Spread = field(default_factory=Spread)
    decode: Spread = field(default_factory=Spread)
    encode_copies: Spread = field(default_factory=Spread)
    decode_copies: Spread = field(default_factory=Spread)
    nbytes: Spread = field(default_factory=Spread)
    count: Spread = field(default_factory=Spread)

    def record(self) -> dict[str, Any]:
        spreads = {key: value for key, value in vars(self).items() if isinstance(value, Spread)}
        return {"name": self.name} | {key: value.record() for key, value in spreads.items()}


@dataclass
class Outcome:
    """One case, the copy, and everyone's results."""

    case: Case
    copy: Spread
    results: list[Result]

    def record(self) -> dict[str, Any]:
        results = [result.record() for result in self.results]
        return {"case": vars(self.case), "copy": self.copy.record(), "results": results}


def run(
    case: Case, kinds: list[type[Contestant]], rounds: int, tick: Callable[[str], None]
) -> Outcome:
    """Run one case. ``tick`` is told each time somebody begins."""
    gradwire.set_num_threads(case.threads)
    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    gradients = [LAWS[case.law](case.numel, step) for step in range(2)]
    copied, out = np.empty_like(gradients[0]), np.zeros_like(gradients[0])
    entrants = [kind(case.numel, case.ratio) for kind in kinds]
    for entrant in entrants:
        tick(entrant.name)
        entrant.settle(gradients[0])
    results = [Result(kind.name, kind.whole) for kind in kinds]
    outcome = Outcome(case, Spread(), results)
    warm_up = 6 if case.numel <= 1_000_000 else 3  # enough for a controller to settle
    # Short work is repeated within a round until the clock resolves it.
    repeats = max(1, 200_000 // case.numel)
    for turn in range(-warm_up, rounds):
        gradient = gradients[turn % 2]
        tick("copy")
        copy = _timed(lambda g=gradient: np.copyto(copied, g), repeats)[0]  # type: ignore[misc]
        if turn >= 0:
            outcome.copy.values.append(copy)
        for entrant, result in zip(entrants, results, strict=True):
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


def _step(
    entrant: Contestant, gradient: Array, out: Array, repeats: int
) -> tuple[float, float, Any]:
    encode, wire = _timed(lambda: entrant.encode(gradient), repeats, entrant.ready)
    out.fill(0)
    decode, _ = _timed(lambda: entrant.decode_add(wire, out), repeats)
    return encode, decode, wire


def _timed(
    work: Callable[[], Any], repeats: int, before: Callable[[], None] | None = None
) -> tuple[float, Any]:
    """Return the seconds of one call, the median of the repeats, and what the last one gave."""
    seconds = []
    for _ in range(repeats):
        if before:
            before()
        began = time.perf_counter()
        answer = work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), answer
