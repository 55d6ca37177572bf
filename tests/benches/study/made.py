"""A small study that nobody has measured."""

from collections.abc import Collection
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benches.accuracy.methods import METHODS
from benches.accuracy.plan import SECTIONS as TRAINED
from benches.accuracy.store import Record
from benches.study import methods, store
from benches.study.plan import LARGE, Cell, Plan
from benches.study.store import Store

LINKS = (100_000_000, None)
PLAN = Plan((LARGE, "clicks"), LINKS, (2, 3, 4), (2, 4), seeds=1, turns=3, quick=True)
STEPS = 2000

SECONDS = {
    methods.NONE: 1.0,
    "fp32, 5 MB": 12.0,
    "fp32, 25 MB": 11.0,
    "fp32, 128 MB": 13.0,
    methods.TORCH_POWER: 1.5,
    methods.OUR_POWER: 1.6,
    "adam(0.05)": 2.0,
    "adam(0.01)": 1.2,
    "adam(0.002)": 1.15,
    "adam_onebit()": 1.3,
    methods.AUTO: 1.25,
}
"""Of a step over the slow link; over the fast one dense methods take as long as no exchange."""


SAID = "It averages by the codec at ratio 0.02: a step takes 1250 ms."
MIXED = "the codec at ratio 0.02 through owners for 3 of 4 and fp32 for 1 of 4"
OWNED = f"It averages by {MIXED}: a step takes 1050 ms, while 6000 ms was measured with bf16."


def rows(cell: Cell) -> list[dict[str, Any]]:
    """Return the rows of a cell."""
    found = []
    for name, method, bucket in methods.contestants(cell.section):
        seconds = SECONDS.get(name, 6.0)
        if cell.link is None and method in methods.DENSE:
            seconds = 1.0 if name.startswith("bf16") else 1.05
        settling = {"settled": True, "said_settled": SAID,
                    "settling_steps": 24, "settling_seconds": 3.14}  # fmt: skip
        found.append(
            {
                "contestant": name,
                "method": method,
                "bucket": bucket,
                "dropped": False,
                "seconds": [seconds, 0.98 * seconds, 1.02 * seconds],
                "processor_seconds": [0.1] * 3,
                "nbytes": 1e8 if method in methods.DENSE else 1e6,
                "said": SAID if method == methods.AUTO else "",
                **(settling if method == methods.AUTO else {}),
            }
        )
    return found


def keep_cells(kept: Store, plan: Plan = PLAN) -> None:
    """Keep all cells of a plan."""
    for cell in plan.cells():
        kept.keep(store.cell_key(cell, plan), {"rows": rows(cell)})


def decide(kept: Store, said: str, ranks: Collection[int] = PLAN.ranks) -> None:
    """Have ``auto`` be the fastest over the slow link, and say this."""
    for record in kept.of("steps"):
        key = record["key"]
        if key["ranks"] not in ranks or key["link"] is None:
            continue
        for row in record["rows"]:
            if row["method"] == methods.AUTO:
                row |= {"seconds": [1.05] * 3, "said": said, "said_settled": said}


ENDS = {methods.BF16: 0.8055, "adam(0.002), warm-up": 0.8}
"""Area at the end of a run, where it is not as of dense training."""


def outcome(run: store.Run) -> dict[str, Any]:
    """Return what training gives: half of the area after half of the steps."""
    end = ENDS.get(run.method, 0.806) - 1e-3 * abs(run.learning_rate - 0.016)
    points = [
        {"step": STEPS // 2, "loss": 0.5, "auc": end - 0.01},
        {"step": STEPS, "loss": 0.4, "auc": end},
    ]
    return {"points": points, "bytes_per_step": 1.0, "diverged": False, "seconds": 0.1, "facts": {}}


def accuracy() -> tuple[dict[tuple[str, str, int], float], list[Record]]:
    """Return best rates and runs as those of `make accuracy`, which change when it is run again."""
    names = [name for name in METHODS if _same("clicks", name) is not None]
    best = {("clicks", name, 2): 0.016 for name in names}
    runs = []
    for name in names:
        for rate, seed in ((0.008, 0), (0.016, 0), (0.016, 1), (0.016, 2)):
            run = store.Run("clicks", str(_same("clicks", name)), 2, rate, seed, STEPS)
            key = {**asdict(run), "method": name, "edition": TRAINED["clicks"].edition,
                   "versions": {"torch": "2.0"}}  # fmt: skip
            runs.append({"key": key, **outcome(run)})
    return best, runs


def _same(section: str, name: str) -> str | None:
    """Return the method of the study that is a method of `make accuracy`."""
    every = methods.compared(section).items()
    return next((method for method, each in every if each.curve is METHODS[name]), None)


def pretend(pipe: Connection, data: Path | None) -> None:
    """Answer at once to runs."""
    while True:
        try:
            run = pipe.recv()
        except EOFError:
            return
        pipe.send(outcome(run))
