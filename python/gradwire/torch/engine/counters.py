"""The running sums that a report is computed from."""

import time
from collections import deque
from dataclasses import dataclass, field, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradwire.torch.engine.timestamps import STEPS, BucketTimestamps

__all__ = ["Counters", "Integers", "Outcomes", "ParameterCounts", "Rows", "StepTimes"]

Integers: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Results of encoding several parameters: arrays with one number per parameter.

    Attributes
    ----------
    nbytes : numpy.ndarray
        Bytes of the frame.
    count : numpy.ndarray
        Entries sent.
    target : numpy.ndarray
        Entries requested, or -1 if the sparsifier has no target.
    trimmed : numpy.ndarray
        Entries selected but left out to stay within the limit.
    zero : numpy.ndarray
        1 if the gradient was all zero, else 0.
    nanoseconds : numpy.ndarray
        Time of the encode.
    """

    nbytes: Integers
    count: Integers
    target: Integers
    trimmed: Integers
    zero: Integers
    nanoseconds: Integers

    @classmethod
    def of(cls, table: Integers) -> "Outcomes":
        """Read the table that the core returns: six consecutive numbers per parameter."""
        return cls(*np.ascontiguousarray(table.reshape(-1, 6).T))

    def __len__(self) -> int:
        return self.nbytes.size

    def wanted(self) -> Integers:
        """Return the sizes the frames would have without a limit, to within a few per cent."""
        whole = self.nbytes * (self.count + self.trimmed)
        return np.where(self.trimmed == 0, self.nbytes, -(-whole // np.maximum(self.count, 1)))


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Running sums of one parameter."""

    steps: int
    nbytes: int
    count: int
    target: int
    trimmed: int
    encode_ns: int
    decode_ns: int


class Counters:
    """Running sums of all parameters, one row each.

    Two threads write them, but never the same row of the same array: the encoding thread adds a
    parameter's frames, the decoding thread their decoding and dense values.

    Parameters
    ----------
    parameters : int
        Number of parameters.
    """

    __slots__ = ("_decode_ns", "_encode_ns", "_sums")

    def __init__(self, parameters: int) -> None:
        self._sums = np.zeros((parameters, 5), np.int64)
        self._encode_ns = np.zeros(parameters, np.int64)
        self._decode_ns = np.zeros(parameters, np.int64)

    def clear(self) -> None:
        """Set all sums to zero."""
        for array in (self._sums, self._encode_ns, self._decode_ns):
            array[:] = 0

    def encoded(self, rows: Rows, outcomes: Outcomes, nbytes: Integers) -> None:
        """Add one frame per parameter, with its bytes on the wire."""
        asked = outcomes.target >= 0
        sums = (
            np.ones_like(outcomes.count),
            nbytes,
            np.where(asked, outcomes.count, 0),
            np.where(asked, outcomes.target, 0),
            outcomes.trimmed,
        )
        self._sums[rows] += np.stack(sums, axis=1)
        self._encode_ns[rows] += outcomes.nanoseconds

    def decoded(self, rows: Rows, nanoseconds: Integers) -> None:
        """Add the time of decoding all ranks' frames of each parameter."""
        self._decode_ns[rows] += nanoseconds

    def dense(self, rows: Rows, nbytes: Integers, nanoseconds: int) -> None:
        """Add one dense exchange per parameter; the time is divided among them."""
        self._sums[rows, 0] += 1
        self._sums[rows, 1] += nbytes
        self._decode_ns[rows] += nanoseconds // max(rows.size, 1)

    def all(self) -> list[ParameterCounts]:
        """Return the sums of every parameter."""
        return [ParameterCounts(*row) for row in self._table().tolist()]

    def total(self) -> ParameterCounts:
        """Return the sums over all parameters."""
        return ParameterCounts(*self._table().sum(axis=0).tolist())

    def _table(self) -> Integers:
        return np.column_stack((self._sums, self._encode_ns, self._decode_ns))


_STAGES = ("encode", "exchange", "decode", "wait", "node")


@dataclass(slots=True)
class StepTimes:
    """Running sums over all buckets.

    ``steps`` counts all steps since the last reset, including those rolled back; ``steps_ever``
    counts the steps that were not rolled back, across resets. ``recent`` has the marks of the last
    steps that counted.
    """

    steps: int = 0
    steps_ever: int = 0
    collectives: int = 0
    slot_bytes: int = 0
    wire_bytes: float = 0.0
    dense_bytes: int = 0
    node_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_STAGES, 0.0))
    recent: deque[list[BucketTimestamps]] = field(default_factory=lambda: deque(maxlen=STEPS))

    def clear(self) -> None:
        """Start from zero, except ``steps_ever``."""
        fresh = StepTimes(steps_ever=self.steps_ever)
        for each in fields(self):
            setattr(self, each.name, getattr(fresh, each.name))

    def add(self, stage: str, start: float) -> float:
        """Add the time since start to a stage, and return the current time."""
        now = time.perf_counter()
        self.seconds[stage] += now - start
        return now

    def sent(self, collectives: int, room: int, wire: float, dense: int) -> None:
        """Add one bucket: collectives, bytes passed to them, bytes sent, bytes of gradients."""
        self.collectives += collectives
        self.slot_bytes += room
        self.wire_bytes += wire
        self.dense_bytes += dense
