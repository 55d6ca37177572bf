"""What the exchange cost and what it saved."""

import dataclasses
import json
import time
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Integers", "Outcomes", "ParameterReport", "Report", "StepTimes", "Tallies", "Tally"]

Integers: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What the encodes of several parameters came to: a number of each parameter.

    Attributes
    ----------
    nbytes : numpy.ndarray
        Bytes of the frame.
    count : numpy.ndarray
        Entries sent.
    target : numpy.ndarray
        Entries asked for, or -1 where the sparsifier is not asked for a number.
    trimmed : numpy.ndarray
        Entries selected and then left out to keep the limit.
    zero : numpy.ndarray
        1 where the gradient was all zero, else 0.
    nanoseconds : numpy.ndarray
        How long it took.
    """

    nbytes: Integers
    count: Integers
    target: Integers
    trimmed: Integers
    zero: Integers
    nanoseconds: Integers

    @classmethod
    def of(cls, table: Integers) -> "Outcomes":
        """Read what the compiled codecs return: six numbers of each, one after another."""
        return cls(*np.ascontiguousarray(table.reshape(-1, 6).T))

    def __len__(self) -> int:
        return self.nbytes.size

    def wanted(self) -> Integers:
        """Return the sizes that frames would have had without a limit, to a few per cent."""
        whole = self.nbytes * (self.count + self.trimmed)
        return np.where(self.trimmed == 0, self.nbytes, -(-whole // np.maximum(self.count, 1)))


@dataclass(frozen=True, slots=True)
class Tally:
    """Running sums of one parameter."""

    steps: int
    nbytes: int
    count: int
    target: int
    trimmed: int
    encode_ns: int
    decode_ns: int


class Tallies:
    """Running sums of all parameters, a row each.

    Two threads write them. No two of them write to one row of one array: a parameter's frames are
    noted by the thread that encodes them, their decoding and dense values by the other.

    Parameters
    ----------
    parameters : int
        How many there are.
    """

    __slots__ = ("_decode_ns", "_encode_ns", "_sums")

    def __init__(self, parameters: int) -> None:
        self._sums = np.zeros((parameters, 5), np.int64)
        self._encode_ns = np.zeros(parameters, np.int64)
        self._decode_ns = np.zeros(parameters, np.int64)

    def clear(self) -> None:
        """Start anew."""
        for array in (self._sums, self._encode_ns, self._decode_ns):
            array[:] = 0

    def encoded(self, rows: Rows, outcomes: Outcomes, nbytes: Integers) -> None:
        """Add a frame of each of these parameters, each of so many bytes on the wire."""
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
        """Add the decoding of all ranks' frames of each of these parameters."""
        self._decode_ns[rows] += nanoseconds

    def dense(self, rows: Rows, nbytes: Integers, nanoseconds: int) -> None:
        """Add a dense exchange of each of these parameters, which took so long together."""
        self._sums[rows, 0] += 1
        self._sums[rows, 1] += nbytes
        self._decode_ns[rows] += nanoseconds // max(rows.size, 1)

    def all(self) -> list[Tally]:
        """Return the sums of every parameter."""
        return [Tally(*row) for row in self._table().tolist()]

    def total(self) -> Tally:
        """Return the sums over all parameters."""
        return Tally(*self._table().sum(axis=0).tolist())

    def _table(self) -> Integers:
        return np.column_stack((self._sums, self._encode_ns, self._decode_ns))


@dataclass(slots=True)
class StepTimes:
    """Running sums over all buckets.

    ``steps`` counts what was paid for, ``steps_ever`` what was not rolled back, over all resets.
    """

    steps: int = 0
    steps_ever: int = 0
    collectives: int = 0
    slot_bytes: int = 0
    wire_bytes: float = 0.0
    dense_bytes: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("encode", "exchange", "decode", "wait"), 0.0)
    )

    def add(self, stage: str, start: float) -> float:
        """Add the time since start to a stage; returns now."""
        now = time.perf_counter()
        self.seconds[stage] += now - start
        return now

    def sent(self, collectives: int, room: int, wire: float, dense: int) -> None:
        """Add one bucket: collectives, bytes of room in them, bytes sent, bytes of gradients."""
        self.collectives += collectives
        self.slot_bytes += room
        self.wire_bytes += wire
        self.dense_bytes += dense


@dataclass(frozen=True, slots=True)
class ParameterReport:
    """One parameter, on this rank.

    Attributes
    ----------
    dense : bool
        It travels as it is: too small to compress.
    bytes_per_step : float
        Mean size of its frames (or of its dense values) on this rank.
    compression : float
        Dense bytes over that.
    achieved : float or None
        Entries sent over entries asked for (k-hat / k), over all steps; None where the sparsifier
        asks for no number.
    trimmed : int
        Entries selected, then left to the residual because the slot was full.
    residual_norm : float or None
        Euclidean norm of what has not been sent, now; None without a memory, or if not asked for.
    """

    name: str
    numel: int
    dense: bool
    steps: int
    bytes_per_step: float
    compression: float
    achieved: float | None
    trimmed: int
    encode_ms: float
    decode_ms: float
    residual_norm: float | None


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What gradwire did on this rank since `attach` or the last reset.

    Attributes
    ----------
    steps : int
        Backward passes that were exchanged, those included that were rolled back.
    collectives : int
        Collectives in all of them: one a bucket, and with a leader two or more.
    wire_bytes : float
        Bytes that this rank sends in one step, unused room included: a ring all-gather passes each
        slot on to all but one rank, a ring all-reduce sends a vector not quite twice, and of a
        broadcast every rank sends its share over the steps that it leads.
    dense_wire_bytes : float
        What plain DDP would send: a ring all-reduce of the same buckets.
    compression : float
        Their ratio.
    slot_use : float
        Part of the slots that held something.
    achieved : float or None
        Entries sent over entries asked for, over all compressed parameters.
    encode_ms, exchange_ms, decode_ms : float
        Mean milliseconds of one step; most of it overlaps the backward pass.
    wait_ms : float
        Mean milliseconds between the last gradient and the end of the exchange: what the backward
        pass really had to wait.
    residual_norm : float or None
        Euclidean norm over all residuals, now; None if not asked for.
    """

    rank: int
    world_size: int
    codec: str
    steps: int
    collectives: int
    wire_bytes: float
    dense_wire_bytes: float
    compression: float
    slot_use: float
    achieved: float | None
    encode_ms: float
    exchange_ms: float
    decode_ms: float
    wait_ms: float
    residual_norm: float | None
    parameters: tuple[ParameterReport, ...]

    def to_json(self) -> str:
        """Return all of it as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows

    def __str__(self) -> str:
        wire, dense = _size(self.wire_bytes), _size(self.dense_wire_bytes)
        buckets = self.collectives / max(self.steps, 1)
        stages = ("encode", "exchange", "decode")
        milliseconds = ", ".join(f"{stage} {getattr(self, stage + '_ms'):.2f}" for stage in stages)
        lines = [
            f"gradwire, rank {self.rank} of {self.world_size}: {self.steps} steps",
            f"  codec           {self.codec}",
            f"  on the wire     {wire} per step, plain DDP {dense}: {self.compression:.1f} x less",
            f"  collectives     {buckets:.1f} per step, slots {self.slot_use:.0%} full",
            f"  sent / asked    {_ratio(self.achieved)}",
            f"  milliseconds    {milliseconds}; backward waited {self.wait_ms:.2f}",
            f"  residual norm   {_norm(self.residual_norm)}",
            "",
            _HEADINGS,
            *(_row(parameter) for parameter in self._largest()),
        ]
        if len(self.parameters) > _ROWS:
            lines.append(f"... {len(self.parameters) - _ROWS} smaller ones: see to_json()")
        return "\n".join(lines)

    def _largest(self) -> list[ParameterReport]:
        return sorted(self.parameters, key=lambda each: -each.numel)[:_ROWS]


_ROWS = 20
_HEADINGS = (
    f"{'parameter':<40} {'entries':>11} {'bytes/step':>11} {'ratio':>8} {'sent/asked':>10} "
    f"{'enc ms':>8} {'dec ms':>8} {'residual':>10}"
)


def _row(each: ParameterReport) -> str:
    name = each.name if len(each.name) <= 40 else "..." + each.name[-37:]
    norm = "dense" if each.dense else _norm(each.residual_norm)
    return (
        f"{name:<40} {each.numel:>11,} {each.bytes_per_step:>11,.0f} {each.compression:>8.1f} "
        f"{_ratio(each.achieved):>10} {each.encode_ms:>8.3f} {each.decode_ms:>8.3f} {norm:>10}"
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _norm(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} GB"
