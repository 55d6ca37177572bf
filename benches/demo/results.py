"""Results of the demo, with the derived figures that its tables and figure show.

Plain data without torch or processes, so that saved results can be loaded and drawn anywhere.
"""

from dataclasses import asdict, dataclass, field
from itertools import groupby
from statistics import median
from typing import Any

import numpy as np

PLAIN, HALF = "none", "bf16"
LABELS = {PLAIN: "no compression", HALF: "bf16 hook"}
"""Names of the methods that are not presets, in tables and figures."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run: a task, a method, a link.

    Bytes are those that a rank sends per step: payload, of plain float32, and as counted at its
    interface, which is None on the loopback device, as ``rate`` is. ``step_seconds`` are of rank 0,
    without evaluation, ``compute_seconds`` of the median step without any exchange. The curve has
    ``step``, ``seconds`` of training, ``loss`` and ``accuracy`` on held-out data. ``achieved`` is
    entries sent over entries asked for; ``rate_source`` says where a learning rate comes from that
    was not measured with this method.
    """

    task: str
    method: str
    steps: int
    bytes_per_step: float
    dense_bytes_per_step: float
    replicas_identical: bool
    optimizer: str = ""
    learning_rate: float = 0.0
    rate_source: str = ""
    rate: int | None
    parameters: int
    step_seconds: list[float]
    training_loss: list[float]
    curve: list[dict[str, float]]
    wire_bytes_per_step: float | None
    achieved: float | None
    compute_seconds: float
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return LABELS.get(self.method, self.method)

    @property
    def optimizer_family(self) -> str:
        """The optimizer without its options: "AdamW" or "SGD"."""
        return self.optimizer.partition("(")[0]

    @property
    def compression(self) -> float:
        """Bytes of plain float32 divided by the bytes of the method."""
        return self.dense_bytes_per_step / self.bytes_per_step

    @property
    def step(self) -> float:
        """Median seconds per step."""
        return median(self.step_seconds)

    @property
    def seconds(self) -> float:
        """Total training time in seconds."""
        return sum(self.step_seconds)

    def at_time(self, seconds: float, what: str) -> float:
        """Return ``loss`` or ``accuracy`` at a training time, interpolated linearly."""
        taken = [point["seconds"] for point in self.curve]
        return float(np.interp(seconds, taken, [point[what] for point in self.curve]))

    def seconds_to_loss(self, loss: float) -> float | None:
        """Return the training time at which the held-out loss first fell to `loss`, or None."""
        previous = self.curve[0]
        for point in self.curve:
            if point["loss"] <= loss:
                fall = previous["loss"] - point["loss"]
                part = (previous["loss"] - loss) / fall if fall > 0 else 1.0
                return previous["seconds"] + part * (point["seconds"] - previous["seconds"])
            previous = point
        return None


@dataclass(frozen=True)
class Comparison:
    """All methods on one task over one link."""

    task: str
    title: str
    rate: int | None
    runs: list[Run]

    @property
    def equal_time(self) -> float:
        """Training time of the fastest method in seconds, at which all methods are compared."""
        return min(run.seconds for run in self.runs)

    @property
    def equal_loss(self) -> float:
        """The lowest loss that every method reached."""
        return max(min(point["loss"] for point in run.curve) for run in self.runs)

    def reached(self, run: Run) -> float:
        """Return the seconds until a run reached the loss that all runs reached; never zero."""
        seconds = run.seconds_to_loss(self.equal_loss)
        return max(run.seconds if seconds is None else seconds, 1e-9)

    def speed_up(self, run: Run, over: str) -> float | None:
        """Return how many times shorter a step is than with the other method."""
        return next((each.step / run.step for each in self.runs if each.method == over), None)


@dataclass(frozen=True)
class Results:
    """Everything measured by one run of the demo, with the circumstances."""

    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    tasks: dict[str, dict[str, Any]]
    runs: list[Run]
    link: dict[str, Any]  # shaped, why_not

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers, derived figures included."""
        plain = {"schema": 1, **asdict(self)}
        for saved, run in zip(plain["runs"], self.runs, strict=True):
            saved["compression"] = run.compression
            saved |= {"median_step_seconds": run.step, "seconds": run.seconds}
        return plain

    def comparisons(self) -> list[Comparison]:
        """Return the runs grouped by task and link, in the order in which they ran."""
        groups = groupby(self.runs, key=lambda run: (run.task, run.rate))
        return [
            Comparison(task, self.tasks[task]["title"], rate, list(runs))
            for (task, rate), runs in groups
        ]
