"""Run every method on every task over every link, in processes that serve all runs."""

import time
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from rich.console import Console

from benches.demo.results import HALF, PLAIN, Results, Run
from benches.harness.command import progress
from benches.harness.link import Link, open_link
from benches.harness.machine import machine, threads_per_rank
from benches.harness.processes import Ranks
from benches.harness.results import versions
from gradwire.cli.plan import format_rate

SECONDS = 260.0  # for all runs, so that the demo ends within five minutes, start-up included
MIN_STEPS = 60  # with fewer steps the models learn too little to compare
FIXED = 1.5  # seconds per run for set-up and evaluation
WARM_UP_STEPS = 12  # of the run without any exchange, which also warms up caches and thread pools
QUIET_SECONDS = 10.0  # between two lines if there is no terminal


@dataclass(frozen=True)
class Kind:
    """A task: its title, and its usual number of steps."""

    title: str
    steps: int


KINDS = {
    "digits": Kind("convolutional network, handwritten digits", 150),
    "text": Kind("character transformer, Python's own sources", 200),
}


def fitting(
    usual: int, tasks: int, seconds: float, nbytes: float, plan: Namespace, rates: list[int | None]
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
    left = SECONDS / tasks - FIXED * len(rates) * len(plan.methods)
    return min(usual, max(MIN_STEPS, int(left / step)))


class Reporter:
    """Progress on a console."""

    def __init__(self, console: Console) -> None:
        self._console, self._label, self._said = console, "", 0.0

    def note(self, text: str) -> None:
        progress("")
        self._console.print(text, highlight=False, markup=False)

    def begin(self, label: str) -> None:
        self._label, self._said = label, time.monotonic()

    def advance(self, step: int, steps: int, loss: float) -> None:
        """Tell how far a run is."""
        text = f"{self._label}: step {step}/{steps}  loss {loss:.3f}"
        progress(text)
        if not self._console.is_terminal and time.monotonic() - self._said >= QUIET_SECONDS:
            self._said = time.monotonic()
            self.note(f"  {text}")

    def end(self, summary: str) -> None:
        self.note(f"  {self._label}: {summary}")


def run(plan: Namespace, progress: Reporter) -> Results:
    """Run the whole plan and return what was measured; processes and links are then removed."""
    with ExitStack() as stack:
        link, why_not = (Link(), "--loopback was given") if plan.loopback else open_link(plan.ranks)
        stack.enter_context(link)
        if link.shaped:
            progress.note(f"Link: {plan.ranks} ranks in network namespaces of their own, over veth "
                          "pairs shaped with tc.")  # fmt: skip
        else:
            progress.note(f"Link: loopback at full speed, not shaped ({why_not}): compression "
                          "cannot save time here.")  # fmt: skip
        threads = threads_per_rank(plan.ranks)
        ranks = stack.enter_context(Ranks(link, plan.ranks, "benches.demo.rank", threads=threads))
        session = Session(plan, link, ranks, progress)
        found = versions() | ranks.ready()
        runs = [run for task in plan.task for run in session.train_all(task)]
        names = ("methods", "ratio", "learning_rate", "ranks")
        return Results(
            settings={**{name: getattr(plan, name) for name in names}, "threads_per_rank": threads},
            machine=machine(),
            versions=found,
            link={"shaped": link.shaped, "why_not": why_not},
            tasks=session.tasks,
            runs=runs,
        )


class Session:
    """The demo, once the link and the ranks are up."""

    def __init__(self, plan: Namespace, link: Link, ranks: Ranks, progress: Reporter) -> None:
        self.plan, self.link, self.ranks, self.progress = plan, link, ranks, progress
        self.rates: list[int | None] = [*plan.bandwidth] if link.shaped else [None]
        self.tasks: dict[str, dict[str, Any]] = {}

    def train_all(self, task: str) -> list[Run]:
        """Run all methods over all links; measure steps without exchange before and after."""
        before, numel = self._compute(task)
        tasks = len(self.plan.task)
        steps = self.plan.steps or fitting(
            KINDS[task].steps, tasks, before, 4 * numel, self.plan, self.rates
        )
        runs = []
        for rate in self.rates:
            if rate is not None:
                self.link.set_rate(rate)
            runs += [self._run(task, method, rate, steps) for method in self.plan.methods]
        # Other load on the machine can only lengthen a measurement, so the shorter one is better.
        compute = min(before, self._compute(task)[0])
        return [replace(run, compute_seconds=compute) for run in runs]

    def _compute(self, task: str) -> tuple[float, int]:
        """Return the seconds of a step without exchange, and the number of parameters."""
        self.progress.begin(f"{task}: compute only")
        alone = self._train(task, "compute", WARM_UP_STEPS, evaluate=False)
        compute: float = median(alone["step_seconds"][2:])
        self.progress.end(f"{1e3 * compute:.0f} ms per step")
        facts = {"parameters": alone["parameters"], **alone["facts"]}
        self.tasks[task] = {"title": KINDS[task].title, **facts}
        return compute, alone["parameters"]

    def _run(self, task: str, method: str, rate: int | None, steps: int) -> Run:
        where = f" @ {format_rate(rate)}" if rate else ""
        self.progress.begin(f"{task}{where}: {method}")
        record = self._train(task, method, steps, evaluate=True)
        del record["facts"]
        found = Run(task=task, method=method, rate=rate, steps=steps, compute_seconds=0.0, **record)
        loss = found.curve[-1]["loss"]
        self.progress.end(f"{1e3 * found.step:.0f} ms per step, held-out loss {loss:.3f}")
        return found

    def _train(self, task: str, method: str, steps: int, *, evaluate: bool) -> dict[str, Any]:
        found: dict[str, Any] = self.ranks.ask(
            lambda event: self.progress.advance(event["step"], steps, event["loss"]),
            do="train",
            task=task,
            method=method,
            steps=steps,
            evaluate=evaluate,
            ratio=self.plan.ratio,
            learning_rate=self.plan.learning_rate,
        )[0]
        return found
