"""Measure what a rank does with received frames: decode and add, from one rank and from eight."""

from collections.abc import Callable
from typing import Any

import numpy as np
from rich.table import Table

import gradwire

from . import plan
from .contestant import Array
from .interleave import Tick, copying, interleave
from .laws import gradients
from .pages import span
from .rounds import set_threads

RANKS = 8
RATIOS = (0.001, 0.01, 0.1)
# Aims in copies, by ratio and number of frames.
AIMS = {(0.01, 1): 0.5, (0.01, RANKS): 2.5}


def measure(numel: int, threads: int, rounds: int, tick: Tick) -> dict[str, Any]:
    """Return the times to decode one frame and eight different ones into the same tensor."""
    set_threads(threads)
    tick("drawing gradients")
    gradient = gradients(plan.HEADLINE_LAW, numel)[0]
    out = np.zeros_like(gradient)
    works: dict[str, Callable[[int], object]] = {}
    kinds: dict[str, tuple[float, int]] = {}
    for ratio in RATIOS:
        tick(f"encoding, {ratio:g}")
        frames = encoded(gradient, ratio)
        for number in (1, RANKS):
            name = f"{number} frame{'s' if number > 1 else ''}, {ratio:g}"
            kinds[name] = ratio, number
            works[name] = _decode(frames[:number], out)
    copy, timings = interleave(works, copying(gradient), rounds, tick)
    rows = [
        {"name": name, "ratio": ratio, "frames": number, "aim_copies": AIMS.get((ratio, number))}
        | timings[name].record()
        for name, (ratio, number) in kinds.items()
    ]
    return {"numel": numel, "threads": threads, "copy": copy.record(), "rows": rows}


def encoded(gradient: Array, ratio: float) -> list[gradwire.Frame]:
    """Return the frames of several ranks, with the same distribution and different positions."""
    codec = gradwire.topk(ratio=ratio, memory=gradwire.memory.NoMemory())
    shift = gradient.size // RANKS
    return [codec.encode(np.roll(gradient, rank * shift)) for rank in range(RANKS)]


def _decode(frames: list[gradwire.Frame], out: Array) -> Callable[[int], None]:
    def work(_: int) -> None:
        for frame in frames:
            gradwire.decode_add(frame, out, scale=1 / RANKS)

    return work


def table(measured: dict[str, Any]) -> Table:
    title = f"Decode and add: {measured['numel']:,} entries, exact top-k, threads: "
    table = Table(title=f"{title}{measured['threads']}", title_justify="left")
    table.add_column("frames, ratio")
    for heading in ("median", "/ copy", "aim"):
        table.add_column(heading, justify="right")
    for row in measured["rows"]:
        aim = "" if row["aim_copies"] is None else f"{row['aim_copies']:g}"
        time = span(row["seconds"]["median"])
        table.add_row(row["name"], time, f"{row['copies']['median']:.2f}", aim)
    return table
