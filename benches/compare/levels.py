"""Compare the SIMD levels of this machine.

A process has one level, so each level runs in its own process, with its own tensors. The processes
take turns, one round each, and every figure is in copies of the same process and round. Frames must
have the same bytes at all levels; that is checked too.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.table import Table

from .interleave import Tick
from .rounds import Spread

NAMES = ("scalar", "neon", "avx2", "avx512")
ROOT = Path(__file__).resolve().parents[2]
AIM = 0.7


class Worker:
    """The process of one level, which waits between rounds."""

    def __init__(self, level: str, numel: int, threads: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.level_worker", str(numel), str(threads)],
            env=os.environ | {"GRADWIRE_SIMD": level},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.level = self._answer()["level"]

    def round(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of a level ended with {self.process.wait()}")
        return dict(json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def measure(numel: int, threads: int, rounds: int, tick: Tick) -> dict[str, Any]:
    """Return every level's times in copies, and its speed relative to the highest level."""
    with ExitStack() as stack:
        workers = {}
        for name in NAMES:
            tick(f"starting {name}")
            worker = Worker(name, numel, threads)
            stack.callback(worker.close)
            if worker.level == name:  # else this machine has no such level
                workers[name] = worker
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
        for turn in range(-1, rounds):
            for name, worker in workers.items():
                tick(name)
                answer = worker.round()
                if turn >= 0:
                    answers[name].append(answer)
    return {"numel": numel, "threads": threads, "aim": AIM, "rows": list(compare(answers))}


def compare(answers: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each work and level; the last level is the one to compare with."""
    top = list(answers)[-1]
    for work in answers[top][0]["seconds"]:
        best = _copies(answers[top], work)
        for level, rounds in answers.items():
            copies = _copies(rounds, work)
            sums = [answer["sums"].get(work) for answer in rounds]
            yield {
                "work": work,
                "level": level,
                "seconds": Spread([answer["seconds"][work] for answer in rounds]).record(),
                "copies": copies.record(),
                # Of medians: the rounds of two processes are no pairs.
                "share": best.median / copies.median,
                "same_bytes": sums == [answer["sums"].get(work) for answer in answers[top]],
            }


def _copies(rounds: list[dict[str, Any]], work: str) -> Spread:
    return Spread([answer["seconds"][work] / answer["copy"] for answer in rounds])


def table(measured: dict[str, Any]) -> Table:
    title = f"SIMD levels, in copies: {measured['numel']:,} float32, threads: "
    table = Table(title=f"{title}{measured['threads']}", title_justify="left")
    table.add_column("work")
    levels = list(dict.fromkeys(row["level"] for row in measured["rows"]))
    for level in levels:
        table.add_column(level, justify="right")
    for work in dict.fromkeys(row["work"] for row in measured["rows"]):
        rows = {row["level"]: row for row in measured["rows"] if row["work"] == work}
        cells = [
            f"{rows[level]['copies']['median']:.2f} ({rows[level]['share']:.2f})"
            for level in levels
        ]
        table.add_row(work, *cells)
    same = all(row["same_bytes"] for row in measured["rows"])
    table.caption = (
        "In parentheses: speed relative to the highest level; the aim for the next lower level is "
        f"{measured['aim']}. The bytes are {'the same' if same else 'NOT THE SAME'} on all levels."
    )
    return table
