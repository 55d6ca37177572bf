"""A small study that nobody has measured."""

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

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


def rows(cell: Cell, group: int) -> list[dict[str, Any]]:
    """Return the rows of a cell."""
    found = []
    for name, method, bucket in methods.groups(cell.section)[group]:
        seconds = SECONDS.get(name, 6.0)
        if cell.link is None and method in methods.DENSE:
            seconds = 1.0 if name.startswith("bf16") else 1.05
        found.append(
            {
                "contestant": name,
                "method": method,
                "bucket": bucket,
                "seconds": [seconds, 0.9 * seconds, 1.1 * seconds],
                "processor_seconds": [0.1] * 3,
                "nbytes": 1e8 if method in methods.DENSE else 1e6,
                "said": "",
            }
        )
    return found


def keep_cells(kept: Store, plan: Plan = PLAN) -> None:
    """Keep all cells of a plan."""
    for cell, group in store.timed_together(plan):
        kept.keep(store.cell_key(cell, group, plan), {"rows": rows(cell, group)})


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


def pretend(pipe: Connection, data: Path | None) -> None:
    """Answer at once to runs."""
    while True:
        try:
            run = pipe.recv()
        except EOFError:
            return
        pipe.send(outcome(run))
