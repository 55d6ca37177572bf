"""Results of the demo, with the derived figures that its tables and its picture show."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from gradwire.cli.plan import format_rate
from gradwire.report.text import columns, size

PLAIN, HALF = "none", "bf16"
LABELS = {PLAIN: "no compression", HALF: "bf16 hook"}
"""Names of the methods that are not presets, in tables and figures."""

NOTICEABLE = 1.05
"""On a shared machine a difference in time below this factor is noise, and counts as a draw."""


@dataclass(frozen=True)
class Run:
    """One training run: a task, a method, a link; `rate` is None for the loopback device.

    The record has what `benches.demo.rank` returns, such as ``step_seconds`` of rank 0, without
    evaluation, and the ``curve``: ``step``, ``seconds`` of training, ``loss`` and ``accuracy`` on
    held-out data.
    """

    task: str
    method: str
    rate: int | None
    record: Mapping[str, Any]

    @property
    def label(self) -> str:
        return LABELS.get(self.method, self.method)

    @property
    def step(self) -> float:
        seconds: list[float] = self.record["step_seconds"]
        return median(seconds)

    @property
    def sent(self) -> float:
        """Bytes that a rank sends per step: as counted at its interface, if that is its own."""
        payload: float = self.record["bytes_per_step"]
        counted: float | None = self.record["wire_bytes_per_step"]
        return payload if counted is None else counted

    @property
    def curve(self) -> list[dict[str, float]]:
        found: list[dict[str, float]] = self.record["curve"]
        return found

    def seconds_to_loss(self, loss: float) -> float:
        """Return the training time at which the held-out loss first fell to `loss`, or the end."""
        before = self.curve[0]
        for point in self.curve:
            if point["loss"] <= loss:
                fall = before["loss"] - point["loss"]
                part = (before["loss"] - loss) / fall if fall > 0 else 1.0
                return before["seconds"] + part * (point["seconds"] - before["seconds"])
            before = point
        return before["seconds"]


@dataclass(frozen=True)
class Comparison:
    """All methods on one task over one link."""

    title: str
    runs: list[Run]

    @property
    def where(self) -> str:
        rate = self.runs[0].rate
        return f"{self.runs[0].task}, {format_rate(rate) if rate else 'loopback'}"

    @property
    def equal_loss(self) -> float:
        """The lowest loss that every method reached."""
        return max(min(point["loss"] for point in run.curve) for run in self.runs)

    def reached(self, run: Run) -> float:
        """Return the seconds until a run reached the loss that all runs reached; never zero."""
        return max(run.seconds_to_loss(self.equal_loss), 1e-9)

    def table(self) -> str:
        runs, plain = self.runs, self.runs[0]
        rates = [f"{run.record['learning_rate']:g}" for run in runs]
        sources = [run.record["rate_source"] for run in runs]
        table = {
            "method": [run.label for run in runs],
            "ms per step": [f"{1e3 * run.step:.1f}" for run in runs],
            "sent per step": [size(run.sent) for run in runs],
            "speed": [f"{plain.step / run.step:.2f}x" for run in runs],
            "loss": [f"{run.curve[-1]['loss']:.3f}" for run in runs],
            "acc. %": [f"{100 * run.curve[-1]['accuracy']:.1f}" for run in runs],
            f"s to {self.equal_loss:.3f}": [f"{self.reached(run):.1f}" for run in runs],
            "optimizer, rate": [
                f"{run.record['optimizer']}, {rate}{f' ({source})' if source else ''}"
                for run, rate, source in zip(runs, rates, sources, strict=True)
            ],
        }
        return "\n".join([f"{self.where}: {self.title}", *columns(table, {"method"})])

    def verdict(self) -> str:
        """Return in a sentence whether compression pays, by the seconds to the same loss."""
        ours = [run for run in self.runs if run.method not in LABELS]
        rival = min((run for run in self.runs if run.method in LABELS), key=self.reached)
        if not ours:
            return f"{self.where}: {rival.label} is the faster one."
        best = min(ours, key=self.reached)
        own, other = self.reached(best), self.reached(rival)
        pays = "compression does not pay" if other / own <= 1 / NOTICEABLE else "a draw"
        if other / own >= NOTICEABLE:
            pays = "compression pays"
        return (
            f"{self.where}: {pays}: {best.label} reaches loss {self.equal_loss:.3f} after "
            f"{own:.1f} s, {rival.label} after {other:.1f} s; its steps are "
            f"{rival.step / best.step:.1f}x as fast."
        )


def comparisons(document: Mapping[str, Any]) -> list[Comparison]:
    """Return the runs of a document grouped by task and link, in the order in which they ran."""
    runs = [Run(each["task"], each["method"], each["rate"], each) for each in document["runs"]]
    groups = groupby(runs, key=lambda run: (run.task, run.rate))
    return [
        Comparison(document["tasks"][task]["title"], list(group)) for (task, _), group in groups
    ]


def shown(found: list[Comparison]) -> str:
    runs = [run for each in found for run in each.runs]
    broken = [f"{e.task}/{e.method}" for e in runs if not e.record["replicas_identical"]]
    end = "In every run, all ranks ended with bit-identical models."
    if broken:
        end = f"WARNING: the ranks' models differ after {', '.join(broken)}. Please report this."
    lines = [*(each.verdict() for each in found), end]
    return "\n\n".join([*(each.table() for each in found), "\n".join(f"* {x}" for x in lines)])
