"""Slots that kernels fill and read: what goes between ranks before the host has seen any of it."""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire._codec import Codec
from gradwire.torch.backends.cpu import SlotAverages, SlotFacts, SlotPlaces, Table
from gradwire.torch.backends.cuda import encoding
from gradwire.torch.backends.cuda.operators import operators
from gradwire.torch.backends.cuda.states import COLUMNS, Encoding
from gradwire.torch.backends.host import Staging, staging


class FilledSlot:
    """A slot that kernels were started to fill: see `gradwire.torch.backends.cpu.FilledSlot`."""

    __slots__ = (
        *("_began", "_buffer", "_done", "_empty", "_header", "_limits", "_places", "_shares"),
        *("_stage", "_started", "_table", "launched"),
    )

    def __init__(
        self,
        codecs: Sequence[Codec],
        states: Sequence[Any],
        ends: Sequence[int],
        buffer: torch.Tensor,
        dense: torch.Tensor,
        slot: torch.Tensor,
        places: SlotPlaces,
        header: Sequence[int],
        total: torch.Tensor | None,
        facts: SlotFacts,
        scale: float,
        *,
        tells_zero: bool,
    ) -> None:
        began = time.perf_counter()
        stage = self._stage = staging(buffer.device)
        there = kept(facts, buffer.device)
        self._began = stage.moment()
        self._buffer, self._places, self._header = buffer, places, list(header[:3])
        self._limits = list(places.limits)
        self._empty = not codecs
        self._started: Encoding | None = None
        self._shares = np.empty(0)
        self._table = there.no_rows
        if codecs:
            frames = slot[places.frames_at :]
            self._started = encoding.start(
                codecs, states, ends, self._limits, buffer, scale, frames
            )
            assert self._started.table is not None
            self._table, self._shares = self._started.table, self._started.shares
        operators().write_slot(
            slot,
            self._table,
            dense,
            there.facts,
            there.no_total if total is None else total,
            header,
            (places.records_at, places.dense_at, places.front),
            len(facts.dense),
            facts.rank,
            tells_zero,
        )
        self._done = stage.moment()
        if self._started is not None:
            self._started.mark()
        self.launched = time.perf_counter() - began

    def settle(self) -> Table:
        """Return the table of `Bucket.encode`, of fewer rows if one failed; wait if need be."""
        if self._started is None:
            return np.empty((0, 6), np.int64)
        self._started.settle()
        rows = encoding.outcomes(self._started)
        spent = (1e9 * self.seconds() * self._shares[: len(rows)]).astype(np.int64)
        return np.column_stack([rows, spent])

    def seconds(self) -> float:
        """Return how long the device has encoded; once that is over."""
        return self._stage.seconds(self._began, self._done)

    def average(
        self,
        slots: torch.Tensor,
        ends: Sequence[int],
        scale: float,
        *,
        senders: bool,
        checks: bool,
    ) -> SlotAverages:
        """Decode the slots of all ranks, and wait for all that the host is to know."""
        stage, places = self._stage, self._places
        began = stage.moment()
        reads = [slots[:, : places.front], self._table]
        if not self._empty:
            failed = operators().decode_slots(
                self._buffer,
                slots,
                ends,
                self._limits,
                (places.records_at, places.frames_at, places.nbytes),
                self._header,
                len(slots),
                encoding.SENDERS if senders else encoding.RANKS,
                scale,
                encoding.is_seeded(self._buffer.device),
            )
            reads.append(failed[:1])
        if checks:
            total = self._buffer.sum(dtype=torch.promote_types(self._buffer.dtype, torch.float32))
            reads.append(torch.isfinite(total))
        done = stage.moment()
        headers, rows, *words = stage.read_all(reads)
        if self._started is not None:
            self._started.settle(rows.numpy())
        seconds = stage.seconds(began, done)
        good = self._empty or not int(words[0])
        spent = (1e9 * seconds * self._shares).astype(np.int64) if good else None
        return SlotAverages(headers.numpy(), spent, checks and bool(words[-1]), seconds)


class Kept:
    """What a device keeps of `SlotFacts`."""

    def __init__(self, facts: SlotFacts, device: torch.device, stage: Staging) -> None:
        self.device = device
        self.facts = stage.upload(_bytes_of(facts))
        self.no_rows = torch.empty((0, COLUMNS), dtype=torch.int64, device=device)
        self.no_total = torch.empty(0, dtype=torch.int64, device=device)


def kept(facts: SlotFacts, device: torch.device) -> Kept:
    """Return what is on a device of facts, which goes there once."""
    if facts.there is None or facts.there.device != device:
        facts.there = Kept(facts, device, staging(device))
    there: Kept = facts.there
    return there


def _bytes_of(facts: SlotFacts) -> torch.Tensor:
    """Return what `SlotFacts` of csrc/bucket/slot.h is, as bytes one after another."""
    refusal = facts.refusal.encode()
    room = facts.room - len(refusal)
    names = [name.encode(errors="replace")[:room].decode(errors="ignore") for name in facts.names]
    texts = [*(name.encode() for name in names), refusal]
    words = [
        *itertools.accumulate(map(len, texts), initial=0),
        *itertools.accumulate((numel for numel, _ in facts.dense), initial=0),
        *(width for _, width in facts.dense),
    ]
    data: NDArray[np.uint8] = np.frombuffer(np.array(words, "<i8").tobytes() + b"".join(texts), "u1")
    return torch.from_numpy(data.copy())
