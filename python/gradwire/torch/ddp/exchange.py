"""One bucket's way over the wire: encode into a slot, gather all slots, decode in rank order."""

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from gradwire.errors import NonFiniteError
from gradwire.frame import decode_add
from gradwire.torch.ddp import slots
from gradwire.torch.ddp.errors import ExchangeError, GradientError
from gradwire.torch.ddp.jobs import Buffers, Flight, Job
from gradwire.torch.ddp.layout import Layout, Piece
from gradwire.torch.ddp.report import StepTimes
from gradwire.torch.ddp.slots import Plan, Reading, Status

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["Exchange"]


class Exchange:
    """Encodes, gathers and decodes buckets.

    `send` and `receive` run in two threads, each of which sees the buckets in the order that DDP
    has on every rank. That makes the collectives' order the same everywhere.

    Parameters
    ----------
    codec : gradwire.Codec
        What `Parameter.state` was made by.
    group : torch.distributed.ProcessGroup
        A group that nobody else uses.
    check_result : bool
        Whether results are checked for overflow, which a loss scaler has to know of.
    """

    def __init__(self, codec: "Codec", group: dist.ProcessGroup, *, check_result: bool) -> None:
        self._codec = codec
        self.group: dist.ProcessGroup | None = group
        self._check_result = check_result
        self._slots = Buffers()
        self._gathers = Buffers()
        # Gloo's threads let go of a collective's tensors a little later than it is done. If nobody
        # here held these views any more, they would need the interpreter's lock for it, and old
        # releases of torch (2.4 is one) hold that lock while they wait for those threads to end.
        self._recent: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=16)
        self._scratch = {side: torch.empty(0) for side in ("send", "receive")}
        self.world_size = group.size()
        self.times = StepTimes()

    def close(self) -> None:
        """Leave the group once every rank has come here: nobody cuts off one that still reads."""
        group, self.group = self.group, None
        if group is None or not dist.is_initialized():
            return
        everyone, mine = torch.zeros(self.world_size), torch.zeros(1)
        dist.all_gather_into_tensor(everyone, mine, group=group)
        dist.destroy_process_group(group)
        del group  # its last reference goes while its last tensors are still held

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
        return Flight(job, sequence, plan, slot, gathered, work)

    def _fill(self, job: Job, plan: Plan, slot: torch.Tensor, sequence: int) -> None:
        layout = job.layout
        view: NDArray[np.uint8] = slot.numpy()
        try:
            self._fill_frames(job, plan, view)
            self._fill_dense(job, plan, slot)
            slots.write_header(view, layout, sequence)
        except GradientError as error:
            place = [piece.parameter.name for piece in (*layout.pieces, *layout.dense)]
            reason = [place.index(str(error.name)), error.count, error.first]
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
            gradient = job.buffer[piece.start : piece.stop]
            source = self._source(gradient, job.scale)
            try:
                nbytes = self._codec.encode_into(
                    source, parameter.state, view[at : at + limit], max_nbytes=limit
                )
            except NonFiniteError as error:
                raise GradientError(error.count, error.first, parameter.name, -1) from error
            job.step.encode(parameter)
            last = parameter.state.last
            record["size"] = nbytes
            record["wanted"] = _wanted(nbytes, last["count"], last["trimmed"])
            record["zero"] = not _any_nonzero(gradient)
            at += nbytes
            parameter.tally.encoded(nbytes, last, time.perf_counter() - start)

    def _fill_dense(self, job: Job, plan: Plan, slot: torch.Tensor) -> None:
        layout = job.layout
        if not layout.runs:
            return
        packed = slot[plan.dense_at : plan.dense_end].view(layout.dtype)
        at = 0
        for start, stop in layout.runs:
            packed[at : at + stop - start] = job.buffer[start:stop]
            at += stop - start
        if torch.isfinite(packed).all():
            return
        for piece in layout.dense:
            bad = ~torch.isfinite(job.buffer[piece.start : piece.stop])
            if bad.any():
                first = int(bad.nonzero()[0])
                raise GradientError(int(bad.sum()), first, piece.parameter.name, -1)

    def _source(self, gradient: torch.Tensor, scale: float) -> NDArray[Any]:
        """Return the gradient without its loss scale, as an array that the codec reads in place."""
        if scale == 1.0 and gradient.dtype != torch.bfloat16:
            return gradient.numpy()
        # In float32 before the division: small float16 gradients would vanish the other way round.
        source = self._float32("send", gradient.numel()).copy_(gradient)
        return (source if scale == 1.0 else source.div_(scale)).numpy()

    # The receiving thread ---------------------------------------------------------------------

    def receive(self, flight: Flight) -> None:
        """Wait for a bucket's slots and put the average into its buffer.

        Raises
        ------
        GradientError
            A gradient was not finite on some rank, or the result overflowed. All ranks raise it.
        ExchangeError
            The collective failed, a rank could not encode, or the ranks are not in step.
        """
        if flight.error is not None:
            raise flight.error
        job, plan, gathered = flight.job, flight.plan, flight.gathered
        assert plan is not None  # as all of them are, without an error
        assert gathered is not None
        assert flight.slot is not None
        start = time.perf_counter()
        self._wait(flight)
        start = self.times.add("exchange", start)
        self.times.sent(plan.nbytes, job.buffer.numel() * job.buffer.element_size())
        try:
            self._combine(job, plan, gathered, flight.sequence)
        finally:
            self._slots.give(flight.slot)
            self._gathers.give(gathered)
        self.times.add("decode", start)
        if self._check_result and not _all_finite(job.buffer):
            raise _overflow(job)

    def _wait(self, flight: Flight) -> None:
        assert flight.work is not None
        try:
            flight.work.wait()
        except RuntimeError as error:
            raise ExchangeError(
                f"bucket {flight.sequence} was not exchanged: another rank has stopped, failed, or "
                f"did not come to the same backward in time ({str(error).strip()})"
            ) from error

    def _combine(self, job: Job, plan: Plan, gathered: torch.Tensor, sequence: int) -> None:
        slot_of = gathered[: plan.nbytes * self.world_size].view(self.world_size, plan.nbytes)
        readings = [
            slots.read(slot, rank, plan, job.layout, sequence)
            for rank, slot in enumerate(slot_of.numpy())
        ]
        _raise_failure(job.layout, readings)
        self._combine_frames(job, readings)
        self._combine_dense(job, plan, slot_of)

    def _combine_frames(self, job: Job, readings: list[Reading]) -> None:
        # First all limits: they must agree on all ranks whatever happens below.
        for index, piece in enumerate(job.layout.pieces):
            assert piece.parameter.limit is not None
            piece.parameter.limit.observe(max(reading.wanted[index] for reading in readings))
        for index, piece in enumerate(job.layout.pieces):
            start = time.perf_counter()
            target = job.buffer[piece.start : piece.stop]
            if all(reading.zeros[index] for reading in readings):
                # Unused on every rank as far as anyone can tell; DDP would drop what we write.
                job.step.undo(piece.parameter)
                target.zero_()
            else:
                self._average(target, job.scale, [reading.frames[index] for reading in readings])
            piece.parameter.tally.decoded(time.perf_counter() - start)

    def _average(self, target: torch.Tensor, scale: float, frames: list[NDArray[np.uint8]]) -> None:
        in_place = target.dtype == torch.float32
        total = target if in_place else self._float32("receive", target.numel())
        total.zero_()
        # Multiplying by a power of two is exact, so it may happen entry by entry, where it is free.
        factor = scale / self.world_size
        exact = math.frexp(factor)[0] == 0.5
        array = total.numpy()
        for frame in frames:
            decode_add(frame, array, factor if exact else 1.0)
        if not exact:
            total.div_(self.world_size)
            if scale != 1.0:
                total.mul_(scale)
        if not in_place:
            target.copy_(total)

    def _combine_dense(self, job: Job, plan: Plan, slot_of: torch.Tensor) -> None:
        layout = job.layout
        if not layout.runs:
            return
        start = time.perf_counter()
        half = layout.dtype in (torch.float16, torch.bfloat16)
        parts = slot_of[:, plan.dense_at : plan.dense_end]
        total = torch.zeros(layout.dense_numel, dtype=torch.float32 if half else layout.dtype)
        for part in parts:
            total += part.view(layout.dtype)
        total /= self.world_size
        at = 0
        for begin, end in layout.runs:
            job.buffer[begin:end] = total[at : at + end - begin]
            at += end - begin
        share = (time.perf_counter() - start) / len(layout.dense)
        for piece in layout.dense:
            piece.parameter.tally.dense(_nbytes(piece, job.buffer), share)

    def _float32(self, side: str, numel: int) -> torch.Tensor:
        if self._scratch[side].numel() < numel:
            self._scratch[side] = torch.empty(numel, dtype=torch.float32)
        return self._scratch[side][:numel]


def _wanted(nbytes: int, count: int, trimmed: int) -> int:
    """Return the size that a frame would have had without its limit, to a few per cent."""
    return nbytes if trimmed == 0 else -(-nbytes * (count + trimmed) // max(count, 1))


def _any_nonzero(gradient: torch.Tensor, block: int = 1 << 16) -> bool:
    """Tell whether an entry is not zero; nearly always the first block says so."""
    starts = range(0, gradient.numel(), block)
    return any(bool(gradient[start : start + block].any()) for start in starts)


def _all_finite(tensor: torch.Tensor) -> bool:
    # One read and no temporary. A sum of finite values may overflow: then look closely.
    total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
    return bool(torch.isfinite(total)) or bool(torch.isfinite(tensor).all())


def _overflow(job: Job) -> GradientError:
    for piece in (*job.layout.pieces, *job.layout.dense):
        bad = ~torch.isfinite(job.buffer[piece.start : piece.stop])
        if bad.any():
            first = int(bad.nonzero()[0])
            return GradientError(int(bad.sum()), first, piece.parameter.name, 0)
    raise AssertionError("called for a finite buffer")


def _raise_failure(layout: Layout, readings: list[Reading]) -> None:
    """Raise what the first failing rank reports: the same on every rank."""
    for rank, reading in enumerate(readings):
        if reading.status is Status.FAILED:
            raise ExchangeError(f"rank {rank} could not encode: {reading.message}", rank)
    for rank, reading in enumerate(readings):
        if reading.status is Status.NON_FINITE:
            index, count, first = reading.reason
            name = [piece.parameter.name for piece in (*layout.pieces, *layout.dense)][index]
            raise GradientError(count, first, name, rank)


def _nbytes(piece: Piece, buffer: torch.Tensor) -> int:
    return piece.parameter.numel * buffer.element_size()
