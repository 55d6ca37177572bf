"""Slots that kernels fill and read: messages between ranks that the host need not see first."""

import itertools
import time

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.backends.cpu import SlotAverages, SlotFacts, SlotOrder, Table
from gradwire.torch.backends.cuda import encoding
from gradwire.torch.backends.cuda.operators import operators
from gradwire.torch.backends.cuda.states import COLUMNS, Encoding
from gradwire.torch.backends.staging import naming_loss, staging


class FilledSlot:
    """A slot that kernels fill; ``launched`` is how many seconds it took to have them do that."""

    __slots__ = (
        *("_began", "_buffer", "_done", "_order", "_shares", "_stage", "_started", "_table"),
        "launched",
    )

    def __init__(self, buffer: torch.Tensor, slot: torch.Tensor, order: SlotOrder) -> None:
        start = time.perf_counter()
        stage, facts, places = staging(buffer.device), order.facts, order.places
        self._buffer, self._order, self._stage = buffer, order, stage
        if facts.there is None or facts.there.device != buffer.device:
            facts.there = _DeviceFacts(facts, buffer.device)
        there: _DeviceFacts = facts.there
        self._began = stage.moment()
        dense = slot[places.dense_at : places.dense_end].view(buffer.dtype)
        if order.runs:
            torch.cat([buffer[first:stop] for first, stop in order.runs], out=dense)
        self._started: Encoding | None = None
        self._table, self._shares = there.no_rows, np.empty(0)
        if order.codecs:
            self._started = encoding.start(
                *(order.codecs, order.states, order.ends, places.limits, buffer, order.scale),
                slot[places.frames_at :],
            )
            self._table, self._shares = self._started.table, self._started.shares
        operators().write_slot(
            *(slot, self._table, dense, there.facts),
            there.no_total if order.total is None else order.total,
            order.header,
            (places.records_at, places.dense_at, places.front),
            *(len(facts.dense), facts.rank, order.tells_zero),
        )
        self._done = stage.moment()
        if self._started is not None:
            self._started.mark()
        self.launched = time.perf_counter() - start

    def outcomes(self) -> Table:
        """Return the table of `Bucket.encode`, of fewer rows if one failed; wait if need be."""
        if self._started is None:
            return np.empty((0, 6), np.int64)
        rows = self._started.outcomes()
        spent = (1e9 * self.seconds() * self._shares[: len(rows)]).astype(np.int64)
        return np.column_stack([rows, spent])

    def seconds(self) -> float:
        """Return how long the device took to encode, after it has finished."""
        return self._stage.seconds(self._began, self._done)

    def average(self, slots: torch.Tensor, *, senders: bool, checks: bool) -> SlotAverages:
        """Write the averages of all slots to the bucket, and wait for the outcome.

        Each row is the slot of one rank. Nothing is written unless all slots and all frames are
        valid: otherwise read the headers, or call `Bucket.average`, for the error. Parameters that
        are zero on all ranks are set to zero. On request, tells whether the bucket then is finite.
        """
        with naming_loss(self._buffer.device):
            stage, order, places = self._stage, self._order, self._order.places
            began = stage.moment()
            reads = [slots[:, : places.front], self._table]
            if order.codecs:
                failed = operators().decode_slots(
                    *(self._buffer, slots, order.ends, places.limits),
                    (places.records_at, places.frames_at, places.nbytes),
                    order.header[:3],
                    len(slots),
                    encoding.SENDERS if senders else encoding.RANKS,
                    order.scale,
                    encoding.is_seeded(self._buffer.device),
                )
                reads.append(failed[:1])
            if checks:
                total = self._buffer.sum(
                    dtype=torch.promote_types(self._buffer.dtype, torch.float32)
                )
                reads.append(torch.isfinite(total))
            done = stage.moment()
            headers, rows, *words = stage.read_all(reads)
            if self._started is not None:
                self._started.outcomes(rows.numpy())
            seconds = stage.seconds(began, done)
            good = not order.codecs or not int(words[0])
            spent = (1e9 * seconds * self._shares).astype(np.int64) if good else None
            return SlotAverages(headers.numpy(), spent, checks and bool(words[-1]), seconds)


class _DeviceFacts:
    """A device's copy of the facts of a bucket."""

    def __init__(self, facts: SlotFacts, device: torch.device) -> None:
        self.device = device
        self.facts = staging(device).upload(_bytes_of(facts))
        self.no_rows = torch.empty((0, COLUMNS), dtype=torch.int64, device=device)
        self.no_total = torch.empty(0, dtype=torch.int64, device=device)


def _bytes_of(facts: SlotFacts) -> torch.Tensor:
    """Return the bytes of the struct `SlotFacts` of csrc/bucket/slot.h."""
    refusal = facts.refusal.encode()
    room = facts.room - len(refusal)
    names = [name.encode(errors="replace")[:room].decode(errors="ignore") for name in facts.names]
    texts = [*(name.encode() for name in names), refusal]
    words = [
        *itertools.accumulate(map(len, texts), initial=0),
        *itertools.accumulate((numel for numel, _ in facts.dense), initial=0),
        *(width for _, width in facts.dense),
    ]
    data: NDArray[np.uint8] = np.frombuffer(
        np.array(words, "<i8").tobytes() + b"".join(texts), "u1"
    )
    return torch.from_numpy(data.copy())
