"""What training runs have shown: plain data, which can be loaded without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Generic, Self, TypeVar

__all__ = ["HALVES", "LABELS", "PLAIN", "Results", "Trained", "replicas"]

PLAIN = "none"
HALVES = ("bf16", "fp16")  # DDP's, and Horovod's
LABELS = {PLAIN: "no compression", "bf16": "bf16 hook", "fp16": "Compression.fp16"}
"""Names of the methods that are not presets, in tables and figures."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run of a method on a task, or several of them.

    Attributes
    ----------
    bytes_per_step, dense_bytes_per_step : float
        Payload that a rank sends per step, and the same for plain float32.
    optimizer : str
        In words, without the learning rate.
    learning_rate : float
        The highest of the schedule.
    rate_source : str
        Where the rate comes from, if it was not measured with this method.
    """

    derived: ClassVar[dict[str, str]] = {"ratio": "ratio"}
    """What is saved for other readers, and the property that it is."""

    task: str
    method: str
    steps: int
    bytes_per_step: float
    dense_bytes_per_step: float
    replicas_identical: bool
    optimizer: str = ""
    learning_rate: float = 0.0
    rate_source: str = ""

    @property
    def label(self) -> str:
        """The name of the method in tables and figures."""
        return LABELS.get(self.method, self.method)

    @property
    def ratio(self) -> float:
        """Bytes of plain float32 divided by the bytes of the method."""
        return self.dense_bytes_per_step / self.bytes_per_step


R = TypeVar("R", bound=Trained)


@dataclass(frozen=True)
class Results(Generic[R]):
    """All that a command has measured, with the circumstances."""

    kind: ClassVar[type[Trained]]
    """Of the runs."""

    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    tasks: dict[str, dict[str, Any]]
    runs: list[R]

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers, derived figures included."""
        plain = {"schema": 1, **asdict(self)}
        for saved, run in zip(plain["runs"], self.runs, strict=True):
            saved.update({name: getattr(run, of) for name, of in run.derived.items()})
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Rebuild the results from the output of ``to_json``."""
        names = {field.name for field in fields(cls.kind)}
        runs = [
            cls.kind(**{key: value for key, value in run.items() if key in names})
            for run in plain["runs"]
        ]
        return cls(**{field.name: plain[field.name] for field in fields(cls)} | {"runs": runs})


def replicas(runs: Iterable[Trained]) -> str:
    """Return the line that says whether all ranks ended with equal models."""
    broken = dict.fromkeys(f"{e.task}/{e.method}" for e in runs if not e.replicas_identical)
    if broken:
        named = ", ".join(broken)
        return f"WARNING: the ranks' models differ after {named}. Please report this bug."
    return "In every run, all ranks ended with bit-identical models."
