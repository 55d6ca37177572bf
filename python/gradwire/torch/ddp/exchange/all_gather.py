"""One bucket's way by all-gather: encode into a slot, gather all slots, decode in rank order."""

import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from gradwire.errors import NonFiniteError
from gradwire.frame import decode_add
from gradwire.torch.ddp.errors import ExchangeError, GradientError
from gradwire.torch.ddp.exchange import slots
from gradwire.torch.ddp.exchange.base import Exchange
from gradwire.torch.ddp.exchange.pieces import (
    accumulator,
    any_nonzero,
    named,
    pack_dense,
    raise_bad,
    reason_of,
    unpack_dense,
)
from gradwire.torch.ddp.exchange.senders import divide_by_senders
from gradwire.torch.ddp.exchange.slots import Plan, Reading, Status
from gradwire.torch.ddp.jobs import Buffers, Flight, Job
from gradwire.torch.ddp.layout import Layout

__all__ = ["Gathered"]


@dataclass(slots=True, eq=False)
class _Slots:
    plan: Plan
    slot: torch.Tensor
    gathered: torch.Tensor


class Gathered(Exchange):
    """Gathers the frames of all ranks: one collective a bucket.

    Parameters
    ----------
    mean : {"ranks", "senders"}
        See `gradwire.exchange.AllGather`.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        *,
        check_result: bool,
        mean: Literal["ranks", "senders"],
    ) -> None:
        super().__init__(group, check_result=check_result)
        self._mean = mean
        self._slots = Buffers()
        self._gathers = Buffers()
        # Gloo's threads let go of a collective's tensors a little later than it is done. If nobody
        # here held these views any more, they would need the interpreter's lock for it, and old
        # releases of torch (2.4 is one) hold that lock while they wait for those threads to end.
        self._recent: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=16)

    # The sending thread -----------------------------------------------------------------------

    def send(self, job: Job, sequence: int) -> Flight:
        """Encode a bucket and put its slot under way."""
        start = time.perf_counter()
        plan = Plan.of(job.layout, job.buffer.element_size())
        slot = self._slots.take(plan.nbytes)
        self._fill(job, plan, slot, sequence)
        self.times.add("encode", start)
        gathered = self._gathers.take(plan.nbytes * self.world_size)
        views = gathered[: plan.nbytes * self.world_size], slot[: plan.nbytes]
        self._recent.append(views)
        work = dist.all_gather_into_tensor(*views, group=self.group, async_op=True)
        assert work is not None  # as it is with async_op
        return Flight(
            job,
            sequence,
            works=(work,),
            contents=_Slots(plan, slot, gathered),
            room=plan.nbytes,
            wire=plan.nbytes * (self.world_size - 1),
        )

    def _fill(self, job: Job, plan: Plan, slot: torch.Tensor, sequence: int) -> None:
        layout = job.layout
        view: NDArray[np.uint8] = slot.numpy()
        try:
            self._fill_frames(job, plan, view)
            if layout.runs:
                pack_dense(job, slot[plan.dense_at : plan.dense_end].view(layout.dtype))
            slots.write_header(view, layout, sequence)
        except GradientError as error:
            reason = reason_of(error, layout)
            slots.write_failure(view, layout, sequence, Status.NON_FINITE, reason)
        except Exception as error:  # whatever it is, the other ranks are waiting for this slot
            text = f"{type(error).__name__}: {error}"
            slots.write_failure(view, layout, sequence, Status.FAILED, text)

    def _fill_frames(self, job: Job, plan: Plan, view: NDArray[np.uint8]) -> None:
        records = plan.records(view)
        at = plan.frames_at
        for record, piece, limit in zip(records, job.layout.pieces, plan.limits, strict=True):
            start = time.perf_counter()
            parameter = piece.parameter
            source = self._gradient(job, piece)
            try:
                nbytes = parameter.codec.encode_into(
                    source, parameter.state, view[at : at + limit], max_nbytes=limit
                )
            except NonFiniteError as error:
                raise named(error, piece) from error
            self._encoded(job, piece, source)
            last = parameter.state.last
            record["size"] = nbytes
            record["wanted"] = wanted(nbytes, last["count"], last["trimmed"])
            record["zero"] = not any_nonzero(job.buffer[piece.start : piece.stop])
            at += nbytes
            parameter.tally.encoded(nbytes, last, time.perf_counter() - start)

    # The receiving thread ---------------------------------------------------------------------

    def _combine(self, flight: Flight) -> None:
        contents = flight.contents
        assert isinstance(contents, _Slots)
        plan, job = contents.plan, flight.job
        gathered = contents.gathered[: plan.nbytes * self.world_size]
        slot_of = gathered.view(self.world_size, plan.nbytes)
        try:
            readings = [
                slots.read(slot, rank, plan, job.layout, flight.sequence)
                for rank, slot in enumerate(slot_of.numpy())
            ]
            _raise_failure(job.layout, readings)
            self._combine_frames(job, readings)
            self._combine_dense(job, plan, slot_of)
        finally:
            self._slots.give(contents.slot)
            self._gathers.give(contents.gathered)

    def _combine_frames(self, job: Job, readings: list[Reading]) -> None:
        # First all limits: they must agree on all ranks whatever happens below.
        for index, piece in enumerate(job.layout.pieces):
            job.step.observe(piece.parameter, max(each.wanted[index] for each in readings))
        for index, piece in enumerate(job.layout.pieces):
            start = time.perf_counter()
            if all(reading.zeros[index] for reading in readings):
                self._unused(job, piece)
            else:
                target = job.buffer[piece.start : piece.stop]
                self._average(target, job.scale, [reading.frames[index] for reading in readings])
            piece.parameter.tally.decoded(time.perf_counter() - start)

    def _average(self, target: torch.Tensor, scale: float, frames: list[NDArray[np.uint8]]) -> None:
        in_place = target.dtype == torch.float32
        total = target if in_place else self._float32("receive", target.numel())
        total.zero_()
        by_rank = self._mean == "ranks"
        # Multiplying by a power of two is exact, so it may happen entry by entry, where it is free.
        factor = scale / self.world_size if by_rank else scale
        exact = math.frexp(factor)[0] == 0.5
        array = total.numpy()
        for frame in frames:
            decode_add(frame, array, factor if exact else 1.0)
        if not exact:
            if by_rank:
                total.div_(self.world_size)
            if scale != 1.0:
                total.mul_(scale)
        if not by_rank:
            divide_by_senders(array, frames)
        if not in_place:
            target.copy_(total)

    def _combine_dense(self, job: Job, plan: Plan, slot_of: torch.Tensor) -> None:
        layout = job.layout
        if not layout.runs:
            return
        start = time.perf_counter()
        total = torch.zeros(layout.dense_numel, dtype=accumulator(layout.dtype))
        for part in slot_of[:, plan.dense_at : plan.dense_end]:
            total += part.view(layout.dtype)
        total /= self.world_size
        unpack_dense(job, total, start)


def wanted(nbytes: int, count: int, trimmed: int) -> int:
    """Return the size that a frame would have had without its limit, to a few per cent."""
    return nbytes if trimmed == 0 else -(-nbytes * (count + trimmed) // max(count, 1))


def _raise_failure(layout: Layout, readings: list[Reading]) -> None:
    """Raise what the first failing rank reports: the same on every rank."""
    for rank, reading in enumerate(readings):
        if reading.status is Status.FAILED:
            raise ExchangeError(f"rank {rank} could not encode: {reading.message}", rank)
    for rank, reading in enumerate(readings):
        if reading.status is Status.NON_FINITE:
            raise_bad(layout, reading.reason, rank)
