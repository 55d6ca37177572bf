"""Results of a comparison: plain data that can be loaded without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar, Self

from benches.harness import trained
from benches.harness.trained import HALVES, PLAIN, Trained
from gradwire.presets import PRESETS

__all__ = ["BASELINES", "LEEWAY", "OtherConditionsError", "Results", "Run", "Summary"]

BASELINES = (PLAIN, HALVES[0])
"""The methods that are not presets."""

LEEWAY = 0.015
"""Accuracy that a preset with error feedback may lose against no compression, as a fraction."""


class OtherConditionsError(Exception):
    """Runs that are not comparable; the message is meant for the user."""


@dataclass(frozen=True, kw_only=True)
class Run(Trained):
    """One training run with one method.

    Attributes
    ----------
    call : str
        The codec's repr; empty for a baseline.
    feedback : bool
        Whether the codec has error feedback.
    encode_ms, decode_ms : float or None
        Mean milliseconds per step for all tensors together, on rank 0; None for a baseline.
    step_ms : float
        Median duration of a step, in milliseconds.
    loss, accuracy : float
        On held-out data after the last step.
    seed : int
        Runs with the same seed have the same initial weights and data order.
    """

    call: str
    feedback: bool
    encode_ms: float | None
    decode_ms: float | None
    step_ms: float
    loss: float
    accuracy: float
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Summary(Run):
    """All runs of one method on one task: means, and how far each run is behind.

    Attributes
    ----------
    behind : tuple of float
        For each seed, the accuracy without compression minus the accuracy with the method.
    """

    behind: tuple[float, ...]

    @classmethod
    def of(cls, runs: list[Run], dense: dict[int, Run]) -> Self:
        """Summarize the runs of one method; ``dense`` maps seeds to uncompressed runs."""
        first = runs[0]
        means = {
            name: None if getattr(first, name) is None else fmean(getattr(r, name) for r in runs)
            for name in _MEANS
        }
        behind = tuple(dense[run.seed].accuracy - run.accuracy for run in runs)
        return cls(**vars(first) | means | {"behind": behind})

    @property
    def mean_behind(self) -> float:
        """The mean of `behind`."""
        return fmean(self.behind)


_MEANS = (
    *("bytes_per_step", "dense_bytes_per_step", "encode_ms", "decode_ms", "step_ms"),
    *("loss", "accuracy"),
)
"""What a summary has the mean of; all else is the first run's."""


@dataclass(frozen=True)
class Results(trained.Results[Run]):
    """All runs of one comparison."""

    kind: ClassVar[type[Trained]] = Run

    def check_conditions(self, other: Results) -> None:
        """Raise an error unless other results have the same conditions.

        Raises
        ------
        OtherConditionsError
            It was made on another machine, with other versions or settings.
        """
        for what in ("settings", "machine", "versions"):
            mine, theirs = getattr(self, what), getattr(other, what)
            for key in mine | theirs:
                if mine.get(key) != theirs.get(key):
                    raise OtherConditionsError(
                        f"the runs there were made with {key} {mine.get(key)}, and now it is "
                        f"{theirs.get(key)}: add to them under equal conditions, or name another "
                        "folder"
                    )

    def with_run(self, run: Run, facts: dict[str, Any]) -> Self:
        """Return this with one more run, in the order of tasks, methods and seeds.

        It takes the place of runs of the same task, method and seed.
        """
        tasks = {**self.tasks, run.task: facts}
        same = run.task, run.method, run.seed
        others = [each for each in self.runs if (each.task, each.method, each.seed) != same]
        order = [*BASELINES, *PRESETS]
        runs = sorted(
            [*others, run],
            key=lambda each: (list(tasks).index(each.task), order.index(each.method), each.seed),
        )
        return replace(self, tasks=tasks, runs=runs)

    def of(self, task: str) -> list[Summary]:
        """Return the methods of one task, most bytes first."""
        own = [run for run in self.runs if run.task == task]
        dense = {run.seed: run for run in own if run.method == PLAIN}
        methods = dict.fromkeys(run.method for run in own)
        summaries = [
            Summary.of([run for run in own if run.method == method], dense) for method in methods
        ]
        return sorted(summaries, key=lambda summary: -summary.bytes_per_step)

    def dense(self, task: str) -> Summary:
        """Return the summary of the runs without compression."""
        return next(summary for summary in self.of(task) if summary.method == PLAIN)
