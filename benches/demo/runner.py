"""Run every method on every task over every link, in processes that serve all runs."""

import time
from argparse import Namespace
from statistics import median
from typing import Any

from benches.demo.results import HALF, PLAIN
from benches.harness import results
from benches.harness.command import progress
from benches.harness.processes import Ranks, joined
from gradwire.cli.plan import format_rate

SECONDS = 260.0  # for all runs, so that the demo ends within five minutes, start-up included
MIN_STEPS = 60  # with fewer steps the models learn too little to compare
FIXED = 1.5  # seconds per run for set-up and evaluation
WARM_UP_STEPS = 12  # of the run without any exchange, which also warms up caches and thread pools
QUIET_SECONDS = 10.0  # between two lines if there is no terminal

KINDS = {
    "digits": ("convolutional network, handwritten digits", 150),
    "text": ("character transformer, Python's own sources", 200),
}
"""The title of each task, and its usual number of steps."""


def fitting(
    usual: int, seconds: float, nbytes: float, plan: Namespace, rates: list[int | None]
) -> int:
    """Return the steps of a run that fit into a task's share of the time, for all methods alike.

    ``seconds`` are those of computing a step, ``nbytes`` the gradients in float32.
    """
    sizes = {PLAIN: nbytes, HALF: nbytes / 2}
    step = sum(
        seconds + 0.003 + (8 * sizes.get(method, 1.5 * plan.ratio * nbytes) / rate if rate else 0.0)
        for rate in rates
        for method in plan.methods
    )
    left = SECONDS / len(plan.tasks) - FIXED * len(rates) * len(plan.methods)
    return min(usual, max(MIN_STEPS, int(left / step)))


def run(plan: Namespace) -> dict[str, Any]:
    """Run the whole plan and return what was measured; processes and links are then removed."""
    threads = results.threads_per_rank(plan.ranks)
    settings = {"methods": plan.methods, "ratio": plan.ratio, "ranks": plan.ranks}
    document = {**results.circumstances(), "settings": settings, "tasks": {}, "runs": []}
    with joined(plan.ranks, "benches.demo.rank", threads=threads) as (ranks, why_not):
        if why_not is None:
            print(f"Link: {plan.ranks} ranks in network namespaces of their own, over veth pairs "
                  "shaped with tc.")  # fmt: skip
        else:
            print(f"Link: loopback at full speed, not shaped ({why_not}): compression cannot save "
                  "time here.")  # fmt: skip
        rates = [*plan.bandwidth] if why_not is None else [None]
        for task in plan.tasks:
            title, usual = KINDS[task]
            given: dict[str, Any] = {"task": task, "ratio": plan.ratio}
            given |= {"method": "compute", "steps": WARM_UP_STEPS, "evaluate": False}
            alone = _train(ranks, f"{task}: compute only", **given)
            numel, seconds = alone["parameters"], median(alone["step_seconds"][2:])
            steps = plan.steps or fitting(usual, seconds, 4 * numel, plan, rates)
            document["tasks"][task] = {"title": title, "parameters": numel, **alone["facts"]}
            for rate in rates:
                ranks.shape(rate)
                for method in plan.methods:
                    where = f" @ {format_rate(rate)}" if rate else ""
                    given |= {"method": method, "steps": steps, "evaluate": True}
                    found = _train(ranks, f"{task}{where}: {method}", **given)
                    named = {"task": task, "method": method, "rate": rate, "steps": steps}
                    document["runs"].append(named | found)
    return document


def _train(ranks: Ranks, label: str, **order: Any) -> dict[str, Any]:
    """Have all ranks train, tell how far they are, and return the record of the first."""
    told = time.monotonic()

    def tell(event: dict[str, Any]) -> None:
        nonlocal told
        text = f"{label}: step {event['step']}/{order['steps']}  loss {event['loss']:.3f}"
        progress(text)
        if time.monotonic() - told >= QUIET_SECONDS:
            told = time.monotonic()
            print(f"  {text}", flush=True)

    found: dict[str, Any] = ranks.ask(tell, do="train", **order)[0]
    progress("")
    loss = f", held-out loss {found['curve'][-1]['loss']:.3f}" if found["curve"] else ""
    print(f"  {label}: {1e3 * median(found['step_seconds']):.0f} ms per step{loss}", flush=True)
    return found
