"""The report, and the running sums that it is computed from."""

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

    ``steps`` counts all steps since the last reset, including those rolled back; ``steps_ever``
    counts the steps that were not rolled back, across resets.
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


@dataclass(frozen=True, slots=True)
class ParameterReport:
    """Figures of one parameter on this rank.

    Attributes
    ----------
    name : str
    numel : int
        Number of entries.
    dense : bool
        The parameter is currently sent dense.
    steps : int
        Number of times it was exchanged.
    bytes_per_step : float
        Mean size of its frames (or of its dense values) on this rank.
    compression : float
        Size of the gradient divided by ``bytes_per_step``.
    achieved : float or None
        Entries sent divided by entries requested (k-hat / k), over all steps; None if the
        sparsifier has no target.
    trimmed : int
        Entries selected but left in the residual because the slot was full.
    encode_ms, decode_ms : float
        Mean milliseconds per step.
    residual_norm : float or None
        Current Euclidean norm of the residual; None without a memory, or if not requested.
    state_bytes : int
        Bytes that this rank keeps for it: residual and moments with the buffers that an undo needs,
        and what a schedule measures.
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
    state_bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What gradwire did on this rank since `attach` or the last reset.

    Attributes
    ----------
    rank, world_size : int
    codec : str
        The codec that was attached, by its repr.
    carried_by : str
        What moves frames between the ranks: ``"gloo"``, from the memory of the host, or a backend
        that takes them from the device, such as ``"nccl"``.
    steps : int
        Backward passes exchanged, including those that were rolled back.
    collectives : int
        Total number of collectives: one per bucket, or two or more with a leader, a sparse
        gradient, or dense parameters of another dtype than values that are summed.
    wire_bytes : float
        Bytes that this rank sends per step, including unused room in slots. With N ranks, a ring
        all-gather sends N - 1 slots and a ring all-reduce 2 (N - 1) / N vectors; a broadcast
        counts (N - 1) / N messages on every rank, the mean over the steps in which it leads.
    dense_wire_bytes : float
        Bytes that plain DDP would send per step: a ring all-reduce of the same buckets.
    compression : float
        ``dense_wire_bytes / wire_bytes``.
    slot_use : float
        Fraction of the slots that was used.
    achieved : float or None
        Entries sent divided by entries requested, over all compressed parameters; None if the
        sparsifier has no target.
    encode_ms, exchange_ms, decode_ms : float
        Mean milliseconds per step; most of this overlaps the backward pass.
    wait_ms : float
        Mean milliseconds between the last gradient and the end of the exchange: the time that the
        backward pass actually waited.
    residual_norm : float or None
        Current Euclidean norm over all residuals; None if not requested.
    state_bytes : int
        Bytes that this rank keeps for all parameters; see `ParameterReport`.
    parameters : tuple of ParameterReport
    """

    rank: int
    world_size: int
    codec: str
    carried_by: str
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
    state_bytes: int
    parameters: tuple[ParameterReport, ...]

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows

    def __str__(self) -> str:
        wire, dense = _size(self.wire_bytes), _size(self.dense_wire_bytes)
        buckets = self.collectives / max(self.steps, 1)
        stages = ("encode", "exchange", "decode")
        milliseconds = ", ".join(f"{stage} {getattr(self, stage + '_ms'):.2f}" for stage in stages)
        full = f"{self.slot_use:.0%}"
        kept = f"{_size(self.state_bytes)}, {self._bytes_per_entry():.3g} bytes per entry"
        lines = [
            f"gradwire, rank {self.rank} of {self.world_size}: {self.steps} steps",
            f"  codec           {self.codec}",
            f"  bytes sent      {wire} per step, plain DDP {dense}: {self.compression:.1f}x less",
            f"  collectives     {buckets:.1f} per step by {self.carried_by}, slots {full} full",
            f"  achieved ratio  {_ratio(self.achieved)}",
            f"  ms per step     {milliseconds}; backward waited {self.wait_ms:.2f}",
            f"  residual norm   {_norm(self.residual_norm)}",
            f"  memory          {kept}",
            "",
            _HEADINGS,
            *(_row(parameter) for parameter in self._largest()),
        ]
        if len(self.parameters) > _ROWS:
            lines.append(f"... and {len(self.parameters) - _ROWS} smaller ones: see to_json()")
        return "\n".join(lines)

    def _bytes_per_entry(self) -> float:
        """Return the bytes kept per entry of the parameters that have a state."""
        numel = sum(each.numel for each in self.parameters if each.state_bytes)
        return self.state_bytes / max(numel, 1)

    def _largest(self) -> list[ParameterReport]:
        return sorted(self.parameters, key=lambda each: -each.numel)[:_ROWS]


_ROWS = 20
_HEADINGS = (
    f"{'parameter':<40} {'entries':>11} {'bytes/step':>11} {'ratio':>8} {'achieved':>10} "
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
