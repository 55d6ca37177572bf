"""Measure every preset registered in `gradwire.presets.PRESETS`.

They are in `examples`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.table import Table

import gradwire
from gradwire.presets import Preset

from . import plan
from .break_even import break_even, gbit
from .contestant import Array, Contestant
from .examples import ROWS, build, call, selects
from .interleave import Tick
from .pages import span
from .peers import TorchHalf
from .rounds import Case, Outcome, run

# Aims in copies: a codec that leaves out entries, and one that sends all in fewer bits.
SPARSE_AIM, DENSE_AIM = 4.0, 2.5


class OfPreset(Contestant):
    """A preset as a contestant: a tensor of the shape of a layer, a buffer for its frames."""

    preset: Preset

    def __init__(self, numel: int, ratio: float) -> None:
        super().__init__(numel, ratio)
        self.codec = build(self.preset, numel)
        self.state = self.codec.init_state(numel)
        # Reserved for the worst case; only what a frame fills is ever mapped.
        self.buffer = np.zeros(self.codec.max_encoded_len(numel), np.uint8)

    def encode(self, gradient: Array) -> Any:
        return self.buffer[: self.codec.encode_into(gradient, self.state, self.buffer)]

    def decode_add(self, wire: Any, out: Array) -> None:
        gradwire.decode_add(wire, out)

    def nbytes(self, wire: Any) -> int:
        return len(wire)

    def count(self, wire: Any) -> int:
        last = self.state.last
        return int(last["count"]) if last else 0


def contestant(preset: Preset) -> type[OfPreset]:
    attributes = {"name": preset.name, "setting": call(preset), "preset": preset}
    return type(preset.name, (OfPreset,), attributes)


def aim(preset: Preset) -> float:
    return SPARSE_AIM if selects(preset) else DENSE_AIM


def measure(numel: int, threads: int, rounds: int, tick: Tick) -> dict[str, Any]:
    """Run all presets in one case, and the casts of a dense exchange in bfloat16."""
    case = Case(plan.HEADLINE_LAW, numel, 1.0, threads)
    kinds = [contestant(preset) for preset in ROWS.values()]
    outcome = run(case, [*kinds, TorchHalf], rounds, tick)
    return record(outcome, {kind.name: kind.setting for kind in kinds})


def record(outcome: Outcome, settings: Mapping[str, str]) -> dict[str, Any]:
    links = break_even(outcome)
    rows = [
        result.record()
        | {
            "setting": settings[result.name],
            "aim_copies": aim(ROWS[result.name]),
            "break_even_bits_per_second": links[result.name],
        }
        for result in outcome.results
        if result.name in settings
    ]
    return {"case": vars(outcome.case), "copy": outcome.copy.record(), "rows": rows}


def table(measured: dict[str, Any]) -> Table:
    case = measured["case"]
    title = f"Every preset: {case['law']}, {case['numel']:,} float32, threads: {case['threads']}"
    table = Table(title=title, title_justify="left")
    table.add_column("preset")
    table.add_column("call")
    for heading in (
        "encode", "/ copy", "aim", "decode / copy", "sent", "bits/sent", "bits/entry",
        "pays below (fp32)", "(bf16)",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    numel = case["numel"]
    for row in measured["rows"]:
        copies, links = row["encode_copies"]["median"], row["break_even_bits_per_second"]
        bits, count = 8 * row["nbytes"]["median"], row["count"]["median"]
        table.add_row(
            row["name"],
            row["setting"],
            span(row["encode"]["median"]),
            f"{copies:.2f}",
            f"{row['aim_copies']:g}",
            f"{row['decode_copies']['median']:.2f}",
            f"{100 * count / numel:.3g} %",
            f"{bits / max(1, count):.1f}",
            f"{bits / numel:.3g}",
            gbit(links["fp32"]),
            gbit(links["bf16"]),
            style="" if copies <= row["aim_copies"] else "yellow",
        )
    return table
