"""Parts of frames to the owners of ranges, and their sums to all ranks: sparse or quantized.

`gradwire.exchange.ReduceScatter` and `gradwire.exchange.QuantizedAllReduce` differ only in what
owners send of the sums, which `merge_bucket` knows from the codec. A bucket takes four collectives,
the first started in the sending thread, the others one after another in the receiving thread and in
a channel of their own:

1. an all-to-all of messages, of fixed length: how each rank fared, which gradients were zero, and
   how many bytes follow;
2. an all-to-all of the parts, which have just these bytes;
3. an all-gather of how each owner fared, and of how many bytes it has made;
4. an all-to-all, in which every owner sends the same to all, of just these bytes.

Every rank hears of a failure before the collective that the failing rank would have no data for;
then the ranks share the errors instead, and raise the same one.
"""

import functools
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire import _native
from gradwire.errors import NonFiniteError
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.step import BucketTask, InFlightBucket
from gradwire.torch.errors import ExchangeError, GradientError
from gradwire.torch.exchange import wire
from gradwire.torch.exchange.base import ExchangeBase
from gradwire.torch.exchange.dense import divide, pack_dense, sum_dtype, unpack_dense
from gradwire.torch.transport import LocalChannel

_NOTHING = np.empty(0, np.uint8)
_FRAME_HEADER_NBYTES = 48
_SECTIONS = struct.Struct("<QQ")  # bytes of both sections, in the header of a frame
_SECTIONS_AT = 32
# More than any frame has, whatever its codec: besides its entries, and for each of them.
_FRAME_NBYTES, _ENTRY_NBYTES = 4096, 32
_UNEQUAL = 4  # runs begin where groups do if a run has at least so many of them


@dataclass(frozen=True, slots=True)
class _Run:
    """A part of a parameter that one rank owns."""

    index: int  # of the parameter among the compressed ones of the bucket
    start: int  # its first entry in the parameter
    stop: int


class _Ownership:
    """Which rank owns which entries of a bucket.

    The compressed entries of a model, one parameter after another from its end, are dealt out to
    the ranks in runs, so long that a bucket has about one for each rank. So a small parameter
    mostly has one owner, a bucket has all of them, and who owns an entry does not depend on how DDP
    groups the parameters, which differs at the start of a resumed run. Of a parameter as large as a
    bucket, every rank owns one run. Dense entries are divided evenly in every bucket: their sums
    are the same, whoever adds them up.

    Where entries in a row share scales, such as those of a column of `gradwire.quantize.TwoMeans`,
    runs begin where such a group does, unless that would make them too unequal. So owners quantize
    whole groups again, and no frame is cut within one.
    """

    __slots__ = ("bounds", "dense", "owners", "runs")

    def __init__(self, layout: BucketContents, size: int) -> None:
        cuts = [_runs_of(parameter, size) for parameter in layout.compressed]
        # Where the runs of each compressed parameter begin and end, in its entries.
        self.bounds = [bounds for bounds, _ in cuts]
        # The rank that owns each of them; no rank owns two runs of one parameter.
        self.owners = [owners for _, owners in cuts]
        # Those of each rank, in the order of the bucket.
        self.runs: list[list[_Run]] = [[] for _ in range(size)]
        for index, (bounds, owners) in enumerate(cuts):
            for owner, (start, stop) in zip(owners, pairwise(bounds), strict=True):
                self.runs[owner].append(_Run(index, start, stop))
        # Where each rank's dense entries begin and end.
        self.dense = _divide_evenly(layout.dense_numel, size)

    def limits(self, itemsize: int) -> list[int]:
        """Return for each rank a bound on messages about what it owns, in bytes."""
        return [
            itemsize * (stop - start)
            + sum(_FRAME_NBYTES + _ENTRY_NBYTES * (each.stop - each.start) for each in runs)
            for runs, (start, stop) in zip(self.runs, pairwise(self.dense), strict=True)
        ]


def _runs_of(parameter: ParameterSlot, size: int) -> tuple[list[int], list[int]]:
    """Return where the runs of a parameter begin and end, and who owns them."""
    numel, (before, together) = parameter.numel, parameter.run
    run = max(1, -(-together // size))
    first = before // run
    if numel == 0:
        return [0], []
    if numel > run * (size - 1):  # one run would not be enough, or two could have one owner
        bounds = _divide_evenly(numel, size)
    else:
        inside = range(run * (first + 1), before + numel, run)
        bounds = [0, *(each - before for each in inside), numel]
    step: int = parameter.codec._codec.cut_step(numel)
    if _UNEQUAL * step <= run:
        bounds[1:-1] = [min((each + step // 2) // step * step, numel) for each in bounds[1:-1]]
    owners = [(first + index) % size for index in range(len(bounds) - 1)]
    there = [index for index in range(len(owners)) if bounds[index] < bounds[index + 1]]
    return [*(bounds[index] for index in there), numel], [owners[index] for index in there]


def _count(flight: InFlightBucket, room: int, sent: int) -> None:
    """Count one more collective of a bucket."""
    flight.room += room
    flight.wire += sent
    flight.collectives += 1


def _divide_evenly(numel: int, size: int) -> list[int]:
    return [numel * rank // size for rank in range(size + 1)]


def check_lengths(verdicts: Sequence[wire.Verdict], limits: Sequence[int]) -> list[int]:
    """Return the bytes that ranks announce; ExchangeError if that is more than there can be."""
    lengths = [each.nbytes for each in verdicts]
    for rank, (length, limit) in enumerate(zip(lengths, limits, strict=True)):
        if length > limit:
            raise ExchangeError(
                f"rank {rank} announces {length} bytes, more than the {limit} that there can be: "
                "its message is damaged",
                rank,
            )
    return lengths


def _frame_sizes(message: wire.Bytes, at: int, count: int, rank: int) -> list[int]:
    """Return the bytes of so many frames that follow one another, as their headers say."""
    sizes = []
    for _ in range(count):
        if at + _FRAME_HEADER_NBYTES > message.size:
            break
        size = _FRAME_HEADER_NBYTES + sum(_SECTIONS.unpack_from(message.data, at + _SECTIONS_AT))
        sizes.append(size)
        at += size
    if len(sizes) < count or at != message.size:
        raise ExchangeError(f"the frames of rank {rank} do not fill its message", rank)
    return sizes


@dataclass(slots=True, eq=False)
class _Messages:
    """The messages of one bucket."""

    ownership: _Ownership
    parts: wire.Bytes  # for all owners, one after another: dense entries, and parts of frames
    sizes: list[int]  # of the parts for each owner
    fronts: torch.Tensor  # messages of all ranks, each with its zero flags
    error: BaseException | None = None  # why this rank has no parts
    # Parameters whose gradients are zero on every rank.
    unused: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    # Of each owner: means of dense entries, and frames of sums.
    merged: list[torch.Tensor] = field(default_factory=list)


class OwnerExchange(ExchangeBase):
    """Sends parts of frames to their owners, and what those make of the sums to all ranks.

    Both channels are a `LocalChannel`. Frames are on the host.
    """

    _KEPT: ClassVar[int] = 8

    # The sending thread -----------------------------------------------------------------------

    def send(self, task: BucketTask, sequence: int) -> InFlightBucket:
        """Encode a bucket, cut its frames by owner, and start the all-to-all of messages."""
        start = time.perf_counter()
        layout = task.layout
        ownership = _Ownership(layout, self.world_size)
        zero, error = np.zeros(len(layout.pieces), np.int64), None
        parts: list[wire.Bytes] = []
        message = _NOTHING
        try:
            parts = self._cut(task, ownership, zero)
            message = np.concatenate(parts)
        except BaseException as raised:  # of any kind: the other ranks wait for the message
            error, parts = raised, []
        sizes = [each.size for each in parts]
        front = wire.HEADER_NBYTES + -(-len(layout.pieces) // 8)
        checksum = self._checksums.last(layout)
        rows = np.zeros((self.world_size, front), np.uint8)
        rows[:, wire.HEADER_NBYTES :] = np.packbits(zero.astype(bool))
        for row, nbytes in zip(rows, sizes or [0] * self.world_size, strict=True):
            row = row[: wire.HEADER_NBYTES]
            wire.write_verdict(row, layout.digest, sequence, error, nbytes, checksum)
        mine = torch.from_numpy(rows).view(-1)
        fronts = torch.empty_like(mine)
        self.times.add("encode", start)
        self._keep(mine, fronts)
        work = cast("LocalChannel", self.channel).all_to_all(fronts, mine)
        return InFlightBucket(
            task,
            sequence,
            works=(work,),
            contents=_Messages(ownership, message, sizes, fronts.view(self.world_size, -1), error),
            room=mine.numel(),
            wire=mine.numel() - front,
        )

    def _cut(
        self, task: BucketTask, ownership: _Ownership, zero: NDArray[np.int64]
    ) -> list[wire.Bytes]:
        """Return the message for each owner: its dense entries, and then its parts."""
        layout = task.layout
        # Lengths are exact: no sizes are observed, and those that a checkpoint brings do not count.
        limits = [each.codec.max_encoded_len(each.numel) for each in layout.compressed]
        frames = self._frames.take(sum(limits), task.step.number, task.bucket)
        try:
            outcomes = self._encode(task, range(len(layout.pieces)), limits, frames)
            zero[:] = outcomes.zero
            sizes = outcomes.nbytes.tolist()
            split = functools.partial(
                _native.split_bucket,
                frames.numpy(),
                sizes,
                ownership.bounds,
                ownership.owners,
                self.world_size,
            )
            compared = self._compared(task)
            parts = split() if compared is None else compared.split(split)
        finally:
            self._frames.give(frames)  # to this thread, which works in its own order
        layout.counters.encoded(layout.rows, outcomes, outcomes.nbytes)
        if not layout.runs:
            return parts
        dense = torch.empty(layout.dense_numel, dtype=layout.dtype)
        pack_dense(task, dense)
        values, size = dense.view(torch.uint8).numpy(), dense.element_size()
        bounds = [bound * size for bound in ownership.dense]
        return [
            np.concatenate((values[bounds[rank] : bounds[rank + 1]], part))
            for rank, part in enumerate(parts)
        ]

    # The receiving thread ---------------------------------------------------------------------

    def _read_headers(self, flight: InFlightBucket) -> NDArray[np.uint8]:
        """Exchange the parts, merge what this rank owns, and exchange that."""
        messages, task, sequence = flight.contents, flight.task, flight.sequence
        assert isinstance(messages, _Messages)
        layout = task.layout
        fronts = messages.fronts.numpy()
        verdicts = self._verdicts(flight, fronts, messages.error, "encode")
        zeros = np.unpackbits(fronts[:, wire.HEADER_NBYTES :], axis=1, count=len(layout.pieces))
        messages.unused = zeros.min(axis=0).astype(bool)
        limits = messages.ownership.limits(task.bucket.itemsize)
        lengths = check_lengths(verdicts, [limits[self.rank]] * self.world_size)
        received = self._swap(flight, messages.parts, messages.sizes, lengths)
        messages.parts = _NOTHING
        error, merged, copies = None, _NOTHING, _NOTHING
        try:
            task.step.undo([layout.compressed[index] for index in np.flatnonzero(messages.unused)])
            merged = self._merge(task, messages, received)
            copies = np.tile(merged, self.world_size)
        except BaseException as raised:  # of any kind: the other ranks wait for the message
            error = raised
        header = np.zeros(wire.HEADER_NBYTES, np.uint8)
        wire.write_verdict(header, layout.digest, sequence, error, merged.size)
        mine = torch.from_numpy(header)
        every = mine.new_empty(self.world_size * wire.HEADER_NBYTES)
        self._keep(mine, every)
        wire.wait(self.second.all_gather(every, mine), sequence)
        rows: NDArray[np.uint8] = every.view(self.world_size, -1).numpy()
        _count(flight, mine.numel(), every.numel() - mine.numel())
        lengths = check_lengths(self._verdicts(flight, rows, error, "merge what it owns"), limits)
        messages.merged = self._swap(flight, copies, [merged.size] * self.world_size, lengths)
        return rows

    def _verdicts(
        self, flight: InFlightBucket, messages: wire.Bytes, error: BaseException | None, act: str
    ) -> list[wire.Verdict]:
        """Return how all ranks fared with this act; raise the same error on all if one failed."""
        layout, sequence = flight.task.layout, flight.sequence
        verdicts = wire.read_verdicts(messages, layout.digest, sequence)
        if any(each.failed for each in verdicts):
            wire.share_failure(self.second, layout, sequence, error, act)
        self._checksums.compare(layout, verdicts)
        return verdicts

    def _swap(
        self, flight: InFlightBucket, message: wire.Bytes, sizes: list[int], lengths: list[int]
    ) -> list[torch.Tensor]:
        """Send each rank its bytes of a message; return those of all ranks for this one."""
        mine = torch.from_numpy(message)
        every = mine.new_empty(sum(lengths))
        self._keep(mine, every)
        work = cast("LocalChannel", self.second).all_to_all(every, mine, lengths, sizes)
        wire.wait(work, flight.sequence)
        _count(flight, mine.numel(), mine.numel() - sizes[self.rank])
        return list(torch.split(every, lengths))

    def _merge(
        self, task: BucketTask, messages: _Messages, received: list[torch.Tensor]
    ) -> wire.Bytes:
        """Return the means of this rank's dense entries, and frames of the sums of its runs."""
        layout, ownership = task.layout, messages.ownership
        numel = ownership.dense[self.rank + 1] - ownership.dense[self.rank]
        nbytes = numel * task.bucket.itemsize
        runs = ownership.runs[self.rank]
        states = [layout.compressed[run.index].state for run in runs]
        unused = [bool(messages.unused[run.index]) for run in runs]

        def merge(states: Sequence[Any]) -> tuple[wire.Bytes, Any, Any]:
            return _native.merge_bucket(
                [message.numpy() for message in received],
                [nbytes] * self.world_size,
                [layout.compressed[run.index].codec._codec for run in runs],
                states,
                [end for run in runs for end in (run.start, run.stop)],
                unused,
            )

        compared = self._compared(task)
        if compared is None:
            frames, merged, error = merge(states)
        else:
            frames, merged, error = compared.merge(merge, states, unused)
        if isinstance(error, NonFiniteError):
            run = runs[merged.size // 3]
            name = layout.compressed[run.index].name
            raise GradientError(error.count, run.start + error.first, name, -1) from error
        if error is not None:
            raise error
        if not numel:
            return frames
        total = torch.zeros(numel, dtype=sum_dtype(layout.dtype))
        for message in received:
            # A copy: what follows dense entries of another rank may have put these anywhere.
            total += torch.from_numpy(message[:nbytes].numpy().copy()).view(layout.dtype)
        mean = divide(total, self.world_size).to(layout.dtype)
        return np.concatenate((mean.view(torch.uint8).numpy(), frames))

    def _combine(self, flight: InFlightBucket, headers: NDArray[np.uint8]) -> None:
        """Decode the messages of all owners."""
        del headers
        messages, task = flight.contents, flight.task
        assert isinstance(messages, _Messages)
        layout, bounds = task.layout, messages.ownership.dense
        means = []
        for rank, message in enumerate(messages.merged):
            nbytes = (bounds[rank + 1] - bounds[rank]) * task.bucket.itemsize
            means.append(message[:nbytes])
            self._decode(task, messages, rank, message, nbytes)
        if layout.runs:
            start = time.perf_counter()
            unpack_dense(task, torch.cat(means).view(layout.dtype), start)
        self._checksums.note(flight)

    def _decode(
        self, task: BucketTask, messages: _Messages, rank: int, message: torch.Tensor, start: int
    ) -> None:
        """Write the averages of a rank's runs."""
        layout = task.layout
        runs = messages.ownership.runs[rank]
        unused = [bool(messages.unused[run.index]) for run in runs]
        sizes = iter(_frame_sizes(message.numpy(), start, unused.count(False), rank))
        if not runs:
            return
        nanoseconds = self._coder(task).average(
            message,
            [start],
            [[0 if skipped else next(sizes) for skipped in unused]],
            [layout.pieces[run.index].start + end for run in runs for end in (run.start, run.stop)],
            unused,
            False,
            task.scale,
            ranks=self.world_size,
        )
        layout.counters.decoded(layout.rows[[run.index for run in runs]], nanoseconds)
