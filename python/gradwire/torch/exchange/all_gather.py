"""The exchange by all-gather: encode into a slot, gather all slots, decode in rank order."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.engine.layout import Layout
from gradwire.torch.engine.step import BucketTask, BufferPool, InFlightBucket
from gradwire.torch.errors import ExchangeError, GradientError
from gradwire.torch.exchange import slot as slots
from gradwire.torch.exchange.base import ExchangeBase
from gradwire.torch.exchange.dense import (
    accumulator,
    mean_of,
    pack_dense,
    raise_bad,
    reason_of,
    take,
    unpack_dense,
)
from gradwire.torch.exchange.slot import Plan, Reading, Status
from gradwire.torch.transport import Channel

__all__ = ["AllGatherExchange", "Contents", "unused"]


@dataclass(slots=True, eq=False)
class Contents:
    """What was gathered for one bucket."""

    plan: Plan
    slot: torch.Tensor
    gathered: torch.Tensor
    readings: list[Reading] = field(default_factory=list)


class AllGatherExchange(ExchangeBase):
    """Gathers the frames of all ranks: one collective per bucket.

    Parameters
    ----------
    mean : {"ranks", "senders"}
        See `gradwire.exchange.AllGather`.
    """

    def __init__(
        self,
        channel: Channel,
        carriers: Mapping[str, str],
        *,
        check_result: bool,
        mean: Literal["ranks", "senders"],
    ) -> None:
        super().__init__(channel, carriers, check_result=check_result)
        self._mean = mean
        self._slots = BufferPool()
        self._gathers = BufferPool()
        # Gloo's threads release a collective's tensors shortly after it completes. If these views
        # had no reference here, those threads would need the GIL to free them, and old releases of
        # torch (such as 2.4) hold the GIL while they wait for those threads to end.
        self._recent: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=16)

    def close(self) -> None:
        """Release the channel, without closing it, and the memory of slots."""
        super().close()
        self._slots.clear()
        self._gathers.clear()

    # The sending thread -----------------------------------------------------------------------

    def send(self, job: BucketTask, sequence: int) -> InFlightBucket:
        """Encode a bucket and start the all-gather of its slot."""
        start = time.perf_counter()
        plan = Plan.of(job.layout, job.bucket.itemsize)
        (slot,), job = take(job, [(self._slots, plan.nbytes)])
        self._fill(job, plan, slot, sequence)
        self.times.add("encode", start)
        every = plan.nbytes * self.world_size
        (gathered,), told = take(job, [(self._gathers, every)])
        if told.error is not job.error:
            self._fill(told, plan, slot, sequence)
        views = gathered[:every], slot[: plan.nbytes]
        if slot.is_cpu:
            self._recent.append(views)
        work = self.channel.all_gather(*views)
        return InFlightBucket(
            job,
            sequence,
            works=(work,),
            contents=Contents(plan, slot, gathered),
            room=plan.nbytes,
            wire=plan.nbytes * (self.world_size - 1),
        )

    def _fill(self, job: BucketTask, plan: Plan, slot: torch.Tensor, sequence: int) -> None:
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
        job.bucket.write_header(slot, front)

    def _fill_frames(
        self, job: BucketTask, plan: Plan, slot: torch.Tensor, front: NDArray[np.uint8]
    ) -> None:
        every = range(len(job.layout.pieces))
        outcomes = self._encode(job, every, plan.limits, slot[plan.frames_at :])
        records = plan.records(front)
        records["size"] = outcomes.nbytes
        records["wanted"] = outcomes.wanted()
        records["zero"] = outcomes.zero
        job.layout.counters.encoded(job.layout.rows, outcomes, outcomes.nbytes)

    # The receiving thread ---------------------------------------------------------------------

    def _look(self, flight: InFlightBucket) -> NDArray[np.uint8]:
        contents = flight.contents
        assert isinstance(contents, Contents)
        return flight.job.bucket.read_headers(self._slot_of(contents), contents.plan.front)

    def _combine(self, flight: InFlightBucket, fronts: NDArray[np.uint8]) -> None:
        contents = flight.contents
        assert isinstance(contents, Contents)
        job = flight.job
        try:
            self._read(flight, contents, fronts)
            self._decode(job, contents)
        finally:
            mark = job.bucket.used(contents.slot, contents.gathered)
            self._slots.give(contents.slot, mark)
            self._gathers.give(contents.gathered, mark)

    def _slot_of(self, contents: Contents) -> torch.Tensor:
        """Return the slots of all ranks, one row a rank."""
        nbytes = contents.plan.nbytes
        return contents.gathered[: nbytes * self.world_size].view(self.world_size, nbytes)

    def _read(self, flight: InFlightBucket, contents: Contents, fronts: NDArray[np.uint8]) -> None:
        """Read how all ranks fared; undo the encodes of parameters that none has used."""
        job, plan = flight.job, contents.plan
        layout = job.layout
        readings = contents.readings = [
            slots.read(front, rank, plan, layout, flight.sequence)
            for rank, front in enumerate(fronts)
        ]
        _raise_failure(layout, readings)
        if not layout.pieces:
            return
        # All limits come first: they must agree on all ranks whatever happens below.
        most = np.max([reading.wanted for reading in readings], axis=0)
        for parameter, wanted in zip(layout.compressed, most.tolist(), strict=True):
            job.step.observe(parameter, wanted)
        job.step.undo([layout.compressed[index] for index in np.flatnonzero(unused(readings))])

    def _decode(self, job: BucketTask, contents: Contents, *, counts: bool = True) -> None:
        """Write the averages of all parameters; what is exchanged dense need not be counted."""
        plan, readings, layout = contents.plan, contents.readings, job.layout
        slot_of = self._slot_of(contents)
        if layout.pieces:
            nanoseconds = job.bucket.average(
                slot_of.view(-1),
                [rank * plan.nbytes + plan.frames_at for rank in range(self.world_size)],
                [reading.sizes for reading in readings],
                layout.ends,
                unused(readings).tolist(),
                self._mean == "senders",
                job.scale,
            )
            layout.counters.decoded(layout.rows, nanoseconds)
        if layout.runs:
            start = time.perf_counter()
            total = self._dense_mean(layout, plan, slot_of)
            if counts:
                unpack_dense(job, total, start)
            else:
                job.bucket.unpack(layout.runs, total)

    def _dense_mean(self, layout: Layout, plan: Plan, slot_of: torch.Tensor) -> torch.Tensor:
        total = slot_of.new_zeros(layout.dense_numel, dtype=accumulator(layout.dtype))
        for part in slot_of[:, plan.dense_at : plan.dense_end]:
            total += part.view(layout.dtype)
        return mean_of(total, self.world_size)


def unused(readings: Sequence[Reading]) -> NDArray[np.bool_]:
    """Tell for each piece whether its gradient is zero on every rank."""
    found: NDArray[np.bool_] = np.all([reading.zeros for reading in readings], axis=0)
    return found


def _raise_failure(layout: Layout, readings: list[Reading]) -> None:
    """Raise the error of the first failing rank: the same on every rank."""
    for rank, reading in enumerate(readings):
        if reading.status is Status.FAILED:
            raise ExchangeError(f"rank {rank} could not encode: {reading.message}", rank)
    for rank, reading in enumerate(readings):
        if reading.status is Status.NON_FINITE:
            raise_bad(layout, reading.reason, rank)
