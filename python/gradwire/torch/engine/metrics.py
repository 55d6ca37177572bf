"""Running sums of buckets, and what they would exceed."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradwire._codec import Codec
from gradwire.exchange import Exchange
from gradwire.sparsify import ChunkTopK, TopK

_STAGES = ("encode", "exchange", "decode", "wait", "node")


Integers: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Results of encoding several parameters: arrays with one number per parameter."""

    nbytes: Integers  # of the frame
    count: Integers  # of the entries sent
    target: Integers  # of the entries requested: -1 if the sparsifier has no target
    trimmed: Integers  # entries selected but left out to stay within the limit
    zero: Integers  # 1 if the gradient was all zero, else 0
    nanoseconds: Integers  # of the encode

    @classmethod
    def of(cls, table: Integers, *, zero: bool = True) -> "Outcomes":
        """Read the table that the core returns: six consecutive numbers per parameter.

        Without ``zero``, none tells that its gradient was zero.
        """
        outcomes = cls(*np.ascontiguousarray(table.reshape(-1, 6).T))
        if not zero:
            outcomes.zero[:] = 0
        return outcomes

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
    """Running sums of a number of parameters, one row each.

    Two threads write to different columns: one adds frames, the other decoding and dense values.
    """

    __slots__ = ("_table",)

    def __init__(self, parameters: int) -> None:
        self._table = np.zeros((parameters, 7), np.int64)  # columns as in `ParameterCounts`

    def clear(self) -> None:
        """Set all sums to zero."""
        self._table[:] = 0

    def encoded(self, rows: Rows, outcomes: Outcomes, nbytes: Integers) -> None:
        """Add one frame per parameter, with its bytes on the wire."""
        asked = outcomes.target >= 0
        sums = (
            np.ones_like(outcomes.count),
            nbytes,
            np.where(asked, outcomes.count, 0),
            np.where(asked, outcomes.target, 0),
            outcomes.trimmed,
            outcomes.nanoseconds,
        )
        self._table[rows, :6] += np.stack(sums, axis=1)

    def decoded(self, rows: Rows, nanoseconds: Integers) -> None:
        """Add the time of decoding all ranks' frames of each parameter."""
        self._table[rows, 6] += nanoseconds

    def dense(self, rows: Rows, nbytes: Integers, nanoseconds: int) -> None:
        """Add one dense exchange per parameter; the time is divided among them."""
        self._table[rows, 0] += 1
        self._table[rows, 1] += nbytes
        self._table[rows, 6] += nanoseconds // max(rows.size, 1)

    def all(self) -> list[ParameterCounts]:
        """Return the sums of every parameter."""
        return [ParameterCounts(*row) for row in self._table.tolist()]

    def total(self) -> ParameterCounts:
        """Return the sums over all parameters."""
        return ParameterCounts(*self._table.sum(axis=0).tolist())


@dataclass(slots=True)
class StepTimes:
    """Running sums over all buckets."""

    steps: int = 0  # since the last reset, including those rolled back
    steps_ever: int = 0  # that were not rolled back, across resets
    collectives: int = 0
    slot_bytes: int = 0
    wire_bytes: float = 0.0
    dense_bytes: int = 0
    node_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_STAGES, 0.0))

    def clear(self) -> None:
        """Start from zero, except ``steps_ever``, which another thread may be counting up."""
        fresh = StepTimes()
        for attribute in fields(self):
            if attribute.name != "steps_ever":
                setattr(self, attribute.name, getattr(fresh, attribute.name))

    def add(self, stage: str, start: float) -> float:
        """Add the time since ``start`` to a stage, and return the current time."""
        now = time.perf_counter()
        self.seconds[stage] += now - start
        return now

    def move(self, stage: str, to: str, seconds: float) -> None:
        """Move seconds from one stage to another."""
        self.seconds[stage] -= seconds
        self.seconds[to] += seconds

    def sent(self, collectives: int, room: int, wire: float, dense: int) -> None:
        """Add one bucket: collectives, bytes passed to them, bytes sent, bytes of gradients."""
        self.collectives += collectives
        self.slot_bytes += room
        self.wire_bytes += wire
        self.dense_bytes += dense


_MARGIN = 1.05
"""Headers of small frames, and limits a little above what is sent, are no reason to warn."""


def excess(sent: Sequence[tuple[Codec, int]], exchange: Exchange, ranks: int) -> str:
    """Return a warning if frames exceed an uncompressed all-reduce, with advice; else empty.

    ``sent`` has the codec and the number of entries of each compressed parameter, and ``exchange``
    is their exchange among ``ranks`` ranks.
    """
    if not (exchange.gathers_frames or exchange.divides):
        return ""  # sums, which are no longer than the values
    share = (ranks - 1) / ranks
    dense = 2 * share * sum(4 * numel for _, numel in sent)
    frames = sum(frame_nbytes(codec, numel) for codec, numel in sent)
    received = frames * (ranks - 1 if exchange.gathers_frames else 2 * share)
    if received <= _MARGIN * dense:
        return ""
    from gradwire.report.text import size

    return (
        f"With {ranks} ranks, each receives {size(received)} of frames per step, while a dense "
        f"all-reduce would bring it {size(dense)}. What helps: a smaller ratio; an exchange that "
        "sums or divides, see docs/exchanges.md; hierarchy=, if ranks share a machine; or "
        "training without gradwire"
    )


def frame_nbytes(codec: Codec, numel: int) -> int:
    """Return the approximate bytes of a frame; 0 if they depend on the gradients."""
    sparsify = codec.sparsify
    if not (sparsify.shared or isinstance(sparsify, TopK | ChunkTopK)):
        ratio = getattr(sparsify, "ratio", None)
        if ratio is None:
            return 0
        # The sparsifier aims at this number of entries, a closer estimate than the bound.
        try:
            codec = dataclasses.replace(codec, sparsify=TopK(ratio=ratio))
        except ValueError:
            return 0
    return codec.max_encoded_len(numel)
