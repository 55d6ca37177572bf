"""Time encodes and decodes of gradwire's codecs, of other implementations, and a plain copy.

All run in one process, in interleaved rounds on the same gradient; figures are medians, in seconds
and in copies of the same tensor in the same round. About ten minutes on two cores that do nothing
else; with --quick two.
"""

import argparse
import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gradwire
from benches.harness import pages, results
from benches.harness.command import command_line, conduct, progress
from benches.harness.pages import span
from gradwire.memory import MEMORIES
from gradwire.presets import PRESETS

from .contestants import LAW, OURS, PEERS, Contestant, gradients, presets
from .timing import Timing, in_turn, interleave, timed

FULL = ((1_000, 1_000_000, 25_000_000), (0.1, 0.01, 0.001), (1, 2))
QUICK = ((1_000_000, 25_000_000), (0.01,), (1, 2))
"""Entries of a tensor, ratios, and threads."""

STEPS = 40
"""Steps of each state before it is timed: SIDCo's second stage begins at about the 24th."""


@dataclass(frozen=True)
class Case:
    numel: int
    ratio: float
    threads: int


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = command_line("make bench ARGS=...", __doc__)
    # fmt: off
    parser.add_argument("--quick", action="store_true", help="fewer sizes, one ratio")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count (default: 7)")
    parser.add_argument("--only", default="", help="only contestants whose name contains this text")
    parser.add_argument("--out", type=Path, help="JSON file to write (default: none)")
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing: show a file")
    parser.add_argument("--state-bytes", action="store_true",
                        help="measure nothing: show what memories keep, in bytes per entry")
    parser.add_argument("--into", type=Path, help="a page that has the block")
    # fmt: on
    return parser.parse_args(given)


def contestants(case: Case, only: str) -> Iterator[type[Contestant]]:
    """Yield everyone; the presets, which have ratios of their own, once for each length."""
    more = presets() if case.ratio == 0.01 and case.threads == 1 else ()
    return (kind for kind in itertools.chain(OURS, PEERS, more) if only in kind.name)


def measure(
    case: Case, kinds: Iterable[type[Contestant]], rounds: int, tick: Callable[[str], None]
) -> list[dict[str, Any]]:
    gradwire.set_num_threads(case.threads)
    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    steps = gradients(case.numel)
    copied, out = np.zeros_like(steps[0]), np.zeros_like(steps[0])
    # Short work is repeated within a round until the clock resolves it.
    repeats = min(50, max(1, 200_000 // case.numel))
    entrants: dict[str, Contestant] = {}
    for kind in kinds:
        tick(f"{kind.name}, first steps")
        entrants[kind.name] = entrant = kind(case.numel, case.ratio)
        entrant.settle(steps[0])
    decodes = {name: Timing() for name in entrants}
    sent: dict[str, list[tuple[int, int]]] = {name: [] for name in entrants}

    def decode(entrant: Contestant, turn: int, wire: Any, copy: float) -> None:
        out.fill(0)
        seconds, _ = timed(lambda: entrant.decode_add(wire, out), lambda: None, repeats)
        decodes[entrant.name].add(seconds, copy)
        sent[entrant.name].append(entrant.sent(wire))

    copy, timings = interleave(
        {name: in_turn(each.encode, steps) for name, each in entrants.items()},
        lambda: np.copyto(copied, steps[0]),
        rounds,
        tick,
        warm_up=STEPS,
        clock=lambda work, before: timed(work, before, repeats),
        before={name: in_turn(each.ready, steps) for name, each in entrants.items()},
        after={name: partial(decode, each) for name, each in entrants.items()},
    )
    rows = [{**asdict(case), "name": COPY, **copy.record()}]
    for name, timing in timings.items():
        nbytes, count = (float(np.median(each)) for each in zip(*sent[name], strict=True))
        decoded = decodes[name].record()
        rows.append(
            {
                **asdict(case),
                "name": name,
                "setting": entrants[name].setting,
                **timing.record(),
                "decode_seconds": decoded["seconds"],
                "decode_copies": decoded["copies"],
                "nbytes": nbytes,
                "count": count,
            }
        )
    return rows


Row = Mapping[str, Any]

COPY = "plain copy"
CASE = ("numel", "ratio", "threads")

SHOWN = {
    COPY: COPY,
    "gradwire adam": "**gradwire adam**, including Adam's step",
    "gradwire topk": "**gradwire topk** (exact)",
    "gradwire sidco": "**gradwire sidco**",
    "DGC sampling": "DGC's sampling, in torch",
    "torch PowerSGD, rank 4": "torch's PowerSGD hook, rank 4",
    "torch.topk": "`torch.topk`",
}
"""Rows of the README, in its order."""


def table(rows: Sequence[Row]) -> str:
    numel, ratio, threads = (rows[0][name] for name in CASE)
    headings = ("encode with residual", "median", "least - most", "/ copy", "decode / copy",
                "sent / asked", "bits/entry", "MB", "setting")  # fmt: skip
    cells = [_cells(row, max(1, int(numel * ratio)), numel) for row in rows]
    title = f"**{LAW}, {numel:,} float32, ratio {ratio:g}, threads: {threads}**"
    return f"{title}\n\n{pages.table(headings, cells)}"


def _cells(row: Row, asked: int, numel: int) -> list[str]:
    between = f"{span(row['least'])} - {span(row['most'])}"
    cells = [row["name"], span(row["seconds"]), between, f"{row['copies']:.2f}"]
    if row["name"] == COPY:
        return [*cells, "", "", "", "", ""]
    nbytes, count = row["nbytes"], row["count"]
    return [
        *cells,
        f"{row['decode_copies']:.3f}",
        "all" if count == numel else f"{count / asked:.2f}",
        f"{8 * nbytes / max(1, count):.3g}",
        f"{nbytes / 1e6:.3g}",
        row["setting"],
    ]


def page(document: Mapping[str, Any]) -> str:
    groups = groupby(document["rows"], key=lambda row: [row[name] for name in CASE])
    return "\n\n".join(table(list(rows)) for _, rows in groups)


def readme(document: Mapping[str, Any], path: Path | None) -> str:
    """Return the README's block: 25 M entries at one per cent, on one thread and on two."""
    one, two = (
        {row["name"]: row for row in document["rows"] if [row[name] for name in CASE] == case}
        for case in ([25_000_000, 0.01, 1], [25_000_000, 0.01, 2])
    )
    rows = []
    for name, title in SHOWN.items():
        row = one[name]
        copies = [f"{n:.{0 if n >= 10 else 1}f}" for n in (row["copies"], two[name]["copies"])]
        sent = f"{row['nbytes'] / 1e6:.3g}" if "nbytes" in row else ""
        rows.append([title, sent, span(row["seconds"]), *copies])
    shown = pages.table(["", "MB per step", "encode", "vs copy", "on two cores"], rows)
    data = "" if path is None else f"; [all figures]({results.relative(path)})"
    where = f"{results.where(document['machine'])}, {document['date'][:10]}"
    return f"{shown}\n\nFrom `make bench` ({where}{data})."


SHAPE = (64, 1024)
"""Of a matrix: what depends on a tensor's shape has one to depend on."""


def stored(codec: gradwire.Codec) -> Iterator[str]:
    """Yield the bytes per entry of a state, and with the memory in `low_memory` if it has that."""
    numel = SHAPE[0] * SHAPE[1]
    for options in ({}, {"low_memory": True}):
        cell = ""
        with contextlib.suppress(TypeError, ValueError):
            memory = dataclasses.replace(codec.memory, **options)
            held = codec.replace(memory=memory).for_shape(SHAPE)
            cell = f"{held.init_state(numel).nbytes / numel:g}"
        yield cell


def state_bytes() -> str:
    """Return what memories and presets keep, in bytes per entry of a state."""
    rows = [("any", gradwire.topk(ratio=0.01, memory=memory())) for memory in MEMORIES]
    rows += [(f"`{each.call}`", each.build(**each.example)) for each in PRESETS.values()]
    shown = [[title, f"`{type(codec.memory).__name__}`", *stored(codec)] for title, codec in rows]
    return pages.table(["preset", "memory", "default", "`low_memory=True`"], shown, texts=2)


def make(chosen: argparse.Namespace) -> int:
    if chosen.state_bytes:
        print(state_bytes())
        if chosen.into is not None:
            pages.replace(chosen.into, "bytes per entry", state_bytes())
        return 0
    document = {**results.circumstances(), "rows": []}
    if chosen.show is not None:
        document = results.read(chosen.show)
        print(page(document))
    # Cases that share tensors follow each other.
    axes = QUICK if chosen.quick else FULL
    for case in itertools.starmap(Case, () if chosen.show else itertools.product(*axes)):
        rows = measure(case, contestants(case, chosen.only), chosen.rounds, progress)
        progress("")
        document["rows"] += rows
        print(f"{table(rows)}\n", flush=True)
        if chosen.out is not None:
            results.write(document, chosen.out)
    if chosen.into is not None:
        pages.replace(chosen.into, "encode", readme(document, chosen.show or chosen.out))
    return 0


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    return conduct("make bench", lambda: make(chosen))


if __name__ == "__main__":
    sys.exit(main())
