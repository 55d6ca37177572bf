"""Results of a comparison: plain data that can be loaded without torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Self

from gradwire.presets import PRESETS

__all__ = ["BASELINES", "LEEWAY", "Comparison", "Entry", "OtherConditionsError", "Summary"]

BASELINES = {"none": "no compression", "bf16": "torch's bf16 hook"}
"""Labels of the methods that are not presets, by name."""

LEEWAY = 0.015
"""Accuracy that a preset with error feedback may lose against no compression, as a fraction."""


class OtherConditionsError(Exception):
    """Runs that are not comparable; the message is meant for the user."""


@dataclass(frozen=True)
class Entry:
    """One training run with one method.

    Attributes
    ----------
    call : str
        The codec's repr; empty for a baseline.
    feedback : bool
        Whether the codec has error feedback.
    bytes_per_step, dense_bytes_per_step : float
        Payload that a rank sends per step, and the same for plain float32, in bytes.
    encode_ms, decode_ms : float or None
        Mean milliseconds per step for all tensors together, on rank 0; None for a baseline.
    step_ms : float
        Median duration of a step, in milliseconds.
    loss, accuracy : float
        On held-out data after the last step.
    seed : int
        Runs with the same seed have the same initial weights and data order.
    optimizer : str
        In words, without the learning rate.
    learning_rate : float
        The highest of the schedule.
    rate_source : str
        Where the rate comes from, if it was not measured with this method.
    """

    task: str
    method: str
    call: str
    feedback: bool
    steps: int
    bytes_per_step: float
    dense_bytes_per_step: float
    encode_ms: float | None
    decode_ms: float | None
    step_ms: float
    loss: float
    accuracy: float
    replicas_identical: bool
    seed: int = 0
    optimizer: str = ""
    learning_rate: float = 0.0
    rate_source: str = ""

    @property
    def ratio(self) -> float:
        """Bytes of plain float32 divided by the bytes of the method."""
        return self.dense_bytes_per_step / self.bytes_per_step


@dataclass(frozen=True)
class Summary:
    """All runs of one method on one task: means, and how far each run is behind.

    Attributes
    ----------
    behind : tuple of float
        For each seed, the accuracy without compression minus the accuracy with the method.
    """

    task: str
    method: str
    feedback: bool
    steps: int
    bytes_per_step: float
    ratio: float
    encode_ms: float | None
    decode_ms: float | None
    loss: float
    accuracy: float
    behind: tuple[float, ...]
    optimizer: str
    learning_rate: float
    rate_source: str

    @classmethod
    def of(cls, entries: list[Entry], dense: dict[int, Entry]) -> Self:
        """Summarize the runs of one method; ``dense`` maps seeds to uncompressed runs."""
        first = entries[0]

        def mean(name: str) -> float:
            return fmean(getattr(entry, name) for entry in entries)

        return cls(
            task=first.task,
            method=first.method,
            feedback=first.feedback,
            steps=first.steps,
            bytes_per_step=mean("bytes_per_step"),
            ratio=mean("dense_bytes_per_step") / mean("bytes_per_step"),
            encode_ms=None if first.encode_ms is None else mean("encode_ms"),
            decode_ms=None if first.decode_ms is None else mean("decode_ms"),
            loss=mean("loss"),
            accuracy=mean("accuracy"),
            behind=tuple(dense[entry.seed].accuracy - entry.accuracy for entry in entries),
            optimizer=first.optimizer,
            learning_rate=first.learning_rate,
            rate_source=first.rate_source,
        )

    @property
    def label(self) -> str:
        """The name of the method in tables and figures."""
        return BASELINES.get(self.method, self.method)

    @property
    def mean_behind(self) -> float:
        """The mean of `behind`."""
        return fmean(self.behind)


@dataclass(frozen=True)
class Comparison:
    """All runs of one comparison."""

    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    tasks: dict[str, dict[str, Any]]
    entries: list[Entry]

    def check_conditions(self, other: Comparison) -> None:
        """Raise an error unless another comparison has the same conditions.

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

    def with_entry(self, entry: Entry, facts: dict[str, Any]) -> Self:
        """Return this with one more run, in the order of tasks, methods and seeds.

        It takes the place of runs of the same task, method and seed.
        """
        tasks = {**self.tasks, entry.task: facts}
        same = entry.task, entry.method, entry.seed
        others = [each for each in self.entries if (each.task, each.method, each.seed) != same]
        order = [*BASELINES, *PRESETS]
        entries = sorted(
            [*others, entry],
            key=lambda each: (list(tasks).index(each.task), order.index(each.method), each.seed),
        )
        return replace(self, tasks=tasks, entries=entries)

    def of(self, task: str) -> list[Summary]:
        """Return the methods of one task, most bytes first."""
        own = [entry for entry in self.entries if entry.task == task]
        dense = {entry.seed: entry for entry in own if entry.method == "none"}
        methods = dict.fromkeys(entry.method for entry in own)
        summaries = [
            Summary.of([entry for entry in own if entry.method == method], dense)
            for method in methods
        ]
        return sorted(summaries, key=lambda summary: -summary.bytes_per_step)

    def dense(self, task: str) -> Summary:
        """Return the summary of the runs without compression."""
        return next(summary for summary in self.of(task) if summary.method == "none")

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers."""
        plain = {"schema": 1, **asdict(self)}
        for saved, entry in zip(plain["entries"], self.entries, strict=True):
            saved["ratio"] = entry.ratio
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Rebuild a comparison from the output of ``to_json``."""
        names = Entry.__dataclass_fields__
        entries = [
            Entry(**{key: value for key, value in entry.items() if key in names})
            for entry in plain["entries"]
        ]
        kept = ("settings", "machine", "versions", "tasks")
        return cls(**{key: plain[key] for key in kept}, entries=entries)
