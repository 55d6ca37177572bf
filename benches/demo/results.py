"""Results of the demo, with the derived figures that its tables and figure show.

Plain data without torch or processes, so that saved results can be loaded and drawn anywhere.
"""

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

PLAIN = "none"
HALVES = ("bf16", "fp16")  # DDP's, and Horovod's
LABELS = {PLAIN: "no compression", "bf16": "bf16 hook", "fp16": "Compression.fp16"}
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

    @property
    def compute_share(self) -> float:
        """Share of a step spent computing; the rest is coding, sending and waiting."""
        return min(1.0, self.compute_seconds / self.step)

    @property
    def sent_per_step(self) -> float:
        """Bytes that a rank sends per step: as counted at its interface, else the payload."""
        return self.bytes_per_step if self.wire_bytes_per_step is None else self.wire_bytes_per_step

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

    def run(self, method: str) -> Run | None:
        """Return the run of one method."""
        return next((run for run in self.runs if run.method == method), None)

    @property
    def half(self) -> str:
        """The baseline in 16 bits."""
        return next((run.method for run in self.runs if run.method in HALVES), HALVES[0])

    @property
    def fastest(self) -> Run:
        """The run with the shortest training time."""
        return min(self.runs, key=lambda run: run.seconds)

    @property
    def equal_time(self) -> float:
        """Training time of the fastest method in seconds, at which all methods are compared."""
        return self.fastest.seconds

    @property
    def equal_loss(self) -> float:
        """The lowest loss that every method reached."""
        return max(min(point["loss"] for point in run.curve) for run in self.runs)

    def speed_up(self, run: Run, over: str) -> float | None:
        """Return how many times shorter a step is than with the other method."""
        other = self.run(over)
        return other.step / run.step if other else None


@dataclass(frozen=True)
class Results:
    """Everything measured by one run of the demo, with the circumstances."""

    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    tasks: dict[str, dict[str, Any]]
    runs: list[Run]
    link: dict[str, Any]  # shaped, why_not, measured: {rate: [bits per second each way]}

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers, derived figures included."""
        plain = {"schema": 1, **asdict(self)}
        for saved, run in zip(plain["runs"], self.runs, strict=True):
            saved["compression"] = run.compression
            saved |= {"median_step_seconds": run.step, "seconds": run.seconds}
        return plain

    def comparisons(self) -> list[Comparison]:
        """Return the runs grouped by task and link, in the order in which they ran."""
        keys = list(dict.fromkeys((run.task, run.rate) for run in self.runs))
        return [
            Comparison(
                task,
                self.tasks[task]["title"],
                rate,
                [r for r in self.runs if (r.task, r.rate) == (task, rate)],
            )
            for task, rate in keys
        ]
