"""What was measured of every preset: pure data, to be read again anywhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

__all__ = ["BASELINES", "LEEWAY", "Comparison", "Entry"]

BASELINES = {"none": "no compression", "bf16": "torch's bf16 hook"}
"""Methods that are not presets, by name: what to call them."""

LEEWAY = 0.015
"""How far below the accuracy of no compression a preset with error feedback should not fall."""


@dataclass(frozen=True)
class Entry:
    """One training run with one method.

    Attributes
    ----------
    call : str
        The codec as it was made; empty for a baseline.
    feedback : bool
        Whether what is not sent is kept for later.
    bytes_per_step, dense_bytes_per_step : float
        Payload that a rank sends each step, and the same for plain float32, in bytes.
    encode_ms, decode_ms : float or None
        Of all tensors together, mean milliseconds a step on rank 0; None for a baseline.
    step_ms : float
        Median length of a step.
    loss, accuracy : float
        On held-out data after the last step.
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

    @property
    def label(self) -> str:
        """What tables and pictures call the method."""
        return BASELINES.get(self.method, self.method)

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than plain float32."""
        return self.dense_bytes_per_step / self.bytes_per_step


@dataclass(frozen=True)
class Comparison:
    """All runs of one call of the command."""

    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    tasks: dict[str, dict[str, Any]]
    entries: list[Entry]

    def of(self, task: str) -> list[Entry]:
        """Return the runs of one task, fewest bytes last."""
        own = [entry for entry in self.entries if entry.task == task]
        return sorted(own, key=lambda entry: -entry.bytes_per_step)

    def dense(self, task: str) -> Entry:
        """Return the run without compression."""
        return next(entry for entry in self.of(task) if entry.method == "none")

    def behind(self, entry: Entry) -> float:
        """Return by how much a run's accuracy is below that of no compression."""
        return self.dense(entry.task).accuracy - entry.accuracy

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers."""
        plain = {"schema": 1, **asdict(self)}
        for saved, entry in zip(plain["entries"], self.entries, strict=True):
            saved["ratio"] = entry.ratio
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Read what ``to_json`` returned."""
        names = Entry.__dataclass_fields__
        entries = [
            Entry(**{key: value for key, value in entry.items() if key in names})
            for entry in plain["entries"]
        ]
        kept = ("settings", "machine", "versions", "tasks")
        return cls(**{key: plain[key] for key in kept}, entries=entries)
