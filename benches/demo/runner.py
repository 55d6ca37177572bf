"""Run every method on every task over every link, in processes that serve all runs."""

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from rich.console import Console

from benches.demo.results import HALVES, PLAIN, Results, Run
from benches.harness import horovodrun
from benches.harness.command import progress
from benches.harness.link import Link, open_link
from benches.harness.machine import machine, threads_per_rank
from benches.harness.processes import Ranks, start
from benches.harness.results import versions
from gradwire.cli.plan.quantities import format_rate

SECONDS = 260.0  # for all runs, so that the demo ends within five minutes, start-up included
MIN_STEPS = 60  # with fewer steps the models learn too little to compare
_FIXED = 1.5  # seconds per run for set-up and evaluation


@dataclass(frozen=True)
class Kind:
    """Estimates for a task; that of computing is replaced by what was measured."""

    title: str
    steps: int
    parameters: int
    compute_seconds: float


KINDS = {
    "digits": Kind("convolutional network, handwritten digits", 150, 480_000, 0.012),
    "text": Kind("character transformer, Python's own sources", 200, 430_000, 0.030),
}


@dataclass(frozen=True)
class Job:
    """One run."""

    task: str
    method: str
    rate: int | None


class Budget:
    """The pending runs, about how long they take, and their numbers of steps.

    Without ``steps``, a run has the task's default, or fewer if the machine would otherwise exceed
    `SECONDS`; all methods on one task and link get the same number.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        steps: int | None,
        ratio: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.todo = list(jobs)
        self.compute = {name: kind.compute_seconds for name, kind in KINDS.items()}
        self._asked, self._ratio, self._clock = steps, ratio, clock
        self._settled: dict[tuple[str, int | None], int] = {}
        self._begin = self._run_begin = clock()

    def begin(self, job: Job) -> int:
        """Return the steps of a run that begins, fixed by the first run of its task and link."""
        key = (job.task, job.rate)
        if key not in self._settled:
            usual = KINDS[job.task].steps
            left = SECONDS - (self._clock() - self._begin)
            share = min(1.0, max(left, 0.0) / max(self._left(), 1e-9))
            fitting = max(MIN_STEPS, 10 * round(usual * share / 10))
            self._settled[key] = self._asked or min(usual, fitting)
        self.todo.remove(job)
        self._run_begin = self._clock()
        return self._settled[key]

    def so_far(self, step: int, steps: int) -> tuple[float, float]:
        """Return the completed share of all runs and the seconds left, at a step of a run."""
        now = self._clock()
        left = (now - self._run_begin) * (steps - step) / step + self._left()
        return (now - self._begin) / max(now - self._begin + left, 1e-9), left

    def _left(self) -> float:
        return sum(map(self._predict, self.todo))

    def _predict(self, job: Job) -> float:
        kind = KINDS[job.task]
        steps = self._settled.get((job.task, job.rate), self._asked or kind.steps)
        share = {PLAIN: 1.0, **dict.fromkeys(HALVES, 0.5)}.get(job.method, 1.5 * self._ratio)
        transfer = 8 * 4 * kind.parameters * share / job.rate if job.rate else 0.0
        return steps * (self.compute[job.task] + transfer + 0.003) + _FIXED


QUIET_SECONDS = 10.0  # between two lines if there is no terminal


class Reporter:
    """Progress on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._label, self._steps, self._said = "", 0, 0.0

    def note(self, text: str) -> None:
        progress("")
        self._console.print(text, highlight=False, markup=False)

    def begin(self, label: str, steps: int) -> None:
        self._label, self._steps, self._said = label, steps, time.monotonic()

    def advance(self, step: int, loss: float, share: float, left: float) -> None:
        """Tell how far a run is, and all of them, with the seconds that are left."""
        clock = f"{int(left) // 60}:{int(left) % 60:02d} left"
        text = f"[{share:4.0%}] {self._label}: step {step}/{self._steps}  loss {loss:.3f}  {clock}"
        progress(text)
        if not self._console.is_terminal and time.monotonic() - self._said >= QUIET_SECONDS:
            self._said = time.monotonic()
            self.note(f"  {text}")

    def end(self, summary: str) -> None:
        self.note(f"  {self._label}: {summary}")


WARM_UP_STEPS = 12  # of the run without any exchange, which also warms up caches and thread pools
PROBE_SECONDS = 0.4
SETTINGS = ("methods", "ratio", "learning_rate", "ranks")


def run(plan: Namespace, progress: Reporter) -> Results:
    """Run the whole plan and return what was measured; processes and links are then removed."""
    with ExitStack() as stack:
        link, why_not = (Link(), "--loopback was given") if plan.loopback else open_link(plan.ranks)
        stack.enter_context(link)
        progress.note(_describe(link, why_not, plan.ranks))
        if plan.horovod:
            progress.note("Ranks: started by horovodrun.")
        begin = horovodrun.start if plan.horovod else start
        processes = Ranks(
            link,
            plan.ranks,
            "benches.demo.rank",
            start=begin,
            threads=threads_per_rank(plan.ranks),
            horovod=plan.horovod,
        )
        ranks = stack.enter_context(processes)
        return _Session(plan, link, why_not, ranks, progress).run()


def _describe(link: Link, why_not: str | None, ranks: int) -> str:
    if link.shaped:
        joined = "a veth pair" if ranks == 2 else "veth pairs and a bridge"
        return (
            f"Link: {ranks} ranks in separate network namespaces, "
            f"joined by {joined} shaped with tc."
        )
    return (
        f"Link: loopback at full speed, not shaped ({why_not}).\n"
        "On a link this fast compression cannot save time; "
        "the figures show its cost and its effect on learning."
    )


@dataclass
class _Session:
    """The demo, once the link and the ranks are up."""

    plan: Namespace
    link: Link
    why_not: str | None
    ranks: Ranks
    progress: Reporter

    def __post_init__(self) -> None:
        self.rates: list[int | None] = [*self.plan.bandwidth] if self.link.shaped else [None]
        jobs = [
            Job(task, method, rate)
            for task in self.plan.task
            for rate in self.rates
            for method in self.plan.methods
        ]
        self.budget = Budget(jobs, self.plan.steps, self.plan.ratio)
        self.tasks: dict[str, dict[str, Any]] = {}

    def run(self) -> Results:
        plan, found = self.plan, versions() | self.ranks.ready()
        measured = {
            format_rate(rate) if rate else "loopback": self._probe(rate) for rate in self.rates
        }
        runs = [run for task in plan.task for run in self._task(task)]
        return Results(
            settings={
                **{name: getattr(plan, name) for name in SETTINGS},
                "framework": "horovod" if plan.horovod else "ddp",
                "threads_per_rank": threads_per_rank(plan.ranks),
            },
            machine=machine(),
            versions=found,
            link={"shaped": self.link.shaped, "why_not": self.why_not, "measured": measured},
            tasks=self.tasks,
            runs=runs,
        )

    def _probe(self, rate: int | None) -> list[float]:
        """Set the rate and measure a plain TCP stream, in bits per second each way."""
        if rate is not None:
            self.link.set_rate(rate)
        there, back = self.ranks.ask(do="probe", seconds=PROBE_SECONDS)[0]
        asked = format_rate(rate) if rate else "loopback"
        speeds = f"{format_rate(there)} one way, {format_rate(back)} the other"
        self.progress.note(f"  {asked}: TCP stream measured at {speeds}")
        return [there, back]

    def _task(self, task: str) -> list[Run]:
        """Run all methods over all links; measure steps without exchange before and after."""
        before = self._compute(task)
        self.budget.compute[task] = before
        runs = []
        for rate in self.rates:
            if rate is not None:
                self.link.set_rate(rate)
            runs += [self._job(Job(task, method, rate)) for method in self.plan.methods]
        # Other load on the machine can only lengthen a measurement, so the shorter one is better.
        compute = min(before, self._compute(task))
        return [replace(run, compute_seconds=compute) for run in runs]

    def _compute(self, task: str) -> float:
        self.progress.begin(f"{task}: compute only", WARM_UP_STEPS)
        alone = self._train(task, "compute", WARM_UP_STEPS, evaluate=False)
        compute: float = median(alone["step_seconds"][2:])
        self.progress.end(f"{1e3 * compute:.0f} ms per step")
        facts = {"parameters": alone["parameters"], **alone["facts"]}
        self.tasks[task] = {"title": KINDS[task].title, **facts}
        return compute

    def _job(self, job: Job) -> Run:
        steps = self.budget.begin(job)
        where = f" @ {format_rate(job.rate)}" if job.rate else ""
        self.progress.begin(f"{job.task}{where}: {job.method}", steps)
        record = self._train(job.task, job.method, steps, evaluate=True)
        del record["facts"]
        run = Run(
            task=job.task,
            method=job.method,
            rate=job.rate,
            steps=steps,
            compute_seconds=self.budget.compute[job.task],
            **record,
        )
        self.progress.end(
            f"{1e3 * run.step:.0f} ms per step, held-out loss {run.curve[-1]['loss']:.3f}"
        )
        return run

    def _train(self, task: str, method: str, steps: int, *, evaluate: bool) -> dict[str, Any]:
        def advance(event: dict[str, Any]) -> None:
            step: int = event["step"]
            self.progress.advance(step, event["loss"], *self.budget.so_far(step, steps))

        found: dict[str, Any] = self.ranks.ask(
            advance if evaluate else None,
            do="train",
            task=task,
            method=method,
            steps=steps,
            evaluate=evaluate,
            ratio=self.plan.ratio,
            learning_rate=self.plan.learning_rate,
        )[0]
        return found
