"""The exchange by all-gather: encode into a slot, gather all slots, decode in rank order."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from gradwire.torch.ddp.errors import ExchangeError, GradientError
from gradwire.torch.ddp.exchange import slots
from gradwire.torch.ddp.exchange.base import Exchange
from gradwire.torch.ddp.exchange.pieces import (
    accumulator,
    pack_dense,
    raise_bad,
    reason_of,
    unpack_dense,
)
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
    """Gathers the frames of all ranks: one collective per bucket.

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
        # Gloo's threads release a collective's tensors shortly after it completes. If these views
        # had no reference here, those threads would need the GIL to free them, and old releases of
        # torch (such as 2.4) hold the GIL while they wait for those threads to end.
        self._recent: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=16)

    # The sending thread -----------------------------------------------------------------------

    def send(self, job: Job, sequence: int) -> Flight:
        """Encode a bucket and start the all-gather of its slot."""
        start = time.perf_counter()
        plan = Plan.of(job.layout, job.bucket.itemsize)
        on = job.bucket.frames_on
        slot = self._slots.take(plan.nbytes, job.step.number, on)
        self._fill(job, plan, slot, sequence)
        self.times.add("encode", start)
        gathered = self._gathers.take(plan.nbytes * self.world_size, job.step.number, on)
        views = gathered[: plan.nbytes * self.world_size], slot[: plan.nbytes]
        self._recent.append(views)
        work = dist.all_gather_into_tensor(*views, group=self.group, async_op=True)
        assert work is not None  # with async_op
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
        front = np.zeros(plan.front, np.uint8)
        try:
            self._fill_frames(job, plan, slot, front)
            if layout.runs:
                pack_dense(job, slot[plan.dense_at : plan.dense_end].view(layout.dtype))
            slots.write_header(front, layout, sequence)
            front = front[: plan.dense_at]
        except GradientError as error:
            reason = reason_of(error, layout)
            slots.write_failure(front, layout, sequence, Status.NON_FINITE, reason)
        except BaseException as error:  # of any kind: the other ranks wait for this slot
            text = f"{type(error).__name__}: {error}"
            slots.write_failure(front, layout, sequence, Status.FAILED, text)
        job.bucket.put(slot, front)

    def _fill_frames(
        self, job: Job, plan: Plan, slot: torch.Tensor, front: NDArray[np.uint8]
    ) -> None:
        every = range(len(job.layout.pieces))
        outcomes = self._encode(job, every, plan.limits, slot[plan.frames_at :])
        records = plan.records(front)
        records["size"] = outcomes.nbytes
        records["wanted"] = outcomes.wanted()
        records["zero"] = outcomes.zero
        job.layout.tallies.encoded(job.layout.rows, outcomes, outcomes.nbytes)

    # The receiving thread ---------------------------------------------------------------------

    def _combine(self, flight: Flight) -> None:
        contents = flight.contents
        assert isinstance(contents, _Slots)
        plan, job = contents.plan, flight.job
        gathered = contents.gathered[: plan.nbytes * self.world_size]
        slot_of = gathered.view(self.world_size, plan.nbytes)
        try:
            readings = [
                slots.read(front, rank, plan, job.layout, flight.sequence)
                for rank, front in enumerate(job.bucket.look(slot_of, plan.front))
            ]
            _raise_failure(job.layout, readings)
            self._combine_frames(job, plan, gathered, readings)
            self._combine_dense(job, plan, slot_of)
        finally:
            self._slots.give(contents.slot)
            self._gathers.give(contents.gathered)

    def _combine_frames(
        self, job: Job, plan: Plan, gathered: torch.Tensor, readings: list[Reading]
    ) -> None:
        layout = job.layout
        if not layout.pieces:
            return
        # All limits come first: they must agree on all ranks whatever happens below.
        most = np.max([reading.wanted for reading in readings], axis=0)
        for parameter, wanted in zip(layout.compressed, most.tolist(), strict=True):
            job.step.observe(parameter, wanted)
        unused = np.all([reading.zeros for reading in readings], axis=0)
        for index in np.flatnonzero(unused):
            job.step.undo(layout.compressed[index])
        nanoseconds = job.bucket.average(
            gathered,
            [rank * plan.nbytes + plan.frames_at for rank in range(self.world_size)],
            [reading.sizes for reading in readings],
            layout.ends,
            unused.tolist(),
            self._mean == "senders",
            job.scale,
        )
        layout.tallies.decoded(layout.rows, nanoseconds)

    def _combine_dense(self, job: Job, plan: Plan, slot_of: torch.Tensor) -> None:
        layout = job.layout
        if not layout.runs:
            return
        start = time.perf_counter()
        total = slot_of.new_zeros(layout.dense_numel, dtype=accumulator(layout.dtype))
        for part in slot_of[:, plan.dense_at : plan.dense_end]:
            total += part.view(layout.dtype)
        total /= self.world_size
        unpack_dense(job, total, start)


def _raise_failure(layout: Layout, readings: list[Reading]) -> None:
    """Raise the error of the first failing rank: the same on every rank."""
    for rank, reading in enumerate(readings):
        if reading.status is Status.FAILED:
            raise ExchangeError(f"rank {rank} could not encode: {reading.message}", rank)
    for rank, reading in enumerate(readings):
        if reading.status is Status.NON_FINITE:
            raise_bad(layout, reading.reason, rank)
