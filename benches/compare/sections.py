"""The sections of a run other than the contest of encodes: how each is measured and shown."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from . import dtypes, exchange, layers, levels, presets, receive
from .interleave import Tick

# Measures a section with a number of entries, threads and rounds; returns data to write as JSON.
Measure = Callable[[int, int, int, Tick], dict[str, Any]]


@dataclass(frozen=True)
class Section:
    name: str
    summary: str
    measure: Measure
    table: Callable[[dict[str, Any]], Table]
    # Threads to run it with; an end-to-end run settles that itself.
    threads: tuple[int, ...] = (1, 2)


def _exchange(numel: int, threads: int, rounds: int, tick: Tick) -> dict[str, Any]:
    return exchange.measure(min(rounds, 5), tick)


def _layers(numel: int, threads: int, rounds: int, tick: Tick) -> dict[str, Any]:
    return layers.measure(max(rounds, 31), tick)


ALL = {
    section.name: section
    for section in (
        Section("presets", "a row for every preset", presets.measure, presets.table),
        Section("dtypes", "inputs of other types", dtypes.measure, dtypes.table),
        Section("receive", "decode and add, one frame and eight", receive.measure, receive.table),
        Section("levels", "SIMD levels beside each other", levels.measure, levels.table, (1,)),
        Section("exchange", "DDP end to end, torch's hooks too", _exchange, exchange.table, (1,)),
        Section("layers", "DDP with many small layers", _layers, layers.table, (1,)),
    )
}
ENCODE = "encode"
NAMES = (ENCODE, *ALL)
